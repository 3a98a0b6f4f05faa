"""The names of people in bylines, without the words around them: `By Ada Fox, Staff Writer`.

Left out are a label before a name, and after it a date, a role, a day of the week or an
affiliation. A text with a number, an address or a word of a script is not a name.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

# A byline's date, or a member's number of posts.
_NUMBER = re.compile(r"\b\d{2}")
_BY = re.compile(
    r"^(?:(?:written|posted|published|story|words|article|text|veröffentlicht|publié|publicado)\s+)?"
    r"(?:by|par|por|von)\b:?\s+|^by:|^(?:author|autor(?:in)?|auteur|autore)s?\s*:\s*"
    r"|^(?:di|door|av|af)\s+(?=\S+\s+\S)",
    re.IGNORECASE,
)
# The rest of a byline after the name: a date, a count, a separator.
_AFTER_NAME = re.compile(
    r"\s*(?:[|·•/\n]|\s[-–—]\s|\bon\s|\b(?:last )?updated\b|\bpublished\b"
    r"|(?:,\s*|\s+)(?:(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s+)?\d).*$",
    re.IGNORECASE | re.DOTALL,
)
# The words of a byline after a name: a day of the week, or the person's role.
_AFTER_PERSON = re.compile(
    r"(?:\s*,\s*(?:montag|dienstag|mittwoch|donnerstag|freitag|samstag|sonntag|lundi|mardi"
    r"|mercredi|jeudi|vendredi|samedi|dimanche|lunes|martes|miércoles|jueves|viernes|sábado"
    r"|domingo|mon|tues?|wed|thu(?:rs?)?|fri|sat|sun)"
    r"|(?:\s*,\s*|\s+)(?:(?:mon|tues|wednes|thurs|fri|satur|sun)day"
    r"|(?:(?:senior|chief|deputy|managing|contributing|staff|freelance|associate|assistant|guest"
    r"|political|national|foreign|lead|special|former|news|tech|science|health|business|sports?"
    r"|games|autos|culture|travel|top|AI)\s+)*"
    r"(?:writer|reporter|editor|correspondent|contributor|columnist|journalist|photographer"
    r"|moderator|verified|subscriber|member)))\b.*$",
    re.IGNORECASE | re.DOTALL,
)
# Words in lower case that may be within a name, or between two.
_WORDS_IN_NAME = frozenset(
    """
    and und et e y i og och en ja by with mit for of on the van von vom zu zur zum der den de di da
    do dos das del della la le du el al bin ibn ben ter ten af av
    """.split()
)
# A longer word after a comma is an affiliation or a role. A shorter one may be a suffix, like "Jr".
_MAX_SUFFIX_CHARS = 3
# Before a role. "Staff Writer" and "Guest Author" stay as they are.
_MIN_WORDS_OF_NAME = 2
_SCRIPT_OBJECT = re.compile(r"\[object \w+\]|undefined|null|NaN")
# Defaults of templates and systems.
_PLACEHOLDER_NAMES = ("author", "admin", "administrator")
_MAX_NAME_CHARS = 100


def name_in_byline(byline: str) -> str | None:
    """Return the name in the text of a byline; None if it has none."""
    name = name_of_person(_AFTER_NAME.sub("", _BY.sub("", byline)))
    return _without_rest(name, cuts_at_lower=True) if name else None


def name_of_person(text: str) -> str | None:
    """Return a text in one line without "By" if it may be a name; else None."""
    name = _without_role(_BY.sub("", text))
    if (
        2 < len(name) < _MAX_NAME_CHARS
        and not _SCRIPT_OBJECT.fullmatch(name)
        and name.lower() not in _PLACEHOLDER_NAMES
        and "://" not in name
        and not name.startswith(("www.", "@"))
        and not _NUMBER.search(name)
    ):
        return name
    return None


def _without_role(text: str) -> str:
    """Return a byline without a role, a badge or a weekday after its name."""
    name = _AFTER_PERSON.sub("", text)
    if len(name.split()) < _MIN_WORDS_OF_NAME:
        name = text
    return _without_rest(name, cuts_at_lower=False)


def _without_rest(name: str, *, cuts_at_lower: bool) -> str:
    words = name.split()
    return " ".join(words[: _end_of_name(words, cuts_at_lower=cuts_at_lower)]).rstrip(",")


def _end_of_name(words: Sequence[str], *, cuts_at_lower: bool) -> int:
    """Return the number of words of a byline that are names.

    After two words with capitals, a name ends at a comma before a word in lower case, `The`, or a
    last word; with `cuts_at_lower`, it ends before any word in lower case.
    """
    num_capitals = 0
    for index, word in enumerate(words):
        if num_capitals >= _MIN_WORDS_OF_NAME:
            is_after_comma = words[index - 1].endswith(",")
            is_lower = word[0].islower() and word.rstrip(",") not in _WORDS_IN_NAME
            if is_lower and (is_after_comma or cuts_at_lower):
                return index
            if is_after_comma and _is_affiliation(words[index:]):
                # A place may follow an affiliation.
                return _end_of_name(words[:index], cuts_at_lower=cuts_at_lower)
        num_capitals += word[0].isupper()
    return len(words)


def _is_affiliation(words: Sequence[str]) -> bool:
    """Return whether the words after a comma do not name another person."""
    first = words[0]
    if first == "The":
        return True
    is_suffix = len(first) <= _MAX_SUFFIX_CHARS or first.isupper() or "." in first
    return len(words) == 1 and not is_suffix
