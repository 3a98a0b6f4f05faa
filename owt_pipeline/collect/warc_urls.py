"""The URLs of the pages in a WARC or ARC file: for corpora that start from archives instead of submissions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from owt_pipeline.collect.lines import Block
from owt_pipeline.fetch.acceptance import REDIRECTS, is_html
from owt_pipeline.fetch.captures import captures

_BLOCK_URLS = 10_000


class WarcUrlReader:
    """The target URI of each HTML response that is no redirect, as blocks of one URI a line.

    A "line" counts such responses. Attributes are those of `LineReader`; broken records are skipped and counted.
    """

    def __init__(self, file: Any, size: int):
        self._file, self.bytes_read = file, size
        self.bytes_decompressed = 0  # unknown
        self._skipped = 0

    @property
    def broken(self) -> str | None:
        return f"{self._skipped} broken records skipped" if self._skipped else None

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
        for capture in captures(self._file, self.bytes_read, copy=lambda record: 0):
            if capture is None:
                self._skipped += 1
            elif capture.status not in REDIRECTS and is_html(capture.content_type or ""):
                yield " ".join(capture.url.split())
