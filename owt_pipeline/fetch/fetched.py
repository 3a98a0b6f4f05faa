"""What the live web answered in the end, and the page that it is."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple

from owt_pipeline.fetch.answers import Answer, NoPage, Page, judge
from owt_pipeline.fetch.client import Received
from owt_pipeline.fetch.http_message import charset_of
from owt_pipeline.fetch.warc import Response, response_record


class Fetched(NamedTuple):
    """A final response, the redirects that led to it, when that began (seconds since 1970), and how long it took."""

    received: Received
    redirects: tuple[Received, ...]
    date: int
    ms: int

    def answer(self) -> Answer:
        """The page that it is, or why it is none: digests and compression, which take longer than the request."""
        received, content_type = self.received, self.received.header("content-type")
        response = Response(
            received.url, self.date, received.status, received.headers,
            content_type, charset_of(content_type), received.body,
        )  # fmt: skip
        answer = judge(response, "live", self.ms, lambda digest: _record(received, self.date, digest))
        if isinstance(answer, Page):
            return replace(answer, redirects=tuple(_record(redirect, self.date) for redirect in self.redirects))
        if (asked := received.header("retry-after")) and received.status in (429, 503):
            return NoPage(answer.reason, f"{answer.detail}, Retry-After: {asked[:40]}")
        return answer


def _record(received: Received, date: int, digest: str | None = None) -> bytes:
    return response_record(received.url, date, received.status_line, received.headers, received.body, digest)
