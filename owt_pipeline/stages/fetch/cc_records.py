"""Common Crawl in bulk: ranges of its files, and a source that reads the records which the join with its index found.

The files are on a web server, in a bucket or on a disk. Over HTTP, each archive host has its own rate, and requests are
retried after 403, 429 and 503, with which Common Crawl answers too many requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from collections.abc import Callable, Coroutine, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import pyarrow as pa
from yarl import URL

from owt_pipeline.errors import UserError
from owt_pipeline.stages.fetch.answers import Answer, NoPage, Origin, Page
from owt_pipeline.stages.fetch.archive_client import (
    BUSY,
    ArchiveClient,
    Refused,
    archive_failed,
    breaker,
    outcome,
)
from owt_pipeline.stages.fetch.archives import page_of_record
from owt_pipeline.stages.fetch.cc_index import is_http, list_files, root_of
from owt_pipeline.stages.fetch.manners import Failed, Slots, for_each
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.sources import Crawl, Source, shared_loop
from owt_pipeline.storage.folder import Storage
from schemas import Reason

if TYPE_CHECKING:
    from owt_pipeline.stages.fetch.stage import Options

_FIRST_RETRIES = 3  # a misspelt host should not take minutes to be reported
_CONNECTIONS = 4  # requests at once to each host of the index and of the records
_TOGETHER_BYTES = 8 << 20  # of one request
_GAP_BYTES = 64 << 10  # the largest gap between two records that is read along: it costs less than another request

_CONTENT_RANGE = re.compile(r"bytes \d+-\d+/(\d+)")


CAPTURE = pa.struct(
    [
        ("crawl", pa.string()),
        ("file", pa.string()),
        ("offset", pa.int64()),
        ("length", pa.int64()),
        ("canonical", pa.string()),
    ]
)
"""A record to read: its place, and its canonical URL."""


class Unreadable(UserError):
    """A request that failed while others succeeded."""


class Try(NamedTuple):
    """A record to read for the URL of a row: a capture, as CAPTURE has it."""

    row: int
    crawl: str
    file: str
    offset: int
    length: int
    canonical: str

    def __str__(self) -> str:
        return f"{self.length:,} bytes at {self.offset} of {self.file}"


class BulkClient(ArchiveClient):
    """Reads ranges of Common Crawl's files, and the records of captures that are known."""

    busy = BUSY
    columns: ClassVar = ("url_id", "url")

    def __init__(self, options: Options, crawl: Crawl):
        super().__init__(options, crawl, _CONNECTIONS, options.cc_delay)
        self._data = options.cc_data or root_of(options.cc_index)
        self._slots = Slots(_CONNECTIONS)  # for reads from buckets and disks

    def status(self) -> str:
        return f"{self._slots.taken:,} requests" if self._slots.taken else super().status()

    async def read(self, uri: str, start: int, length: int) -> bytes:
        """`length` bytes of a file from `start` on; raises Failed with the reason `archive_failed`."""
        where = f"{length:,} bytes at {start} of {uri}"
        if not is_http(uri):
            found = await self._in_thread(where, lambda folder, name: folder.read_range(name, start, length), uri)
        else:
            response = await self.get_part(where, URL(uri), length, f"{start}-{start + length - 1}")
            found = response.body
        if len(found) != length:
            raise Refused(Reason.ARCHIVE_FAILED, f"{where}: only {len(found):,} bytes came")
        return found

    async def read_pieces(self, uri: str, pieces: Sequence[tuple[int, int]]) -> list[bytes]:
        """The bytes of each (start, length) of a file, all requested at once; raises Failed as `read` does."""
        return list(await asyncio.gather(*(self.read(uri, start, length) for start, length in pieces)))

    async def read_end(self, uri: str, length: int) -> tuple[bytes, int]:
        """The last bytes of a file, at most `length`, and the file's size; raises Failed as `read` does."""
        where = f"the end of {uri}"
        if is_http(uri):
            response = await self.get_part(where, URL(uri), length, f"-{length}")
            size = _CONTENT_RANGE.fullmatch(response.header("content-range") or "")
            return response.body, int(size[1]) if size else len(response.body)

        def end(folder: Storage, name: str) -> tuple[bytes, int]:
            size = folder.size(name)
            start = max(size - length, 0)
            return folder.read_range(name, start, size - start), size

        return await self._in_thread(where, end, uri)

    async def read_all(self, uri: str, most: int) -> bytes:
        """A complete file over HTTP, of at most `most` bytes; raises Failed as `read` does."""
        response = await self.get(uri, URL(uri), most, headers={"Accept-Encoding": "identity"}, retries=_FIRST_RETRIES)
        if response.status != 200:
            raise self.refused(URL(uri), uri, f"status {response.status}")
        return response.body

    async def ask(self, urls: pa.Table, recorder: Recorder, resumed: bool) -> None:
        """Read the records of `urls` (columns url_id, url and `captures`, a list of CAPTURE, the best first).

        If a capture is no page or cannot be read, the next one is read. Raises UserError if the archive fails for
        too many URLs in a row.
        """
        url_ids, lists = urls["url_id"].to_pylist(), urls["captures"].to_pylist()
        captures = [iter([Try(row, **capture) for capture in found]) for row, found in enumerate(lists)]
        first: dict[int, Answer] = {}  # by row: why its best capture is no page
        tries = [next(found) for found in captures]
        most = self._limits.wire_bytes
        held = breaker(recorder)

        async def take(row: int, answer: Answer, begun: float = 0.0) -> None:
            if not isinstance(answer, Page):
                answer = first.setdefault(row, answer)
                if (other := next(captures[row], None)) is not None:
                    again.append(other)
                    return
            await held.take(url_ids[row], answer, begun)

        async def read(request: list[Try]) -> None:
            begun = time.monotonic()
            try:
                answers = await self._answers(request)
            except Failed as failure:
                if len(request) > 1:  # one of them may be to blame
                    for each in request:
                        await read([each])
                    return
                answers = [outcome(failure)]
            for each, answer in zip(request, answers, strict=True):
                await take(each.row, answer, begun)

        while tries:
            again: list[Try] = []
            for each in tries:
                if each.length > most:
                    await take(each.row, NoPage(Reason.TOO_LARGE, f"{each}, more than {most:,}"))
            requests = grouped([each for each in tries if each.length <= most])
            await for_each(read, requests, self._connections)
            tries = again
        await held.settle()

    async def _answers(self, request: Sequence[Try]) -> list[Answer]:
        """The answers of records that lie close together, read by one request; raises Failed as `read` does."""
        start, end = request[0].offset, max(each.offset + each.length for each in request)
        uri = f"{self._data.rstrip('/')}/{request[0].file.lstrip('/')}"
        begun = time.monotonic()
        content = await self.read(uri, start, end - start)
        most, ms = self._limits.body_bytes, int((time.monotonic() - begun) * 1000)

        def answer(each: Try) -> Answer:
            record = content[each.offset - start :][: each.length]
            origin = Origin("commoncrawl", each.crawl, each.file, each.offset)
            return page_of_record(record, origin, most, where=str(each), fetch_ms=ms, canonical=each.canonical)

        return await asyncio.to_thread(lambda: list(map(answer, request)))

    async def _in_thread(self, where: str, read: Any, uri: str) -> Any:
        folder, _, name = uri.rpartition("/")
        async with self._slots:
            try:
                return await asyncio.to_thread(lambda: read(Storage(folder), name))
            except (OSError, UserError) as error:
                raise archive_failed(where, str(error)) from error


