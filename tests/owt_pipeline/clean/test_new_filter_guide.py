"""The example of docs/how-to/new-filter.md works."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from owt_pipeline.stages.clean.documents import clean_document
from owt_pipeline.stages.clean.filters import FILTERS
from owt_pipeline.stages.clean.options import Options

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "how-to" / "new-filter.md"


@pytest.fixture
def example() -> dict[str, Any]:
    """The names that the guide's filter and test define."""
    blocks = re.findall(r"```python\n(.*?)```", GUIDE.read_text(encoding="utf-8"), re.DOTALL)
    names: dict[str, Any] = {"__name__": __name__}
    for block in (blocks[0], blocks[1], blocks[-1]):
        exec(compile(block, str(GUIDE), "exec"), names)
    return names


def test_the_guides_filter_passes_the_guides_test(example: dict[str, Any]) -> None:
    example["test_shouting"]()


def test_the_guides_filter_rejects_documents(example: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    # The guide adds a reason and a field; here, the example takes the name of a filter that has both.
    monkeypatch.setitem(FILTERS, "fineweb", example["shouting"])
    text = "THE RIVER RAN PAST THE OLD MILL AND NOBODY KNEW FOR HOW LONG IT HAD DONE SO. " * 20
    rules = Options(languages=("all",), filters=("fineweb",), fineweb=example["Shouting"]())
    assert clean_document(text, rules).detail == "upper_case_words is 1.0000, more than 0.3"
    assert clean_document(text.lower(), rules).signals["fineweb"] == {"upper_case_words": 0.0}
    assert clean_document(text.lower(), rules).reason is None
