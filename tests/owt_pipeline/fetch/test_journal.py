"""The journal loses nothing that was written, whatever becomes of its end, and a shard is a function of it."""

from __future__ import annotations

import itertools
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.engine.commit import ShardWriter
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.fetch.addresses import Addresses
from owt_pipeline.fetch.answers import Answer, NoPage, Page
from owt_pipeline.fetch.client import Limits
from owt_pipeline.fetch.journal import Appender, Journal, encode_entry
from owt_pipeline.fetch.live import LiveOptions
from owt_pipeline.fetch.shards import Sources, fetch_shard
from owt_pipeline.fetch.warc import response_record
from schemas import DATASETS, Reason
from schemas.manifest import ShardRecord

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


def write(path: str, answers: dict[int, Answer]) -> list[int]:
    """Write a journal; its length after each entry."""
    lengths = []
    with Journal(path) as journal:
        for url_id, answer in answers.items():
            journal.append(url_id, answer)
            lengths.append(os.path.getsize(path))
    return lengths


@given(entries)
def test_answers_are_read_back_as_they_were_written(answers: dict[int, Answer]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        write(f"{folder}/journal", answers)
        with Journal(f"{folder}/journal") as journal:
            assert journal.ids.tolist() == list(answers)
            asked = [*sorted(answers), 12345]
            assert list(journal.answers(asked)) == [answers.get(url_id) for url_id in asked]


@given(entries, st.integers(0, 2000), st.binary(max_size=40))
def test_a_torn_end_costs_only_the_entry_it_tore(answers: dict[int, Answer], cut: int, junk: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/journal"
        lengths = write(path, answers)
        cut = min(cut, os.path.getsize(path))
        with open(path, "r+b") as file:
            file.truncate(cut)
            file.seek(cut)
            file.write(junk)
        whole = sum(length <= cut for length in lengths)
        with Journal(path) as journal:
            kept = journal.ids.tolist()
            assert kept[:whole] == list(answers)[:whole]
            assert len(kept) <= whole + 1  # junk may by chance be what was cut
            journal.append(7, NoPage(Reason.DNS, "again"))
        with Journal(path) as journal:
            assert journal.ids.tolist() == [*kept, 7]
            assert list(journal.answers(kept))[:whole] == list(answers.values())[:whole]


def test_a_journal_is_not_read_before_the_process_that_appends_has_let_go_of_it(tmp_path: Path) -> None:
    path = str(tmp_path / "journal")
    with Journal(path) as journal, ThreadPoolExecutor() as threads:
        appender = Appender(path)
        again = threads.submit(Journal, path)
        journal.note(appender.write([encode_entry(7, NoPage(Reason.DNS, "no such name"))]))
        assert not again.done()
        appender.close()
        assert again.result().ids.tolist() == journal.ids.tolist() == [7]
        again.result().__exit__()


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
    limits = Limits(1, 1, 1, 1, 1)
    live = LiveOptions(Addresses(), limits, "TestBot/1", 1, 1, 0.0, 1, 1, 0, 1.0, True)
    written = set()
    for number, order in enumerate(itertools.permutations(range(4))):
        folder = runtime.workdir / f"pages{number}"
        write(f"{folder}/journals/part-00000.live.journal", {ids[i]: known[i] for i in order})
        sources = Sources(("live",), None, live, None, False, f"{folder}/journals")
        with ShardWriter(folder, folder / "records", 0, {"": DATASETS["pages"].schema}, dataset="pages") as writer:
            fetch_shard(0, writer, urls=urls, sources=sources)
        record = ShardRecord.from_json(folder.read("records/part-00000.json"))
        assert [file.kind for file in record.files] == ["data", "rejects", "warc"]
        written.add((record.to_json(), *(folder.read(file.path) for file in record.files)))
    assert len(written) == 1
