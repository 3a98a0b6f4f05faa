"""Kinds of elements by tag, role, class, id and style, and of headings by their text.

The lists hold the conventions of the web: class names of WordPress and other systems, ARIA's roles. Names match as
complete words (`nav` in `main-nav` and `mainNav`, not in `navy`). They decide nothing alone: to the model, they are
features like all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib import resources
from typing import TypeVar

from owt_pipeline.stages.extract.blocks import Container


def _lists(name: str) -> dict[str, list[str]]:
    """The lines of each paragraph of a file of this package, by the paragraph's first line."""
    text = resources.files("owt_pipeline.stages.extract").joinpath(name).read_text("utf-8")
    return {title: lines for title, *lines in map(str.splitlines, text.split("\n\n"))}


NAMES = {title: tuple(" ".join(lines).split()) for title, lines in _lists("names.txt").items()}
"""Names of elements, words in classes, and names of `<meta>` elements in order of preference."""

PHRASES = {title: "|".join(lines) for title, lines in _lists("phrases.txt").items()}
"""Regular expressions for texts of certain kinds."""

# Kinds of elements other than content, by name. Plain numbers, since the operators of IntFlag would take a third of the
# time of extraction.
HIDDEN = 1
CHROME = 2
"""Navigation, sidebars, share buttons, forms, advertisements, captions."""
COMMENT = 4
HEADER = 8
UNSHOWN = 16
"""Hidden by its own style or attribute, not only by its name."""

NOT_TEXT = frozenset(NAMES["no text"])  # includes rt, the pronunciation of the characters of a <ruby>
INLINE, BLOCK, CHROME_ROLES = (frozenset(NAMES[kind]) for kind in ("inline", "block", "chrome roles"))
HEADINGS = {f"h{level}": level for level in range(1, 7)}

OF_TAG = dict.fromkeys("nav footer aside figure form fieldset".split(), (CHROME, False)) | {
    "header": (HEADER, False),
    "article": (0, True),
    "main": (0, True),
}
"""The kind of an element by its tag, and whether it holds the content."""
_KIND_OF_WORD = dict.fromkeys(NAMES["comment words"], COMMENT) | dict.fromkeys(NAMES["chrome words"], CHROME)
_CHROME_NAMES = frozenset(NAMES["chrome names"])
_HIDDEN_NAME = re.compile(
    r"(?:(?:is-|u-|d-|uk-)?(?:hidden|invisible|hide|none)|display-none|noprint|hide-print|(?:u-)?sr-only"
    r"|visually-?hidden|screen-reader(?:-text|-response)?|(?:c-)?offscreen|mw-editsection|mw-cite-backlink)",
    re.IGNORECASE,
)
# Every lower-case name that has a kind contains one of these words.
_TELLING_WORDS = frozenset(
    (
        *_KIND_OF_WORD,
        *(word for name in _CHROME_NAMES for word in name.split("-")),
        *"hidden invisible hide none noprint print only visuallyhidden reader offscreen editsection backlink".split(),
    )
)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LOWER_WORD = re.compile(r"[a-z]+")
_HIDING_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
STREAMED = re.compile(r"S:[0-9a-f]+")  # React sends parts of a page hidden, and a script moves them to their places

_SCHEMA_COMMENT = re.compile(r"schema\.org/(?:Comment|UserComments)\b")

_CONTENT_NAME = re.compile(
    r"(?:entry|article|art|post|page|story|blog|main|body)[-_]*(?:content|body|text|entry)|articlebody|story-?content"
    r"|post-?entry|^content$| content\b|hentry|fulltext",
    re.IGNORECASE,
)


_AFTERWARDS = re.compile(rf"\W*(?:{PHRASES['heading of what follows an article']})", re.IGNORECASE)
_LONGEST_HEADING = 79


def read_name(tag: str, classes: str, identifier: str) -> tuple[int, bool]:
    """(kind of an element, whether it holds the content) by its tag, classes and id."""
    if not identifier and tag not in OF_TAG:  # most elements
        return _OF_CLASSES[classes]
    kind, content = OF_TAG.get(tag, (0, False))
    if classes:
        found, holds_content = _OF_CLASSES[classes]
        kind |= found
        content = content or holds_content
    if identifier:
        kind |= _KIND_OF_NAME[identifier]
        content = content or _names_content(f" {identifier}")
    return kind, content


