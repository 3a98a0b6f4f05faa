"""Journals have the answers of all attempts, a shard depends only on them, and one attempt at a time fetches."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from owt_pipeline.engine.stage import Runtime, StageRun
from owt_pipeline.errors import UserError
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.commit import Place, ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.fetch import journal as journal_module
from owt_pipeline.stages.fetch.answers import Answer, NoPage, Page
from owt_pipeline.stages.fetch.journal import Claim, Journal, SegmentWriter
from owt_pipeline.stages.fetch.shards import fetch_part
from owt_pipeline.stages.fetch.stage import STAGE, Options
from owt_pipeline.storage.disk import Process, this_process
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason
from schemas.manifest import Root, ShardRecord

RECORD = response_record("http://a.example/", 1, "HTTP/1.1 200 OK", [], b"<p>page")

pages = st.builds(
    Page,
    source=st.just("live"),
    final_url=st.text(max_size=30),
    status=st.integers(100, 999),
    content_type=st.none() | st.text(max_size=30),
    fetched_at=st.integers(0, 1 << 40),
    fetch_ms=st.integers(0, 1 << 30),
    body_bytes=st.integers(0, 1 << 40),
    payload_digest=st.text(max_size=32),
    record=st.binary(max_size=300),
    redirects=st.lists(st.binary(max_size=50), max_size=3).map(tuple),
)
answers = st.one_of(pages, st.builds(NoPage, st.sampled_from(list(Reason)), st.text(max_size=50)))
entries = st.dictionaries(st.integers(0, (1 << 64) - 1), answers, max_size=8)


def write(folder: Path, attempts: Iterable[dict[int, Answer]], per_segment: int = 3) -> Storage:
    """Write the answers of each attempt, so many per segment; returns the journal's folder."""
    journal = Storage(str(folder))
    for number, answers in enumerate(attempts):
        writer = SegmentWriter(journal, f"attempt{number}", True)
        for count, (url_id, answer) in enumerate(answers.items(), 1):
            writer.append(url_id, answer)
            if count % per_segment == 0:
                writer.flush()
        writer.flush()
    return journal


