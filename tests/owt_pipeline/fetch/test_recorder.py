"""All that the recording process takes reaches the journal, however slow it is and however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path

import pytest

from owt_pipeline.engine import workers
from owt_pipeline.errors import WorkerError
from owt_pipeline.stages.fetch import recorder as recorder_module
from owt_pipeline.stages.fetch.answers import NoPage, Page, Received
from owt_pipeline.stages.fetch.journal import Journal
from owt_pipeline.stages.fetch.live import Fetched
from owt_pipeline.stages.fetch.recorder import Recorder, Recording, start_recording
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from tests.conftest import REPOSITORY

BODY = b"<p>page</p>" * 10_000
PAGE = Fetched(Received("http://a.example/", 200, [], b"HTTP/1.1 200 OK\r\n\r\n", BODY, 5), (), 1, 5, 1_000_000)
MOST_WAITING = 8 << 20


def test_pages_wait_for_a_slow_process_in_bounded_memory_and_all_are_recorded(tmp_path: Path) -> None:
    shown, pids = [], []
    folder = Storage(str(tmp_path))

    async def record() -> int:
        recording = await start_recording()
        pids.append(recording.child.pid)
        given = 0
        async with Recorder(recording, folder, "a", lambda *more: shown.append(more)) as recorder:

            async def give() -> None:
                nonlocal given
                for url_id in range(500):
                    await recorder.take(url_id, PAGE)
                    given += 1

            os.kill(recording.child.pid, signal.SIGSTOP)
            giving = asyncio.ensure_future(give())
            await asyncio.sleep(0.5)
            waiting = given
            os.kill(recording.child.pid, signal.SIGCONT)
            await giving
            await recorder.take(500, NoPage(Reason.DNS, "no such name"))
        await recording.close()
        return waiting

    waiting = asyncio.run(record())
    assert 0 < waiting * len(BODY) < MOST_WAITING
    assert tuple(map(sum, zip(*shown, strict=True))) == (501, 500)
    journal = Journal(folder)
    assert (journal.ids.tolist(), len(journal.pages)) == (list(range(501)), 500)
    *pages, last = journal.answers(list(range(501)))
    assert all(isinstance(page, Page) and page.body_bytes == len(BODY) for page in pages)
    assert last == NoPage(Reason.DNS, "no such name")
    assert not Path(f"/proc/{pids[0]}").exists()


async def take_ten(folder: Storage, then: Callable[[Recording], Awaitable[None]]) -> None:
    """Record ten pages, and see what follows."""
    shown = 0

    def count(answers: int, _: int) -> None:
        nonlocal shown
        shown += answers

    recording = await start_recording()
    async with Recorder(recording, folder, "a", count) as recorder:
        for url_id in range(10):
            await recorder.take(url_id, PAGE)
        while shown < 10:
            await asyncio.sleep(0.01)
        await then(recording)
        await recorder.take(10, PAGE)


@pytest.mark.parametrize("name", ["SEGMENT_SECONDS", "SEGMENT_BYTES"])
def test_a_segment_is_written_when_it_is_old_or_large_and_a_kill_loses_the_rest(
    tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def kill(recording: Recording) -> None:
        while not folder.names():
            await asyncio.sleep(0.01)
        os.kill(recording.child.pid, signal.SIGKILL)

    folder, start = Storage(str(tmp_path)), workers.start_child
    monkeypatch.setattr(workers, "start_child", lambda *_: start(partial(serve_with, name)))
    with pytest.raises(WorkerError, match=r"its process was killed by SIGKILL"):
        asyncio.run(take_ten(folder, kill))
    assert Journal(folder).ids.tolist() == list(range(10))


def serve_with(name: str, end: socket.socket) -> None:
    """The recording process, with smaller segments."""
    setattr(recorder_module, name, 0.2 if name == "SEGMENT_SECONDS" else 1000)
    recorder_module._serve(end)


def test_answers_are_recorded_after_the_fetching_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import asyncio, os, signal\n"
        "from tests.owt_pipeline.fetch.test_recorder import Storage, take_ten\n"
        "async def kill(_): os.kill(os.getpid(), signal.SIGKILL)\n"
        f"asyncio.run(take_ten(Storage({str(tmp_path)!r}), kill))\n"
    )
    result = subprocess.run([sys.executable, "-c", code], cwd=REPOSITORY, check=False)
    assert result.returncode == -signal.SIGKILL
    end = time.monotonic() + 10
    while not len(journal := Journal(Storage(str(tmp_path)))):
        assert time.monotonic() < end
        time.sleep(0.05)
    assert journal.ids.tolist() == list(range(10))
