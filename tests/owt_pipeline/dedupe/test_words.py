"""Words: the vectorised cutting finds what plain Python finds."""

from __future__ import annotations

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.dedupe.shingles import Words, find_words, fold
from tests.owt_pipeline.dedupe import plain

# Letters, separators, a combining mark, ideographs, scripts without spaces, pairs whose case changes their length.
ALPHABET = "aBz09 .,'\n\t\x00ÄßéñĞžЖж“”—…漢字かナไทย한국اب́\u200b\u00a0KſIıẞȺ😀𝒳𠀀"


def listed(words: Words) -> list[list[str]]:
    cut = [bytes(words.letters[start:end]).decode() for start, end in zip(words.starts, words.ends, strict=True)]
    return [cut[a:b] for a, b in zip(words.offsets[:-1], words.offsets[1:], strict=True)]


@given(st.lists(st.one_of(st.text(ALPHABET), st.text(st.characters(exclude_categories=["Cs"])))))
def test_words_of_a_batch_are_those_of_each_text(texts: list[str]) -> None:
    assert listed(find_words(fold(pa.array(texts, pa.string())))) == [plain.words(text) for text in texts]


@given(st.lists(st.text(ALPHABET), min_size=3), st.booleans())
def test_a_slice_of_a_column_is_read_as_its_own_rows(texts: list[str], wide: bool) -> None:
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
def test_what_a_word_is(text: str, words: list[str]) -> None:
    assert listed(find_words(fold(pa.array([text])))) == [words]
