"""The language of a text, by py3langid (Lui and Baldwin, ACL 2012; Barbaresi).

Of the detectors that come with a model, it lets the least through that is not English, drops no English page, and
is light: `benchmarks/clean.py` prints the table.
"""

from __future__ import annotations

import functools
from typing import Any

_SLICE = 1000  # characters from the beginning, the middle and the end: no more makes it surer


def detect(text: str) -> tuple[str, float]:
    """(language, confidence from 0 to 1) of `text`; ISO 639-1 where the language has a code there, else 639-3.

    Confidence is rounded: what lies behind the third decimal may differ from one processor to another.
    """
    if len(text) > 3 * _SLICE:
        middle = len(text) // 2
        text = f"{text[:_SLICE]}\n{text[middle : middle + _SLICE]}\n{text[-_SLICE:]}"
    language, score = _identifier().classify(text)
    return str(language), round(float(score), 3)


def known_languages() -> list[str]:
    """The codes `detect` may return."""
    return sorted(_identifier().labels)


@functools.cache  # a process loads the model once, when it is first needed
def _identifier() -> Any:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    return LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
