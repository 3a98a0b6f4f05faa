"""All that a recorder takes reaches a segment, however slow its threads are, and a kill loses
the last seconds."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from owt_pipeline.stages.fetch import recorder
from owt_pipeline.stages.fetch.answers import FetchedResponse, FetchFailure, HttpResponse, Page
from owt_pipeline.stages.fetch.recorder import Recorder, ShardLease
from owt_pipeline.stages.fetch.segments import SegmentWriter
from schemas import Reason
from tests.owt_pipeline.fetch.test_segments import answered, no_pages, writer

BODY = b"<p>page</p>" * 10_000
PAGE = FetchedResponse(
    HttpResponse("http://a.example/", 200, [], b"HTTP/1.1 200 OK", BODY, 5),
    (),
    1,
    5,
    1_000_000,
)
MAX_WAITING_BYTES = 4 << 20


class OnlyLease(ShardLease):
    """The only lease of a shard."""

    def __init__(self) -> None:
        self.id = "a"

    def check(self) -> None: ...


LEASE = OnlyLease()


def test_pages_wait_for_a_slow_thread_in_bounded_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    progress: list[tuple[int, int]] = []
    may_write = threading.Event()
    append = SegmentWriter.append

    def wait_and_append(writer: SegmentWriter, url_id: int, answer: FetchFailure | Page) -> bool:
        may_write.wait(60)
        return append(writer, url_id, answer)

    monkeypatch.setattr(SegmentWriter, "append", wait_and_append)

    async def record() -> int:
        num_taken = 0
        async with Recorder(
            writer(tmp_path), LEASE, lambda *counts: progress.append(counts)
        ) as recorder:

            async def take_pages(first: int) -> None:
                nonlocal num_taken
                for url_id in range(first, 500, 5):
                    await recorder.take(url_id, PAGE)
                    num_taken += 1

            taking = asyncio.gather(*map(take_pages, range(5)))
            await asyncio.sleep(0.5)
            num_waiting = num_taken
            may_write.set()
            await taking
            await recorder.take(500, FetchFailure(Reason.DNS, "no such name"))
        return num_waiting

    num_waiting = asyncio.run(record())
    assert 0 < num_waiting * len(BODY) < MAX_WAITING_BYTES
    num_results, pages, failures = zip(*progress, strict=True)
    assert (sum(num_results), sum(pages)) == (501, 500)
    assert sum(failures, Counter()) == {"dns": 1}
    reader = answered(tmp_path, range(501))
    assert (reader.ids.tolist(), len(reader.pages)) == (list(range(501)), 500)
    assert reader.rows(reader.ids)["body_bytes"].to_pylist() == [len(BODY)] * 500 + [None]
    assert no_pages(reader) == {500: ("dns", "no such name")}


def test_results_that_wait_at_the_end_are_in_a_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SEGMENT_SECONDS", 0.5)

    async def record() -> None:
        busy = threading.Event()
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
        async with Recorder(writer(tmp_path), LEASE, lambda *_: None) as recorder:
            await recorder.take(1, FetchFailure(Reason.DNS, "no such name"))
            asyncio.get_running_loop().run_in_executor(None, busy.wait, 60)
            await asyncio.sleep(0.3)
            threading.Timer(0.5, busy.set).start()

    asyncio.run(record())
    assert answered(tmp_path, [1]).ids.tolist() == [1]


@pytest.mark.parametrize(("seconds", "size"), [(0.2, 1 << 30), (1000.0, 1000)])
def test_a_segment_is_written_when_it_is_old_or_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seconds: float, size: int
) -> None:
    monkeypatch.setattr(recorder, "SEGMENT_SECONDS", seconds)
    monkeypatch.setattr(recorder, "SEGMENT_BYTES", size)

    async def record() -> list[int]:
        async with Recorder(writer(tmp_path), LEASE, lambda *_: None) as recorder:
            for url_id in range(10):
                await recorder.take(url_id, PAGE)
            while not (ids := answered(tmp_path, range(10)).ids.tolist()):
                await asyncio.sleep(0.01)
            return ids

    ids = asyncio.run(record())
    # By size, a segment is written as soon as it is full, so it has any number of the first pages.
    assert ids == list(range(10 if seconds < 1 else len(ids)))


def test_a_failure_to_write_is_raised_soon_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: SegmentWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SegmentWriter, "flush", full)
    monkeypatch.setattr(recorder, "SEGMENT_SECONDS", 0.1)

    async def record(seconds: float, takes_more: bool) -> None:
        async with Recorder(writer(tmp_path), LEASE, lambda *_: None) as recorder:
            await recorder.take(0, PAGE)
            await asyncio.sleep(seconds)
            if takes_more:
                await recorder.take(1, PAGE)
                raise AssertionError

    for seconds, takes_more in ((0.0, False), (1.0, False), (1.0, True)):
        with pytest.raises(OSError, match="No space left"):
            asyncio.run(record(seconds, takes_more))


def test_a_long_crawl_does_not_leave_a_segment_for_each_interval() -> None:
    """A segment comes each five seconds in the first five minutes, and each minute at the end."""
    times = [0.0]
    while times[-1] < 36_000:
        times.append(times[-1] + recorder.wait_after(times[-1], 5.0))
    gaps = [later - earlier for earlier, later in itertools.pairwise(times)]
    assert gaps[:60] == [5.0] * 60
    assert gaps[-1] == pytest.approx(max(gaps)) == pytest.approx(60.0)
    assert len(gaps) < 1000
