"""What a page's metadata needs of its body: elements that may name an author or a date, and
links to licences."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from owt_pipeline.stages.extract.html.blocks import Block, Container
from owt_pipeline.stages.extract.html.names import MARKED, read_names

_MOST_MARKED, _MOST_LICENCES = 60, 40
_LONGEST_TEXT = 2000  # characters of a byline
# Controls that open something which is not part of the text.
_NO_PART_OF_TEXT = re.compile(
    r"modal|dialog|popup|popover|lightbox|overlay|offcanvas|dropdown|menu|nav", re.IGNORECASE
)
_QUOTED_NAME = re.compile(r"[\"'`]([#.]?)([A-Za-z][\w-]*)[\"'`]")
"""A name in a script, as in `toggle('rest')` and `document.querySelector('#rest')`."""
_PARENT = re.compile(r"parent(?:Node|Element)|\.parent\(")
_NEXT_SIBLING = re.compile(r"next(?:Element)?Sibling|\.next\(")


@dataclass
class BylineCandidate:
    """An element that may name an author or a date, and its text.

    Attributes:
      tag: its tag.
      attributes: its attributes.
      container: the container around it.
      name: the text of an element in it that is marked as a name.
      pieces: its text.
      depth: number of open elements around it.
    """

    tag: str
    attributes: Mapping[str, str]
    container: Container
    depth: int
    name: BylineCandidate | None = None
    chars: int = 0
    pieces: list[str] = field(default_factory=list)

    @property
    def text(self) -> str:
        """Its text in one line."""
        return " ".join("".join(self.pieces).split())


@dataclass
class ParsedPage:
    """What is on a page.

    Attributes:
      blocks: its text.
      language: the language of the root element.
      title: the text of `<title>`.
      metas: content of each `<meta>` by its name in lower case; the first one wins, but those for
        robots are joined.
      scripts: the text of each script of linked data.
      headings: the text of each `<h1>`.
      marked: elements that may name an author or a date.
      licences: links to licences with the text of their blocks; `rel` says whether the page states
        that it is its own.
      controlled: ids of elements that links and buttons open; classes with a dot before them.
    """

    blocks: list[Block] = field(default_factory=list)
    language: str | None = None
    title: str | None = None
    metas: dict[str, str] = field(default_factory=dict)
    scripts: list[str] = field(default_factory=list)
    headings: list[str] = field(default_factory=list)
    marked: list[BylineCandidate] = field(default_factory=list)
    licences: list[BylineCandidate] = field(default_factory=list)
    controlled: set[str] = field(default_factory=set)

    def add_meta(self, attributes: Mapping[str, str]) -> None:
        get = attributes.get
        name = get("property") or get("name") or get("itemprop") or get("http-equiv") or ""
        content = " ".join((get("content") or "").split())
        if content:
            if name.lower() == "robots" and "robots" in self.metas:
                self.metas["robots"] += f", {content}"
            for single in name.lower().split():  # some elements have several names
                self.metas.setdefault(
                    single.replace("dc:", "dc.").replace("dcterms:", "dcterms."), content
                )


class Marks:
    """The open elements that may name an author or a date; `page` gets them, and links to
    licences."""

    def __init__(self, page: ParsedPage) -> None:
        self.open: list[BylineCandidate] = []  # always the same list
        self._page = page
        self._unsaid: BylineCandidate | None = (
            None  # a link to a licence in the block that has not ended
        )

    def start(
        self, tag: str, attributes: Mapping[str, str], container: Container, depth: int
    ) -> None:
        """Collect the text of an element, with `depth` elements around it, if it may be an
        author or a date."""
        get = attributes.get
        classes, prop = get("class"), get("itemprop")
        if classes and prop is None and not read_names(classes) & MARKED:
            self._add_badge()
        if self.open and (prop == "name" or classes == "fn") and self.open[-1].name is None:
            marked = self.open[-1].name = BylineCandidate(tag, attributes, container, depth)
            self.open.append(marked)
        elif (
            (classes and read_names(classes) & MARKED)
            or tag == "time"
            or prop in ("author", "datePublished")
            or get("rel") == "author"
        ) and len(self._page.marked) < _MOST_MARKED:
            marked = BylineCandidate(tag, attributes, container, depth)
            self._page.marked.append(marked)
            self.open.append(marked)

    def _add_badge(self) -> None:
        """Set apart an element that follows a name without a space: it is drawn as a badge."""
        for marked in self.open:
            is_glued = bool(marked.pieces) and marked.pieces[-1][-1:].isalpha()
            if is_glued and len(marked.text.split()) > 1:
                marked.pieces.append(" | ")

    def add(self, text: str) -> None:
        for marked in self.open:
            if marked.chars < _LONGEST_TEXT:
                marked.pieces.append(text)
                marked.chars += len(text)

    def end(self, depth: int) -> None:
        """An element with `depth` elements around it has ended."""
        while self.open and self.open[-1].depth >= depth:
            self.open.pop()

    def link(self, tag: str, relation: str, target: str, container: Container) -> None:
        """Note a link if it is to a licence."""
        is_stated = "licen" in relation and not {"license", "licence"}.isdisjoint(
            relation.lower().split()
        )
        if (is_stated or "creativecommons.org/" in target) and len(
            self._page.licences
        ) < _MOST_LICENCES:
            licence = BylineCandidate(
                tag, {"href": target, "rel": "license" if is_stated else ""}, container, 0
            )
            self._page.licences.append(licence)
            self._unsaid = licence if tag == "a" else None

    def end_block(self, text: str) -> None:
        if self._unsaid is not None:
            self._unsaid.pieces.append(text)
            self._unsaid = None


def opened_by(attributes: Mapping[str, str]) -> Iterator[str]:
    """Yield the ids of the elements that a control opens; classes with a dot before them.

    Dialogs and menus do not count, since their text is not part of the page's.
    """
    yield from (attributes.get("aria-controls") or "").split()
    toggle = attributes.get("data-toggle") or attributes.get("data-bs-toggle") or ""
    if _NO_PART_OF_TEXT.search(toggle):
        return
    for target in ("data-target", "data-bs-target"):
        for selector in (attributes.get(target) or "").split(","):
            if not _NO_PART_OF_TEXT.search(selector):
                yield selector.strip().removeprefix("#")
    script = attributes.get("onclick")
    if script is not None and not _NO_PART_OF_TEXT.search(script):
        for sign, name in _QUOTED_NAME.findall(script):
            yield f".{name}" if sign == "." else name


def sibling_opened_by(attributes: Mapping[str, str]) -> int | None:
    """Return for a control that opens what follows it the number of parents between the two.

    0 is for the control's next sibling, 1 for its parent's. None is for any other control.
    """
    script = attributes.get("onclick")
    if script is None or not _NEXT_SIBLING.search(script):
        return None
    return len(_PARENT.findall(script))
