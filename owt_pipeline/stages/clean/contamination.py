"""Detection of evaluation-set text in documents by shared word n-grams, as for GPT-3.

Brown et al., "Language Models are Few-Shot Learners", 2020 (appendix C): 13-grams of lower-case words without
punctuation, in Unicode's form NFC. Evaluation texts of fewer than n words are ignored.
"""

from __future__ import annotations

import codecs
import functools
import hashlib
import re
import unicodedata
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.records import open_decompressed, parse_json, read_records
from owt_pipeline.storage.folder import open_source

_WORD = re.compile(r"\w+")
_JSON = re.compile(r"\.(jsonl|ndjson|json)(\.\w+)?$", re.IGNORECASE)
_MULTIPLIER = np.uint64(0x9E3779B97F4A7C15)

N = 13
"""Words in an n-gram."""


def shared_n_gram(text: str, n_grams: np.ndarray, n: int = N) -> str | None:
    """The words of the first n-gram of `text` that is in `n_grams`; None if there is none."""
    words = _words(text)
    keys = _keys(words, n)
    if not len(keys) or not len(n_grams):
        return None
    places = np.searchsorted(n_grams, keys)
    places[places == len(n_grams)] = 0
    found = np.flatnonzero(n_grams[places] == keys)
    if not len(found):
        return None
    return " ".join(words[found[0] : found[0] + n])


@dataclass(frozen=True)
class EvaluationSets:
    """Files of evaluation sets; picklable, and equal only if their content is.

    Attributes:
      uris: the files.
      digests: the SHA-256 of each.
    """

    uris: tuple[str, ...]
    digests: tuple[str, ...]


def evaluation_sets(uris: Sequence[str]) -> EvaluationSets:
    """The sets in the files `uris`; raises UserError or OSError for an unreadable file."""
    return EvaluationSets(tuple(uris), tuple(map(_sha256, uris)))


def _sha256(uri: str) -> str:
    with open_source(uri) as file:
        return hashlib.sha256(file.read()).hexdigest()


@functools.lru_cache(maxsize=1)  # a process reads the evaluation sets once
def n_grams_of(sets: EvaluationSets) -> np.ndarray:
    """Hashes of all n-grams of the texts in the files, sorted and distinct, uint64.

    A file is JSON, JSON Lines or Parquet, in which every string is a text, or plain text (UTF-8), in which every line
    is one. It may be compressed with gzip, bzip2, xz or zstd. Raises UserError for an unreadable file.
    """
    keys = [_keys(_words(text)) for uri in sets.uris for text in texts_of(uri)]
    return np.unique(np.concatenate(keys)) if keys else np.empty(0, np.uint64)


def texts_of(uri: str) -> Iterator[str]:
    """The texts in one file of an evaluation set."""
    if _JSON.search(uri):
        yield from _strings_of_json(uri)
        return
    with open_source(uri) as file:
        kind = "parquet" if file.read(4) == b"PAR1" else "text"
    for record in read_records(uri, uri, kind, columns=None, split_text="lines"):
        if record.fields is None:
            raise UserError(f"{record.where}: {record.problem}")
        yield from _strings(record.fields)


def _strings_of_json(uri: str) -> Iterator[str]:
    """The strings of a JSON value, or of JSON Lines of any values."""
    with open_decompressed(uri) as file:
        data = file.read().removeprefix(codecs.BOM_UTF8)
    try:
        yield from _strings(parse_json(data))
        return
    except ValueError:
        pass  # JSON Lines
    for number, line in enumerate(data.split(b"\n"), 1):
        if line.strip():
            try:
                yield from _strings(parse_json(line))
            except ValueError as error:
                raise UserError(f"{uri}, line {number}: not a JSON value ({error})") from error


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _words(text: str) -> list[str]:
    return _WORD.findall(unicodedata.normalize("NFC", text).lower())


def _keys(words: Iterable[str], n: int = N) -> np.ndarray:
    """A 64-bit hash of each n-gram of `words`, in order."""
    hashes = np.fromiter((_hash(word) for word in words), np.uint64)
    if len(hashes) < n:
        return np.empty(0, np.uint64)
    keys = np.zeros(len(hashes) - n + 1, np.uint64)
    for start in range(n):
        keys = keys * _MULTIPLIER + hashes[start : start + len(keys)]
    return keys


@functools.lru_cache(maxsize=1 << 16)
def _hash(word: str) -> int:
    return xxhash.xxh3_64_intdigest(word.encode("utf-8", "replace"))
