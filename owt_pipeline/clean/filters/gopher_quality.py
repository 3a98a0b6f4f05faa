"""Gopher's quality rules: Rae et al., "Scaling Language Models", 2021 (arXiv 2112.11446), appendix A.1.1.

The paper does not say what a word is. Here it is what white space parts, if there is a letter or a digit in it; all
rules count those. Dolma and NeMo Curator split at white space, too. datatrove counts the tokens of spaCy, in which
each punctuation mark is one: then a good article with footnotes, prices or code has too few words with a letter in
them (`docs/benchmarks/clean.md` has the counts). What else is open is as in datatrove: an ellipsis may be three
points, a bullet a hyphen, and stop words are in lower case.
"""

from __future__ import annotations

import string

from owt_pipeline.clean.filters.judgement import Judgement, Limit, by_limits
from owt_pipeline.clean.text_view import TextView

STOP_WORDS = frozenset("the be to of and that have with".split())
_PUNCTUATION = string.punctuation + "“”„‘’‚«»…–—"

LIMITS = {
    "words": Limit(50, 100_000),
    "mean_word_length": Limit(3, 10),  # characters
    "hash_signs": Limit(maximum=0.1),  # a word
    "ellipses": Limit(maximum=0.1),  # a word
    "bullet_lines": Limit(maximum=0.9),  # share of lines that start with a bullet
    "ellipsis_lines": Limit(maximum=0.3),  # share of lines that end with an ellipsis
    "alphabetic_words": Limit(minimum=0.8),  # share of words with a letter in them
    "stop_words": Limit(minimum=2),  # different ones
}


def gopher_quality(view: TextView) -> Judgement:
    """Whether the text looks like prose."""
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
    return by_limits(signals, LIMITS)
