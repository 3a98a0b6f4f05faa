"""Large first letters, which a page draws as an element of their own before the rest of a word.

They change no F1 by a ten thousandth: one word of a text is whole.
"""

from __future__ import annotations

import re
from functools import lru_cache

from owt_pipeline.stages.extract.html.blocks import HEADING, ITEM, ROW, Block

INITIAL = re.compile(r"[\"“‘'«¿¡]?[^\W\d_a-z]")
"""A letter that begins a text and is larger than it. Two letters are a label, such as `ID`."""
# Before the letter in the text for a picture.
_LETTER = re.compile(
    r"^(?:(?:drop|initial) ?cap|(?:capital |initial |drop ?cap )?letter|initial|buchstabe|lettre"
    r"|letra|lettera|буква)\s+(?=[^\W\d_]$)",
    re.IGNORECASE,
)
_CAPITALS = re.compile(r"(?:[^\W\d_a-z] )?[^\W\d_a-z]{2,}(?=[\s,’'-])")
"""The capitals after a large letter, as in `T` and `HE FERRY to the islands`."""
# Letters that are words of English, French, Italian, Spanish, Russian or Ukrainian.
_LETTER_WORDS = frozenset("AEIOYÀÉ\u0410\u0412\u0417\u0418\u0406\u041a\u041e\u0421\u0423\u042f")
_INITIAL_NAME = re.compile(r"drop-?cap|init(?:ial|-?cap)|lettrine|first-?letter", re.IGNORECASE)
# A shorter text may be a title in capitals.
_MIN_CHARS_AFTER_CAPITALS = 30


@lru_cache(1 << 10)
def names_initial(classes: str) -> bool:
    """Return whether classes name a large first letter."""
    return _INITIAL_NAME.search(classes) is not None


def initial_in(alternative: str) -> str:
    """Return the large first letter in the text for a picture; "" if it does not have one."""
    text = _LETTER.sub("", alternative.strip())
    # A cross closes something.
    return text if INITIAL.fullmatch(text) and text != "X" else ""


def is_initial(last: Block, block: Block) -> bool:
    """Return whether the block before is the first letter of this one, drawn large."""
    if last.form in (ITEM, HEADING, ROW) or block.form in (ITEM, HEADING):
        return False
    if last.container.tag == "dt" or INITIAL.fullmatch(last.text) is None:
        return False
    return _continues(last.text, block.text)


def _continues(initial: str, text: str) -> bool:
    """Return whether a text continues the word that a large letter begins.

    The letter is a capital, so it is of a script that has capitals. The text starts in lower case,
    or with other capitals and then goes on in lower case. An entry of an index starts with the same
    letter as its heading, and a question after `Q` with any.
    """
    if not initial.isupper() or text[:1].lower() == initial[-1].lower():
        return False
    if text[:1].islower():
        return True
    capitals = _CAPITALS.match(text)
    if capitals is None or not capitals[0].isupper() or text.isupper():
        return False
    is_question = initial == "Q" and text[0] != "U"
    return not is_question and len(text) >= _MIN_CHARS_AFTER_CAPITALS


def without_gap(text: str, *, is_named: bool) -> str:
    """Return a text without the space after a first letter that is an element of its own.

    The space is in the page's source only, since a large letter floats. Before a text in lower
    case, only an element named as such a letter shows this.
    """
    initial, _, rest = text.partition(" ")
    if initial in _LETTER_WORDS or not _continues(initial, rest):
        return text
    return initial + rest if is_named or not rest[0].islower() else text


def with_initial(initial: str, text: str) -> str:
    """Return a text with the large letter before it, if the two are one."""
    start = text.lstrip()
    if not _continues(initial, start):
        return text
    is_word = initial in _LETTER_WORDS and text[0] == " "
    return f"{initial} {start}" if is_word else initial + start
