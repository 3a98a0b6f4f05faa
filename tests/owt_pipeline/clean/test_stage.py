"""A document's repair, decision and reason, and the stage clean in complete runs."""

from __future__ import annotations

import dataclasses
import gzip
import json
from collections import Counter
from functools import partial
from pathlib import Path

import duckdb
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UsageError
from owt_pipeline.formats import encoding
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.clean.documents import (
    Cleaned,
    clean_batch,
    clean_document,
    detect,
    too_short,
)
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.repair import mask, tidy
from owt_pipeline.stages.clean.stage import STAGE
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS, Reason
from schemas.filters import BUILT_IN
from tests.owt_pipeline.making import add_rows, write_dataset
from tests.owt_pipeline.runs import drop, snapshot

SENTENCE = (
    "The river ran past the old mill, and nobody in the village could say how long it had done so. "
)
ENGLISH = SENTENCE * 10
FRENCH = (
    "La rivière coulait devant le vieux moulin, et personne au village ne savait depuis combien de "
    "temps. " * 10
)


def write_documents(texts: list[str], shard: int, writer: ShardWriter) -> None:
    """Write texts as documents of a shard."""
    rows = [
        {"url_id": 100 * shard + n, "url": f"http://h/{shard}/{n}", "text": text}
        for n, text in enumerate(texts)
    ]
    add_rows(writer, "documents", rows)


@pytest.fixture
def workdir(tmp_path: Path) -> Path:
    """A run with documents in two shards. Each shard has two rejects and one text to repair."""
    texts = [ENGLISH, FRENCH, "short", ENGLISH + "Ã©", *(f"{ENGLISH} {n}" for n in range(150))]
    write_dataset(
        Storage(str(tmp_path)), "documents", partial(write_documents, texts), num_shards=2
    )
    return tmp_path


def test_any_number_of_workers_writes_the_same_bytes(workdir: Path) -> None:
    written = []
    for workers in (1, 2):
        manifest, ran = run_stage(STAGE, Options(), Runtime(Storage(str(workdir)), workers))
        assert ran
        assert str(manifest.counts) == "308 in = 304 out + 2 too_short + 2 wrong_language"
        # The other texts have nothing to repair.
        assert manifest.stats["changed_texts"] == 4
        written.append(snapshot(workdir))
        drop(workdir, "clean")
    assert written[0] == written[1]
    row = DatasetReader(Storage(str(workdir)), manifest).table().to_pylist()[1]
    assert row["url"] == "http://h/0/3"
    assert row["text"].endswith("é")


def test_changed_evaluation_set_runs_the_stage_again(workdir: Path) -> None:
    path = workdir / "set.txt"
    path.write_text(
        "nothing of it is anywhere in the documents that this test wrote to disk before\n"
    )
    options = Options(decontaminate=(str(path),))
    runtime = Runtime(Storage(str(workdir)))
    manifest, _ = run_stage(STAGE, options, runtime)
    assert manifest.counts.left == 304
    _, ran = run_stage(STAGE, options, runtime)
    assert not ran
    path.write_text(SENTENCE)
    manifest, ran = run_stage(STAGE, options, runtime)
    assert ran
    assert manifest.counts.rejected["contaminated"] == 304


UNTIDY = "\ufb01rst “quoted” Ã© \u00a0 &amp; \t \n\n\n\n" + ENGLISH + " \n "


