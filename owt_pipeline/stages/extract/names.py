"""Kinds of elements by tag, role, class, id and style.

The lists hold the conventions of the web: class names of WordPress and other systems, ARIA's roles. Names match as
complete words (`nav` in `main-nav` and `mainNav`, not in `navy`). They decide nothing alone: to the model, they are
features like all others.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from importlib import resources

from owt_pipeline.stages.extract.blocks import Container

_LISTS = resources.files("owt_pipeline.stages.extract").joinpath("names.txt").read_text("utf-8").split("\n\n")
NAMES = {title: tuple(" ".join(lines).split()) for title, *lines in map(str.splitlines, _LISTS)}
"""Names of elements, words in classes, and names of `<meta>` elements in order of preference."""

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
_CHROME_NAMES, _HIDDEN_NAMES = frozenset(NAMES["chrome names"]), frozenset(NAMES["hidden names"])
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_LOWER_WORD = re.compile(r"[a-z]+")
_HIDING_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden")
_STREAMED = re.compile(r"S:[0-9a-f]+")  # React sends parts of a page hidden, and a script moves them to their places

_METADATA_NAMES = ("uthor", "yline", "date", "Date", "publish", "timestamp", "posted")
_SCHEMA_COMMENT = re.compile(r"schema\.org/(?:Comment|UserComments)\b")

_CONTENT_NAME = re.compile(
    r"(?:entry|article|art|post|page|story|blog|main|body)[-_]*(?:content|body|text|entry)|articlebody|story-?content"
    r"|post-?entry|^content\b|hentry|fulltext"
)


@lru_cache(1 << 15)
def read_names(names: str) -> tuple[int, bool, bool]:
    """By classes and ids: the kind of an element, and whether it holds the content, or an author or a date."""
    kind, names_content, is_marked = 0, False, False
    for name in names.split():
        its_kind, is_content, is_metadata, _ = read_name(name)
        kind |= its_kind
        names_content |= is_content
        is_marked |= is_metadata
    return kind, names_content, is_marked


@lru_cache(1 << 15)
def read_name(name: str) -> tuple[int, bool, bool, tuple[str, ...]]:
    """The same by one class or id, and the words in it and itself, in lower case."""
    lower = name.lower()
    words = _LOWER_WORD.findall(name) if lower == name else [word.lower() for word in _WORD.findall(name)]
    kind = HIDDEN if lower in _HIDDEN_NAMES else CHROME if lower in _CHROME_NAMES else 0
    if kind != HIDDEN:
        kind = next((_KIND_OF_WORD[word] for word in words if word in _KIND_OF_WORD), kind)
    # Every match contains one of these; the expression takes ten times as long.
    may_be = "content" in lower or "body" in lower or "text" in lower or "entry" in lower
    is_content = may_be and _CONTENT_NAME.search(lower) is not None
    return kind, is_content, any(map(name.__contains__, _METADATA_NAMES)), (*words, lower)


def is_unshown(attributes: Mapping[str, str]) -> bool:
    """Whether an element is hidden by its own style or attribute, and no script of the browser or of React shows it."""
    style, hidden = attributes.get("style"), attributes.get("hidden")
    if hidden is not None and hidden != "until-found" and not _STREAMED.fullmatch(attributes.get("id") or ""):
        return True
    return style is not None and _HIDING_STYLE.search(style) is not None


def name_container(container: Container, attributes: Mapping[str, str]) -> bool:
    """Set a container's names and kind by its element's attributes; whether these may say more of the page."""
    get, tag = attributes.get, container.tag
    classes, identifier = get("class") or "", get("id") or ""
    named = (classes if tag in HEADINGS or is_of_heading(classes) else f"{classes} {identifier}").strip()
    kind, container.names_content, says_more = read_names(named)
    if tag in OF_TAG:
        of_tag, holds_content = OF_TAG[tag]
        kind |= of_tag
        container.names_content |= holds_content
    role, prop = get("role"), get("itemprop")
    container.names = named if role is None and prop is None else " ".join(filter(None, (named, role, prop)))
    if role is not None and role in CHROME_ROLES:
        kind |= CHROME
    if prop == "comment" or ("itemtype" in attributes and _SCHEMA_COMMENT.search(attributes["itemtype"])):
        kind |= COMMENT
    if ("style" in attributes or "hidden" in attributes) and is_unshown(attributes):
        kind = kind & ~HIDDEN if names_opened(container.names) else kind | HIDDEN | UNSHOWN
    elif get("aria-hidden") == "true":
        kind |= HIDDEN
    container.kind = kind
    return says_more or prop is not None or "aria-controls" in attributes


def leave_name(container: Container, identifier: str) -> None:
    """Take the name `identifier` from a container: it was made from the words of its heading, which links to it, as
    documentation generators do, so `menus` or `comments` say what the text is about."""
    names = container.names.split()
    if identifier in names and not container.kind & HIDDEN:
        names.remove(identifier)
        container.names = " ".join(names)
        kind, names_content, _ = read_names(container.names)
        of_tag, holds_content = OF_TAG.get(container.tag, (0, False))
        container.kind, container.names_content = kind | of_tag, names_content or holds_content


def words_of_names(names: str) -> list[str]:
    """The words in classes and ids, and the classes and ids themselves, in lower case, each once."""
    return list(dict.fromkeys(word for name in names.split() for word in read_name(name)[3]))


def finder(expression: re.Pattern[str]) -> Callable[[str], bool]:
    """Whether `expression` matches anywhere in an element's classes; cached."""
    return lru_cache(1 << 15)(lambda classes: expression.search(classes) is not None)


is_of_heading = finder(re.compile(r"\blevel[1-6]\b"))
"""Whether classes are those of a section whose id Pandoc has made from the words of its heading."""
names_opened = finder(re.compile(r"more|collaps|accordion|expand|toggle|spoiler|answer|faq", re.IGNORECASE))
"""Whether names are those of hidden text that a control of the page shows."""
