"""Filters by published rules: pure functions that measure a text and name the limit it breaks."""

from __future__ import annotations

import re
import string
from collections.abc import Iterator, Sequence
from dataclasses import replace
from importlib import resources

import numpy as np

from owt_pipeline.stages.clean.judgement import Filter, Judgement, Limit, TextView, by_limits
from schemas import Reason

REPETITION_LIMITS = {  # shares of paragraphs and lines that repeat an earlier one, and of characters
    "duplicate_paragraphs": Limit(maximum=0.3),
    "duplicate_paragraph_chars": Limit(maximum=0.2),
    "duplicate_lines": Limit(maximum=0.3),
    "duplicate_line_chars": Limit(maximum=0.2),
    **{f"top_{n}_gram_chars": Limit(maximum=most) for n, most in {2: 0.20, 3: 0.18, 4: 0.16}.items()},
    **{
        f"duplicate_{n}_gram_chars": Limit(maximum=most)
        for n, most in {5: 0.15, 6: 0.14, 7: 0.13, 8: 0.12, 9: 0.11, 10: 0.10}.items()
    },
}


def gopher_repetition(view: TextView) -> Judgement:
    """Rejects text that repeats itself.

    Gopher's repetition rules: Rae et al., "Scaling Language Models", 2021 (arXiv 2112.11446), table A1. Characters are
    counted as in datatrove: with spaces for the most frequent n-gram; without spaces for repeated n-grams, where each
    repetition after the first counts, without overlap.
    """
    size = max(1, len(view.text))
    paragraphs, paragraph_chars = repeated(view.paragraphs)
    lines, line_chars = repeated(view.lines)
    signals = {
        "duplicate_paragraphs": paragraphs / len(view.paragraphs),
        "duplicate_paragraph_chars": paragraph_chars / size,
        "duplicate_lines": lines / len(view.lines),
        "duplicate_line_chars": line_chars / size,
        **{name: chars / size for name, chars in _n_gram_chars(view).items()},
    }
    return by_limits(signals, REPETITION_LIMITS)


def repeated(items: Sequence[str]) -> tuple[int, int]:
    """(number of items that repeat an earlier one, characters in them)."""
    if len(set(items)) == len(items):
        return 0, 0
    seen: set[str] = set()
    count = chars = 0
    for item in items:
        if item in seen:
            count += 1
            chars += len(item)
        else:
            seen.add(item)
    return count, chars


def _n_gram_chars(view: TextView) -> dict[str, int]:
    """Characters of the most frequent 2- to 4-gram, and of the repeated 5- to 10-grams.

    An n-gram is represented by the number of its (n-1)-gram and that of its last word. Each step keeps only the places
    of n-grams that occur more than once, since longer repeated n-grams start at these; soon few remain.
    """
    found = {name: 0 for name in REPETITION_LIMITS if "gram" in name}
    words = view.words
    numbers = dict(zip(view.distinct_words, range(len(view.distinct_words)), strict=True))
    ids = np.fromiter(map(numbers.__getitem__, words), np.int64, len(words))
    ends = np.zeros(len(words) + 1, np.int64)
    np.cumsum(np.fromiter(map(len, words), np.int64, len(words)), out=ends[1:])
    places, groups = np.arange(len(words)), ids
    for n in range(2, min(10, len(words)) + 1):
        fits = int(np.searchsorted(places, len(words) - n, side="right"))
        places, groups = places[:fits], groups[:fits]
        pairs = groups * len(numbers) + ids[places + n - 1]
        _, first, groups, counts = np.unique(pairs, return_index=True, return_inverse=True, return_counts=True)
        if n <= 4:
            top, start = 1, 0  # the first in the text among equals
            if len(counts) and counts.max() > 1:
                top = int(counts.max())
                start = int(places[first[counts == top].min()])
            found[f"top_{n}_gram_chars"] = top * int(ends[start + n] - ends[start] + n - 1)
        again = counts[groups] > 1
        places, groups = places[again], groups[again]
        if n >= 5:
            if not len(places):
                break
            found[f"duplicate_{n}_gram_chars"] = _repeated_chars(places.tolist(), groups.tolist(), n, ends)
    return found


def _repeated_chars(places: list[int], groups: list[int], n: int, ends: np.ndarray) -> int:
    """Characters of the n-grams that repeat an earlier one, without overlap."""
    seen: set[int] = set()
    chars = free = 0
    for place, group in zip(places, groups, strict=True):
        if place < free:
            continue
        if group in seen:
            chars += int(ends[place + n] - ends[place])
            free = place + n
        else:
            seen.add(group)
    return chars


STOP_WORDS = frozenset("the be to of and that have with".split())
_PUNCTUATION = string.punctuation + "“”„‘’‚«»…–—"

