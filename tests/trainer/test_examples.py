"""The examples, as a reader runs them."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"


@pytest.mark.slow
def test_a_model_learns_to_add() -> None:
    assert runpy.run_path(str(EXAMPLES / "addition.py"))["main"]() >= 190


def test_the_example_of_addition_runs() -> None:
    assert 0 <= runpy.run_path(str(EXAMPLES / "addition.py"))["main"](3) <= 200


def test_the_example_of_characters_writes_the_texts_characters(tmp_path: Path) -> None:
    text = "The heron sits on the wall.\n" * 20
    (tmp_path / "text.txt").write_text(text)
    main = runpy.run_path(str(EXAMPLES / "characters.py"))["main"]
    written = main(str(tmp_path / "text.txt"), 30)
    assert len(written) == 201
    assert set(written) <= set(text)
