"""The names of people in bylines, without the words around them: `By Ada Fox, Staff Writer`.

Left out are a label before a name (`Text: `, `Reporting by `), and all after it from a comma,
another sign or a date on. A text with a number, an address, a word of a script or of a template is
not a name. A role without a sign before it stays in the name.
"""

from __future__ import annotations

import re

# A byline's date, or a member's number of posts.
_NUMBER = re.compile(r"\b\d{2}")
_BY = re.compile(
    r"^(?:(?:written|posted|published|story|words|article|text|veröffentlicht|verfasst|publié"
    r"|rédigé|publicado|escrito|scritto|geschreven|skrevet|skriven|publicerad)\s+)?"
    r"(?:by|par|por|von)\b:?\s+|^by:"
    r"|^(?:(?:scritto|geschreven|skrevet|skriven|publicerad)\s+)?(?:di|door|av|af)\s+(?=\S+\s+\S)"
    # `Reporting by`, `Guest post by`.
    r"|^(?:[a-z]+\s+){1,2}by:?\s+(?=\S+\s\S)"
    # Labels in scripts without spaces between words, or without a colon.
    r"|^(?:文|撰文|記者|记者|作者|著者|執筆|取材・文)\s*[/／:：]?\s*(?=[\u3040-\u30ff\u4e00-\u9fff])"
    r"|^(?:بقلم|كتب|كتبت|إعداد|מאת)\s*:?\s+|^(?:글|작성자|기자)\s*[:=]?\s+",
    re.IGNORECASE,
)
# A label of any language before a colon. A name has no colon.
_LABEL = re.compile(r"^[^\W\d_]+(?:[ ・][^\W\d_]+){0,2}\s*[:：=]\s*(?=[^\W\d_])")
# Labels and verbs before the name of somebody else than the author, or before something else.
_OTHER_LABEL = re.compile(
    r"^(?:photo|foto|fotó|image|imag|bild|illustration|video|camera|picture|source|quelle|fonte"
    r"|fuente|edit|review|medically|fact|sponsored|translat|curated|date|datum|fecha|updated|last"
    r"|categor|tag|kép|фото|источник|来源|來源|图|圖|摄影|攝影|写真|사진|تصوير)",
    re.IGNORECASE,
)
# The rest of a byline after the name: a role, a place, a date, a count, another label, an account.
_AFTER_NAME = re.compile(
    r"\s*(?:\s\w+://|\swww\.|[,;:：|·•/／\n]|\s[-–—]\s"
    r"|\bon\s|\b(?:last )?updated\b|\bpublished\b|\s@\w"
    r"|\s+(?:(?:le|el|am|den|the|il|em|op|på|vor|um|at)\s+)?"
    r"(?:(?:jan|feb|mar|apr|may|jun|jul|aug|sep|oct|nov|dec)[a-z]*\.?\s+)?\d).*$",
    re.IGNORECASE | re.DOTALL,
)
# An agency, an account or an address after a name.
_IN_BRACKETS = re.compile(r"\s*[(（][^()（）]*[)）]?$")
# A longer text has more than a byline, and its first words may be anything.
_MAX_BYLINE_CHARS = 150
_SCRIPT_VALUE = re.compile(
    r"(?:(?:\[object \w+\]|undefined|null|nil|NaN|none|n/a|unknown)(?:[\s,]+|$))+", re.IGNORECASE
)
# A variable that a template has not replaced.
_TEMPLATE = re.compile(r"\{\{|\$\{|<%|%\w+%|\{%|\[\[")
# Defaults of templates and systems.
_PLACEHOLDER_NAMES = ("author", "admin", "administrator", "follow", "subscribe")
_MAX_NAME_CHARS = 100
_WITHOUT_SPACES = re.compile(r"[\u3040-\u30ff\u4e00-\u9fff\uac00-\ud7af]{2,}")


def is_script_value(text: str) -> bool:
    """Return whether a text is what a script or a template writes in place of a missing value."""
    return _SCRIPT_VALUE.fullmatch(text) is not None or _TEMPLATE.search(text) is not None


def name_in_byline(byline: str) -> str | None:
    """Return the first name in the text of a byline; None if it has none."""
    if len(byline) > _MAX_BYLINE_CHARS:
        return None
    return name_of_person(_AFTER_NAME.sub("", _without_label(byline)))


def name_of_person(text: str) -> str | None:
    """Return a text in one line without "By" if it may be a name; else None."""
    name = _IN_BRACKETS.sub("", _without_label(text)).rstrip(", ✓✔☑★")
    is_long = len(name) > 2 or _WITHOUT_SPACES.fullmatch(name) is not None
    if (
        is_long
        and len(name) < _MAX_NAME_CHARS
        and not is_script_value(name)
        and name.lower() not in _PLACEHOLDER_NAMES
        and "://" not in name
        and not name.startswith(("www.", "@"))
        and not _NUMBER.search(name)
    ):
        return " ".join(name.split())
    return None


def _without_label(text: str) -> str:
    """Return a text without the label before a name; "" if the name is not the author's."""
    label = _LABEL.match(text)
    if label is not None and _is_name(label[0]):
        label = None
    by = _BY.match(text) if label is None else None
    if label is None and by is None:
        return text
    if _OTHER_LABEL.match(text):
        return ""
    if by is not None:
        return text[by.end() :]
    # `Author: by Ada Fox`.
    return _BY.sub("", _LABEL.sub("", text))


def _is_name(label: str) -> bool:
    """Return whether words before a colon may be the name itself, as in `Ada Fox: Two boats`."""
    words = label.split()
    return len(words) > 1 and words[1][0].isupper()
