"""Common Crawl's files by range: those of its index, and the records of captures that are known.

The files are on a web server, in a bucket or on a disk. Over HTTP, each host has its own rate, and requests are retried
after 403, 429 and 503, with which Common Crawl answers too many requests.
"""

from __future__ import annotations

import asyncio
import io
import re
import time
from collections.abc import Callable, Coroutine
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import Answer, NoPage, Origin, Received
from owt_pipeline.stages.fetch.archive_client import ArchiveClient, refused
from owt_pipeline.stages.fetch.manners import Failed
from owt_pipeline.stages.fetch.nearest import Asked, Capture, Moved, page_of_record
from owt_pipeline.stages.fetch.sources import with_client
from owt_pipeline.storage.folder import folder_of
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

R = TypeVar("R")

_FIRST_RETRIES = 3  # a misspelt host should not take minutes to be reported
_CONNECTIONS = 4  # requests at once to each host of the index and of the records
_MOST_BYTES = 8 << 20  # of one request
_END_BYTES = 64 << 10  # most footers of Parquet files are smaller

_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d+)")


class BulkClient(ArchiveClient):
    """Reads ranges of Common Crawl's files, and the records of captures that are known."""

    busy = (403, 429, 503)

    def __init__(self, options: Options):
        super().__init__(options, ", ".join(options.cc_crawls), _CONNECTIONS, options.cc_delay)
        self._data = (options.cc_data or options.index_root).rstrip("/")

    async def find(self, asked: Asked) -> list[Capture]:
        """The captures that the index has of the URL, dicts as cc_index.CAPTURE has them."""
        return [
            Capture(
                row["date"],
                place=(row["file"], row["offset"], row["length"], row["crawl"]),
                truncated=row["truncated"],
            )
            for row in asked.captures
        ]

    async def read(self, capture: Capture, url: str) -> Answer | Moved:
        file, offset, length, crawl = capture.place
        where = f"{length:,} bytes at {offset} of {file}"
        if length > self._options.max_page_bytes:
            return NoPage(Reason.TOO_LARGE, f"{where}, more than {self._options.max_page_bytes:,}")
        begun = time.monotonic()
        record = await self.read_range(f"{self._data}/{file.lstrip('/')}", offset, length)
        ms = int((time.monotonic() - begun) * 1000)
        origin = Origin("commoncrawl", crawl, file, offset)
        return await asyncio.to_thread(page_of_record, record, origin, self._options.max_page_bytes, where, ms, url)

    async def read_range(self, uri: str, start: int, length: int) -> bytes:
        """`length` bytes of a file from `start` on; raises Failed with the reason `archive_failed`."""
        where = f"{length:,} bytes at {start} of {uri}"
        if is_http(uri):
            found = (await self._part(where, uri, length, f"{start}-{start + length - 1}")).body
        else:
            folder, name = folder_of(uri)
            try:
                found = await asyncio.to_thread(folder.read_range, name, start, length)
            except (OSError, UserError) as error:
                raise Failed(Reason.ARCHIVE_FAILED, f"{where}: {error}") from error
        if len(found) != length:
            raise refused(where, f"only {len(found):,} bytes came")
        return found

    async def read_end(self, uri: str) -> tuple[bytes, int]:
        """The last bytes of a file on a web server, and the file's size; raises Failed as `read_range` does."""
        response = await self._part(f"the end of {uri}", uri, _END_BYTES, f"-{_END_BYTES}")
        size = _CONTENT_RANGE.fullmatch(response.header("content-range") or "")
        return response.body, int(size[1]) if size else len(response.body)

    async def read_all(self, uri: str, most: int) -> bytes:
        """A complete file on a web server, of at most `most` bytes; raises Failed as `read_range` does."""
        response = await self.get(uri, URL(uri), most, headers={"Accept-Encoding": "identity"}, retries=_FIRST_RETRIES)
        if response.status != 200:
            raise refused(uri, f"status {response.status}")
        return response.body

    async def _part(self, what: str, uri: str, most: int, span: str) -> Received:
        headers = {"Range": f"bytes={span}", "Accept-Encoding": "identity"}
        # The complete file, sent by a server that does not know ranges, is not read.
        response = await self.get(what, URL(uri), most, lambda status, _: status != 206, headers=headers)
        if response.status != 206:
            raise refused(what, f"status {response.status} where a part (206) was asked for")
        self.works = True
        return response


Call = Callable[..., Any]
"""Calls a method of a BulkClient: `call(BulkClient.read_end, uri)`; raises UserError."""


def reading(options: Options, read: Callable[[Call], R]) -> R:
    """The result of `read` with a Call, which any thread may use."""

    async def use(client: BulkClient) -> R:
        loop = asyncio.get_running_loop()

        def call(method: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
            try:
                return asyncio.run_coroutine_threadsafe(method(client, *arguments), loop).result()
            except Failed as failure:
                problem = f"{failure.detail}; check it and --cc_crawls, or run again later"
                raise UserError(f"--cc_index: {problem}") from failure

        return await asyncio.to_thread(read, call)

    return with_client(partial(BulkClient, options), use)


class RemoteFile(io.RawIOBase):
    """A file on a web server; its end is read once, all else by requests of at most 8 MiB."""

    def __init__(self, uri: str, call: Call):
        self._uri, self._call, self._at = uri, call, 0
        self._end, self._size = call(BulkClient.read_end, uri)

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._at = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        start, end = self._at, self._size if size < 0 else min(self._at + size, self._size)
        self._at = end
        if (before := self._size - len(self._end)) <= start:
            return self._end[start - before : end - before]
        places = [(at, min(_MOST_BYTES, end - at)) for at in range(start, end, _MOST_BYTES)]
        return b"".join(self._call(BulkClient.read_range, self._uri, *place) for place in places)


def is_http(uri: str) -> bool:
    return uri.startswith(("http://", "https://"))
