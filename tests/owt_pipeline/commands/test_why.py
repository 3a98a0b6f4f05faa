"""why finds every id, whatever it is."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.commands import sample_documents
from owt_pipeline.commands.why import asked_for, history, main, readers_of
from owt_pipeline.formats.urls import id_of
from owt_pipeline.ledger.dataset import Outcome, rejects_batch
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.making import publish_rows, write_dataset
from tests.owt_pipeline.runs import ask_owt, copy_of, rows_of


def shown_by(run: Path, text: object) -> dict:
    shown = history(readers_of(Storage(str(run))), asked_for(str(text)))
    assert shown is not None
    return shown


def why(run: Path, text: object, code: int = 0) -> dict:
    output = ask_owt("why", run, text, "--json", code=code)
    return json.loads(output.partition("\nowt: error:")[0])


def test_each_urls_verdict_is_where_it_ended(small_run: Path) -> None:
    """One URL of each end: kept, and each reason of each stage."""
    ends = {row["url"]: ("kept", "tokenize", None) for row in rows_of(small_run, "corpus")[:1]}
    for name, stage in {
        "urls": "collect",
        "pages": "fetch",
        "clean": "clean",
        "corpus": "export",
    }.items():
        by_reason = {
            row["reason"]: row["url"]
            for row in rows_of(small_run, f"ledger/{name}/rejects")
            if row["url"]
        }
        by_reason.pop("repeated_url", None)
        ends |= {url: ("rejected", stage, reason) for reason, url in list(by_reason.items())[:3]}
    assert len(ends) > 6
    for url, (verdict, stage, reason) in ends.items():
        shown = shown_by(small_run, url)
        last = shown["stages"][-1]
        assert (shown["verdict"], last["stage"], last.get("reason")) == (verdict, stage, reason), (
            url
        )
        assert shown["url_id"] == id_of(shown["url"]) or reason == "bad_url"


def test_a_run_of_which_nothing_is_finished_has_nothing_to_show(
    small_run: Path, tmp_path: Path
) -> None:
    (tmp_path / "run/ledger").mkdir(parents=True)
    assert "is not a run" in ask_owt("why", tmp_path / "run", "example.org/a", code=3)


def test_every_spelling_of_a_url_gives_the_same_answer(
    small_run: Path,
) -> None:
    url = rows_of(small_run, "corpus")[-1]["url"]
    expected = why(small_run, url)
    variants = (
        str(id_of(url)),
        url.replace("https://", "http://www.") + "?utm_source=x#top",
        url[len("https://") :],
    )
    for spelling in variants:
        shown = shown_by(small_run, spelling)
        assert (shown["url"], shown["stages"]) == (url, expected["stages"])


def test_the_token_shard_and_row_hold_that_document(small_run: Path) -> None:
    for document in rows_of(small_run, "corpus")[::40]:
        last = shown_by(small_run, document["url"])["stages"][-1]
        table = pa.ipc.open_file(pa.memory_map(last["file"])).read_all()
        assert table["url_id"][last["row"]].as_py() == document["url_id"]
        assert table["n_tokens"][last["row"]].as_py() == last["n_tokens"]


def test_a_duplicate_names_the_kept_document_and_the_other_way(
    small_run: Path,
) -> None:
    decision = next(row for row in rows_of(small_run, "duplicates") if row["rule"] == "near")
    shown = why(small_run, decision["url_id"])
    entry = next(entry for entry in shown["stages"] if entry["stage"] == "dedupe")
    assert id_of(entry["kept_url"]) == decision["kept_url_id"]
    assert entry["similarity"] == pytest.approx(decision["similarity"])
    kept = why(small_run, entry["kept_url"])
    stays = next(entry for entry in kept["stages"] if entry["stage"] == "dedupe")
    assert decision["url_id"] in stays["duplicates"]
    assert stays["kept_for"] == len(stays["duplicates"])
    assert kept["verdict"] == "kept"


def test_text_from_outside_cannot_control_the_terminal(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    reject = (7, "https://a.example/", "bad_redirect", "status 302 to \x1b]0;owned\x07\x9b2J")
    outcome = Outcome(
        pa.RecordBatch.from_pylist([], DATASETS["urls"].schema), rejects_batch([reject])
    )
    write_dataset(Storage(str(tmp_path)), "urls", lambda shard, writer: writer.add(1, outcome))
    assert main([str(tmp_path), "7"]) == 0
    assert r"status 302 to \x1b]0;owned\x07\x9b2J" in capsys.readouterr().out
    row = {
        "url_id": 7,
        "url": "https://a.example/",
        "title": "\x1b[2Ja",
        "text": "\x1b]0;owned\x07",
        "subreddits": [],
    }
    publish_rows(Storage(str(tmp_path)), "corpus", [row])
    assert sample_documents.main([str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert shown.count(r"\x1b]0;owned\x07") == shown.count(r"\x1b[2Ja") == 1
    assert "\x1b" not in shown


def test_an_unknown_url_is_one_line_with_its_canonical_form(small_run: Path) -> None:
    url = rows_of(small_run, "urls")[0]["url"]
    said = ask_owt("why", small_run, f"{url}x?fbclid=1", code=3)
    assert f"no stage of {small_run} has {url}x?fbclid=1 (id " in said
    assert f", canonical {url}x)" in said
    assert "is not a run" in ask_owt("why", small_run.parent / "elsewhere", url, code=3)


def test_a_run_that_is_not_finished_says_what_is_pending(small_run: Path, tmp_path: Path) -> None:
    part = copy_of(
        small_run, tmp_path / "part", without=("duplicates", "corpus", "tokens", "report")
    )
    shown = ask_owt("why", part, rows_of(small_run, "corpus")[0]["url"])
    assert "kept by clean; the stages after it have not run" in shown


@given(st.integers(0, 2**64 - 1))
def test_every_id_is_understood(identifier: int) -> None:
    assert asked_for(str(identifier)).url_id == identifier


@given(st.text() | st.text("0123456789²٣", min_size=18))
@example("²")
@example("9" * 5000)  # more digits than Python reads
def test_anything_can_be_asked_for(text: str) -> None:
    assert 0 <= asked_for(text).url_id < 2**64


def test_a_url_of_several_generations_is_shown_where_accepted(tmp_path: Path) -> None:
    scores = {
        "first": {"never": 1, "later": 1, "at_once": 9},
        "second": {"never": 2, "later": 9, "at_once": 9},
    }
    for dump, of_urls in scores.items():
        posts = [
            {
                "id": f"{dump}{name}",
                "url": f"https://a.org/{name}",
                "score": score,
                "is_self": False,
            }
            for name, score in of_urls.items()
        ]
        (tmp_path / f"{dump}.ndjson").write_text("".join(json.dumps(post) + "\n" for post in posts))
    run = tmp_path / "run"
    ask_owt("run", run, "--until", "collect", "--dumps", tmp_path / "first.ndjson")
    ask_owt("run", run, "--until", "collect", "--dumps", tmp_path / "second.ndjson", "--add")
    found = {name: shown_by(run, f"https://a.org/{name}") for name in scores["first"]}
    assert {name: shown["verdict"] for name, shown in found.items()} == {
        "never": "rejected",
        "later": "pending",
        "at_once": "pending",
    }
    assert found["at_once"]["shard"] < 8 <= found["later"]["shard"]
    assert "second.ndjson" in found["never"]["stages"][-1]["detail"]


def sampled(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    assert sample_documents.main([str(argument) for argument in arguments]) == code
    output = capsys.readouterr()
    return output.out + output.err


def query(sql: str, **paths: Path) -> list[tuple]:
    return duckdb.sql(sql.format(**paths)).fetchall()


def parsed(text: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in text.splitlines()]


def test_a_sample_is_the_seeds_and_of_the_corpus(
    small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    first = sampled(capsys, small_run, "--n", 20, "--json")
    assert first == sampled(capsys, small_run, "--n", 20, "--json")
    ids = {row["url_id"] for row in parsed(first)}
    assert len(ids) == 20
    assert ids != {
        row["url_id"]
        for row in parsed(sampled(capsys, small_run, "--n", 20, "--seed", 1, "--json"))
    }
    assert {len(parsed(first)[0]["text"])} <= {n for (n,) in query(
        "select length(text) from '{run}/corpus/part-*.parquet'", run=small_run)}  # fmt: skip
    everything = parsed(sampled(capsys, small_run, "--n", 9999, "--json"))
    assert sorted(row["url_id"] for row in everything) == sorted(
        i for (i,) in query("select url_id from '{run}/corpus/part-*.parquet'", run=small_run)
    )


def test_rejected_documents_can_be_read(
    small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for reason in ("too_short", "near_duplicate"):
        for row in parsed(sampled(capsys, small_run, "--reason", reason, "--json")):
            assert row["reason"] == reason
            assert row["text"]
    assert "detail: " in sampled(capsys, small_run, "--reason", "low_score")
    assert " more characters (--json prints the complete text)" in sampled(capsys, small_run)
    hosted = parsed(sampled(capsys, small_run, "--domain", "garden.demo.test", "--n", 50, "--json"))
    assert hosted
    assert all("garden.demo.test" in row["url"] for row in hosted)
    assert "did you mean 'too_short'?" in sampled(capsys, small_run, "--reason", "to_short", code=2)
    assert "has no document" in sampled(capsys, small_run, "--domain", "nobody.example", code=3)


def test_the_file_and_row_of_a_known_text_are_named(tmp_path: Path) -> None:
    text = "The committee met in the spring and spoke about matters that were left open. " * 9
    rows = [{"text": text, "url": "https://a.example/"}, {"text": "The rest of it is kept."}]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    known = tmp_path / "known.jsonl"
    known.write_text("\n".join(json.dumps({"text": t}) for t in ("another one", text)))
    run = tmp_path / "run"
    ask_owt("import", run, tmp_path / "docs.jsonl", "--num_shards", 1)
    flags = ("--until", "export", "--min_tokens", 1, "--workers", 1)
    ask_owt("run", run, *flags, "--against", known)
    (entry,) = [e for e in why(run, "https://a.example/")["stages"] if e["stage"] == "dedupe"]
    assert entry["kept_in"] == f"{known}:2"
    known.unlink()
    (entry,) = [e for e in why(run, "https://a.example/")["stages"] if e["stage"] == "dedupe"]
    assert "known.jsonl" in entry["kept_in"]
