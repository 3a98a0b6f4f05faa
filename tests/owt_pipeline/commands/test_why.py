"""why finds the history of every id."""

from __future__ import annotations

import json
from pathlib import Path

import pyarrow as pa
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.commands.why import asked_for, history, main, readers_of
from owt_pipeline.formats.urls import id_of
from owt_pipeline.ledger.dataset import Outcome, rejects_batch
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.making import write_dataset
from tests.owt_pipeline.runs import ask_owt, copy_of, rows_of


def shown_by(run: Path, text: object) -> dict:
    """Return the history of an id or URL."""
    shown = history(readers_of(Storage(str(run))), asked_for(str(text)))
    assert shown is not None
    return shown


def why(run: Path, text: object, code: int = 0) -> dict:
    """Return what `owt why --json` prints."""
    output = ask_owt("why", run, text, "--json", code=code)
    return json.loads(output.partition("\nowt: error:")[0])


def test_each_urls_verdict_is_where_it_ended(small_run: Path) -> None:
    """The URLs are kept, or rejected for each of some reasons of each stage."""
    ends = {row["url"]: ("kept", "tokenize", None) for row in rows_of(small_run, "corpus")[:1]}
    stage_by_dataset = {"urls": "collect", "pages": "fetch", "clean": "clean", "corpus": "export"}
    for name, stage in stage_by_dataset.items():
        rejects = rows_of(small_run, f"ledger/{name}/rejects")
        url_by_reason = {row["reason"]: row["url"] for row in rejects if row["url"]}
        # Another row with the same URL was collected.
        url_by_reason.pop("repeated_url", None)
        for reason, url in list(url_by_reason.items())[:3]:
            ends[url] = ("rejected", stage, reason)
    assert len(ends) > 6
    for url, (verdict, stage, reason) in ends.items():
        shown = shown_by(small_run, url)
        last = shown["stages"][-1]
        assert (shown["verdict"], last["stage"], last.get("reason")) == (verdict, stage, reason), (
            url
        )
        assert shown["url_id"] == id_of(shown["url"]) or reason == "bad_url"


def test_a_run_without_a_finished_stage_is_not_a_run(small_run: Path, tmp_path: Path) -> None:
    (tmp_path / "run/ledger").mkdir(parents=True)
    assert "is not a run" in ask_owt("why", tmp_path / "run", "example.org/a", code=3)


def test_every_spelling_of_a_url_gives_the_same_answer(small_run: Path) -> None:
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


def test_a_duplicate_names_the_kept_document_and_the_other_way(small_run: Path) -> None:
    decision = next(row for row in rows_of(small_run, "duplicates") if row["rule"] == "near")
    shown = why(small_run, decision["url_id"])
    entry = next(entry for entry in shown["stages"] if entry["stage"] == "dedupe")
    assert id_of(entry["kept_url"]) == decision["kept_url_id"]
    assert entry["similarity"] == pytest.approx(decision["similarity"])
    history_of_kept = why(small_run, entry["kept_url"])
    (kept_entry,) = [entry for entry in history_of_kept["stages"] if entry["stage"] == "dedupe"]
    assert decision["url_id"] in kept_entry["duplicates"]
    assert kept_entry["kept_for"] == len(kept_entry["duplicates"])
    assert history_of_kept["verdict"] == "kept"


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


def test_an_unknown_url_is_one_line_with_its_canonical_form(small_run: Path) -> None:
    url = rows_of(small_run, "urls")[0]["url"]
    output = ask_owt("why", small_run, f"{url}x?fbclid=1", code=3)
    assert f"no stage of {small_run} has {url}x?fbclid=1 (id " in output
    assert f", canonical {url}x)" in output
    assert "is not a run" in ask_owt("why", small_run.parent / "elsewhere", url, code=3)


def test_an_unfinished_run_names_the_pending_stages(small_run: Path, tmp_path: Path) -> None:
    later = ("duplicates", "corpus", "tokens", "report")
    run = copy_of(small_run, tmp_path / "part", without=later)
    output = ask_owt("why", run, rows_of(small_run, "corpus")[0]["url"])
    assert "kept by clean; the stages after it have not run" in output


@given(st.integers(0, 2**64 - 1))
def test_every_id_is_understood(identifier: int) -> None:
    assert asked_for(str(identifier)).url_id == identifier


@given(st.text() | st.text("0123456789²٣", min_size=18))
@example("²")
# These are more digits than Python reads.
@example("9" * 5000)
def test_any_text_can_be_looked_up(text: str) -> None:
    assert 0 <= asked_for(text).url_id < 2**64


def test_a_url_of_several_generations_is_shown_where_accepted(tmp_path: Path) -> None:
    scores = {
        "first": {"never": 1, "later": 1, "at_once": 9},
        "second": {"never": 2, "later": 9, "at_once": 9},
    }
    for dump, score_by_name in scores.items():
        posts = []
        for name, score in score_by_name.items():
            url = f"https://a.org/{name}"
            post = {"id": f"{dump}{name}", "url": url, "score": score, "is_self": False}
            posts.append(json.dumps(post) + "\n")
        (tmp_path / f"{dump}.ndjson").write_text("".join(posts))
    run = tmp_path / "run"
    ask_owt("run", run, "--until", "collect", "--dumps", tmp_path / "first.ndjson")
    ask_owt("run", run, "--until", "collect", "--dumps", tmp_path / "second.ndjson", "--add")
    shown_by_name = {name: shown_by(run, f"https://a.org/{name}") for name in scores["first"]}
    assert {name: shown["verdict"] for name, shown in shown_by_name.items()} == {
        "never": "rejected",
        "later": "pending",
        "at_once": "pending",
    }
    assert shown_by_name["at_once"]["shard"] < 8 <= shown_by_name["later"]["shard"]
    assert "second.ndjson" in shown_by_name["never"]["stages"][-1]["detail"]


def test_the_file_of_a_known_text_is_named(tmp_path: Path) -> None:
    text = "The committee met in the spring and spoke about matters that were left open. " * 9
    rows = [{"text": text, "url": "https://a.example/"}, {"text": "The rest of it is kept."}]
    (tmp_path / "docs.jsonl").write_text("\n".join(map(json.dumps, rows)))
    known_texts = tmp_path / "known.jsonl"
    known_rows = [{"text": "another one"}, {"text": text}]
    known_texts.write_text("\n".join(map(json.dumps, known_rows)))
    run = tmp_path / "run"
    ask_owt("import", run, tmp_path / "docs.jsonl", "--num_shards", 1)
    flags = ("--until", "export", "--min_tokens", 1, "--workers", 1)
    ask_owt("run", run, *flags, "--against", known_texts)
    known_texts.unlink()
    (entry,) = [
        entry for entry in why(run, "https://a.example/")["stages"] if entry["stage"] == "dedupe"
    ]
    assert (entry["verdict"], entry["kept_in"]) == ("duplicate", ["known.jsonl"])
    assert "kept_url" not in entry
