"""Detection of evaluation-set text in documents by shared word n-grams, as for GPT-3.

Brown et al., "Language Models are Few-Shot Learners", 2020 (appendix C): 13-grams of lower-case
words without punctuation. Here the texts of evaluation sets are repaired as documents are, and
ideographs are words, as in dedupe. The strings of a record are joined. Texts of fewer than n words
cannot be found; the run prints how many.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.characters import apply_to_known
from owt_pipeline.formats.files import find_files, known_format, texts_of_option
from owt_pipeline.formats.records import read_records
from owt_pipeline.formats.words import words_of
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.storage.folder import folder_of

EvaluationSets = tuple[tuple[str, str], ...]
"""(path or URI, SHA-256) of each file."""

N = 13
"""Words in an n-gram."""

# Short strings of a record that are joined in pairs. A record with more is a table, and its pairs
# would be more than its text.
_MAX_JOINED_STRINGS = 32


def shared_n_gram(text: str, hashes: np.ndarray, n: int = N) -> str | None:
    """Return the first n-gram of `text` whose hash is among `hashes`; None without one.

    `hashes` are sorted uint64.
    """
    if not len(hashes):
        return None
    n_grams = _n_grams(text, n)
    own_hashes = _hashed(n_grams)
    places = np.searchsorted(hashes, own_hashes)
    shared = np.flatnonzero(hashes.take(places, mode="clip") == own_hashes)
    if not len(shared):
        return None
    return n_grams[shared[0]]


def evaluation_sets(patterns: tuple[str, ...]) -> EvaluationSets:
    """Return the files that match the globs.

    Raises UserError or OSError for one that cannot be read.
    """
    sets = []
    for uri in find_files(patterns, texts_of_option("--decontaminate")):
        folder, name = folder_of(uri)
        sets.append((uri, folder.sha256(name)))
    return tuple(sets)


@dataclass(frozen=True)
class SetSize:
    """The size of an evaluation set.

    Attributes:
      uri: its path or URI.
      num_texts: its texts.
      num_short: texts of fewer than N words, which cannot be found.
    """

    uri: str
    num_texts: int
    num_short: int


def n_grams_of(sets: EvaluationSets, options: Options) -> np.ndarray:
    """Return the hashes of all n-grams of the texts in the files, sorted and distinct, uint64.

    Raises UserError as `texts_of`.
    """
    return _read_sets(sets, _repairs(options))[0]


def sizes_of(sets: EvaluationSets, options: Options) -> list[SetSize]:
    """Return the size of each file's set; raise UserError as `texts_of`."""
    return _read_sets(sets, _repairs(options))[1]


def _repairs(options: Options) -> Options:
    """Return options with only the settings that change text."""
    return Options(
        fix_text=options.fix_text,
        normalization=options.normalization,
        uncurl_quotes=options.uncurl_quotes,
        mask_addresses=options.mask_addresses,
    )


@functools.lru_cache(maxsize=1)  # a process reads the evaluation sets once
def _read_sets(sets: EvaluationSets, options: Options) -> tuple[np.ndarray, list[SetSize]]:
    hashes = [_hashed([])]
    sizes: list[SetSize] = []
    if not sets:
        return hashes[0], sizes
    from owt_pipeline.stages.clean.repair import repair  # ftfy is slow to import

    for uri, _ in sets:
        num_texts = num_short = 0
        for strings in texts_of(uri):
            # Documents are repaired too: a ligature or an entity must not hide the text. Some are
            # left as they are, such as entities in a document with HTML in it. So the
            # n-grams of the unrepaired text count too.
            repaired = [repair(string, options)[0] for string in strings]
            n_grams = _n_grams_of_record(repaired)
            hashes.append(_hashed(n_grams))
            if strings != repaired:
                hashes.append(_hashed(_n_grams_of_record(strings)))
            num_texts += 1
            num_short += not n_grams
        sizes.append(SetSize(uri, num_texts, num_short))
    return np.unique(np.concatenate(hashes)), sizes


def texts_of(uri: str) -> Iterator[list[str]]:
    """Yield the texts in one file of an evaluation set.

    A text is the strings of a record of JSON Lines or Parquet, or a line of any other file. The
    file may be compressed with gzip, bzip2, xz or zstd. Raises UserError for an unreadable one.
    """
    kind = known_format(uri)
    if kind not in ("jsonl", "parquet"):
        kind = "text"
    for record in read_records(uri, uri, kind, columns=None, split_text="lines"):
        if record.fields is None:
            raise UserError(f"{record.where}: {record.problem}")
        if strings := list(_strings_in(record.fields)):
            yield strings


def _strings_in(value: Any) -> Iterator[str]:
    """Yield the strings of a record, also in its lists and records."""
    if isinstance(value, str):
        yield value
    elif isinstance(value, bytes):
        # A text, as some programs write them to Parquet, or an image.
        with contextlib.suppress(UnicodeDecodeError):
            yield value.decode()
    elif isinstance(value, dict):
        for item in value.values():
            yield from _strings_in(item)
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _strings_in(item)


def _n_grams_of_record(strings: Sequence[str], n: int = N) -> list[str]:
    """Return the n-grams of a record: of its strings in a row, and of each two short ones.

    A document may have a question with its second choice, which does not follow in the record. Two
    strings are joined only if both have fewer than n words: a longer one is found by itself.
    """
    n_grams = _n_grams(" ".join(strings), n)
    short_strings = [string for string in strings if 0 < len(_words(string)) < n]
    for first, second in itertools.combinations(short_strings[:_MAX_JOINED_STRINGS], 2):
        n_grams += _n_grams(f"{first} {second}", n)
    return n_grams


def _n_grams(text: str, n: int = N) -> list[str]:
    words = _words(text)
    num_n_grams = len(words) - n + 1
    return [" ".join(words[start : start + n]) for start in range(num_n_grams)]


def _words(text: str) -> list[str]:
    normalize = functools.partial(unicodedata.normalize, "NFC")
    return words_of(apply_to_known(normalize, text))


def _hashed(n_grams: list[str]) -> np.ndarray:
    encoded = (n_gram.encode("utf-8", "replace") for n_gram in n_grams)
    return np.fromiter(map(xxhash.xxh3_64_intdigest, encoded), np.uint64)
