"""Detection of evaluation-set text in documents by shared word n-grams, as for GPT-3.

Brown et al., "Language Models are Few-Shot Learners", 2020 (appendix C): 13-grams of lower-case
words without punctuation, in Unicode's form NFC. Evaluation texts of fewer than n words are
ignored.
"""

from __future__ import annotations

import codecs
import functools
import re
import unicodedata
from collections.abc import Iterator
from typing import Any

import numpy as np
import xxhash

from owt_pipeline.errors import UserError
from owt_pipeline.formats.records import known_format, open_decompressed, parse_json, read_records
from owt_pipeline.storage.folder import expand_globs, folder_of

EvaluationSets = tuple[tuple[str, str], ...]
"""(path or URI, SHA-256) of each file."""

_WORD = re.compile(r"\w+")

N = 13
"""Words in an n-gram."""


def shared_n_gram(text: str, hashes: np.ndarray, n: int = N) -> str | None:
    """The first n-gram of `text` whose hash is among `hashes`, sorted uint64; None if there is
    none."""
    if not len(hashes):
        return None
    n_grams = _n_grams(text, n)
    own = _hashed(n_grams)
    found = np.flatnonzero(hashes.take(np.searchsorted(hashes, own), mode="clip") == own)
    return n_grams[found[0]] if len(found) else None


def evaluation_sets(patterns: tuple[str, ...]) -> EvaluationSets:
    """The files that match the globs; raises UserError or OSError for an unreadable one."""
    files = ((uri, *folder_of(uri)) for uri in expand_globs(patterns, "decontaminate"))
    return tuple((uri, folder.sha256(name)) for uri, folder, name in files)


@functools.lru_cache(maxsize=1)  # a process reads the evaluation sets once
def n_grams_of(sets: EvaluationSets) -> np.ndarray:
    """Hashes of all n-grams of the texts in the files, sorted and distinct, uint64; raises
    UserError as `texts_of`."""
    hashes = [_hashed(_n_grams(text)) for uri, _ in sets for text in texts_of(uri)]
    return np.unique(np.concatenate([_hashed([]), *hashes]))


def texts_of(uri: str) -> Iterator[str]:
    """The texts in one file of an evaluation set: the strings in JSON, JSON Lines, Parquet or
    CSV, and the lines of plain text. It may be compressed with gzip, bzip2, xz or zstd. Raises
    UserError for an unreadable file."""
    kind = known_format(uri) or "text"
    if kind == "jsonl":
        with open_decompressed(uri) as file:
            data = file.read().removeprefix(codecs.BOM_UTF8)
        try:
            yield from _strings(parse_json(data))
            return
        except ValueError:
            pass  # JSON Lines
    for record in read_records(uri, uri, kind, columns=None, split_text="lines"):
        if record.fields is None:
            raise UserError(f"{record.where}: {record.problem}")
        if record.undecodable:
            columns = ", ".join(sorted(record.undecodable))
            raise UserError(f"{record.where}: not UTF-8 in column {columns}")
        yield from _strings(record.fields)


def _strings(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, (list, dict)):
        for item in value.values() if isinstance(value, dict) else value:
            yield from _strings(item)


def _n_grams(text: str, n: int = N) -> list[str]:
    words = _WORD.findall(unicodedata.normalize("NFC", text).lower())
    return [" ".join(words[start : start + n]) for start in range(len(words) - n + 1)]


def _hashed(n_grams: list[str]) -> np.ndarray:
    return np.fromiter(
        (xxhash.xxh3_64_intdigest(n_gram.encode("utf-8", "replace")) for n_gram in n_grams),
        np.uint64,
    )
