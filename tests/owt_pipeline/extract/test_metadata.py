"""The metadata of a page: the cases of `metadata.txt`.

A case is a paragraph: a field, its value (nothing for None), and the page's URL if it matters; then the page.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from owt_pipeline.stages.extract.metadata import read_head, read_metadata
from owt_pipeline.stages.extract.reader import read_page

FETCHED_AT = 1_577_836_800  # 2020-01-01
CASES = Path(__file__).with_name("metadata.txt").read_text(encoding="utf-8").strip("\n").split("\n\n")


def read(html: str, url: str = "http://h/") -> dict[str, str | None]:
    page = read_page(html)
    return read_metadata(page, read_head(page), url, FETCHED_AT)


@pytest.mark.parametrize("case", CASES)
def test_field_of_a_page(case: str) -> None:
    first, _, html = case.partition("\n")
    field, _, expected = first.partition(":")
    value, _, url = expected.partition("    ")
    assert read(html, url or "http://h/")[field] == (value.strip() or None)


def test_title_is_no_text_of_a_thousand_letters() -> None:
    assert read(f"<title>{'x' * 1000}</title>")["title"] is None
