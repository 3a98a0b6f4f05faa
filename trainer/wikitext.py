"""WikiText's tokens as the text they were, for models of text: perplexities by its words stay comparable."""

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


def detokenize(text: str) -> str:
    """`wiki.test.tokens` as running text, by the rules of Megatron-LM's WikiText detokenizer, written anew."""
    for pattern, replacement in _RULES:
        text = pattern.sub(replacement, text)
    return text
