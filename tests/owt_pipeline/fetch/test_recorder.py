"""All that a recorder takes reaches a segment, however slow its threads are, and a kill loses the last seconds."""

from __future__ import annotations

import asyncio
import itertools
import signal
import subprocess
import sys
import threading
from collections.abc import Awaitable, Callable
from pathlib import Path

import pytest

from owt_pipeline.stages.fetch import recorder as recorder_module
from owt_pipeline.stages.fetch.answers import NoPage, Page, Received
from owt_pipeline.stages.fetch.attempt import Attempt
from owt_pipeline.stages.fetch.live import Fetched
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.segments import SegmentWriter
from schemas import Reason
from tests.conftest import REPOSITORY
from tests.owt_pipeline.fetch.test_segments import answered, no_pages, writer

BODY = b"<p>page</p>" * 10_000
PAGE = Fetched(Received("http://a.example/", 200, [], b"HTTP/1.1 200 OK\r\n\r\n", BODY, 5), (), 1, 5, 1_000_000)
MOST_WAITING = 4 << 20


class _Only(Attempt):
    """The only attempt at a shard."""

    def __init__(self) -> None:
        self.id = "a"

    def check(self) -> None: ...


ATTEMPT = _Only()


def test_pages_wait_for_a_slow_thread_in_bounded_memory_and_all_are_recorded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shown: list[tuple[int, int]] = []
    may_write, append = threading.Event(), SegmentWriter.append

    def wait_and_append(writer: SegmentWriter, url_id: int, answer: NoPage | Page) -> bool:
        may_write.wait(60)
        return append(writer, url_id, answer)

    monkeypatch.setattr(SegmentWriter, "append", wait_and_append)

    async def record() -> int:
        given = 0
        async with Recorder(writer(tmp_path), ATTEMPT, lambda *more: shown.append(more)) as recorder:

            async def give(first: int) -> None:
                nonlocal given
                for url_id in range(first, 500, 5):
                    await recorder.take(url_id, PAGE)
                    given += 1

            giving = asyncio.gather(*map(give, range(5)))
            await asyncio.sleep(0.5)
            waiting = given
            may_write.set()
            await giving
            await recorder.take(500, NoPage(Reason.DNS, "no such name"))
        return waiting

    waiting = asyncio.run(record())
    assert 0 < waiting * len(BODY) < MOST_WAITING
    assert tuple(map(sum, zip(*shown, strict=True))) == (501, 500)
    found = answered(tmp_path, range(501))
    assert (found.ids.tolist(), len(found.pages)) == (list(range(501)), 500)
    assert found.rows(found.ids)["body_bytes"].to_pylist() == [len(BODY)] * 500 + [None]
    assert no_pages(found) == {500: ("dns", "no such name")}


async def take_ten(run: Path, then: Callable[[], Awaitable[None]], seconds: float = 0.2) -> None:
    """Record ten pages, and see what follows."""
    recorder_module.SEGMENT_SECONDS = seconds
    async with Recorder(writer(run), ATTEMPT, lambda *_: None) as recorder:
        for url_id in range(10):
            await recorder.take(url_id, PAGE)
        await then()


@pytest.mark.parametrize("limit", ["SEGMENT_SECONDS", "SEGMENT_BYTES"])
def test_a_segment_is_written_when_it_is_old_or_large_and_a_kill_loses_the_rest(tmp_path: Path, limit: str) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from tests.owt_pipeline.fetch.test_recorder import Path, recorder_module, take_ten\n"
        f"run = Path({str(tmp_path)!r})\n"
        "async def kill():\n"
        "    while not list(run.glob('warc/*/*.gz')): await asyncio.sleep(0.01)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
        "recorder_module.SEGMENT_BYTES = 1000\n"
        f"asyncio.run(take_ten(run, kill, {0.2 if limit == 'SEGMENT_SECONDS' else 1000.0}))\n"
    )
    if limit == "SEGMENT_SECONDS":
        code = code.replace("SEGMENT_BYTES = 1000\n", "SEGMENT_BYTES = 1 << 30\n")
    result = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    assert result.returncode == -signal.SIGKILL
    found = answered(tmp_path, range(10)).ids.tolist()
    assert found == list(range(10)) if limit == "SEGMENT_SECONDS" else found == list(range(len(found)))


def test_a_failure_to_write_is_raised_by_the_next_page_and_at_the_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: SegmentWriter) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(SegmentWriter, "flush", full)
    monkeypatch.setattr(recorder_module, "SEGMENT_SECONDS", 0.1)

    async def record(seconds: float, more: bool) -> None:
        async with Recorder(writer(tmp_path), ATTEMPT, lambda *_: None) as recorder:
            await recorder.take(0, PAGE)
            await asyncio.sleep(seconds)
            if more:
                await recorder.take(1, PAGE)
                raise AssertionError

    for seconds, more in ((0.0, False), (1.0, False), (1.0, True)):
        with pytest.raises(OSError, match="No space left"):
            asyncio.run(record(seconds, more))


def test_a_long_crawl_does_not_leave_a_segment_for_each_interval() -> None:
    """Of five seconds: each of the first ten minutes, then fewer, and at the end one a minute."""
    hours = {number: recorder_module.is_due(number, 12) for number in range(1, 10 * 720 + 1)}
    assert all(hours[number] for number in range(1, 121))
    assert sum(hours.values()) < 1000
    due = [number for number, is_due in hours.items() if is_due]
    assert max(later - number for number, later in itertools.pairwise(due)) == 12
