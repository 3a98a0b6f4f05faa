"""The user's own signals, and the guide to them."""

from __future__ import annotations

import re
import sys
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow.parquet as pq
import pytest

import owt_pipeline as owt
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.stages.clean import own_signals
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.stage import STAGE
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.clean.test_stage import SENTENCE, write_documents
from tests.owt_pipeline.making import write_dataset
from tests.owt_pipeline.runs import ask_stage, run_to_end, stage_alone

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "new-filter.md"
TEXTS = [SENTENCE * 10, SENTENCE * 20, SENTENCE.upper() * 10, "short"]

SIGNALS = """\
import numpy

def length(text):
    return len(text)

def capitals(text: str) -> float:
    return numpy.float32(sum(map(str.isupper, text)) / len(text))

def hostile(text: str) -> float:
    if "raise" in text:
        raise RuntimeError("as asked")
    return {"nan": float("nan"), "none": None, "word": "7", "list": [1.0]}.get(text.split()[-1], 1.0)
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents next to a module of signals, which no other test has imported."""
    (tmp_path / "mine.py").write_text(SIGNALS)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "mine", raising=False)
    own_signals._loaded.cache_clear()  # type: ignore[attr-defined]
    write_dataset(Storage(str(tmp_path / "run")), "documents", partial(write_documents, TEXTS))
    return tmp_path / "run"


def owt_clean(run: Path, *signals: str, code: int = 0) -> str:
    """Run clean with signals in a process of its own; return its output."""
    paths = f"{run.parent}:{Path(__file__).resolve().parents[3]}"
    command = stage_alone("clean", run, "--languages", "all", "--signals", *signals)
    return run_to_end(command, code, {"PYTHONPATH": paths})


def clean(run: Path, *signals: str) -> dict[int, tuple[str, str]]:
    """Run clean with signals in this process; return the reason and detail of each reject."""
    run_stage(STAGE, Options(languages=("all",), signals=signals), Runtime(Storage(str(run))))
    return {
        key: (row["reason"], row["detail"])
        for key, row in sorted(rows(run / "ledger/clean/rejects").items())
    }


def rows(folder: Path) -> dict[int, dict[str, Any]]:
    """Return the rows of a folder by their id."""
    return {
        row["url_id"]: row
        for file in folder.glob("*.parquet")
        for row in pq.read_table(file).to_pylist()
    }


def test_a_functions_results_are_a_column_of_clean_and_corpus(run: Path) -> None:
    clean(run, "mine:length", "mine:capitals")
    clean_rows = rows(run / "clean")
    assert sorted(clean_rows) == [0, 1, 2]
    for row in clean_rows.values():
        assert [signal["name"] for signal in row["own_signals"]] == ["mine:length", "mine:capitals"]
        assert row["own_signals"][0]["value"] == row["n_chars"]
    ask_stage("dedupe", run)
    ask_stage("export", run)
    corpus = rows(run / "corpus")
    assert corpus
    assert all(row["own_signals"] == clean_rows[key]["own_signals"] for key, row in corpus.items())
    query = (
        "select url_id from '{}/clean/*.parquet' where "
        "map_from_entries(own_signals)['mine:capitals'] > 0.5"
    )
    assert duckdb.sql(query.format(run)).fetchall() == [(2,)]
    sources = require_manifest(Storage(str(run)), "clean").sources
    (source,) = [source for source in sources if source["name"] == "mine:length"]
    assert (source["kind"], len(source["sha256"])) == ("signal", 64)


@pytest.mark.parametrize(
    ("signals", "details"),
    [
        ((), {}),
        (
            ("mine:length>=1000", "mine:capitals <= 0.5"),
            dict.fromkeys((0, 2), "mine:length is 939, less than 1,000"),
        ),
        (("mine:capitals <= 0.5",), {2: "mine:capitals is 0.766773, more than 0.5"}),
        # The limit itself passes.
        (("mine:length>=939", "mine:capitals<=8e-1"), {}),
    ],
)
def test_a_document_beyond_a_threshold_is_rejected_by_name(
    run: Path, signals: tuple[str, ...], details: dict[int, str]
) -> None:
    expected = {number: ("own_signal", detail) for number, detail in details.items()}
    expected[3] = ("too_short", "1 tokens, fewer than 128")
    assert clean(run, *signals) == expected
    for row in rows(run / "clean").values():
        assert (row["own_signals"] is None) == (not signals)


