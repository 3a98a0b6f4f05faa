"""C4's rules: Raffel et al., JMLR 2020, section 2.2, as the code that made it has them: TensorFlow Datasets'
`c4_utils.py`, `clean_page`.

Where the paper differs (5 sentences a page, 3 words a line), the code decides. The list of bad words is left out: it
drops whole fields (Dodge et al., EMNLP 2021), and we ship no such list.
"""

from __future__ import annotations

import re
from dataclasses import replace

from owt_pipeline.clean.filters.judgement import Judgement, Limit, by_limits
from owt_pipeline.clean.text_view import TextView

LIMITS = {
    "lorem_ipsum": Limit(maximum=0),  # lines
    "curly_brackets": Limit(maximum=0),  # lines
    "sentences": Limit(minimum=3),
}
MIN_LINE_WORDS = 5
MAX_WORD_CHARS = 1000
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"')
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

# Where NLTK's Punkt, which C4 counts sentences with, may end one within a line: after end marks, and brackets and
# quotes that close, where white space or a mark follows. The second group is the next character.
_BREAK = re.compile(r"""(?<![.!?])([.!?]+)(?:["')\]}]+(?=\s+\S|[^\s"')\]}])|(?=[;:*@({\[]|\s+\S))(?=\s*(\S))""")
_TWO_MARKS = re.compile(r"[!?]{2,}")  # Punkt takes the second for a sentence of its own
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr gen lt col sen rep inc ltd co corp vs jan feb aug sep sept oct nov dec "
    "u.s u.s.a u.k u.n d.c l.a n.y a.m p.m ph.d".split()
)
_LONGEST_ABBREVIATION = 8  # characters, with a quote or bracket in front of it


def c4(view: TextView) -> Judgement:
    """Whether the lines that end as sentences do are a page of natural language; only those are kept."""
    lines = []
    lorem_ipsum = curly_brackets = 0
    for line in map(_without_citations, view.text.splitlines()):
        if not line.endswith(_ENDS) or line.endswith("...") or len(line.split()) < MIN_LINE_WORDS:
            continue
        lowered = line.lower()
        lorem_ipsum += "lorem ipsum" in lowered
        if "javascript" in lowered:
            continue
        curly_brackets += "{" in line
        if not any(phrase in lowered for phrase in _POLICY):
            lines.append(line)
    signals = {
        "lorem_ipsum": lorem_ipsum,
        "curly_brackets": curly_brackets,
        "sentences": sum(map(_count_sentences, lines)),
    }
    return replace(by_limits(signals, LIMITS), kept="\n".join(lines).strip())


def _without_citations(line: str) -> str:
    """The line without citation marks; empty where a word of it is too long to be one."""
    line = line.strip()
    if len(line) > MAX_WORD_CHARS and any(len(word) > MAX_WORD_CHARS for word in line.split()):
        return ""
    return _CITATION.sub("", line) if "[" in line else line


def _count_sentences(line: str) -> int:
    """Sentences of a line that is not empty, nearly as Punkt's model of English counts them."""
    return 1 + len(_TWO_MARKS.findall(line)) + sum(_ends_sentence(line, found) for found in _BREAK.finditer(line))


def _ends_sentence(line: str, found: re.Match[str]) -> bool:
    marks, following = found.groups()
    if "!" in marks or "?" in marks:
        return True
    if len(marks) > 1:
        return following.isupper()
    words = line[max(0, found.start() - _LONGEST_ABBREVIATION) : found.start()].lower().split()
    word = words[-1].lstrip("\"'([{*“‘") if words else ""
    return word not in _ABBREVIATIONS and not (len(word) == 1 and word.isalpha())
