"""Words, hashes and signatures equal those of plain Python and datasketch.

Hashes of texts and n-grams are equal if and only if their words are. Two documents share a band as
often as their similarity predicts.
"""

from __future__ import annotations

import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from datasketch import MinHash
from datasketch.lsh import _optimal_param
from hypothesis import given, settings
from hypothesis import strategies as st

from owt_pipeline.formats.shingles import (
    hash_texts,
    hash_words,
    ngrams,
)
from owt_pipeline.formats.words import find_words, words_of
from owt_pipeline.stages.dedupe.minhash import (
    BANDS,
    ROWS,
    band_hashes,
    banding,
    probability,
    signatures,
)
from tests.owt_pipeline.dedupe import plain

WORDS = [
    "a",
    "b",
    "ab",
    "ba",
    "aa",
    "Ä",
    "漢",
    "eightlet",
    "nineletter",
    "sixteenletters16",
    "x" * 63,
    "x" * 64,
]
WORDS += ["x" * 65, "x" * 64 + "y", "x" * 64 + "z", "y" * 200]
TEXTS = st.lists(st.lists(st.sampled_from(WORDS), max_size=12).map(" ".join), max_size=8)


@given(texts=TEXTS, n=st.integers(1, 7))
def test_shingles_are_equal_if_and_only_if_their_n_grams_are(texts: list[str], n: int) -> None:
    shingles = ngrams(hash_words(pa.array(texts, pa.string())), n)
    n_grams_of_texts = [plain.shingles(text, n) for text in texts]
    assert np.diff(shingles.offsets).tolist() == [len(n_grams) for n_grams in n_grams_of_texts]
    all_n_grams = []
    for n_grams in n_grams_of_texts:
        all_n_grams += n_grams
    hashes = shingles.values.tolist()
    pairs = set(zip(all_n_grams, hashes, strict=True))
    assert len(pairs) == len(set(all_n_grams)) == len(set(hashes))
    # A text has the same hashes in any batch.
    for number, text in enumerate(texts):
        in_own_batch = ngrams(hash_words(pa.array([text])), n)
        assert in_own_batch.values.tolist() == shingles.each()[number].tolist()


# Letters, separators, a combining mark, ideographs, scripts without spaces, pairs whose case
# changes their length.
ALPHABET = "aBz09 .,'\n\t\x00ÄßéñĞžЖж“”—…漢字かナไทย한국اب́\u200b\u00a0KſIıẞȺ😀𝒳𠀀"


def words_in_column(column: pa.Array) -> list[list[str]]:
    """Return the words of each text of a column."""
    words, offsets = find_words(column)
    return [words[start:end].to_pylist() for start, end in pairwise(offsets.tolist())]


@given(
    st.lists(
        st.one_of(st.text(ALPHABET), st.text(st.characters(exclude_categories=["Cs"]))), min_size=2
    ),
    st.booleans(),
)
def test_batch_or_slice_of_a_column_has_the_words_of_each_text(
    texts: list[str], is_large: bool
) -> None:
    column = pa.array(texts, pa.large_string() if is_large else pa.string())
    assert words_in_column(column) == [plain.words(text) for text in texts]
    assert words_in_column(column[1:-1]) == [plain.words(text) for text in texts[1:-1]]


@settings(deadline=None)
@given(st.one_of(st.text(ALPHABET), st.text(st.characters(exclude_categories=["Cs"]))))
def test_a_text_has_the_same_words_as_in_a_column(text: str) -> None:
    # The two functions lower some letters to other ones.
    lower = text.lower()
    assert words_of(lower) == words_in_column(pa.array([lower]))[0]


CASES_FILE = Path(__file__).with_name("words.tsv")
CASES = [line.split("\t") for line in CASES_FILE.read_text("utf-8").splitlines()[1:]]
PAIRS = [(kind == "same", left, right) for kind, left, right in CASES if kind != "words"]


@pytest.mark.parametrize(("text", "words"), [case[1:] for case in CASES if case[0] == "words"])
def test_words_are_letters_marks_and_numbers_or_ideographs(text: str, words: str) -> None:
    assert words_in_column(pa.array([json.loads(text)])) == [json.loads(words)]


def hashed(*texts: str) -> list[bytes]:
    """Return the hashes of texts."""
    column = pa.array(texts, pa.string())
    return hash_texts(column, hash_words(column))


ANY_TEXTS = st.lists(
    st.one_of(st.text("aB漢か .\n\u00a0é", max_size=6), st.text(ALPHABET), st.text()), max_size=8
)


# The first example builds the table of characters.
@settings(deadline=None)
@given(ANY_TEXTS)
def test_text_hashes_are_equal_if_and_only_if_the_words_are(texts: list[str]) -> None:
    hash_by_words: dict[object, bytes] = {}
    for text, text_hash in zip(texts, hashed(*texts), strict=True):
        # Texts without a word are equal only if they are the same.
        words = tuple(plain.words(text)) or text
        assert hash_by_words.setdefault(words, text_hash) == text_hash
        assert text_hash == hashed(text)[0]
    assert len(set(hash_by_words.values())) == len(hash_by_words)


