"""C4's rules: Raffel et al., JMLR 2020, section 2.2, as in TensorFlow Datasets' `c4_utils.py`.

The list of bad words is left out: it drops whole fields (Dodge et al., EMNLP 2021), and we ship no such list.
"""

from __future__ import annotations

import re

from owt_pipeline.clean.filters.judgement import Judgement, Limit, by_limits
from owt_pipeline.clean.text_view import TextView

LIMITS = {
    "curly_brackets": Limit(maximum=0),
    "lorem_ipsum": Limit(maximum=0),
    "sentences": Limit(minimum=5),
}
MIN_LINE_WORDS = 3
MAX_WORD_CHARS = 1000
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"', "'")
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")
_SENTENCE_END = re.compile(r"(?<![.!?])[.!?]+[\"')\]]*(?=\s|$)")


def c4_lines(text: str) -> str:
    """The lines of `text` that C4 keeps, without citation marks: sentences, and none on cookies or JavaScript."""
    return "\n".join(line for line in map(_kept_line, text.splitlines()) if line)


def c4(view: TextView) -> Judgement:
    """Whether the lines that C4 keeps are a page of natural language."""
    signals = {
        "curly_brackets": view.text.count("{"),
        "lorem_ipsum": view.text.lower().count("lorem ipsum"),
        "sentences": sum(max(1, len(_SENTENCE_END.findall(line))) for line in view.lines if line),
    }
    return by_limits(signals, LIMITS)


def _kept_line(line: str) -> str | None:
    line = line.strip()
    words = line.split()
    if len(line) > MAX_WORD_CHARS and any(len(word) > MAX_WORD_CHARS for word in words):
        return None
    if "[" in line:
        line = _CITATION.sub("", line)
    if not line.endswith(_ENDS) or line.endswith("...") or len(words) < MIN_LINE_WORDS:
        return None
    lowered = line.lower()
    if "javascript" in lowered or any(phrase in lowered for phrase in _POLICY):
        return None
    return line
