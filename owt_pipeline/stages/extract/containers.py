"""The block-level elements of a page, and their kinds by tag, names, role and style."""

from __future__ import annotations

import re

from lxml import etree

from owt_pipeline.stages.extract.layout import styled_as_code
from owt_pipeline.stages.extract.names import (
    CHROME,
    CHROME_ROLES,
    COMMENT,
    HEADINGS,
    HIDDEN,
    LINES_OF_CODE,
    STREAMED,
    UNSHOWN,
    is_hidden,
    is_slug,
    read_name,
)

_SECTION = re.compile(r"section\b|level\d|sect\d")
_WORD = re.compile(r"[^\W_]+")


class Container:
    """A block-level element.

    Attributes:
      tag: its tag.
      names: its classes, id, role and `itemprop` as written, without an id made from a heading.
      parent: index of the container around it; -1 for the body.
      end: one more than the index of the last container in it.
      kind: its kind by its names, flags of `names`.
      names_content: whether its names mark it as holding the content.
      number: for an item of a numbered list, its number; for such a list, the number of its next item; else -1.
      step: for a numbered list, the difference of consecutive numbers: 1, or -1 if it counts down.
      note: the label of an earlier reference to it; "" if there is none.
    """

    __slots__ = ("end", "kind", "names", "names_content", "note", "number", "parent", "step", "tag")

    @property
    def is_body_of_article(self) -> bool:
        """Whether its markup marks it as the text of the page's article."""
        return "articleBody" in self.names

    def __init__(self, tag: str, parent: int, kind: int, content: bool, names: str, end: int = 0):
        self.tag, self.parent, self.kind, self.names_content, self.names = tag, parent, kind, content, names
        self.end, self.number, self.step, self.note = end, -1, 1, ""


def misnamed(container: Container) -> bool:
    """Whether its kind may come from names that are only the page's title."""
    return bool(container.kind & (CHROME | COMMENT | HIDDEN)) and "-" in container.names


def without_title(names: str, title: str) -> str:
    """`names` without those that are the page's title as a slug: `the-modal-verbs` is not a modal dialog."""
    found = names.split()
    kept = [name for name in found if not is_slug(name, title)]
    return " ".join(kept) if len(kept) < len(found) else names


def rename(container: Container, names: str) -> None:
    """Give it only these of its names."""
    container.names = names
    kind, container.names_content = read_name(container.tag, names, "")
    container.kind = kind | container.kind & UNSHOWN


def words_of(text: str) -> str:
    """The words of a title, in lower case, each between two spaces."""
    return f" {' '.join(_WORD.findall(text.lower()))} "


def container_of(element: etree._Element, tag: str, parent: int) -> Container:
    """The container of `element`, which has this tag and is in the container with the index `parent`."""
    items = element.items()  # one call of lxml instead of seven of `element.get`
    if tag not in ("figure", "footer"):  # most elements have no attributes, or only classes
        if not items:
            kind, content = read_name(tag, "", "")
            return Container(tag, parent, kind, content, "")
        if len(items) == 1 and items[0][0] == "class":
            classes = items[0][1]
            kind, content = read_name(tag, classes, "")
            return Container(tag, parent, kind, content, classes)
    if tag == "footer" and next(element.iterancestors("blockquote"), None) is not None:
        tag = "p"  # the source of the quote
    get = dict(items).get
    classes, identifier = get("class") or "", get("id") or ""
    if identifier and (
        tag in HEADINGS or ((tag == "section" or _SECTION.match(classes)) and _is_anchor(element, identifier))
    ):
        identifier = ""
    kind, content = read_name(tag, classes, identifier)
    role = get("role")
    if role is not None and role in CHROME_ROLES:
        kind |= CHROME
    if (tag == "figure" and next(element.iter("table", "pre"), None) is not None) or (
        tag == "aside" and (get("epub:type") or role or "").endswith(("footnote", "footnotes", "endnote"))
    ):
        kind = 0
    style = get("style")
    if style is not None and tag == "div" and styled_as_code(style):
        kind |= LINES_OF_CODE
    hidden = get("hidden")
    if hidden is not None and STREAMED.fullmatch(identifier):
        hidden = None
    if is_hidden(None, style, hidden, None):
        kind |= HIDDEN | UNSHOWN
    elif get("aria-hidden") == "true":
        kind |= HIDDEN
    names = classes
    for further in (identifier, role, get("itemprop")):
        if further:
            names = f"{names} {further}" if names else further
    return Container(tag, parent, kind, content, names)


def _is_anchor(element: etree._Element, identifier: str) -> bool:
    """Whether a section's id is only a target for links: it repeats the words of the heading, as in documentation."""
    heading = next(iter(element), None)
    if heading is not None and heading.tag == "span":  # another id of the section
        heading = heading.getnext()
    if heading is None or heading.tag not in HEADINGS:
        return False
    words = _WORD.findall(identifier.lower())
    return bool(words) and set(words) <= set(_WORD.findall("".join(heading.itertext()).lower()))