@pytest.mark.parametrize(("is_same", "left", "right"), PAIRS)
def test_texts_of_the_same_words_have_the_same_hash(is_same: bool, left: str, right: str) -> None:
    left = json.loads(left)
    right = json.loads(right)
    have_no_words = not plain.words(left) and not plain.words(right)
    for prefix in ("", "letters "):
        texts = [prefix + left, prefix + right, "\u0301", "end"]
        first, second, *_ = hashed(*texts)
        assert (first == second) == (is_same or (bool(prefix) and have_no_words))
        assert words_in_column(pa.array(texts)) == [plain.words(text) for text in texts]


HASHES = st.lists(st.integers(0, 2**32 - 1), max_size=40)


def test_the_documented_shares_of_pairs_follow_from_the_bands() -> None:
    page = Path(__file__).parents[3] / "docs" / "how-to" / "near-duplicates.md"
    table = re.findall(r"^\| (0\.\d+) \| ([\d.]+)% \|$", page.read_text("utf-8"), re.MULTILINE)
    assert len(table) == 8
    for threshold, share in table:
        bands, rows = banding(float(threshold))
        assert f"{100 * probability(float(threshold), bands, rows):.1f}" == share


def test_the_banding_is_datasketchs_choice() -> None:
    assert _optimal_param(0.8, 128, 0.001, 0.999) == (BANDS, ROWS)
    assert probability(0.8) > 0.998
    assert [probability(similarity) for similarity in (0.0, 1.0)] == [0.0, 1.0]


@pytest.mark.parametrize("threshold", [0.25, 0.3, 0.45, 0.5, 0.6, 0.7, 0.75, 0.8, 0.9, 1.0])
def test_pairs_at_any_threshold_share_a_band(threshold: float) -> None:
    bands, rows = banding(threshold)
    assert bands * rows <= BANDS * ROWS
    assert probability(threshold, bands, rows) >= 0.98
    if threshold >= 0.75:
        assert (bands, rows) == (BANDS, ROWS)
    else:
        # With another row, too many pairs would be missed.
        assert probability(threshold, BANDS * ROWS // (rows + 1), rows + 1) < 0.98
    left = np.random.default_rng(1).integers(0, 2**32, (bands * rows, 5_000), dtype=np.uint32)
    is_equal = np.random.default_rng(2).random(left.shape) < threshold
    right = np.where(is_equal, left, left + np.uint32(1))
    met = (band_hashes(left, rows) == band_hashes(right, rows)).any(axis=0).mean()
    assert met >= 0.97


@pytest.mark.parametrize("similarity", [0.4, 0.6, 0.8])
def test_pairs_share_a_band_as_often_as_predicted(similarity: float) -> None:
    rng = np.random.default_rng(1)
    left = rng.integers(0, 2**32, (BANDS * ROWS, 20_000), dtype=np.uint32)
    right = np.where(rng.random(left.shape) < similarity, left, left + np.uint32(1))
    met = (band_hashes(left) == band_hashes(right)).any(axis=0).mean()
    assert met == pytest.approx(probability(similarity), abs=0.03)
    # Bands with equal rows have different hashes.
    equal_rows = np.zeros((BANDS * ROWS, 1), np.uint32)
    assert len(np.unique(band_hashes(equal_rows))) == BANDS


def datasketch_signature(hashes: list[int], count: int) -> list[int]:
    """Return the signature that datasketch computes."""
    sketch = MinHash(count, hashfunc=int, scheme="affine32")
    sketch.update_batch(hashes)
    return sketch.hashvalues.tolist()


@settings(deadline=None)
@given(st.lists(HASHES, max_size=8), st.integers(1, 140))
def test_signatures_equal_datasketchs(texts: list[list[int]], count: int) -> None:
    offsets = np.concatenate([[0], np.cumsum([len(text) for text in texts])]).astype(np.int64)
    hashes = np.array([value for text in texts for value in text], np.uint32)
    result = signatures(hashes, offsets, count)
    assert result.T.tolist() == [datasketch_signature(text, count) for text in texts]


@pytest.mark.parametrize("sizes", [[200_000, 3, 0, 70_000], [10] * 20_000])
def test_signatures_do_not_depend_on_batches(sizes: list[int]) -> None:
    hashes = np.random.default_rng(1).integers(0, 2**32, sum(sizes), dtype=np.uint32)
    offsets = np.concatenate([[0], np.cumsum(sizes)])
    together = signatures(hashes, offsets, 16)
    for i in (0, 1, 2, 3, len(sizes) - 1):
        text = hashes[offsets[i] : offsets[i + 1]]
        assert together[:, i].tolist() == datasketch_signature(text.tolist(), 16)


def test_a_long_text_does_not_saturate_its_signature() -> None:
    """Two sets of 1,500,000 shingles, as in 10 MB of text, share half of their union."""
    values = np.random.default_rng(0).permutation(2**22).astype(np.uint64)
    hashes = (values * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(32)).astype(np.uint32)
    pair = np.concatenate([hashes[:1_500_000], hashes[500_000:2_000_000]])
    both_signatures = signatures(pair, np.array([0, 1_500_000, 3_000_000]), 256)
    assert abs((both_signatures[:, 0] == both_signatures[:, 1]).mean() - 0.5) < 0.1
    assert len(np.unique(both_signatures[:, 0])) > 200