def _read_classes(classes: str) -> tuple[int, bool]:
    kind = 0
    for name in classes.split():
        kind |= _KIND_OF_NAME[name]
    return kind, _names_content(f"{classes} ")


def _names_content(names: str) -> bool:
    found = names.lower()
    # Every match contains one of these; the expression takes ten times as long.
    may_be = "content" in found or "body" in found or "text" in found or "entry" in found
    return may_be and _CONTENT_NAME.search(names) is not None


def is_unshown(attributes: Mapping[str, str]) -> bool:
    """Whether an element is hidden by its own style or attribute."""
    style = attributes.get("style")
    return "hidden" in attributes or (style is not None and _HIDING_STYLE.search(style) is not None)


def name_container(container: Container, attributes: Mapping[str, str]) -> None:
    """Set a container's names and kind by its element's attributes."""
    get = attributes.get
    tag, classes, identifier = container.tag, get("class") or "", get("id") or ""
    if len(attributes) == 1 and classes:  # most
        container.names = classes
        container.kind, container.names_content = read_name(tag, classes, "")
        return
    named = "" if tag in HEADINGS else identifier
    kind, container.names_content = read_name(tag, classes, named)
    role, prop, style, hidden = get("role"), get("itemprop"), get("style"), get("hidden")
    container.names = " ".join(filter(None, (classes, named, role, prop)))
    if role is not None and role in CHROME_ROLES:
        kind |= CHROME
    if prop == "comment" or _SCHEMA_COMMENT.search(get("itemtype") or ""):
        kind |= COMMENT
    if hidden is not None and (hidden == "until-found" or STREAMED.fullmatch(identifier)):
        hidden = None
    if hidden is not None or (style is not None and _HIDING_STYLE.search(style) is not None):
        kind = kind & ~HIDDEN if OPENED[container.names] else kind | HIDDEN | UNSHOWN
    elif get("aria-hidden") == "true":
        kind |= HIDDEN
    container.kind = kind


def heads_afterwards(text: str) -> bool:
    """Whether a heading introduces a part that follows an article without belonging to it."""
    return len(text) <= _LONGEST_HEADING and _AFTERWARDS.match(text) is not None


def _read_single(name: str) -> int:
    words = WORDS_OF_NAME[name]
    if _TELLING_WORDS.isdisjoint(words) and name.isascii() and name.islower():
        return 0  # true for most names; the expressions below take longer
    if _HIDDEN_NAME.fullmatch(name):
        return HIDDEN
    if not _KIND_OF_WORD.keys().isdisjoint(words):
        return next(_KIND_OF_WORD[word] for word in words if word in _KIND_OF_WORD)
    return CHROME if name in _CHROME_NAMES else 0


def _split(name: str) -> tuple[str, ...]:
    if name.islower():
        return tuple(_LOWER_WORD.findall(name))
    return tuple(map(str.lower, _WORD.findall(name)))


_Value = TypeVar("_Value")


class Remembered(dict[str, _Value]):
    """A cache of a function of a text: `Remembered(function, most)[text]`.

    It is cleared when it holds `most` texts. A hit of functools' cache takes several times as long, and some texts are
    looked up thousands of times per page.
    """

    def __init__(self, function: Callable[[str], _Value], most: int) -> None:
        self._function, self._most = function, most

    def __missing__(self, text: str) -> _Value:
        if len(self) >= self._most:
            self.clear()
        value = self[text] = self._function(text)
        return value


def finder(expression: re.Pattern[str]) -> Remembered[bool]:
    """Whether `expression` matches anywhere in an element's classes; cached."""
    return Remembered(lambda classes: expression.search(classes) is not None, 1 << 15)


may_mark_metadata = finder(re.compile(r"uthor|yline|[dD]ate|publish|timestamp|posted"))
"""Whether classes may be those of an author or a date."""
OPENED = finder(re.compile(r"more|collaps|accordion|expand|toggle|spoiler|answer|faq", re.IGNORECASE))
"""Whether names are those of hidden text that a control of the page shows."""
_OF_CLASSES = Remembered(_read_classes, 1 << 15)
_KIND_OF_NAME = Remembered(_read_single, 1 << 16)
WORDS_OF_NAME = Remembered(_split, 1 << 16)
"""The words in a class or an id, in lower case."""