QUALITY_LIMITS = {
    "words": Limit(50, 100_000),
    "mean_word_length": Limit(3, 10),  # characters
    "hash_signs": Limit(maximum=0.1),  # per word
    "ellipses": Limit(maximum=0.1),  # per word
    "bullet_lines": Limit(maximum=0.9),  # share of lines that start with a bullet
    "ellipsis_lines": Limit(maximum=0.3),  # share of lines that end with an ellipsis
    "alphabetic_words": Limit(minimum=0.8),  # share of words that contain a letter
    "stop_words": Limit(minimum=2),  # distinct
}


def gopher_quality(view: TextView) -> Judgement:
    """Rejects text that does not look like prose.

    Gopher's quality rules: Rae et al., 2021, appendix A.1.1. The paper does not define a word. Here words are separated
    by white space and contain a letter or a digit; Dolma and NeMo Curator split at white space, too. datatrove counts
    spaCy's tokens, each punctuation mark being one, so that good articles with footnotes, prices or code have too few
    words with a letter (counts: `docs/benchmarks/figures.md`). Other open points follow datatrove: an ellipsis may
    be three points, a bullet may be a hyphen, and stop words are in lower case.
    """
    text, words = view.text, view.spaced_words
    lines = text.splitlines()
    n_words, n_lines = max(1, view.n_words), max(1, len(lines))
    signals = {
        "words": view.n_words,
        "mean_word_length": sum(len(word) * count for word, count in words.items()) / n_words,
        "hash_signs": text.count("#") / n_words,
        "ellipses": (text.count("...") + text.count("…")) / n_words,
        "bullet_lines": sum(line.lstrip().startswith(("•", "-")) for line in lines) / n_lines,
        "ellipsis_lines": sum(line.rstrip().endswith(("...", "…")) for line in lines) / n_lines,
        "alphabetic_words": sum(count for word, count in words.items() if any(map(str.isalpha, word))) / n_words,
        "stop_words": len(STOP_WORDS.intersection(word.strip(_PUNCTUATION) for word in words)),
    }
    return by_limits(signals, QUALITY_LIMITS)


C4_LIMITS = {
    "lorem_ipsum": Limit(maximum=0),  # lines
    "curly_brackets": Limit(maximum=0),  # lines
    "sentences": Limit(minimum=3),
}
MIN_LINE_WORDS = 5
MAX_WORD_CHARS = 1000
_CITATION = re.compile(r"\[\d*]|\[edit]|\[citation needed]")
_ENDS = (".", "?", "!", '"')
_POLICY = ("terms of use", "privacy policy", "cookie policy", "uses cookies", "use of cookies", "use cookies")

# Where NLTK's Punkt, which C4 uses to count sentences, may end one within a line: after end marks and closing brackets
# or quotes, if white space or a mark follows. The second group is the next character.
_BREAK = re.compile(r"""(?<![.!?])([.!?]+)(?:["')\]}]+(?=\s+\S|[^\s"')\]}])|(?=[;:*@({\[]|\s+\S))(?=\s*(\S))""")
_TWO_MARKS = re.compile(r"[!?]{2,}")  # Punkt counts the second as a sentence
_ABBREVIATIONS = frozenset(
    "mr mrs ms dr prof st jr sr gen lt col sen rep inc ltd co corp vs jan feb aug sep sept oct nov dec "
    "u.s u.s.a u.k u.n d.c l.a n.y a.m p.m ph.d".split()
)
_LONGEST_ABBREVIATION = 8  # characters, including a preceding quote or bracket


def c4(view: TextView) -> Judgement:
    """Keeps only lines that end like sentences; rejects the text if they do not make a page of natural language.

    C4's rules: Raffel et al., JMLR 2020, section 2.2, as implemented by the code that made C4: `clean_page` in
    TensorFlow Datasets' `c4_utils.py`. Where the paper differs (5 sentences per page, 3 words per line), we follow the
    code. The list of bad words is left out, since it drops entire fields (Dodge et al., EMNLP 2021).
    """
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
    return replace(by_limits(signals, C4_LIMITS), kept="\n".join(lines).strip())


def _without_citations(line: str) -> str:
    """The line without citation marks; empty if it has an overlong word."""
    line = line.strip()
    if len(line) > MAX_WORD_CHARS and any(len(word) > MAX_WORD_CHARS for word in line.split()):
        return ""
    return _CITATION.sub("", line) if "[" in line else line


def _count_sentences(line: str) -> int:
    """Number of sentences in a non-empty line, approximately as Punkt's English model counts them."""
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


FINEWEB_LIMITS = {
    "punctuated_lines": Limit(minimum=0.12),  # share of lines that end a sentence
    "short_lines": Limit(maximum=0.67),  # share of lines of SHORT_LINE characters or fewer
    "repeated_line_chars": Limit(maximum=0.01),  # share of characters, new lines left out
    "new_lines": Limit(maximum=0.3),  # per word
}
SHORT_LINE = 30

