"""why finds every id, whatever it is, and says what is nearest where it finds none."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.commands import sample_documents
from owt_pipeline.commands.history import asked_for, history, readers_of
from owt_pipeline.commands.why import columns, main
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.formats.urls import url_id
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import Outcome, rejects_batch
from owt_pipeline.stages.report.side_by_side import side_by_side
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.making import Options, publish_rows, stage_that_writes
from tests.owt_pipeline.runs import ask_owt, copy_of


@pytest.fixture(scope="module")
def run(small_run: Path) -> Path:
    return small_run


def rows(run: Path, name: str) -> list[dict]:
    return [row for path in sorted((run / name).glob("part-*.parquet")) for row in pq.read_table(path).to_pylist()]


def shown_by(run: Path, text: object) -> dict:
    shown = history(readers_of(Storage(str(run)), discarded=True), asked_for(str(text)))
    assert shown is not None
    return shown


def why(run: Path, text: object, code: int = 0) -> dict:
    output = ask_owt("why", text, "--workdir", run, "--json", code=code)
    return json.loads(output.partition("\nowt: error:")[0])


@pytest.fixture(scope="module")
def discarded(run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    copy = copy_of(run, tmp_path_factory.mktemp("discarded") / "run")
    ask_owt("discard", "fetch", "extract", "clean", "--workdir", copy)
    return copy


@pytest.mark.parametrize("of", ["run", "discarded"])
def test_each_urls_verdict_is_where_it_ended(of: str, request: pytest.FixtureRequest) -> None:
    """One URL of each end: kept, and each reason of each stage; also where the texts were discarded."""
    run = request.getfixturevalue(of)
    ends = {row["url"]: ("kept", "tokenize", None) for row in rows(run, "corpus")[:1]}
    for name, stage in {"urls": "collect", "pages": "fetch", "clean": "clean", "corpus": "export"}.items():
        by_reason = {row["reason"]: row["url"] for row in rows(run, f"ledger/{name}/rejects") if row["url"]}
        by_reason.pop("repeated_url", None)
        ends |= {url: ("rejected", stage, reason) for reason, url in list(by_reason.items())[:3]}
    assert len(ends) > 6
    for url, (verdict, stage, reason) in ends.items():
        shown = shown_by(run, url)
        last = shown["stages"][-1]
        assert (shown["verdict"], last["stage"], last.get("reason")) == (verdict, stage, reason), url
        assert shown["url_id"] == url_id(shown["url"]) or reason == "bad_url"


def test_of_discarded_stages_the_rejects_and_the_funnel_remain(run: Path, discarded: Path) -> None:
    reasons = {row["reason"] for row in rows(run, "ledger/clean/rejects")}
    for reason in reasons:
        said = ask_owt("sample-documents", "--reason", reason, "--workdir", discarded, "--n", 1)
        assert f"reason: {reason}" in said
    domain = rows(run, "corpus")[0]["url"].split("/")[2]
    before, after = (why(folder, domain)["stages"] for folder in (run, discarded))
    gone = ("fetch", "extract", "clean", "dedupe")  # of dedupe, how many there were before is not known
    assert after == [{**stage, "kept": None if stage["stage"] in gone else stage["kept"]} for stage in before]
    assert re.search(r"clean +\(no rows\)", ask_owt("why", domain, "--workdir", discarded))
    ask_owt("report", "--workdir", discarded, "--top_domains", 7)
    funnels = [json.loads((folder / "report/stats.json").read_bytes())["funnel"] for folder in (run, discarded)]
    assert funnels[0] == funnels[1]


def test_a_run_of_which_nothing_is_finished_has_nothing_to_show(run: Path, tmp_path: Path) -> None:
    (tmp_path / "run/ledger").mkdir(parents=True)
    assert "has finished yet" in ask_owt("why", "example.org/a", "--workdir", tmp_path / "run", code=3)


def test_an_id_a_spelling_with_tracking_and_a_url_without_scheme_give_the_same_answer(run: Path) -> None:
    url = rows(run, "corpus")[-1]["url"]
    expected = why(run, url)
    variants = (str(url_id(url)), url.replace("https://", "http://www.") + "?utm_source=x#top", url[len("https://") :])
    for spelling in variants:
        shown = shown_by(run, spelling)
        assert (shown["url"], shown["stages"]) == (url, expected["stages"])


def test_the_token_shard_and_row_hold_that_document(run: Path) -> None:
    for document in rows(run, "corpus")[::40]:
        last = shown_by(run, document["url"])["stages"][-1]
        table = pa.ipc.open_file(pa.memory_map(last["file"])).read_all()
        assert table["url_id"][last["row"]].as_py() == document["url_id"]
        assert table["n_tokens"][last["row"]].as_py() == last["n_tokens"]


def test_a_duplicate_names_the_document_that_stays_and_that_one_its_duplicates(run: Path) -> None:
    decision = next(row for row in rows(run, "duplicates") if row["rule"] == "near")
    shown = why(run, decision["url_id"])
    entry = next(entry for entry in shown["stages"] if entry["stage"] == "dedupe")
    assert url_id(entry["kept_url"]) == decision["kept_url_id"]
    assert entry["similarity"] == pytest.approx(decision["similarity"])
    assert entry["differences"]
    kept = why(run, entry["kept_url"])
    stays = next(entry for entry in kept["stages"] if entry["stage"] == "dedupe")
    assert decision["url_id"] in stays["duplicates"]
    assert stays["kept_for"] == len(stays["duplicates"])
    assert kept["verdict"] == "kept"


def test_a_domain_is_summed_up_stage_by_stage(run: Path) -> None:
    shown = why(run, "demo.test")
    for stage, dataset in zip(shown["stages"], ("urls", "pages", "documents", "clean", None, "corpus"), strict=False):
        if dataset:
            assert stage["kept"] == sum(1 for row in rows(run, dataset) if "demo.test/" in row["url"]), stage
    gone = [row for row in rows(run, "ledger/corpus/rejects") if "demo.test/" in row["url"]]
    assert sum(shown["stages"][5]["rejected"].values()) == len(gone)
    kept = {row["url"].split("/")[2] for row in rows(run, "corpus")}
    host = next(host for host in shown["hosts"] if host in kept)  # the hosts with most URLs are listed
    assert why(run, host)["hosts"] == {host: shown["hosts"][host]}
    text = ask_owt("why", host, "--workdir", run)
    assert "tokens" in text
    assert "export" in text


def test_an_unknown_url_is_reported_with_the_nearest_ones(run: Path) -> None:
    url = rows(run, "urls")[0]["url"]
    near = why(run, f"{url}x?fbclid=1", code=3)
    assert near["url"] == f"{url}x"
    assert near["verdict"] == "unknown"
    assert near["nearest"][0] == url
    assert "no URL of nobody.example is known either" in ask_owt("why", "nobody.example", "--workdir", run, code=3)
    assert "is not a run" in ask_owt("why", url, "--workdir", run.parent / "elsewhere", code=3)


def run_one_shard(run: Path, name: str, dataset: str, write: Callable[[int, ShardWriter], None]) -> None:
    """Make a dataset of one shard."""
    run_stage(stage_that_writes(dataset, write, name), Options(), Runtime(Storage(str(run))))


def test_what_redirected_to_a_url_is_shown(tmp_path: Path) -> None:
    page = {"url_id": 7, "url": "https://short.example/a", "final_url": "http://www.long.example/article",
            "source": "live", "status": 200, "fetched_at": 0, "fetch_ms": 0, "body_bytes": 0,
            "payload_digest": "", "warc_offset": 0,
            "warc_length": 0, "subreddits": []}  # fmt: skip
    batch = pa.RecordBatch.from_pylist([page], DATASETS["pages"].schema)
    run_one_shard(tmp_path, "fetch", "pages", lambda shard, writer: writer.add(1, Outcome(batch)))
    near = why(tmp_path, "long.example/article", code=3)
    assert near["redirected_from"] == ["https://short.example/a"]
    assert "redirect from https://short.example/a" in ask_owt(
        "why", "long.example/article/", "--workdir", tmp_path, code=3
    )


def test_text_from_outside_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    reject = (7, "https://a.example/", "bad_redirect", "status 302 to \x1b]0;owned\x07\x9b2J")
    outcome = Outcome(pa.RecordBatch.from_pylist([], DATASETS["urls"].schema), rejects_batch([reject]))
    run_one_shard(tmp_path, "collect", "urls", lambda shard, writer: writer.add(1, outcome))
    assert main(["7", "--workdir", str(tmp_path)]) == 0
    assert r"status 302 to \x1b]0;owned\x07\x9b2J" in capsys.readouterr().out


def test_texts_and_titles_cannot_control_the_terminal(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    row = {"url_id": 7, "url": "https://a.example/", "title": "\x1b[2Ja", "text": "\x1b]0;owned\x07", "subreddits": []}
    publish_rows(Storage(str(tmp_path)), "corpus", [row])
    assert sample_documents.main(["--workdir", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count(r"\x1b]0;owned\x07") == shown.count(r"\x1b[2Ja") == 1
    assert "\x1b" not in shown


def test_a_run_that_is_not_finished_says_what_is_pending(run: Path, tmp_path: Path) -> None:
    part = copy_of(run, tmp_path / "part", without=("duplicates", "corpus", "tokens", "report"))
    shown = ask_owt("why", rows(run, "corpus")[0]["url"], "--workdir", part)
    assert "kept by clean; the stages after it have not run" in shown


@given(st.integers(0, 2**64 - 1))
def test_every_id_is_understood(identifier: int) -> None:
    assert asked_for(str(identifier)).url_id == identifier


@given(st.text() | st.text("0123456789²٣", min_size=18))
@example("²")
@example("9" * 5000)  # more digits than Python reads
def test_anything_can_be_asked_for(text: str) -> None:
    assert 0 <= asked_for(text).url_id < 2**64


def test_differences_are_the_words_that_differ() -> None:
    ours = np.array([f"w{i}" for i in range(60)], object)
    theirs = ours.copy()
    theirs[30] = "other"
    segments = side_by_side(" ".join(ours), " ".join(theirs))
    assert [kind for kind, *_ in segments] == ["skipped", "same", "differs", "same", "skipped"]
    before, (_, removed, kept), after = segments[1:4]
    assert (removed, kept) == ("w30", "other")
    assert before[1].endswith("w29")
    assert after[1].startswith("w31")
    title, blank, *lines = columns(segments, ("this", "that"), 87)
    assert (title.split(), blank) == (["this", "|", "that"], "")
    assert all(len(line) <= 87 for line in lines)
    left, right = ([line[at : at + 40].strip() for line in lines] for at in (4, 47))
    assert " ".join(left).split() == " ".join(right).replace("[other]", "[w30]").split()
    assert "[w30]" in " ".join(left)


def test_domain_asks_for_the_funnel_even_where_the_url_itself_is_in_the_run(run: Path) -> None:
    url = next(row["url"] for row in rows(run, "corpus"))
    host = url.split("/")[2]
    found = json.loads(ask_owt("why", url, "--domain", "--workdir", run, "--json"))
    assert found["domain"] == host
    assert "no URL of nobody.example appears in" in ask_owt(
        "why", "nobody.example", "--domain", "--workdir", run, code=3
    )
