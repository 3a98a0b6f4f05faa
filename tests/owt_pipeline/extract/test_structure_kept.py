"""The share of real pages' structure kept in our Markdown, by the scores of `benchmarks/structure.py`."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARK = Path(__file__).resolve().parents[3] / "benchmarks" / "structure.py"


@pytest.fixture(scope="module")
def structure() -> ModuleType:
    spec = importlib.util.spec_from_file_location("structure_benchmark", BENCHMARK)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_markdown_keeps_the_structure_of_real_pages(testdata: Path, structure: ModuleType) -> None:
    """html2text keeps 0.981 of the headings, 0.975 of the items, 0.467 of the cells and all lines of code."""
    least = {"headings": 0.985, "items": 0.975, "cells": 0.99, "rows": 0.98, "code": 0.99}
    kept, wanted = dict.fromkeys(least, 0), dict.fromkeys(least, 0)
    for page in structure.read_pages(testdata):
        truth = structure.pieces_of_html(page["expected_html"])
        html = f"<html><body><article>{page['expected_html']}</article></body></html>"
        found = structure.pieces_of_markdown(structure.ours_without_choice(html))
        for kind in least:
            kept[kind] += (truth[kind] & found[kind]).total()
            wanted[kind] += truth[kind].total()
    for kind, share in least.items():
        assert kept[kind] >= share * wanted[kind], kind


@pytest.mark.parametrize(
    ("markdown", "kind", "piece"),
    [
        ("## A *b*", "headings", "a b"),
        ("- one\n  - two", "items", "two"),
        ("[^1]: A note.", "items", "a note"),
        ("| a | b |\n|---|---|\n| 1 | 2 |", "rows", ("1", "2")),
        ("```\n  x = 1\n```", "code", "  x = 1"),
    ],
)
def test_markdown_and_html_give_the_same_pieces(structure: ModuleType, markdown: str, kind: str, piece: object) -> None:
    assert structure.pieces_of_markdown(markdown)[kind][piece] == 1
