"""The hash of a normalised text: equal exactly where the words are."""

from __future__ import annotations

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.dedupe.shingles import fold, hash_texts
from tests.owt_pipeline.dedupe import plain
from tests.owt_pipeline.dedupe.test_words import ALPHABET


def hashed(*texts: str) -> list[bytes]:
    column = pa.array(texts, pa.string())
    return hash_texts(column, fold(column))


TEXTS = st.lists(st.one_of(st.text("aB漢か .\n\u00a0é", max_size=6), st.text(ALPHABET), st.text()), max_size=8)


@settings(deadline=None)  # the first one builds the table of characters
@given(TEXTS)
def test_text_hashes_are_equal_exactly_for_the_same_words(texts: list[str]) -> None:
    same: dict[object, bytes] = {}
    for text, found in zip(texts, hashed(*texts), strict=True):
        what = tuple(plain.words(text)) or text
        assert same.setdefault(what, found) == found
        assert found == hashed(text)[0]
    assert len(set(same.values())) == len(same)


def test_case_punctuation_and_spacing_do_not_distinguish_texts() -> None:
    same = hashed("One, two — three!", "  one TWO\n\nthree", "one two four", "onetwo three")
    assert same[0] == same[1]
    assert len(set(same)) == 3


def test_spaces_next_to_ideographs_do_not_distinguish_texts() -> None:
    same = hashed("漢字 and かな", "漢 字and、か な", "漢字an dかな")
    assert same[0] == same[1] != same[2]


def test_texts_without_words_are_the_same_only_if_they_are_equal() -> None:
    hashes = hashed("!!!", "???", "!!!", "")
    assert hashes[0] == hashes[2]
    assert len(set(hashes)) == 3
