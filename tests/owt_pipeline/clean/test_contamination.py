"""Documents that contain text of an evaluation set."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.clean import contamination
from owt_pipeline.clean.contamination import evaluation_sets, n_grams_of, shared_n_gram
from owt_pipeline.clean.documents import clean_document
from owt_pipeline.clean.options import Options
from owt_pipeline.errors import UserError
from schemas import Reason

ENGLISH = "The river ran past the old mill, and nobody in the village could say how long it had done so. " * 10


@pytest.mark.parametrize("name", ["set.jsonl", "set.jsonl.gz", "set.json", "set.txt"])
def test_documents_that_hold_text_of_an_evaluation_set_are_rejected(tmp_path: Path, name: str) -> None:
    question = "Which of the four travellers first saw the lights of the harbour on that cold evening?"
    path = tmp_path / name
    lines = [question, "short one"]
    if name != "set.txt":
        lines = [json.dumps({"q": [question], "n": 3}), json.dumps({"a": "short one"})]
    data = "\n".join(lines).encode()
    if name == "set.json":
        data = json.dumps([question, {"short": ["one"]}], indent=1).encode()
    path.write_bytes(gzip.compress(data) if name.endswith(".gz") else data)
    options, sets = Options(), evaluation_sets([str(path)], 13)
    leaked = clean_document(ENGLISH + question.upper().replace(",", " -"), options, sets)
    assert leaked.reason == Reason.CONTAMINATED
    assert leaked.detail == "which of the four travellers first saw the lights of the harbour on"
    assert clean_document(ENGLISH + " ".join(question.split()[:12]), options, sets).reason is None
    assert clean_document(ENGLISH + " short one", options, sets).reason is None


def test_unreadable_evaluation_set_is_one_clear_error(tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text('{"a": "b"}\nnot json\n')
    with pytest.raises(UserError, match=r"set\.jsonl, line 2: not a JSON value"):
        n_grams_of(evaluation_sets([str(tmp_path / "set.jsonl")], 13))
    (tmp_path / "set.txt.gz").write_bytes(b"no gzip")
    with pytest.raises(UserError, match=r"set\.txt\.gz: damaged or incomplete gzip file"):
        n_grams_of(evaluation_sets([str(tmp_path / "set.txt.gz")], 13))


@given(
    st.lists(st.sampled_from("abcde"), max_size=40), st.lists(st.sampled_from("abcde"), max_size=40), st.integers(2, 5)
)
def test_a_shared_n_gram_is_found_if_and_only_if_there_is_one(left: list[str], right: list[str], n: int) -> None:
    n_grams = set(zip(*(right[start:] for start in range(n)), strict=False))
    keys = np.unique(contamination._keys(right, n))
    expected = next((g for g in zip(*(left[start:] for start in range(n)), strict=False) if g in n_grams), None)
    assert shared_n_gram(" ".join(left), keys, n) == (" ".join(expected) if expected else None)
