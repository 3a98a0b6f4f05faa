"""Words equal those found by plain Python; hashes of texts and n-grams are equal if and only if their words are."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.dedupe.shingles import Words, find_words, fold, hash_texts, hash_words, ngrams
from tests.owt_pipeline.dedupe import plain

WORDS = ["a", "b", "ab", "ba", "aa", "Ä", "漢", "eightlet", "nineletter", "sixteenletters16", "x" * 63, "x" * 64]
WORDS += ["x" * 65, "x" * 64 + "y", "x" * 64 + "z", "y" * 200]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=8)


@given(texts=TEXTS, n=st.integers(1, 7))
def test_shingles_are_equal_if_and_only_if_their_n_grams_are(texts: list[str], n: int) -> None:
    shingles = ngrams(hash_words(pa.array(texts, pa.string())), n)
    grams = [plain.shingles(text, n) for text in texts]
    assert np.diff(shingles.offsets).tolist() == [len(of_text) for of_text in grams]
    named = list(zip([gram for of_text in grams for gram in of_text], shingles.values.tolist(), strict=True))
    assert len(set(named)) == len({gram for gram, _ in named}) == len({value for _, value in named})
    for i, text in enumerate(texts):  # the same in any batch
        assert ngrams(hash_words(pa.array([text])), n).values.tolist() == shingles.each()[i].tolist()


# Letters, separators, a combining mark, ideographs, scripts without spaces, pairs whose case changes their length.
ALPHABET = "aBz09 .,'\n\t\x00ÄßéñĞžЖж“”—…漢字かナไทย한국اب́\u200b\u00a0KſIıẞȺ😀𝒳𠀀"


def listed(words: Words) -> list[list[str]]:
    cut = [bytes(words.letters[start:end]).decode() for start, end in zip(words.starts, words.ends, strict=True)]
    return [cut[a:b] for a, b in zip(words.offsets[:-1], words.offsets[1:], strict=True)]


@given(
    st.lists(st.one_of(st.text(ALPHABET), st.text(st.characters(exclude_categories=["Cs"]))), min_size=2), st.booleans()
)
def test_batch_or_slice_of_a_column_has_the_words_of_each_text(texts: list[str], wide: bool) -> None:
    column = pa.array(texts, pa.large_string() if wide else pa.string())
    assert listed(find_words(fold(column))) == [plain.words(text) for text in texts]
    assert listed(find_words(fold(column[1:-1]))) == [plain.words(text) for text in texts[1:-1]]


CASES = [line.split("\t") for line in Path(__file__).with_name("words.tsv").read_text("utf-8").splitlines()[1:]]
PAIRS = [(kind == "same", left, right) for kind, left, right in CASES if kind != "words"]


@pytest.mark.parametrize(("text", "words"), [case[1:] for case in CASES if case[0] == "words"])
def test_words_are_letters_marks_and_numbers_or_ideographs(text: str, words: str) -> None:
    assert listed(find_words(fold(pa.array([json.loads(text)])))) == [json.loads(words)]


def hashed(*texts: str) -> list[bytes]:
    column = pa.array(texts, pa.string())
    return hash_texts(column, hash_words(column))


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


@pytest.mark.parametrize(("same", "left", "right"), PAIRS)
def test_texts_are_the_same_if_their_words_are_and_without_words_if_they_are_equal(
    same: bool, left: str, right: str
) -> None:
    left, right = json.loads(left), json.loads(right)
    for before in ("", "letters "):
        texts = [before + left, before + right, "\u0301", "end"]
        first, second, *_ = hashed(*texts)
        assert (first == second) == (same or (bool(before) and not plain.words(left) and not plain.words(right)))
    assert listed(find_words(fold(pa.array(texts)))) == [plain.words(text) for text in texts]
