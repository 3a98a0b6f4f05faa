"""Kinds of elements by tag, role, class, id and style.

The lists hold the conventions of the web: class names of WordPress and other systems, ARIA's roles.
Names match as complete words (`nav` in `main-nav` and `mainNav`, not in `navy`). For the model they
are features like all others.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import lru_cache
from importlib import resources
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import FORMS, OTHER, Container

_LISTS = (
    resources.files("owt_pipeline.stages.extract.html")
    .joinpath("names.txt")
    .read_text("utf-8")
    .split("\n\n")
)
NAMES = {title: tuple(" ".join(lines).split()) for title, *lines in map(str.splitlines, _LISTS)}
"""Names of elements, words in classes, and names of `<meta>` elements in order of preference."""

# Kinds of elements by name. Plain numbers, since the operators of IntFlag would take a third of the
# time of extraction.
HIDDEN = 1
CHROME = 2
"""Navigation, sidebars, share buttons, forms, advertisements, captions."""
COMMENT = 4
CONTENT = 8
"""Holds the content."""
UNSHOWN = 16
"""Hidden by its own style or attribute, not only by its name."""
MARKED = 32
"""May name an author, or has the attributes of a control that opens other elements."""
SPACED = 64
"""Shows code as it is written, with its spaces."""
LINE_NUMBER = 128
"""Is the number of a line of code."""

# With `rt`, the pronunciation of the characters of a <ruby>.
NOT_TEXT = frozenset(NAMES["no text"])
INLINE = frozenset(NAMES["inline"])
BLOCK = frozenset(NAMES["block"])
CHROME_ROLES = frozenset(NAMES["chrome roles"])
HEADINGS = {f"h{level}": level for level in range(1, 7)}

TAG_KIND = dict.fromkeys("nav footer aside figure form fieldset".split(), CHROME) | {
    "article": CONTENT,
    "main": CONTENT,
}
"""The kind of an element by its tag."""
PLAIN = OTHER, 0
FORM_AND_KIND = {tag: (FORMS.get(tag, OTHER), TAG_KIND.get(tag, 0)) for tag in (*FORMS, *TAG_KIND)}
"""The form and the kind of a container by its tag; those of all other tags are PLAIN."""
COMMENT_WORDS = frozenset(NAMES["comment words"])
_KIND_OF_WORD = dict.fromkeys(COMMENT_WORDS, COMMENT) | dict.fromkeys(NAMES["chrome words"], CHROME)
_CHROME_NAMES = frozenset(NAMES["chrome names"])
_HIDDEN_NAMES = frozenset(NAMES["hidden names"])
_KIND_OF_CODE = dict.fromkeys(NAMES["code names"], SPACED)
_KIND_OF_CODE |= dict.fromkeys(NAMES["line number names"], LINE_NUMBER)
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LOWER_WORD = re.compile(r"[a-z]+")
_HIDING_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
# React sends parts of a page hidden, and a script moves them to their places.
_STREAMED = re.compile(r"S:[0-9a-f]+")

# A row of a table is in the table's body.
_MAX_LEVELS_OF_PARTS = 4
# Microdata and RDFa, with any prefix: `schema:Comment`, `https://schema.org/UserComments`.
_SCHEMA_COMMENT = re.compile(r"(?:^|[\s:/#])(?:User)?Comments?(?=$|\s)")
_COMMENT_PROPERTIES = frozenset(("comment", "schema:comment"))
TARGETS = frozenset(NAMES["target attributes"])
"""Attributes of controls that name the element that they open."""
CONTROLS = TARGETS | {"aria-controls", "onclick", "itemprop"}
"""Attributes of elements that open others, or that may name the page's author."""
SHOWING_ATTRIBUTES = frozenset(("style", "hidden", "aria-hidden", "data-cfemail"))
"""Attributes, except classes, that change how an inline element is shown."""
_NAMING_ATTRIBUTES = CONTROLS | {
    *("role", "itemtype", "typeof", "property", "style", "hidden", "aria-hidden"),
}
"""Attributes except classes and ids that may give an element names or a kind."""

_LEVEL = re.compile(r"\blevel[1-6]\b")
_OPENS_PARTS = re.compile(r"collaps|accordion|spoiler|faq", re.IGNORECASE)
# Attributes of Alpine, Vue and Angular with the condition under which an element is shown.
_CONDITIONS = ("x-show", "v-show", "ng-show")
_OVERLAY = re.compile(
    r"modal|dialog|popup|popover|lightbox|overlay|offcanvas|off-canvas|dropdown|menu|nav|cookie"
    r"|consent|login|sign|newsletter|search|tooltip",
    re.IGNORECASE,
)
_OPENED = re.compile(r"more|collaps|accordion|expand|toggle|spoiler|answer|faq", re.IGNORECASE)
_CONTENT_NAME = re.compile(
    r"(?:entry|article|art|post|page|story|blog|main|body)[-_]*(?:content|body|text|entry)|articlebody|story-?content"
    r"|post-?entry|^content\b|hentry|fulltext"
)


@lru_cache(1 << 15)
def read_names(names: str) -> int:
    """Return the kind of an element by its classes and ids."""
    kind = 0
    for name in names.split():
        kind |= read_name(name)[0]
    return kind


