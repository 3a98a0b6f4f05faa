"""The URLs of the pages in a WARC file: for corpora that start from archives instead of submissions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any

from fastwarc.warc import ArchiveIterator, WarcRecordType

from owt_pipeline.collect.lines import Block

_HTML = ("text/html", "application/xhtml+xml")
_BLOCK_URLS = 10_000


class WarcUrlReader:
    """The target URI of each HTML response that is no redirect, as blocks of one URI a line.

    A "line" counts such responses. Attributes are those of `LineReader`; a file that breaks off yields what is
    before the break.
    """

    def __init__(self, file: IO[bytes] | Any):
        self._file = file
        self.bytes_read = 0
        self.bytes_decompressed = 0
        self.broken: str | None = None

    def __iter__(self) -> Iterator[Block]:
        urls: list[str] = []
        first = 1
        for url in self._urls():
            urls.append(url)
            if len(urls) == _BLOCK_URLS:
                yield Block("\n".join(urls).encode(), first, len(urls))
                first += len(urls)
                urls = []
        if urls:
            yield Block("\n".join(urls).encode(), first, len(urls))

    def _urls(self) -> Iterator[str]:
        at = 0
        try:
            for record in ArchiveIterator(self._file, record_types=WarcRecordType.response, quirks_mode=True):
                at = record.stream_pos
                self.bytes_decompressed += record.content_length
                status = record.http_headers.status_code if record.http_headers else None
                if status is not None and 300 <= status < 400:
                    continue
                if (record.http_content_type or "").lower() in _HTML:
                    yield " ".join((record.headers.get("WARC-Target-URI") or "").strip("<> ").split())
        except OSError as error:
            self.broken = f"warc: {error}, in the record after byte {at:,}"
        self.bytes_read = self._file.tell()
