"""What is given to the recording process is in the journal, however slow the process is and however it ends."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from owt_pipeline.engine.workers import WorkerError
from owt_pipeline.fetch.answers import NoPage, Page
from owt_pipeline.fetch.client import Received
from owt_pipeline.fetch.fetched import Fetched
from owt_pipeline.fetch.journal import Journal
from owt_pipeline.fetch.recorder import Recorder, start_recording
from schemas import Reason

BODY = b"<p>page</p>" * 10_000
PAGE = Fetched(Received("http://a.example/", 200, "HTTP/1.1 200 OK", [], BODY, 5), (), 1, 5, 1_000_000)
MOST_WAITING = 8 << 20


def test_pages_wait_for_a_slow_process_in_bounded_memory_and_all_are_recorded(tmp_path: Path) -> None:
    told, pids = [], []

    async def record(journal: Journal) -> int:
        recording = await start_recording()
        pids.append(recording.process.pid)
        given = 0
        async with Recorder(recording, journal, lambda: told.append(len(journal))) as recorder:

            async def give() -> None:
                nonlocal given
                for url_id in range(500):
                    await recorder.take(url_id, PAGE)
                    given += 1

            os.kill(recording.process.pid, signal.SIGSTOP)
            giving = asyncio.ensure_future(give())
            await asyncio.sleep(0.5)
            waiting = given
            os.kill(recording.process.pid, signal.SIGCONT)
            await giving
            await recorder.take(500, NoPage(Reason.DNS, "no such name"))
        await recording.close()
        return waiting

    with Journal(str(tmp_path / "journal")) as journal:
        waiting = asyncio.run(record(journal))
        assert 0 < waiting * len(BODY) < MOST_WAITING
        assert told[-1] == len(journal) == 501
        assert (journal.ids.tolist(), journal.num_pages) == (list(range(501)), 500)
        *pages, last = journal.answers(list(range(501)))
        assert all(isinstance(page, Page) and page.body_bytes == len(BODY) for page in pages)
        assert last == NoPage(Reason.DNS, "no such name")
    assert not Path(f"/proc/{pids[0]}").exists()


def test_what_was_recorded_before_the_process_was_killed_is_kept(tmp_path: Path) -> None:
    async def record(journal: Journal) -> None:
        recording = await start_recording()
        async with Recorder(recording, journal, lambda: None) as recorder:
            for url_id in range(10):
                await recorder.take(url_id, PAGE)
            while len(journal) < 10:
                await asyncio.sleep(0.01)
            os.kill(recording.process.pid, signal.SIGKILL)
            await recorder.take(10, PAGE)

    path = str(tmp_path / "journal")
    with Journal(path) as journal, pytest.raises(WorkerError, match=r"its process was killed by SIGKILL"):
        asyncio.run(record(journal))
    with Journal(path) as journal:
        assert journal.ids.tolist() == list(range(10))
