"""Segments have the answers of all sources, a shard depends only on them, and one attempt at a
time fetches."""

from __future__ import annotations

import asyncio
import itertools
import tempfile
import threading
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.formats.warc import response_record
from owt_pipeline.ledger.commit import RecordPath, ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.fetch import outcomes, recorder
from owt_pipeline.stages.fetch.answers import INDEXED, FetchFailure, FetchResult, Page
from owt_pipeline.stages.fetch.recorder import Recorder, ShardLease, Superseded
from owt_pipeline.stages.fetch.segments import (
    SegmentReader,
    SegmentWriter,
    isin_sorted,
    shards_with_hosts_of,
)
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason
from schemas.manifest import Generation, Root, ShardRecord
from tests.owt_pipeline.fetch.conftest import Write

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
answers = st.one_of(
    pages, st.builds(FetchFailure, st.sampled_from(list(Reason)), st.text(max_size=50))
)
entries = st.dictionaries(st.integers(0, (1 << 64) - 1), answers, max_size=8)


ROOT = Root(generations=[Generation("collect", 0, 1)])


def answered(run: Path, ids: Iterable[int], shard: int = 0, root: Root = ROOT) -> SegmentReader:
    """Return the results of `live` for these URLs of a shard."""
    return SegmentReader(
        Storage(str(run)), root, shard, "live-0123abcd", np.array([*ids], np.uint64)
    )


def writer(
    run: Path, shard: int = 0, root: Root = ROOT, *, is_last_try: bool = True
) -> SegmentWriter:
    """Return a writer of further segments of a shard."""
    return answered(run, [], shard, root).writer({"software": "a test"}, is_last_try=is_last_try)


def write(run: Path, attempts: Iterable[dict[int, FetchResult]], per_segment: int = 3) -> None:
    """Write the answers of each attempt, `per_segment` in each segment."""
    for answers in attempts:
        segments = writer(run)
        for count, (url_id, answer) in enumerate(answers.items(), 1):
            segments.append(url_id, answer)
            if count % per_segment == 0:
                segments.flush()
        segments.flush()


def read_back(run: Path, reader: SegmentReader) -> dict[int, tuple[object, ...]]:
    """Return the answer for each URL: why there is no page, or its columns and its record."""
    read = Storage(str(run)).read_range
    return {
        row["url_id"]: (row["reason"], row["detail"])
        if row["reason"]
        else (*(row[name] for name in INDEXED), read(row["segment"], row["offset"], row["length"]))
        for row in rows_of(reader)
    }


def rows_of(reader: SegmentReader) -> list[dict[str, Any]]:
    """Return the rows of all results, final or not."""
    return reader.rows(np.union1d(reader.ids, reader.postponed)).to_pylist()


def no_pages(reader: SegmentReader) -> dict[int, tuple[str, str]]:
    """Return reason and detail of the failures."""
    return {
        row["url_id"]: (row["reason"], row["detail"]) for row in rows_of(reader) if row["reason"]
    }


def expected_of(answer: FetchResult) -> tuple[object, ...]:
    """Return the answer in the form of `read_back`."""
    if isinstance(answer, FetchFailure):
        return str(answer.reason), answer.detail
    return *(getattr(answer, name) for name in INDEXED), answer.record