@lru_cache(1 << 15)
def read_name(name: str) -> tuple[int, tuple[str, ...]]:
    """Return the kind of an element by one class or id, and its words, in lower case.

    The last word is the complete name.
    """
    lower = name.lower()
    if lower == name:
        words = _LOWER_WORD.findall(name)
    else:
        words = [word.lower() for word in _WORD.findall(name)]
    kind = _kind_of(lower, words) | _KIND_OF_CODE.get(lower.lstrip("!"), 0)
    # Every match contains one of these words; the expression takes ten times as long.
    may_be_content = "content" in lower or "body" in lower or "text" in lower or "entry" in lower
    if may_be_content and _CONTENT_NAME.search(lower):
        kind |= CONTENT
    if "author" in lower or "byline" in lower or "by-line" in lower:
        kind |= MARKED
    return kind, (*words, lower)


def _kind_of(name: str, words: Iterable[str]) -> int:
    """Return the kind of an element by a name in lower case and the words in it."""
    if name in _HIDDEN_NAMES:
        return HIDDEN
    for word in words:
        if word in _KIND_OF_WORD:
            return _KIND_OF_WORD[word]
    return CHROME if name in _CHROME_NAMES else 0


def is_unshown(attributes: Mapping[str, str]) -> bool:
    """Return whether an element is hidden by its own style or attribute.

    Text that the browser shows when it is searched for, or that React streams, is not hidden.
    """
    hidden = attributes.get("hidden")
    is_marked = hidden is not None and hidden != "until-found"
    if is_marked and not _STREAMED.fullmatch(attributes.get("id") or ""):
        return True
    style = attributes.get("style")
    return style is not None and _HIDING_STYLE.search(style) is not None


def name_container(container: Container, attributes: Mapping[str, str]) -> None:
    """Set a container's names and kind by its element's attributes."""
    get = attributes.get
    classes = get("class") or ""
    identifier = get("id") or ""
    names = classes
    kind = container.kind
    if classes:
        kind |= read_names(classes)
    if identifier and container.tag not in HEADINGS and not is_of_heading(classes):
        names = f"{classes} {identifier}"
        # Most ids are new, so to cache them as lists of names would only take time.
        for name in identifier.split():
            kind |= read_name(name)[0]
    container.names = names.strip()
    container.kind = kind
    # Most elements have only classes, an id and data for scripts.
    if not _NAMING_ATTRIBUTES.isdisjoint(attributes):
        _name_by_other_attributes(container, attributes)


def _name_by_other_attributes(container: Container, attributes: Mapping[str, str]) -> None:
    """Add to a container's names and kind those by other attributes than its classes and id."""
    get = attributes.get
    role = get("role")
    prop = get("itemprop")
    if role is not None or prop is not None:
        container.names = " ".join(filter(None, (container.names, role, prop)))
    kind = container.kind
    if role is not None and role in CHROME_ROLES:
        kind |= CHROME
        if role == "alert":
            # Between two paragraphs it is a note, like an <aside>.
            container.tag = "aside"
    if role == "comment" or _is_schema_comment(attributes):
        kind |= COMMENT
    if ("style" in attributes or "hidden" in attributes) and is_unshown(attributes):
        if names_opened(container.names) or _is_part(container) or _is_conditional(attributes):
            kind &= ~HIDDEN
        else:
            kind |= HIDDEN | UNSHOWN
    elif get("aria-hidden") == "true":
        kind |= HIDDEN
    if not CONTROLS.isdisjoint(attributes):
        kind |= MARKED
    container.kind = kind


def _is_part(container: Container) -> bool:
    """Return whether a hidden element is a part of one that opens its parts, like an accordion."""
    if names_overlay(container.names):
        return False
    for ancestor in islice(container.ancestors(), 1, _MAX_LEVELS_OF_PARTS):
        if names_part(ancestor.names):
            return True
    return False


def _is_conditional(attributes: Mapping[str, str]) -> bool:
    """Return whether a script shows a hidden element that is not a menu or a dialog."""
    condition = next(filter(None, map(attributes.get, _CONDITIONS)), None)
    if condition is None:
        return False
    names = (condition, attributes.get("class"), attributes.get("id"), attributes.get("role"))
    return not any(name and names_overlay(name) for name in names)


def names_part(names: str) -> bool:
    """Return whether names mark an element that opens its parts, or the one after it."""
    return _OPENS_PARTS.search(names) is not None and not names_overlay(names)


def names_overlay(names: str) -> bool:
    """Return whether names mark a part of the page that is not its text, like a dialog."""
    return _OVERLAY.search(names) is not None


def _is_schema_comment(attributes: Mapping[str, str]) -> bool:
    """Return whether microdata or RDFa declares that an element is a reader's comment."""
    declared_type = attributes.get("itemtype") or attributes.get("typeof")
    if declared_type is not None and _SCHEMA_COMMENT.search(declared_type):
        return True
    declared_property = attributes.get("itemprop") or attributes.get("property")
    return declared_property in _COMMENT_PROPERTIES


def ignore_name(container: Container, identifier: str) -> None:
    """Remove the name `identifier` from a container whose heading links to it.

    Documentation generators make such names from the words of the heading, so `menus` or `comments`
    name the subject of the text.
    """
    names = container.names.split()
    if identifier in names and not container.kind & HIDDEN:
        names.remove(identifier)
        container.names = " ".join(names)
        container.kind = TAG_KIND.get(container.tag, 0) | read_names(container.names)


def is_of_heading(classes: str) -> bool:
    """Return whether docutils or Pandoc has made a section's id from the words of its heading."""
    # Most classes have no "level", and searching for a word is faster than an expression.
    return classes == "section" or ("level" in classes and _LEVEL.search(classes) is not None)


def names_opened(names: str) -> bool:
    """Return whether names mark hidden text that a control of the page shows."""
    return _OPENED.search(names) is not None
