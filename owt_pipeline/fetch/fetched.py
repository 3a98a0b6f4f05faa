"""What the live web answered in the end, and the page that it is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from owt_pipeline.fetch.answers import Answer, NoPage, Page, judge
from owt_pipeline.fetch.client import Received
from owt_pipeline.fetch.http_message import BadMessage, BodyDecoder, TooLarge, charset_of, gunzip
from owt_pipeline.fetch.warc import Response, response_record
from schemas import Reason


class Fetched(NamedTuple):
    """A final response, the redirects that led to it, when that began (seconds since 1970), and how long it took.

    Bodies are as sent; one that is more than `max_body_bytes` when decoded is no page.
    """

    received: Received
    redirects: tuple[Received, ...]
    date: int
    ms: int
    max_body_bytes: int

    def answer(self) -> Answer:
        """The page that it is, or why it is none: what takes longer than the request."""
        received, content_type = self.received, self.received.header("content-type")
        try:
            body, encoded = _decoded(received, self.max_body_bytes)
        except (BadMessage, TooLarge) as error:
            reason = Reason.TOO_LARGE if isinstance(error, TooLarge) else Reason.BAD_RESPONSE
            return NoPage(reason, f"redirected to {received.url}: {error}" if self.redirects else str(error))
        response = Response(
            received.url, self.date, received.status, received.headers, content_type, charset_of(content_type), body
        )
        payload = received.body if encoded else body

        def record(digest: str) -> bytes:
            return _record(received, self.date, payload, digest, encoded=encoded)

        answer = judge(response, "live", self.ms, record, payload)
        if isinstance(answer, Page):
            redirects = tuple(_record(redirect, self.date, b"") for redirect in self.redirects)
            return replace(answer, redirects=redirects) if redirects else answer
        if (asked := received.header("retry-after")) and received.status in (429, 503):
            return NoPage(answer.reason, f"{answer.detail}, Retry-After: {asked[:40]}")
        return answer


def _decoded(received: Received, limit: int) -> tuple[bytes, bool]:
    """(the decoded body, whether it is recorded as it was sent: in gzip, which any reader of WARC undoes).

    Servers in the wild say gzip and send two members, or junk behind one, at which readers differ.
    """
    encodings = [value.strip().lower() for name, value in received.headers if name.lower() == "content-encoding"]
    if encodings == ["gzip"] and (body := gunzip(received.body, limit)) is not None:
        return body, True
    decoder = BodyDecoder(encodings[-1] if encodings else "", limit)
    body = decoder.feed(received.body)
    decoder.finish()
    return body, False


def _record(received: Received, date: int, body: bytes, digest: str | None = None, *, encoded: bool = False) -> bytes:
    return response_record(received.url, date, received.status_line, received.headers, body, digest, encoded=encoded)