# Sentence-ending marks of all scripts: Unicode's property Sentence_Terminal within the basic plane.
_TERMINAL = re.compile(
    "[!.?\u0589\u061d-\u061f\u06d4\u0700-\u0702\u07f9\u0837\u0839\u083d\u083e\u0964\u0965\u104a\u104b\u1362\u1367\u1368"
    "\u166e\u1735\u1736\u17d4\u17d5\u1803\u1809\u1944\u1945\u1aa8-\u1aab\u1b4e\u1b4f\u1b5a\u1b5b\u1b5e\u1b5f\u1b7d-\u1b7f"
    "\u1c3b\u1c3c\u1c7e\u1c7f\u2024\u203c\u203d\u2047-\u2049\u2cf9-\u2cfb\u2e2e\u2e3c\u2e53\u2e54\u3002\ua4ff\ua60e\ua60f"
    "\ua6f3\ua6f7\ua876\ua877\ua8ce\ua8cf\ua92f\ua9c8\ua9c9\uaa5d-\uaa5f\uaaf0\uaaf1\uabeb\ufe12\ufe15\ufe16\ufe52\ufe56"
    "\ufe57\uff01\uff0e\uff1f\uff61]"
)


def fineweb(view: TextView) -> Judgement:
    """Rejects text whose lines look like a list, not like prose.

    FineWeb's own rules: Penedo et al., "The FineWeb Datasets", NeurIPS 2024 (arXiv 2406.17557), section 3.6. New lines
    per word are counted as in datatrove, which made FineWeb.
    """
    lines = [line for line in view.lines if line and not line.isspace()]
    n_lines, new_lines = max(1, len(lines)), view.text.count("\n")
    signals = {
        "punctuated_lines": sum(_TERMINAL.match(line[-1]) is not None for line in lines) / n_lines,
        "short_lines": sum(len(line) <= SHORT_LINE for line in lines) / n_lines,
        "repeated_line_chars": repeated(lines)[1] / max(1, len(view.text) - new_lines),
        "new_lines": new_lines / max(1, len(view.words)),
    }
    return by_limits(signals, FINEWEB_LIMITS)


# Pages sent in place of the article: short texts with a sentence that only such pages have, or that begin by saying
# that the page is missing. The phrases come from the systems that write these pages (Cloudflare, Akamai, PerimeterX,
# WordPress, consent banners, paywalls).

MAX_WORDS = 400
"""Longer texts pass: they are articles that quote such a sentence."""

_BEGINNING = 200  # characters in which a missing page says so
_MAX_SHARE = 0.25  # least share of lines with such a phrase, unless it is at the beginning


def _phrases() -> Iterator[tuple[str, re.Pattern[str]]]:
    """(kind of page, pattern of its phrases) for each paragraph of `boilerplate.txt`."""
    text = (resources.files("owt_pipeline.stages.clean") / "boilerplate.txt").read_text(encoding="utf-8")
    for paragraph in text.split("\n\n"):
        kind, *patterns = paragraph.splitlines()
        yield kind, re.compile("|".join(patterns), re.IGNORECASE | re.MULTILINE)


(_, _MISSING), *_SAYS = _phrases()  # the first kind matches at the beginning of a text, the others anywhere


def boilerplate(view: TextView) -> Judgement:
    """Rejects pages sent in place of an article, and names their kind."""
    return Judgement({}, _in_place_of_an_article(view))


def _in_place_of_an_article(view: TextView) -> str | None:
    if view.text.count(" ") > 2 * MAX_WORDS or view.n_words > MAX_WORDS:
        return None
    view = TextView(view.text.replace("’", "'"))
    text = view.text
    beginning = text[:_BEGINNING]
    if match := _MISSING.search(beginning):
        return f"a missing page: {match[0]!r}"
    for what, pattern in _SAYS:
        if match := pattern.search(text):
            lines = [line for line in view.lines if line.strip()]
            saying = sum(pattern.search(line) is not None for line in lines)
            if pattern.search(beginning) or saying > _MAX_SHARE * len(lines):
                return f"{what}: {match[0]!r}"
    return None


FILTERS: dict[str, Filter] = {
    "boilerplate": Filter(boilerplate, {}, Reason.BOILERPLATE),
    "gopher_repetition": Filter(gopher_repetition, REPETITION_LIMITS, Reason.GOPHER_REPETITION),
    "gopher_quality": Filter(gopher_quality, QUALITY_LIMITS, Reason.GOPHER_QUALITY),
    "c4": Filter(c4, C4_LIMITS, Reason.C4),
    "fineweb": Filter(fineweb, FINEWEB_LIMITS, Reason.FINEWEB),
}
"""Filters by their names for `--filters`, in the order in which they are applied, which is FineWeb's."""