@contextlib.contextmanager
def reading(options: Options, on_cluster: bool) -> Iterator[Callable[..., Any]]:
    """A function that calls methods of a client in the event loop that the parts of this process share:
    `call(BulkClient.read_end, uri, 8)`. It raises Unreadable if a request fails, UserError if the archive is down."""
    with shared_loop({"commoncrawl": Source(BulkClient, options)}, on_cluster) as loop:

        def call(method: Callable[..., Coroutine[Any, Any, Any]], *arguments: Any) -> Any:
            try:
                return loop.run(method(loop.crawl.clients["commoncrawl"], *arguments))
            except Failed as failure:
                problem = f"{failure.detail}; check it and --cc_crawls, or run again later"
                raise Unreadable(f"--cc_index: {problem}") from failure

        yield call


def index_files(options: Options) -> list[tuple[str, str]]:
    """(crawl, URI) of the files of the index; raises UserError."""
    with reading(options, on_cluster=False) as archive:
        read_all = partial(archive, BulkClient.read_all)
        return list_files(options.cc_index, options.cc_crawls, read_all)


def grouped(tries: Sequence[Try]) -> list[list[Try]]:
    """Records by request, in the order of files and offsets: neighbours in one file are read together."""
    found: list[list[Try]] = []
    end = 0
    for each in sorted(tries, key=lambda each: (each.file, each.offset, each.row)):
        together = (
            found
            and found[-1][0].file == each.file
            and each.offset - end <= _GAP_BYTES
            and each.offset + each.length - found[-1][0].offset <= _TOGETHER_BYTES
        )
        if not together:
            found.append([])
            end = 0
        found[-1].append(each)
        end = max(end, each.offset + each.length)
    return found
