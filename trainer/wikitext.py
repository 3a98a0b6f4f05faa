"""WikiText's conventions: how its words are counted, and its tokens as the running text they were."""

from __future__ import annotations

import re

_RULES = [
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r" @([-,.])@ ", r"\1"),  # inside numbers and compounds
        (r" ([:;.!?,])( |$)", r"\1\2"),
        (r" '(s|t|d|m|ll|re|ve)\b", r"'\1"),
        (r"s ' ", r"s' "),
        (r"([(\[{]) ([^()\[\]{}]*?) ([)\]}])", r"\1\2\3"),
        (r'" ([^"\n]*?) "', r'"\1"'),
        (r"' ([^'\n]*?) '", r"'\1'"),
        (r"= = = =", "===="),
        (r"= = =", "==="),
        (r"= =", "=="),
        (r" " + chr(176) + " ", chr(176)),
        (r" N ", " 1 "),
        (r" \n", "\n"),
        (r"\n ", "\n"),
    )
]


def published_words(text: str) -> int:
    """The words of a WikiText file that published perplexities divide by: those at white space, and every line's end.

    Merity et al. (2016, table 1) give 217,646 tokens for the validation set and 245,569 for the test set: the test
    file has 241,211 words at white space and 4,358 lines, whose ends are the token `<eos>`. It is the same number for
    `wiki.test.tokens` and `wiki.test.raw`, where `<unk>` replaces single words.
    """
    return len(text.split()) + text.count("\n")


def detokenize(text: str) -> str:
    """`wiki.test.tokens` or `.raw` as running text, by the rules of Megatron-LM's detokenizer, written anew."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
