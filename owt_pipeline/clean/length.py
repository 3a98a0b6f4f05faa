"""How many of GPT-2's tokens a text has, no more exactly than a limit asks for."""

from __future__ import annotations


def within(text: str, n_words: int, minimum: int, maximum: int) -> tuple[bool, bool, int | None]:
    """Whether `text` has at least `minimum` tokens, and at most `maximum` (0: no limit), and their count if counted.

    A word is at least a token and a token at least a byte, so only texts near a limit are encoded.

    Args:
      text: the text.
      n_words: its words, split at white space.
      minimum, maximum: in tokens of GPT-2, as the stage `tokenize` writes them.
    """
    if n_words >= minimum and (not maximum or len(text.encode("utf-8", "replace")) <= maximum):
        return True, True, None
    from owt_pipeline.tokenize import encoding

    (tokens,) = encoding.load("gpt2").count([text])
    return int(tokens) >= minimum, not maximum or int(tokens) <= maximum, int(tokens)
