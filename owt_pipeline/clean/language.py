"""The language of a text, by py3langid (Lui and Baldwin, ACL 2012; Barbaresi)."""

from __future__ import annotations

import functools
from typing import Any

_MAX_CHARS = 10_000  # the language of a document shows in its first pages


def detect(text: str) -> tuple[str, float]:
    """(ISO 639-1 code, confidence from 0 to 1) of `text`."""
    language, score = _identifier().classify(text[:_MAX_CHARS])
    return str(language), float(score)


@functools.cache  # a process loads the model once, when it is first needed
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
