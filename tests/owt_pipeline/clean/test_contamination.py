"""Documents that contain text of an evaluation set."""

from __future__ import annotations

import gzip
import json
import lzma
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.stages.clean import contamination
from owt_pipeline.stages.clean.contamination import evaluation_sets, shared_n_gram
from owt_pipeline.stages.clean.documents import clean_document
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.stage import STAGE as CLEAN
from schemas import Reason
from tests.owt_pipeline.clean.test_stage import ENGLISH


@pytest.mark.parametrize(
    "name", ["set.jsonl", "set.jsonl.gz", "SET.JSON", "set.txt", "set.txt.xz", "set.parquet"]
)
def test_documents_that_hold_text_of_an_evaluation_set_are_rejected(
    tmp_path: Path, name: str
) -> None:
    question = (
        "Which of the four travellers first saw the café of the harbour on that cold evening?"
    )
    path = tmp_path / name
    if name == "set.parquet":
        pq.write_table(pa.table({"id": [1, 2], "choices": [["short one"], [question]]}), path)
    else:
        rows = {
            "txt": f"{question}\nshort one",
            "jsonl": f'{json.dumps({"q": [question], "n": 3})}\n{{"a": "short one"}}',
            "JSON": json.dumps([question, {"short": ["one"]}], indent=1),
        }
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(rows[name.split(".")[1]].encode()))
    options, sets = Options(), evaluation_sets((str(path),))
    for form in ("NFC", "NFD"):  # composed and decomposed letters are the same
        shown = unicodedata.normalize(form, question.upper())  # type: ignore[arg-type]
        leaked = clean_document(ENGLISH + shown, options, sets)
        assert leaked.reason == Reason.CONTAMINATED
        assert leaked.detail == "which of the four travellers first saw the café of the harbour on"
    assert clean_document(ENGLISH + " ".join(question.split()[:12]), options, sets).reason is None
    assert clean_document(ENGLISH + " short one", options, sets).reason is None


def test_a_renamed_set_is_another_source(tmp_path: Path) -> None:
    for name in ("set.txt", "set.jsonl"):
        (tmp_path / name).write_text('["a text"]')
    first, second = (
        CLEAN.outside(Options(decontaminate=(str(tmp_path / name),)))
        for name in ("set.txt", "set.jsonl")
    )
    assert first != second


@given(
    st.lists(st.sampled_from("abcde"), max_size=40),
    st.lists(st.sampled_from("abcde"), max_size=40),
    st.integers(2, 5),
)
def test_a_shared_n_gram_is_found_if_and_only_if_there_is_one(
    left: list[str], right: list[str], n: int
) -> None:
    n_grams = set(zip(*(right[start:] for start in range(n)), strict=False))
    keys = np.unique(contamination._hashed(contamination._n_grams(" ".join(right), n)))
    expected = next(
        (g for g in zip(*(left[start:] for start in range(n)), strict=False) if g in n_grams), None
    )
    assert shared_n_gram(" ".join(left), keys, n) == (" ".join(expected) if expected else None)
