"""Signals of the user's own, through the command line, and the guide to them."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import owt_pipeline as owt
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.making import write_dataset
from tests.owt_pipeline.runs import ask_owt, run_owt

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "new-filter.md"
SENTENCE = "The river ran past the old mill, and nobody in the village could say how long it had done so. "
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


def write_documents(texts: list[str], shard: int, writer: ShardWriter) -> None:
    rows = [{"url_id": n, "url": f"http://h/{n}", "text": text, "subreddits": []} for n, text in enumerate(texts)]
    writer.enter(len(rows))
    writer.write(pa.RecordBatch.from_pylist(rows, DATASETS["documents"].schema))


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "mine.py").write_text(SIGNALS)
    write_dataset(Storage(str(tmp_path / "run")), "documents", partial(write_documents, TEXTS))
    return tmp_path / "run"


def clean(run: Path, *signals: str, code: int = 0) -> str:
    flags = ["--signals", *signals] if signals else []
    return run_owt("clean", run, "--languages", "all", *flags, code=code, env={"PYTHONPATH": paths(run)})


def paths(run: Path) -> str:
    return f"{run.parent}:{Path(__file__).resolve().parents[3]}"


def rows(folder: Path) -> dict[int, dict[str, Any]]:
    return {row["url_id"]: row for file in folder.glob("*.parquet") for row in pq.read_table(file).to_pylist()}


def rejects(run: Path) -> dict[int, tuple[str, str]]:
    return {key: (row["reason"], row["detail"]) for key, row in rows(run / "ledger/clean/rejects").items()}


def test_what_a_function_returns_is_a_column_of_clean_and_corpus(run: Path) -> None:
    clean(run, "mine:length", "mine:capitals")
    found = rows(run / "clean")
    assert sorted(found) == [0, 1, 2]
    for row in found.values():
        assert [signal["name"] for signal in row["own_signals"]] == ["mine:length", "mine:capitals"]
        assert row["own_signals"][0]["value"] == row["n_chars"]
    assert rejects(run) == {3: ("too_short", "1 tokens, fewer than 128")}
    run_owt("dedupe", run)
    run_owt("export", run)
    assert {key: row["own_signals"] for key, row in rows(run / "corpus").items()} == {
        key: row["own_signals"] for key, row in found.items() if key in rows(run / "corpus")
    }
    query = "select url_id from '{}/clean/*.parquet' where map_from_entries(own_signals)['mine:capitals'] > 0.5"
    assert duckdb.sql(query.format(run)).fetchall() == [(2,)]
    (source,) = [own for own in require_manifest(Storage(str(run)), "clean").sources if own["name"] == "mine:length"]
    assert source["kind"] == "signal"
    assert len(source["sha256"]) == 64


def test_a_document_beyond_a_threshold_is_rejected_by_name(run: Path) -> None:
    clean(run, "mine:length>=1000", "mine:capitals <= 0.5")
    lengths = {n: f"mine:length is {len(TEXTS[n].strip())}, less than 1,000" for n in (0, 2)}
    assert rejects(run) == {n: ("own_signal", detail) for n, detail in lengths.items()} | {
        3: ("too_short", "1 tokens, fewer than 128")
    }
    clean(run, "mine:capitals <= 0.5")
    assert rejects(run)[2] == ("own_signal", "mine:capitals is 0.766773, more than 0.5")
    # The limit itself passes.
    clean(run, f"mine:length>={len(TEXTS[1].strip())}")
    assert list(rows(run / "clean")) == [1]
    (run / "settings.toml").unlink()  # which has the flag of the last run
    clean(run)
    assert {row["own_signals"] for row in rows(run / "clean").values()} == {None}


def test_a_function_that_fails_rejects_only_that_document(tmp_path: Path) -> None:
    words = {
        "fine": None,
        "raise": "RuntimeError: as asked",
        "nan": "nan is no finite number",
        "none": "TypeError: .*NoneType.*",
        "word": "'7' is no finite number",
        "list": "TypeError: .*list.*",
    }
    texts = [f"{SENTENCE * 10} {word}" for word in words]
    (tmp_path / "mine.py").write_text(SIGNALS)
    run = tmp_path / "failing"
    write_dataset(Storage(str(run)), "documents", partial(write_documents, texts))
    clean(run, "mine:hostile")
    assert list(rows(run / "clean")) == [0]
    for number, wanted in enumerate(words.values()):
        reason, detail = rejects(run).get(number, (None, None))
        assert (reason == "signal_failed") == (wanted is not None)
        assert wanted is None or re.fullmatch(f"mine:hostile: {wanted}", str(detail))
    run_owt("verify", run)
    # As without the model's file: no document is left, and that is an error.
    write_dataset(Storage(str(tmp_path / "none")), "documents", partial(write_documents, texts[1:2]))
    assert "clean let none of 1 through (signal_failed 1)" in clean(tmp_path / "none", "mine:hostile", code=1)


def test_an_edited_function_runs_the_stage_again(run: Path) -> None:
    def is_made_again(*signals: str) -> bool:
        files = [(file.name, file.stat().st_ino) for file in (run / "clean").iterdir()]
        clean(run, *signals)
        return files != [(file.name, file.stat().st_ino) for file in (run / "clean").iterdir()]

    clean(run, "mine:length")
    assert not is_made_again("mine:length")
    (run.parent / "mine.py").write_text(SIGNALS.replace("return len(text)", "return 2 * len(text)"))
    assert is_made_again("mine:length")
    assert rows(run / "clean")[0]["own_signals"] == [{"name": "mine:length", "value": 2.0 * len(TEXTS[0].strip())}]
    assert is_made_again("mine:length>=1")
    # A function that another module only imports: its own source counts, too.
    (run.parent / "theirs.py").write_text("from mine import length\n")
    assert is_made_again("theirs:length")
    (run.parent / "mine.py").write_text(SIGNALS)
    assert is_made_again("theirs:length")


@pytest.mark.parametrize(
    ("signals", "code", "message"),
    [
        (["mine"], 2, "signals: 'mine' is none of module:function, module:function>=X, module:function<=X"),
        (["mine:length>1"], 2, "signals: 'mine:length>1' is none of"),
        (["mine:length>=1.2.3"], 2, "signals: 'mine:length>=1.2.3' is none of"),
        (["mine:length", "mine:length>=1"], 2, "signals: mine:length is given twice"),
        (["no_such_module:length"], 1, "signals: no_such_module:length cannot be imported (No module named"),
        (["mine:width"], 1, "signals: module mine has no 'width'"),
        (["mine:numpy"], 1, "signals: mine:numpy is of type module, not a function"),
        (["broken:length"], 1, "signals: broken:length cannot be imported ("),
        (["raising:length"], 1, "signals: raising:length cannot be imported (RuntimeError: no model)"),
    ],
)
def test_a_mistake_is_one_clear_error(
    run: Path, signals: list[str], code: int, message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(run.parent))
    (run.parent / "broken.py").write_text("def length(text:\n")
    (run.parent / "raising.py").write_text("raise RuntimeError('no model')\n")
    assert message in ask_owt("clean", run, "--signals", *signals, code=code)
    assert not (run / "clean").exists()


FASTTEXT = """\
class Model:
    def predict(self, text, k):
        assert "\\n" not in text
        return ("__label__cc", "__label__hq"), (0.9, 0.1 if text.isupper() else 0.3)

def load_model(path):
    return Model()
"""


def test_the_guides_classifier_works(run: Path) -> None:
    """fastText is no dependency: what it answers is replaced."""
    (code,) = re.findall(r"^`quality.py`:\n\n```python\n(.*?)^```", GUIDE.read_text(), re.MULTILINE | re.DOTALL)
    assert len([line for line in code.splitlines() if line]) <= 8
    (run.parent / "quality.py").write_text(code)
    (run.parent / "fasttext.py").write_text(FASTTEXT)
    clean(run, "quality:good>=0.2")
    assert sorted(rows(run / "clean")) == [0, 1]
    assert rejects(run)[2] == ("own_signal", "quality:good is 0.1, less than 0.2")


def test_the_guide_is_short() -> None:
    assert len(GUIDE.read_text().split()) <= 400


def test_a_text_is_measured_in_this_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_own_signals.py").write_text(SIGNALS)
    monkeypatch.syspath_prepend(str(tmp_path))
    found = owt.clean(TEXTS[0], signals=["my_own_signals:length<=10"])
    assert found.own_signals == {"my_own_signals:length": len(found.text)}
    assert found.reason == "own_signal"
    with pytest.raises(ValueError, match="signals: 'length' is none of"):
        owt.clean("text", signals=["length"])