@settings(max_examples=30, deadline=None)  # each writes and syncs files
@given(st.lists(entries, max_size=3))
def test_results_are_read_back_as_they_were_written(
    attempts: list[dict[int, FetchResult]],
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        write(run, attempts)
        expected = {
            url_id: answer for answers in reversed(attempts) for url_id, answer in answers.items()
        }
        reader = answered(run, {*expected, 12345})
        assert reader.ids.tolist() == sorted(expected)
        assert set(reader.pages.tolist()) == {
            i for i, answer in expected.items() if isinstance(answer, Page)
        }
        assert read_back(run, reader) == {
            url_id: expected_of(answer) for url_id, answer in expected.items()
        }
        # The other URLs in these segments are in another shard by now.
        every_second_id = sorted(expected)[::2]
        assert answered(run, every_second_id).ids.tolist() == every_second_id


numbers = st.lists(st.integers(0, 20) | st.integers(0, (1 << 64) - 1), max_size=20).map(
    partial(np.array, dtype=np.uint64)
)


@given(numbers, numbers)
def test_ids_are_looked_up_among_ascending_ones(ids: np.ndarray, known_ids: np.ndarray) -> None:
    assert isin_sorted(ids, np.sort(known_ids)).tolist() == np.isin(ids, known_ids).tolist()


@settings(max_examples=50, deadline=None)
@given(entries.filter(bool), st.integers(0, 2000), st.binary(min_size=1, max_size=40))
def test_a_damaged_segment_loses_only_its_own_answers(
    answers: dict[int, FetchResult], at: int, junk: bytes
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = Path(folder)
        write(run, [answers], 100)
        (path,) = run.glob("warc/part-00000/*")
        content = path.read_bytes()
        at %= len(content)
        # The rest of the file is lost, and something else may follow, as on a bad disk.
        path.write_bytes(content[:at] + junk)
        other_id = max(answers) ^ 1
        write(run, [{other_id: FetchFailure(Reason.DNS, "no such name")}])
        if path.stat().st_size != len(content):
            assert read_back(run, answered(run, {*answers, other_id})) == {
                other_id: ("dns", "no such name")
            }


def test_a_temporary_failure_counts_until_the_next_request(tmp_path: Path) -> None:
    segments = writer(tmp_path, is_last_try=False)
    assert not segments.append(1, FetchFailure(Reason.TIMEOUT, "slow"))
    assert segments.append(2, FetchFailure(Reason.HTTP_404, "gone"))
    segments.flush()
    reader = answered(tmp_path, [1, 2])
    assert (reader.ids.tolist(), reader.postponed.tolist()) == ([2], [1])
    write(tmp_path, [{1: FetchFailure(Reason.CONNECT, "down")}])
    reader.load()
    assert (reader.ids.tolist(), no_pages(reader)[1][0]) == ([1, 2], "connect"), (
        "what is final counts"
    )
    next_round = Root(generations=ROOT.generations, rounds={"0": 1})
    reader = answered(tmp_path, [1, 2], root=next_round)
    assert (reader.ids.tolist(), reader.failed_before.tolist()) == ([2], [1])
    segments = writer(tmp_path, root=next_round)
    segments.append(1, FetchFailure(Reason.TIMEOUT, "still"))
    segments.flush()
    assert no_pages(answered(tmp_path, [1, 2], root=next_round))[1] == ("timeout", "still")


def test_a_host_s_segments_are_found_in_all_generations(tmp_path: Path) -> None:
    sizes = (8, 12, 1, 16)
    first_shards = [sum(sizes[:n]) for n in range(len(sizes))]
    generations = [
        Generation("collect", first, size) for first, size in zip(first_shards, sizes, strict=True)
    ]
    root = Root(generations=generations)
    for home in (*range(60), 12345678901):
        shards = [first + home % size for first, size in zip(first_shards, sizes, strict=True)]
        assert all(set(shards) <= set(shards_with_hosts_of(root, shard)) for shard in shards)
    assert shards_with_hosts_of(root, 3) == [3, 8 + 3, 8 + 7, 8 + 11, 20, 21 + 3, 21 + 11]
    segments = writer(tmp_path, 3, root)
    segments.append(7, FetchFailure(Reason.DNS, "no such name"))
    segments.flush()
    assert [answered(tmp_path, [7], shard, root).ids.tolist() for shard in (3, 15, 4)] == [
        [7],
        [7],
        [],
    ]


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the times after which a segment is written and a lease is abandoned."""
    monkeypatch.setattr(recorder, "PATIENCE_SECONDS", 1.0)
    monkeypatch.setattr(recorder, "SEGMENT_SECONDS", 0.3)


NOTHING = FetchFailure(Reason.DNS, "no such name")


@pytest.mark.usefixtures("quick")
def test_a_superseded_lease_stops_and_loses_no_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    taken = threading.Event()
    check = ShardLease.check

    def look(attempt: ShardLease) -> None:
        try:
            check(attempt)
        except Superseded:
            taken.wait(10)
            raise

    monkeypatch.setattr(ShardLease, "check", look)

    async def run() -> None:
        run = Storage(str(tmp_path))
        first, second = (ShardLease(run, "warc/part-00000") for _ in range(2))
        assert not first.begin()
        with pytest.raises(Superseded):
            async with Recorder(writer(tmp_path), first, lambda *_: None) as recorder:
                await recorder.take(1, NOTHING)
                await asyncio.sleep(0.5)
                assert not recorder.stopped.done()
                assert second.begin()
                await asyncio.sleep(0.5)
                assert not recorder.stopped.done(), "it looks"
                await recorder.take(2, NOTHING)
                taken.set()
                await asyncio.wait_for(recorder.stopped, 10)
        first.end()
        assert run.exists("warc/part-00000/attempt"), "it is the second's"
        second.check()
        second.end()
        assert not run.exists("warc/part-00000/attempt")
        assert answered(tmp_path, [1, 2]).ids.tolist() == [1, 2]

    asyncio.run(run())


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("ends", [True, False])
def test_a_superseded_lease_waits_for_the_other_one(tmp_path: Path, ends: bool) -> None:
    async def run() -> None:
        run = Storage(str(tmp_path))
        first, second = (ShardLease(run, "warc/part-00000") for _ in range(2))
        first.begin()
        second.begin()
        waiting = asyncio.ensure_future(first.wait_for_other())
        # It waits for longer than its patience, because the other one writes segments.
        for number in range(5):
            run.create(f"warc/part-00000/{number}", b"a segment")
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


def test_the_order_of_results_does_not_change_a_shards_bytes(
    write_urls: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    runtime = write_urls([f"http://a.example/{i}" for i in range(4)], num_shards=1)
    monkeypatch.setattr(outcomes, "_MAX_ROWS_IN_MEMORY", 3)
    urls = DatasetReader.open(runtime.workdir, "urls").table()
    ids = sorted(urls["url_id"].to_pylist())

    def read(wanted_ids: np.ndarray) -> pa.Table:
        return urls.filter(pc.is_in(urls["url_id"], pa.array(wanted_ids)))

    results: list[FetchResult] = [
        Page("live", f"http://a.example/{i}", 200, "text/html", 5, 6, 7, "D", RECORD, (RECORD,) * i)
        for i in range(3)
    ]
    results.append(FetchFailure(Reason.DNS, "no such name"))
    written = set()
    for number, order in enumerate(itertools.permutations(range(4))):
        run = tmp_path / f"run{number}"
        write(run, [{ids[i]: results[i] for i in order}], 1 + number % 4)
        folder = Storage(str(run))
        outputs = {"": DATASETS["pages"].schema}
        with ShardWriter(
            folder, RecordPath(folder / "records", 0), outputs, dataset="pages"
        ) as shard:
            outcomes.write_outcomes(
                shard, np.array(ids, np.uint64), read, {"live": answered(run, ids)}
            )
        record = ShardRecord.from_json(folder.read("records/00000.json"))
        kinds = [file.kind for file in record.files]
        assert kinds == ["data", "rejects", "places", *["warc"] * -(-4 // (1 + number % 4))]
        written.add(tuple(folder.read(file.path) for file in record.files[:2]))
    assert len(written) == 1
