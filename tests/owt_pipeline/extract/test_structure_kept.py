"""The share of real pages' structure kept in our Markdown, by the scores of `benchmarks/extraction.py`."""

from __future__ import annotations

from pathlib import Path

from benchmarks.extraction_model import structure


def test_markdown_keeps_the_structure_of_real_pages(testdata: Path) -> None:
    """html2text keeps 0.981 of the headings, 0.975 of the items, 0.467 of the cells and all lines of code."""
    least = {"headings": 0.985, "items": 0.975, "cells": 0.99, "rows": 0.98, "code": 0.99}
    kept, wanted = dict.fromkeys(least, 0), dict.fromkeys(least, 0)
    for page in structure.readability_pages(testdata / "web"):
        truth = structure.pieces_of_html(page["expected_html"])
        found = structure.pieces_of_markdown(structure.ours_without_choice(structure.main_part(page)))
        for kind in least:
            kept[kind] += (truth[kind] & found[kind]).total()
            wanted[kind] += truth[kind].total()
    for kind, share in least.items():
        assert kept[kind] >= share * wanted[kind], kind
