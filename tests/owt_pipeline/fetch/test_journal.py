"""Journals have the answers of all attempts, a shard depends only on them, and one attempt at a time fetches."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from owt_pipeline.engine.stage import Runtime, StageRun
from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.commit import Place, ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.fetch import journal as journal_module
from owt_pipeline.stages.fetch import recorder as recorder_module
from owt_pipeline.stages.fetch.answers import Answer, NoPage, Page
from owt_pipeline.stages.fetch.journal import Attempt, Journal, SegmentWriter, Superseded
from owt_pipeline.stages.fetch.recorder import Recorder
from owt_pipeline.stages.fetch.shards import fetch_part
from owt_pipeline.stages.fetch.stage import STAGE, Options
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


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal_module, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(recorder_module, "SEGMENT_SECONDS", 0.3)


NOTHING = NoPage(Reason.DNS, "no such name")


@pytest.mark.usefixtures("quick")
def test_an_attempt_that_finds_anothers_id_stops_and_loses_no_answer(tmp_path: Path) -> None:
    async def run() -> None:
        folder, attempts = Storage(str(tmp_path / "journal")), Storage(str(tmp_path / "attempts"))
        first, second = (Attempt(attempts, "part") for _ in range(2))
        assert not first.begin()
        with pytest.raises(Superseded):
            async with Recorder(folder, first, lambda *_: None) as recorder:
                await recorder.take(1, NOTHING)
                await asyncio.sleep(0.5)
                assert not recorder.stopped.done()
                assert second.begin()
                await recorder.take(2, NOTHING)
                await asyncio.wait_for(recorder.stopped, 10)
        first.end()
        assert attempts.exists("part"), "it is the second's"
        second.check()
        second.end()
        assert not attempts.exists("part")
        assert Journal(folder).ids.tolist() == [1, 2]

    asyncio.run(run())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("ends", [True, False])
def test_a_superseded_attempt_waits_until_the_other_ends_or_writes_nothing_more(tmp_path: Path, ends: bool) -> None:
    async def run() -> None:
        folder, attempts = Storage(str(tmp_path / "journal")), Storage(str(tmp_path / "attempts"))
        first, second = (Attempt(attempts, "part") for _ in range(2))
        first.begin()
        second.begin()
        waiting = asyncio.ensure_future(first.wait_for_other(folder))
        for number in range(5):  # for longer than its patience
            folder.create(f"{number}", b"a segment")
            await asyncio.sleep(0.4)
            assert not waiting.done()
        if ends:
            second.end()
        started = time.monotonic()
        await asyncio.wait_for(waiting, 30)
        assert ends or time.monotonic() - started > 0.5
        first.begin()
        with pytest.raises(Superseded):
            second.check()

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
