"""The result of a URL: a page, or the reason why there is none.

Live and archived responses are judged by one rule, `judge_response`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import NamedTuple

from yarl import URL

from owt_pipeline.formats.file_kinds import TEXTUAL, kind_of
from owt_pipeline.formats.messages import (
    REDIRECTS,
    BadMessage,
    CutOff,
    Headers,
    TooLarge,
    content_type_of,
    decode_body,
    header,
    is_html,
    media_type_of,
)
from owt_pipeline.formats.urls import redirected
from owt_pipeline.formats.warc import Response, http_record, payload_digest
from schemas import Reason
from schemas.reasons import http_reason


class HttpResponse(NamedTuple):
    """A response as it was received.

    Attributes:
      url: the URL that was requested.
      status: its status code.
      headers: its headers, in order.
      status_line: its first line.
      body: decoded or as sent, as requested.
      ms: time from the request to the last byte.
      truncated: whether the body is incomplete.
      address: the server's IP address; "" behind a proxy.
    """

    url: str
    status: int
    headers: Headers
    status_line: bytes
    body: bytes
    ms: int
    truncated: bool = False
    address: str = ""

    def header(self, name: str) -> str | None:
        """Return the value of a header; None if there is none."""
        return header(self.headers, name)

    @property
    def head(self) -> bytes:
        """Return the status line and the headers with an empty line, for the record."""
        fields = [f"{name}: {value}".encode("latin-1") for name, value in self.headers]
        return b"\r\n".join([self.status_line, *fields, b"", b""])

    def beginning(self) -> str:
        """Return the first words of the body, for a message."""
        return " ".join(self.body[:200].decode("utf-8", "replace").split())

    def location(self) -> URL:
        """Return the absolute URL of the Location header; raises ValueError if it is not a URL."""
        return URL(redirected(self.url, self.header("location") or ""), encoded=True)


_UNICODE_MARKS = (b"\xff\xfe", b"\xfe\xff", b"\x00\x00\xfe\xff")

_LOOKS_LIKE_HTML = re.compile(
    rb"\s*<(?:!--|\?xml|!doctype\s+html|(?:html|head|body|title|meta|script|style|iframe|div|font|p|b|br|h1|table|a)\b)",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Origin:
    """Where a response came from.

    Attributes:
      source: the name of the source.
      crawl: the archive's collection, if it has collections.
      archive_file: the archive's file, if known.
      archive_offset: the first byte of the record in that file, if known.
    """

    source: str
    crawl: str | None = None
    archive_file: str | None = None
    archive_offset: int | None = None


LIVE = Origin("live")


@dataclass(frozen=True)
class Page:
    """A page: its row of `pages/`, without the columns from `urls/` and its place in the WARC
    file, and its record.

    The fields are those of `DATASETS["pages"]`.

    Attributes:
      record: the WARC record as one gzip member.
      redirects: the records of the redirects that led to it.
    """

    source: str
    final_url: str
    status: int
    content_type: str | None
    fetched_at: int
    fetch_ms: int
    body_bytes: int
    payload_digest: str
    record: bytes
    redirects: tuple[bytes, ...] = ()
    crawl: str | None = None
    archive_file: str | None = None
    archive_offset: int | None = None


@dataclass(frozen=True)
class FetchFailure:
    """Why there is no page.

    Attributes:
      reason: why.
      detail: the same for a person.
    """

    reason: Reason
    detail: str


FetchResult = Page | FetchFailure

EARLIEST = -(1 << 40)
LATEST = 1 << 40
"""Times before and after every capture, seconds since 1970."""


def target_time(choice: str, created_utc: int | None, undated: int = LATEST) -> int:
    """Return the time that a capture should be nearest to, by `--archive_choice`.

    `undated` is the time for a submission without a date.
    """
    if choice == "earliest":
        return EARLIEST
    if choice == "latest":
        return LATEST
    return undated if created_utc is None else created_utc


MAX_REDIRECTS = 10
"""Redirects that are followed for one URL."""


INDEXED = tuple(field.name for field in fields(Page) if field.name not in ("record", "redirects"))
"""The fields of a page that are columns of its index."""


def judge_response(
    response: Response, origin: Origin, fetch_ms: int, make_record: Callable[[str], bytes]
) -> FetchResult:
    """Return the page of a final response, or why it is not one.

    `make_record` returns its WARC record, given the digest of the body.
    """
    failure = refuse_head(response.status, response.content_type)
    failure = failure or refuse_body(response.content_type, response.body)
    if failure is not None:
        return failure
    digest = payload_digest(response.body)
    return Page(
        **vars(origin),
        final_url=response.url,
        status=response.status,
        content_type=response.content_type,
        fetched_at=response.date,
        fetch_ms=fetch_ms,
        body_bytes=len(response.body),
        payload_digest=digest,
        record=make_record(digest),
    )


def refuse_head(status: int, content_type: str | None) -> FetchFailure | None:
    """Return why a final response is not a page, by its head; None if it may be one."""
    if status == 206:
        detail = "a part (status 206) where all of it was asked for"
        return FetchFailure(Reason.BAD_RESPONSE, detail)
    if status in (204, 205):
        return FetchFailure(Reason.EMPTY_BODY, f"status {status}: no content")
    if not 200 <= status < 300:
        return FetchFailure(http_reason(status), f"status {status}")
    if content_type is not None and not is_html(content_type):
        return FetchFailure(Reason.NOT_HTML, f"Content-Type: {content_type[:100]}")
    return None


def refuse_body(content_type: str | None, body: bytes) -> FetchFailure | None:
    """Return why a response that may be a page by its head is not one, by its decoded body.

    Returns None if it is a page.
    """
    start = body[:1024].removeprefix(b"\xef\xbb\xbf")
    if not start.strip() and not body.strip():
        detail = f"{len(body)} bytes, all blank" if body else "no bytes"
        return FetchFailure(Reason.EMPTY_BODY, detail)
    # Some servers send other files as text/html.
    kind = kind_of(start)
    if kind not in TEXTUAL:
        return FetchFailure(Reason.NOT_HTML, f"a file of the kind {kind}, sent as {content_type}")
    if media_type_of(content_type) is None and not _LOOKS_LIKE_HTML.match(start):
        sent = f"Content-Type: {content_type[:100]}" if content_type else "no Content-Type"
        return FetchFailure(Reason.NOT_HTML, f"{sent}, and it does not begin like HTML")
    # UTF-32 has three zero bytes in each ASCII letter.
    charset = (content_type or "").lower()
    is_wide = "utf-16" in charset or "utf-32" in charset or body.startswith(_UNICODE_MARKS)
    if b"\x00\x00\x00" in start and not is_wide:
        return FetchFailure(Reason.NOT_HTML, f"binary, sent as {content_type}")
    return None


def has_no_page(status: int, headers: Headers) -> bool:
    """Return whether the head shows that there is no page, so that the body need not be read."""
    return status in REDIRECTS or refuse_head(status, content_type_of(headers)) is not None


class FetchedResponse(NamedTuple):
    """A final response and the redirects that led to it; their bodies are as sent.

    Attributes:
      received: the final response.
      redirects: the redirects before it, in order.
      date: when the first request began, in seconds since 1970.
      ms: duration of all requests.
      max_body_bytes: a response with a longer body after decoding is not a page.
    """

    received: HttpResponse
    redirects: tuple[HttpResponse, ...]
    date: int
    ms: int
    max_body_bytes: int

    def result(self) -> FetchResult:
        """Return the page, or why there is none.

        This takes longer than the request, so it is done in a thread.
        """
        received = self.received
        # Of a response that is not a page, only what came of the body is known.
        body = b""
        try:
            if not has_no_page(received.status, received.headers):
                body = decode_body(
                    received.headers, received.body, self.max_body_bytes, strictly=True
                )
        except (BadMessage, TooLarge) as error:
            hop = f"redirected to {received.url}: " if self.redirects else ""
            return FetchFailure(_reason_of(error), f"{hop}{error}")
        response = Response(received.url, self.date, received.status, received.headers, body)
        is_as_sent = body is received.body
        result = judge_response(
            response,
            LIVE,
            self.ms,
            lambda digest: self._record(received, digest if is_as_sent else None),
        )
        if isinstance(result, Page):
            if not self.redirects:
                return result
            return replace(result, redirects=tuple(map(self._record, self.redirects)))
        retry_after = received.header("retry-after")
        if retry_after and received.status in (429, 503):
            detail = f"{result.detail}, Retry-After: {retry_after[:40]}"
            return FetchFailure(result.reason, detail)
        return result

    def _record(self, received: HttpResponse, digest: str | None = None) -> bytes:
        """Return the WARC record of a response; `digest` is the digest of its body as sent."""
        first_url = self.redirects[0].url if self.redirects else ""
        is_first = bool(self.redirects) and received is self.redirects[0]
        return http_record(
            received.url,
            self.date,
            received.head,
            received.body,
            digest,
            origin="" if is_first else first_url,
            address=received.address,
            truncated="length" if received.truncated else "",
        )


def _reason_of(error: BadMessage | TooLarge) -> Reason:
    """Return why a body cannot be decoded. One that breaks off may be complete another time."""
    if isinstance(error, TooLarge):
        return Reason.TOO_LARGE
    return Reason.CONNECT if isinstance(error, CutOff) else Reason.BAD_RESPONSE