def test_text_without_repair_is_byte_for_byte_the_same(tmp_path: Path) -> None:
    write = partial(write_documents, [UNTIDY, "short \n"])
    write_dataset(Storage(str(tmp_path)), "documents", write)
    for fix_text in (False, True):
        runtime = Runtime(Storage(str(tmp_path)))
        manifest, _ = run_stage(STAGE, Options(fix_text=fix_text), runtime)
        rows = DatasetReader(Storage(str(tmp_path)), manifest).table().to_pylist()
        assert [row["text"] != UNTIDY for row in rows] == [fix_text]
        assert manifest.counts.rejected == {"too_short": 1}
        assert manifest.stats["changed_texts"] == fix_text


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (
            Options(fix_text=False, uncurl_quotes=True),
            "uncurl_quotes changes text, but no_fix_text keeps it as it is",
        ),
        (Options(languages=("eng",)), "'eng' is not a known language; did you mean 'en'"),
    ],
)
def test_a_mistaken_option_is_one_clear_error(options: Options, problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        # It is called before the first stage runs.
        STAGE.external_inputs(options)


def clean_kept(text: str, **rules: object) -> Cleaned:
    """Clean a document, which has to be kept."""
    document = clean_document(text, Options(**rules))  # type: ignore[arg-type]
    assert document.reason is None, document
    return document


def reject_of(text: str, **rules: object) -> tuple[Reason | None, str]:
    """Clean a document; return the reason and detail of its rejection."""
    document = clean_document(text, Options(**rules))  # type: ignore[arg-type]
    return document.reason, document.detail


def test_text_is_repaired_and_tidied() -> None:
    broken = "It is “fineâ€\x9d &amp; well.\r\n\r\n\r\n\r\n" + ENGLISH
    result = clean_kept(broken)
    assert result.text.startswith("It is “fine” & well.\n\nThe")
    assert (result.language, result.n_words) == ("en", len(result.text.split()))
    assert 0.9 < result.language_score <= 1.0
    assert clean_kept(broken, uncurl_quotes=True).text.startswith('It is "fine" & well.\n\nThe')
    assert clean_kept("ﬁne ½ " + ENGLISH, normalization="NFKC").text.startswith("fine 1⁄2 ")
    assert clean_kept("â€œ" + ENGLISH, fix_text=False).text.startswith("â€œThe")


def test_reject_details_name_the_measured_values() -> None:
    assert reject_of("Too short to keep.") == (Reason.TOO_SHORT, "5 tokens, fewer than 128")
    assert reject_of(" \n ", min_tokens=0) == (Reason.TOO_SHORT, "no text")
    assert reject_of(FRENCH)[0] == Reason.WRONG_LANGUAGE
    assert reject_of(FRENCH)[1].startswith("fr, confidence ")
    assert reject_of(ENGLISH, filters=("gopher_repetition",))[0] == "gopher_repetition"
    assert clean_kept(FRENCH, languages=("all",)).language == "fr"
    assert clean_kept(FRENCH, languages=("de", "fr")).language == "fr"


def test_lines_dropped_by_c4_are_missing_from_kept_text() -> None:
    text = f"Home\nNews\n{ENGLISH}\nRead our privacy policy."
    document = clean_kept(text, filters=("c4",))
    assert (document.text, document.n_words) == (ENGLISH.strip(), len(ENGLISH.split()))
    assert clean_kept(text).text.startswith("Home\nNews\n")
    menu = "Home and News and Sport\n" * 100
    assert reject_of(menu + SENTENCE * 5, filters=("c4",)) == (
        Reason.TOO_SHORT,
        "110 tokens, fewer than 128",
    )
    assert reject_of(menu + SENTENCE * 2, filters=("c4",)) == (
        "c4",
        "sentences is 2, less than 3",
    )


@given(
    st.lists(
        st.one_of(st.text(max_size=6), st.sampled_from(["word", "naïve", "1234", "\n"])),
        max_size=40,
    ),
    st.integers(0, 60),
)
def test_the_limit_on_tokens_is_exact(parts: list[str], minimum: int) -> None:
    text = " ".join(parts)
    (tokens,) = encoding.load("gpt2").count([text])
    assert (too_short(text, len(text.split()), minimum) is not None) == (
        tokens < minimum or not text
    )


@given(st.text(alphabet=st.sampled_from("ab \t\n\r\f\xa0\u2003\u200b\xad\ufeff"), max_size=60))
def test_tidy_keeps_every_letter_and_is_idempotent(text: str) -> None:
    tidied = tidy(text)
    assert tidy(tidied) == tidied
    assert [char for char in tidied if char in "ab"] == [char for char in text if char in "ab"]
    assert "\n\n\n" not in tidied


def test_other_languages_are_detected_and_no_english_is_lost(testdata: Path) -> None:
    path = testdata / "text" / "sentences-by-language.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        rows = [json.loads(line) for line in lines]
    languages = [(row["lang"], detect(row["text"])[0]) for row in rows]
    verdicts = Counter((spoken == "en", detected == "en") for spoken, detected in languages)
    assert verdicts[True, False] == 0
    # There are 7,400 single sentences.
    assert verdicts[False, True] <= 10
    assert sum(spoken == detected for spoken, detected in languages) > 0.9 * len(rows)


@given(
    st.lists(
        st.sampled_from([*"a1.@:f -'", "é", "8.8.8.8", "2606:4700::", "x@y.org"]), max_size=30
    ).map("".join)
)
def test_masking_is_idempotent(text: str) -> None:
    masked, _ = mask(text)
    assert mask(masked)[0] == masked


def batch_of(*rows: dict[str, object]) -> pa.RecordBatch:
    """Return rows as a batch of documents."""
    numbered = [{"url_id": n, "subreddits": [], **row} for n, row in enumerate(rows)]
    return pa.RecordBatch.from_pylist(numbered, DATASETS["documents"].schema)


def test_titles_and_names_are_repaired_and_masked_like_texts() -> None:
    batch = batch_of(
        {"title": "Caf\u00c3\u00a9 &amp; bar", "author": "Jane, jane@x.org", "text": ENGLISH}
    )
    cases: tuple[tuple[dict[str, bool], str, str], ...] = (
        ({}, "Café & bar", "Jane, jane@x.org"),
        ({"mask_addresses": True}, "Café & bar", "Jane, email@example.com"),
        ({"fix_text": False}, "Caf\u00c3\u00a9 &amp; bar", "Jane, jane@x.org"),
    )
    for options, title, author in cases:
        (row,) = pa.table(clean_batch(batch, Options(**options)).kept).to_pylist()
        assert (row["title"], row["author"], row["site_name"]) == (title, author, None)


def test_signals_are_a_column_that_gives_the_filters_decisions() -> None:
    texts = (
        ENGLISH,
        ENGLISH.replace(". ", "\n"),
        ENGLISH + "{" * 9,
        "- The to be of river.\n" * 40,
        "word the of " * 60,
    )
    batch = batch_of(*({"text": text} for text in texts))
    measured = pa.table(clean_batch(batch, Options(languages=("all",))).kept)
    assert measured["n_chars"].to_pylist() == [len(text) for text in measured["text"].to_pylist()]
    for name, thresholds in BUILT_IN.items():
        signals = f"signals.{thresholds.measured_by or name}"
        conditions = []
        for limit, value in dataclasses.asdict(getattr(Options(), name)).items():
            operator = ">" if limit.startswith("max") else "<"
            conditions.append(f"{signals}.{limit[4:]} {operator} {value}")
        query = f"select url_id from measured where not ({' or '.join(conditions)}) order by 1"
        passing_ids = [url_id for (url_id,) in duckdb.sql(query).fetchall()]
        options = Options(languages=("all",), filters=(name,))
        table = pa.table(clean_batch(batch, options).kept)
        assert passing_ids == table["url_id"].to_pylist()
        assert len(passing_ids) < len(texts), name