@settings(max_examples=30)  # each writes and syncs files
@given(st.lists(entries, max_size=3))
def test_answers_of_all_attempts_are_read_back_as_they_were_written(attempts: list[dict[int, Answer]]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        journal = Journal(write(Path(folder), attempts))
        expected = {url_id: answer for answers in reversed(attempts) for url_id, answer in answers.items()}
        assert journal.ids.tolist() == sorted(expected)
        assert set(journal.pages.tolist()) == {i for i, answer in expected.items() if isinstance(answer, Page)}
        asked = sorted({*expected, 12345})
        assert list(journal.answers(asked)) == [expected.get(url_id) for url_id in asked]


@settings(max_examples=50)
@given(entries.filter(bool), st.integers(0, 2000), st.binary(min_size=1, max_size=40))
def test_a_damaged_segment_loses_only_its_own_answers(answers: dict[int, Answer], at: int, junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        storage = write(Path(folder), [answers], 100)
        path = Path(storage.path(storage.names()[0]))
        content = path.read_bytes()
        at %= len(content)
        path.write_bytes(content[:at] + junk)  # as a disk may have it after a power failure
        write(Path(folder), [{}, {5: NoPage(Reason.DNS, "no such name")}])
        assume(path.stat().st_size != len(content))
        journal = Journal(storage)
        assert journal.ids.tolist() == [5]
        assert list(journal.answers([5])) == [NoPage(Reason.DNS, "no such name")]


def test_a_journal_reads_the_segments_written_meanwhile(tmp_path: Path) -> None:
    journal = Journal(Storage(str(tmp_path)))
    assert not len(journal)
    for url_id in range(1, 6):
        write(tmp_path / "", [{}] * url_id + [{url_id: NoPage(Reason.DNS, f"{url_id}")}])
        journal.load()
        assert journal.ids.tolist() == list(range(1, url_id + 1))
    assert list(journal.answers([2, 4])) == [NoPage(Reason.DNS, "2"), NoPage(Reason.DNS, "4")]


ELSEWHERE = Process("another-host", 1, "0")


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Claims with a tenth of their times; with less, a busy machine is late for a renewal."""
    for name in ("TERM_SECONDS", "_VALID_SECONDS", "RENEW_SECONDS", "_LOOK_SECONDS"):
        monkeypatch.setattr(journal_module, name, getattr(journal_module, name) / 10)


@pytest.mark.usefixtures("quick")
def test_a_claim_that_is_not_renewed_is_taken_over_after_its_owner_stopped_asking(tmp_path: Path) -> None:
    async def run() -> None:
        folder = Storage(str(tmp_path))
        first, second = (Claim(folder, "part", [ELSEWHERE]) for _ in range(2))
        await first._acquire()
        assert first.is_valid
        assert not first.was_taken_over
        began = time.monotonic()
        await second._acquire()
        assert time.monotonic() - began >= 1
        assert second.was_taken_over
        assert not first.is_valid
        first.lost = asyncio.ensure_future(first._keep())
        await asyncio.wait_for(first.lost, 10)
        await first.__aexit__()
        assert folder.exists("part"), "it is another's"

    asyncio.run(run())


@pytest.mark.usefixtures("quick")
def test_a_claim_that_is_renewed_is_not_taken_over(tmp_path: Path) -> None:
    async def run() -> None:
        folder = Storage(str(tmp_path))
        second = Claim(folder, "part", [ELSEWHERE])
        async with Claim(folder, "part", [ELSEWHERE]) as first:
            waiting = asyncio.ensure_future(second._acquire())
            for _ in range(40):  # for longer than the term
                await asyncio.sleep(0.1)
                assert first.is_valid
            assert not waiting.done()
        await waiting
        assert second.is_valid

    asyncio.run(run())


def test_the_claim_of_a_process_of_this_machine_that_has_ended_is_free_at_once(tmp_path: Path) -> None:
    async def run() -> None:
        folder = Storage(str(tmp_path))
        ended = replace(this_process(), started="long ago")
        await Claim(folder, "part", [ended, ended])._acquire()
        started = time.monotonic()
        async with Claim(folder, "part", [this_process()]) as claim:
            assert claim.is_valid
            assert time.monotonic() - started < journal_module.TERM_SECONDS
        assert not folder.exists("part")

    asyncio.run(run())


def test_a_claim_is_given_back_by_an_attempt_that_is_cancelled_while_it_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def run() -> None:
        folder, leaving = Storage(str(tmp_path)), threading.Event()

        renew = Claim._renew

        def give_back(claim: Claim) -> bool:
            leaving.set()
            time.sleep(0.2)
            return renew(claim)

        async def fail() -> None:
            async with Claim(folder, "part", [this_process()]) as claim:
                monkeypatch.setattr(claim, "_renew", lambda: give_back(claim))
                raise UserError("no host has answered")

        task = asyncio.ensure_future(fail())
        await asyncio.to_thread(leaving.wait, 10)
        task.cancel()  # another shard has failed, too
        with pytest.raises(asyncio.CancelledError):
            await task
        assert not folder.exists("part")

    asyncio.run(run())


def test_a_shard_has_the_same_bytes_whatever_the_order_of_its_answers(
    write_urls: Callable[..., Runtime], tmp_path: Path
) -> None:
    runtime = write_urls([f"http://a.example/{i}" for i in range(4)], num_shards=1)
    urls = DatasetReader.open(runtime.workdir, "urls")
    ids = urls.table()["url_id"].to_pylist()
    known: list[Answer] = [
        Page("live", f"http://a.example/{i}", 200, "text/html", 5, 6, 7, "D", RECORD, (RECORD,) * i) for i in range(3)
    ]
    known.append(NoPage(Reason.DNS, "no such name"))
    options = Options(user_agent="TestBot/1")
    written = set()
    for number, order in enumerate(itertools.permutations(range(4))):
        folder = runtime.workdir / f"pages{number}"
        write(Path(f"{folder}/work/journal/part-00000/live"), [{ids[i]: known[i] for i in order}])
        nothing: frozenset[int] = frozenset()
        run = StageRun(
            STAGE,
            options,
            runtime,
            {"urls": urls},
            Root(),
            [""],
            [""],
            nothing,
            nothing,
            0,
            None,
            "plan",
            folder / "work",
        )
        outputs = {"": DATASETS["pages"].schema}
        with ShardWriter(folder, Place(folder / "records", 0), outputs, dataset="pages") as writer:
            fetch_part(run, 0, (), writer)
        record = ShardRecord.from_json(folder.read("records/00000.json"))
        assert [file.kind for file in record.files] == ["data", "rejects", "warc"]
        written.add((record.to_json(), *(folder.read(file.path) for file in record.files)))
    assert len(written) == 1
