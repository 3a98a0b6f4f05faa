"""Words equal those found by plain Python; hashes of texts and n-grams are equal if and only if their words are."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.dedupe.shingles import Words, find_words, fold, hash_texts, shingle
from tests.owt_pipeline.dedupe import plain

WORDS = ["a", "b", "ab", "ba", "aa", "Ä", "漢", "eightlet", "nineletter", "sixteenletters16", "x" * 63, "x" * 64]
WORDS += ["x" * 65, "x" * 64 + "y", "x" * 64 + "z", "y" * 200]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=8)


@given(texts=TEXTS, n=st.integers(1, 7))
def test_shingles_are_equal_if_and_only_if_their_n_grams_are(texts: list[str], n: int) -> None:
    shingles = shingle(fold(pa.array(texts, pa.string())), n)
    grams = [plain.shingles(text, n) for text in texts]
    assert np.diff(shingles.offsets).tolist() == [len(of_text) for of_text in grams]
    named = list(zip([gram for of_text in grams for gram in of_text], shingles.hashes.tolist(), strict=True))
    assert len(set(named)) == len({gram for gram, _ in named}) == len({value for _, value in named})


@given(TEXTS)
def test_a_text_has_the_same_shingles_in_any_batch(texts: list[str]) -> None:
    together = shingle(fold(pa.array(texts, pa.string())), 3)
    for i, text in enumerate(texts):
        alone = shingle(fold(pa.array([text])), 3)
        assert alone.hashes.tolist() == together.hashes[together.offsets[i] : together.offsets[i + 1]].tolist()


# Letters, separators, a combining mark, ideographs, scripts without spaces, pairs whose case changes their length.
ALPHABET = "aBz09 .,'\n\t\x00ÄßéñĞžЖж“”—…漢字かナไทย한국اب́\u200b\u00a0KſIıẞȺ😀𝒳𠀀"


def listed(words: Words) -> list[list[str]]:
    cut = [bytes(words.letters[start:end]).decode() for start, end in zip(words.starts, words.ends, strict=True)]
    return [cut[a:b] for a, b in zip(words.offsets[:-1], words.offsets[1:], strict=True)]


@given(st.lists(st.one_of(st.text(ALPHABET), st.text(st.characters(exclude_categories=["Cs"])))))
def test_batch_has_the_words_of_each_text(texts: list[str]) -> None:
    assert listed(find_words(fold(pa.array(texts, pa.string())))) == [plain.words(text) for text in texts]


@given(st.lists(st.text(ALPHABET), min_size=3), st.booleans())
def test_slice_of_a_column_has_only_its_rows(texts: list[str], wide: bool) -> None:
    column = pa.array(texts, pa.large_string() if wide else pa.string())
    assert listed(find_words(fold(column[1:-1]))) == [plain.words(text) for text in texts[1:-1]]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("Don’t stop — “now”…", ["don", "t", "stop", "now"]),
        ("Ärger im Straßenbahnhof", ["ärger", "im", "straßenbahnhof"]),
        ("ЖУРНАЛ №5", ["журнал", "5"]),
        ("漢字とかな", ["漢", "字", "と", "か", "な"]),
        ("한국어 문장", ["한국어", "문장"]),
        ("naïve café", ["naïve", "café"]),
        ("e\u0301te\u0301", ["e\u0301te\u0301"]),
        ("a_b-c.d", ["a", "b", "c", "d"]),
        ("😀😀 !?", []),
        ("", []),
    ],
)
def test_words_are_letters_marks_and_numbers_or_ideographs(text: str, words: list[str]) -> None:
    assert listed(find_words(fold(pa.array([text])))) == [words]


def hashed(*texts: str) -> list[bytes]:
    column = pa.array(texts, pa.string())
    return hash_texts(column, fold(column))


ANY_TEXTS = st.lists(st.one_of(st.text("aB漢か .\n\u00a0é", max_size=6), st.text(ALPHABET), st.text()), max_size=8)


@settings(deadline=None)  # the first one builds the table of characters
@given(ANY_TEXTS)
def test_text_hashes_are_equal_if_and_only_if_the_words_are(texts: list[str]) -> None:
    same: dict[object, bytes] = {}
    for text, found in zip(texts, hashed(*texts), strict=True):
        what = tuple(plain.words(text)) or text
        assert same.setdefault(what, found) == found
        assert found == hashed(text)[0]
    assert len(set(same.values())) == len(same)


COPIES = [
    ("One, two — three!", "  one TWO\n\nthree"),
    ("漢字 and かな", "漢 字and、か な"),
    ("I \u2764\ufe0f this", "I \u2764 this"),
    ("a\ufe0fb 1\ufe0f\u20e3 two", "ab 1\u20e3 two"),
    ("\u845b\U000e0100\u57ce\u5e02", "\u845b\u57ce\u5e02"),
    ("\u182e\u180b\u1823", "\u182e\u1823"),
    ("\u2764\ufe0f", "\u2764"),
    ("one #\ufe0f\u20e3 two", "one # two"),
    ("one \u25cc\u0301\u0301 two", "one two"),
    ("\u0301one", "one"),
]
OTHERS = [
    ("one two three", "one two four"),
    ("one two three", "onetwo three"),
    ("漢字 and かな", "漢字an dかな"),
    ("!!!", "???"),
    ("!!!", ""),
    ("\u2764\ufe0f \u2600\ufe0f \u2708\ufe0f", "\u260e\ufe0f \u2702\ufe0f \u2709\ufe0f"),
    ("#\ufe0f\u20e3", "*\ufe0f\u20e3"),
    ("\u2705\u20dd", "\u274c\u20dd"),
    ("e\u0301", "e"),
    ("1\u20e3", "1"),
    ("\u0915\u094d\u0937", "\u0915\u0937"),
]


@pytest.mark.parametrize(
    ("left", "right", "same"), [(*pair, True) for pair in COPIES] + [(*pair, False) for pair in OTHERS]
)
def test_texts_are_the_same_if_their_words_are_and_without_words_if_they_are_equal(
    left: str, right: str, same: bool
) -> None:
    for before in ("", "letters "):
        texts = pa.array([before + left, before + right, "\u0301", "end"])
        first, second, *_ = hash_texts(texts, fold(texts))
        assert (first == second) == (same or (bool(before) and not plain.words(left) and not plain.words(right)))
    assert listed(find_words(fold(texts))) == [plain.words(text) for text in texts.to_pylist()]