def test_a_function_that_fails_rejects_only_that_document(run: Path) -> None:
    failures = {
        "raise": "RuntimeError: as asked",
        "nan": "nan is no finite number",
        "none": "TypeError: .*NoneType.*",
        "word": "'7' is no finite number",
        "list": "TypeError: .*list.*",
    }
    texts = [f"{SENTENCE * 10} {word}" for word in ("fine", *failures)]
    failing = run.parent / "failing"
    write_dataset(Storage(str(failing)), "documents", partial(write_documents, texts))
    rejects = clean(failing, "mine:hostile")
    assert [*rejects] == [1, 2, 3, 4, 5]
    for (reason, detail), failure in zip(rejects.values(), failures.values(), strict=True):
        assert reason == "signal_failed"
        assert re.fullmatch(f"mine:hostile: {failure}", detail)
    # A function may fail for each document, as when the file of its model is missing.
    all_fail = run.parent / "none"
    write_dataset(Storage(str(all_fail)), "documents", partial(write_documents, texts[1:2]))
    output = owt_clean(all_fail, "mine:hostile", code=1)
    assert "clean rejected 1 row, all that entered it (signal_failed 1)" in output


def test_an_edited_function_runs_the_stage_again(run: Path) -> None:
    """The edited function may also be one that the module imports."""
    (run.parent / "theirs.py").write_text("from mine import length\n")
    owt_clean(run, "theirs:length")
    assert "(finished)" in owt_clean(run, "theirs:length")
    (run.parent / "mine.py").write_text(SIGNALS.replace("return len(text)", "return 2 * len(text)"))
    assert "(finished)" not in owt_clean(run, "theirs:length")
    assert rows(run / "clean")[0]["own_signals"] == [
        {"name": "theirs:length", "value": 2.0 * len(TEXTS[0].strip())}
    ]


@pytest.mark.parametrize(
    ("signals", "code", "message"),
    [
        (
            ["mine"],
            2,
            "signals: 'mine' is not module:function, and no installed package adds it",
        ),
        (["mine:length>=1.2.3"], 2, "signals: 'mine:length>=1.2.3' is not module:function"),
        (["mine:length", "mine:length>=1"], 2, "signals: mine:length is given twice"),
        (
            ["no_such_module:length"],
            1,
            "signals: no_such_module:length cannot be imported (ModuleNotFoundError: No module named",
        ),
        (["mine:width"], 1, "signals: the module mine has no function 'width'"),
        (["mine:numpy"], 1, "signals: mine:numpy is of type module, not a function"),
        (
            ["raising:length"],
            1,
            "signals: raising:length cannot be imported (RuntimeError: no model)",
        ),
    ],
)
def test_a_mistake_is_one_clear_error_before_anything_is_written(
    run: Path, signals: list[str], code: int, message: str
) -> None:
    (run.parent / "raising.py").write_text("raise RuntimeError('no model')\n")
    with pytest.raises(UserError, match=re.escape(message)) as error:
        clean(run, *signals)
    assert error.value.exit_code == code
    assert not (run / "clean").exists()
    with pytest.raises(ValueError, match=re.escape(message)):
        owt.clean("text", signals=signals)


FASTTEXT = """\
class load_model:
    def __init__(self, path):
        pass

    def predict(self, text, k):
        assert "\\n" not in text
        return ("__label__cc", "__label__hq"), (0.9, 0.1 if text.isupper() else 0.3)
"""


def test_the_guides_classifier_works(run: Path) -> None:
    """fastText is not a dependency, so a module with its functions replaces it."""
    (code,) = re.findall(
        r"^`quality.py`:\n\n```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL
    )
    assert len([line for line in code.splitlines() if line]) <= 8
    (run.parent / "quality.py").write_text(code)
    (run.parent / "fasttext.py").write_text(FASTTEXT)
    assert clean(run, "quality:good>=0.2")[2] == (
        "own_signal",
        "quality:good is 0.1, less than 0.2",
    )
    assert sorted(rows(run / "clean")) == [0, 1]


def test_a_text_is_measured_in_this_process(run: Path) -> None:
    result = owt.clean(TEXTS[0], signals=["mine:length<=10"])
    assert result.own_signals == {"mine:length": len(result.text)}
    assert result.reason == "own_signal"
