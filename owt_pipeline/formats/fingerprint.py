"""Fingerprints of forgotten texts, by which a run recognises copies of them later.

A fingerprint is the hash of the normalised text and the hashes of its n-grams of words. Whatever
the options of a run are, two texts are compared by the same n-grams.
"""

from __future__ import annotations

import functools
import hashlib
from dataclasses import dataclass

import numpy as np
import pyarrow as pa

from owt_pipeline.formats.shingles import chunked, hash_texts, hash_words, ngrams

NGRAM = 5
"""Words of a shingle of a fingerprint."""


@dataclass(frozen=True)
class Fingerprint:
    """What identifies a text.

    Attributes:
      digest: 16 bytes, equal for texts of the same words in the same order.
      shingles: uint64, the distinct hashes of its n-grams, sorted; empty for a text without words.
    """

    digest: bytes
    shingles: np.ndarray


def fingerprints(texts: pa.Array) -> list[Fingerprint]:
    """Return the fingerprint of each text of an array of strings without nulls."""
    prints: list[Fingerprint] = []
    for chunk in chunked(texts):
        words = hash_words(chunk)
        sets = ngrams(words, NGRAM).sets()
        prints += map(Fingerprint, hash_texts(chunk, words), sets)
    return prints


_SAMPLE = "The Five Boxing Wizards, \u00c9t\u00e9 2024: \u6f22\u5b57 and an incomprehensibilities."


@functools.cache
def hashing() -> str:
    """Return a digest of the way in which fingerprints are made; it changes if they do."""
    (sample,) = fingerprints(pa.array([_SAMPLE]))
    return hashlib.sha256(sample.digest + sample.shingles.astype("<u8").tobytes()).hexdigest()[:16]
