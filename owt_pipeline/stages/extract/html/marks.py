"""Parts of the body that a page's metadata is read from: bylines, dates and links to licences.

`MarkCollector` follows the open elements while a page is read, and writes into a `ParsedPage`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from owt_pipeline.stages.extract.html.blocks import Block, Container
from owt_pipeline.stages.extract.html.names import MARKED, TARGETS, read_names

# Hostile pages have millions; an author is named near the top, a licence at either end.
_MAX_BYLINES = 60
_MAX_LICENCES = 40
_MAX_BYLINE_CHARS = 2000
_MAX_CHARS_BEFORE_BADGE = 300
# Controls that open a part of the page which is not its text.
_OPENS_OVERLAY = re.compile(
    r"modal|dialog|popup|popover|lightbox|overlay|offcanvas|dropdown|menu|nav", re.IGNORECASE
)
# Written between a name and a badge, and between a name and what is in another line.
_SEPARATOR = " | "
_LINE_SEPARATOR = " |  "
_SEPARATORS = (_SEPARATOR, _LINE_SEPARATOR)
# A longer text has more than a byline, and its first line may be any heading.
_MAX_CHARS_OF_LINES = 150
_ROLE_NAME = re.compile(r"role|title|job|position|follow|button", re.IGNORECASE)
_WORDS_BEFORE_NAME = frozenset(("by", "von", "par", "por", "and", "und", "et"))
_QUOTED_NAME = re.compile(r"[\"'`]([#.]?)([A-Za-z][\w-]*)[\"'`]")
"""A name in a script, as in `toggle('rest')` and `document.querySelector('#rest')`."""
_PARENT = re.compile(r"parent(?:Node|Element)|\.parent\(")
_NEXT_SIBLING = re.compile(r"next(?:Element)?Sibling|\.next\(")


@dataclass
class BylineCandidate:
    """An element that may name an author or a date, or a link to a licence.

    Attributes:
      tag: its tag.
      attributes: its attributes.
      container: the container around it.
      depth: number of open elements around it.
      name: the element in it that is marked as a name; None if there is none.
      chars: the number of characters in `pieces`.
      pieces: its text; for a link to a licence, the text of its block.
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
    """The contents of a page.

    Attributes:
      blocks: its text.
      language: the language of the root element.
      title: the text of `<title>`.
      metas: content of each `<meta>` by its name in lower case; the first one wins, but those for
        robots are joined.
      scripts: the text of each script of linked data.
      headings: the text of each `<h1>`.
      marked: elements that may name an author or a date.
      licences: links to licences with the text of their blocks; `rel` is "license" if the page
        declares that the licence is its own.
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
        """Add a `<meta>` element."""
        get = attributes.get
        names = get("property") or get("name") or get("itemprop") or get("http-equiv") or ""
        content = " ".join((get("content") or "").split())
        if not content:
            return
        if names.lower() == "robots" and "robots" in self.metas:
            self.metas["robots"] += f", {content}"
        # Some elements have several names.
        for name in names.lower().split():
            key = name.replace("dc:", "dc.").replace("dcterms:", "dcterms.")
            self.metas.setdefault(key, content)


class MarkCollector:
    """The open elements that may name an author or a date; `page` receives them, and licences.

    Attributes:
      open: the open elements, always the same list, so that the reader can test it quickly.
    """

    def __init__(self, page: ParsedPage) -> None:
        self.open: list[BylineCandidate] = []
        self._page = page
        # A link to a licence in the block that has not ended.
        self._licence: BylineCandidate | None = None

    def start(
        self, tag: str, attributes: Mapping[str, str], container: Container, depth: int
    ) -> None:
        """Collect the text of an element if it may be an author or a date.

        `depth` is the number of open elements around it.
        """
        classes = attributes.get("class")
        prop = attributes.get("itemprop")
        if self.open and tag in ("time", "button"):
            self._separate(is_glued_only=False)
        elif self.open and prop is None:
            # `author-role` next to `author-name` is no other name.
            is_marked = bool(classes) and read_names(classes or "") & MARKED
            if not is_marked:
                self._separate(is_glued_only=True)
            elif _ROLE_NAME.search(classes or ""):
                self._separate(is_glued_only=True, separator=_LINE_SEPARATOR)
        is_name = prop == "name" or classes == "fn"
        if self.open and is_name and self.open[-1].name is None:
            name = BylineCandidate(tag, attributes, container, depth)
            self.open[-1].name = name
            self.open.append(name)
            return
        if len(self._page.marked) < _MAX_BYLINES and _is_candidate(tag, attributes):
            candidate = BylineCandidate(tag, attributes, container, depth)
            self._page.marked.append(candidate)
            self.open.append(candidate)

    def end_line(self) -> None:
        """Separate what follows from a name before it, as it is in another line."""
        self.add(" ")
        self._separate(is_glued_only=False, separator=_LINE_SEPARATOR)

    def _separate(self, *, is_glued_only: bool, separator: str = _SEPARATOR) -> None:
        """Separate an element from the name before it: it is drawn as a badge or as a line.

        Other elements than a time and a button are separate only if no space precedes them.
        """
        for candidate in self.open:
            # Hostile pages have thousands of elements in one that is marked.
            if not candidate.pieces or candidate.chars > _MAX_CHARS_BEFORE_BADGE:
                continue
            if is_glued_only and not candidate.pieces[-1][-1:].isalpha():
                continue
            words = candidate.text.split()[-2:]
            is_name = len(words) == 2 and all(word[0].isupper() for word in words)
            is_before = words[-1:] and words[-1].lower() in _WORDS_BEFORE_NAME
            if is_name and not is_before and not words[-1].endswith(":"):
                candidate.pieces.append(separator)

    def add(self, text: str) -> None:
        """Add a text to all open elements."""
        for candidate in self.open:
            if candidate.chars < _MAX_BYLINE_CHARS:
                first = text.lstrip()[:1]
                # A comma or `and` between two names, in an element of its own.
                is_between = bool(first) and not first.isupper() and not first.isdigit()
                if candidate.pieces and candidate.pieces[-1] in _SEPARATORS:
                    if not first:
                        continue
                    if is_between:
                        candidate.pieces.pop()
                candidate.pieces.append(text)
                candidate.chars += len(text)

    def end(self, depth: int) -> None:
        """Close the elements with at least `depth` elements around them."""
        while self.open and self.open[-1].depth >= depth:
            candidate = self.open.pop()
            if candidate.chars > _MAX_CHARS_OF_LINES:
                pieces = candidate.pieces
                candidate.pieces = [piece for piece in pieces if piece != _LINE_SEPARATOR]

    def link(self, tag: str, relation: str, target: str, container: Container) -> None:
        """Add a link if it is to a licence; `relation` is its `rel`, `target` its `href`."""
        relations = relation.lower().split() if "licen" in relation else []
        is_declared = "license" in relations or "licence" in relations
        if not is_declared and "creativecommons.org/" not in target:
            return
        if len(self._page.licences) >= _MAX_LICENCES:
            return
        attributes = {"href": target, "rel": "license" if is_declared else ""}
        licence = BylineCandidate(tag, attributes, container, 0)
        self._page.licences.append(licence)
        self._licence = licence if tag == "a" else None

    def end_block(self, text: str) -> None:
        """Give a link to a licence the text of its block, which ends here."""
        if self._licence is not None:
            self._licence.pieces.append(text)
            self._licence = None


def _is_candidate(tag: str, attributes: Mapping[str, str]) -> bool:
    """Return whether an element may name an author or a date."""
    classes = attributes.get("class")
    if classes and read_names(classes) & MARKED:
        return True
    if tag == "time" or attributes.get("itemprop") in ("author", "datePublished"):
        return True
    return attributes.get("rel") == "author"


def opened_by(attributes: Mapping[str, str]) -> Iterator[str]:
    """Yield the ids of the elements that a control opens; classes with a dot before them.

    Dialogs and menus do not count, since their text is not part of the page's.
    """
    yield from (attributes.get("aria-controls") or "").split()
    toggle = attributes.get("data-toggle") or attributes.get("data-bs-toggle") or ""
    if _OPENS_OVERLAY.search(toggle):
        return
    for target in TARGETS.intersection(attributes):
        # UIkit writes `target: #rest`.
        for selector in attributes[target].removeprefix("target:").split(","):
            if not _OPENS_OVERLAY.search(selector):
                yield selector.strip().removeprefix("#")
    script = attributes.get("onclick")
    if script is not None and not _OPENS_OVERLAY.search(script):
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
