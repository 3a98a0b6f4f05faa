"""A page as blocks of text, in order, each in the container it stands in.

A block is what a reader sees as one: a paragraph, a heading, an item of a list, a row of a table. Containers are the
block-level elements around them, numbered in document order, so a container's parent comes before it.

    <div class="post"><h1>Title</h1><p>One <b>two</b></p></div>

    containers   0 body    1 div.post (in 0)    2 h1 (in 1)    3 p (in 1)
    blocks       "Title" heading, in 2          "One two" paragraph, in 3
"""

from __future__ import annotations

from dataclasses import dataclass

from lxml import etree

from owt_pipeline.extract.names import (
    CHROME,
    HEADINGS,
    HIDDEN,
    INLINE,
    NOT_TEXT,
    is_chrome_role,
    is_hidden,
    is_streamed,
    read_name,
)
from owt_pipeline.extract.tree import PERMALINK, text_of

MAX_DEPTH = 250
"""Elements within elements that are told apart; what lies deeper is text of the last one: Python's recursion has a
limit, and beyond a hundred or so only tags that were never closed go on."""

HEADING, ITEM, ROW, PREFORMATTED, CELL, PARAGRAPH, OTHER = "heading", "item", "row", "pre", "cell", "paragraph", "other"
_FORMS = dict.fromkeys(HEADINGS, HEADING) | {
    "li": ITEM,
    "pre": PREFORMATTED,
    "td": CELL,
    "th": CELL,
    "p": PARAGRAPH,
    "blockquote": PARAGRAPH,
    "dd": PARAGRAPH,
    "figcaption": PARAGRAPH,
}
_LAYS_OUT = ("table", "p", "div", "ul", "ol", "h1", "h2", "h3", "h4", "form", "section", "article", "pre")
_NOT_IN_CELLS = ("script", "style", "svg", "noscript", "template", "button", "select")
_BREAK = "\x00"  # stands for <br> until a block is whole; no parsed text has it


@dataclass
class Block:
    """A piece of text.

    Attributes:
      form: HEADING, ITEM, ROW, PREFORMATTED, CELL, PARAGRAPH or OTHER.
      text: what it reads, with a newline for each `<br>`.
      link_chars: how many of its characters are within links.
      container: index of the container it stands in.
    """

    __slots__ = ("chars", "container", "form", "link_chars", "text")

    def __init__(self, form: str, text: str, link_chars: int, container: int):
        self.form, self.text, self.link_chars, self.container = form, text, link_chars, container
        self.chars = len(text)

    @property
    def is_prose(self) -> bool:
        """Long enough for a sentence or two, and no list of links: what articles are made of."""
        return self.chars > 80 and self.link_chars < 0.4 * self.chars and self.form != HEADING


class Container:
    """A block-level element.

    Attributes:
      tag: its name.
      names: its classes, id, role and `itemprop`, as the page gives them.
      parent: index of the container it stands in; -1 for the body.
      kind: what its names say it is, and `because` of which word.
      names_content: whether its names say that it holds the content.
      chars, prose: characters of all its text, and of its prose; set by `main_content`.
      has_title: whether a first-level heading stands in it.
    """

    __slots__ = ("because", "chars", "has_title", "kind", "names", "names_content", "parent", "prose", "tag")

    def __init__(self, tag: str, parent: int, kind: int, because: str, content: bool, names: str = ""):
        self.names = names
        self.tag, self.parent, self.kind, self.because, self.names_content = tag, parent, kind, because, content
        self.chars = self.prose = 0
        self.has_title = False


def read_blocks(body: etree._Element, *, tables: bool = True) -> tuple[list[Block], list[Container]]:
    """The blocks below `body`, and the containers they stand in; the first container is `body`.

    Without `tables`, those that hold data are left out, those that lay out a page are not.
    """
    reader = _Reader(tables)
    reader.read_container(body, "body", -1, OTHER, 0)
    return reader.blocks, reader.containers


def form_of_text(blocks: list[Block]) -> str:
    """Blocks as plain text: one line a block (several with `<br>` or in `<pre>`), items of lists marked."""
    return "\n".join(f"- {block.text}" if block.form == ITEM else block.text for block in blocks)


class _Reader:
    """The walk over the tree; the text since the last end of a block is in `_pieces`."""

    def __init__(self, tables: bool) -> None:
        self._tables = tables
        self.blocks: list[Block] = []
        self.containers: list[Container] = []
        self._pieces: list[str] = []
        self._link_chars = 0
        self._links_around = 0

    def read_container(self, element: etree._Element, tag: str, parent: int, form: str, depth: int) -> None:
        """Read a block-level element; `form` is that of the text around it."""
        self._end_block(form, parent)
        index = len(self.containers)
        self.containers.append(_container(element, tag, parent))
        inner = _FORMS.get(tag, OTHER)
        if form == ITEM and tag in ("p", "div"):
            inner = ITEM
        if tag == "table" and _holds_data(element):
            if self._tables:
                self._read_rows(element, index)
        else:
            self._read_children(element, index, inner, depth)
        self._end_block(inner, index)

    def _read_children(self, element: etree._Element, container: int, form: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            etree.strip_elements(element, *NOT_TEXT, with_tail=False)
            self._add(" ".join(element.itertext()))
            return
        if element.text:
            self._add(element.text)
        for child in element:
            tag = child.tag
            if tag in NOT_TEXT:
                pass
            elif tag == "br":
                self._pieces.append(_BREAK)
            elif tag in INLINE:
                self._read_inline(child, tag, container, form, depth)
            else:
                self.read_container(child, tag, container, form, depth + 1)
            if child.tail:
                self._add(child.tail)

    def _read_inline(self, element: etree._Element, tag: str, container: int, form: str, depth: int) -> None:
        get = element.get
        if is_hidden(get("class"), get("style"), get("hidden"), get("aria-hidden")):
            return
        is_link = tag == "a" and get("href") is not None
        self._links_around += is_link
        self._read_children(element, container, form, depth + 1)
        self._links_around -= is_link

    def _read_rows(self, table: etree._Element, container: int) -> None:
        for row in table.iter("tr"):
            cells = [cell for cell in row if cell.tag in ("td", "th")]
            texts = [_cell_text(cell) for cell in cells]
            if any(texts):
                links = sum(len(text_of(link)) for cell in cells for link in cell.iter("a"))
                self.blocks.append(Block(ROW, " | ".join(texts), links, container))

    def _add(self, text: str) -> None:
        if self._links_around:
            if text == PERMALINK:
                return
            self._link_chars += len(text.strip())
        self._pieces.append(text)

    def _end_block(self, form: str, container: int) -> None:
        if not self._pieces:
            return
        joined = "".join(self._pieces)
        if form == PREFORMATTED:
            text = joined.replace(_BREAK, "\n").strip("\n").rstrip()
        elif _BREAK in joined:
            text = "\n".join(filter(None, (" ".join(line.split()) for line in joined.split(_BREAK))))
        else:
            text = " ".join(joined.split())
        if text:
            self.blocks.append(Block(form, text, min(self._link_chars, len(text)), container))
        self._pieces, self._link_chars = [], 0


def _container(element: etree._Element, tag: str, parent: int) -> Container:
    get = element.get
    classes, identifier = get("class") or "", get("id") or ""
    kind, because, content = read_name(tag, classes, identifier)
    if tag == "figure" and element.find(".//table") is not None:
        kind = 0
    role = get("role")
    if role is not None and is_chrome_role(role):
        kind, because = kind | CHROME, because or role
    hidden = None if is_streamed(identifier) else get("hidden")
    if is_hidden(None, get("style"), hidden, get("aria-hidden")):
        kind, because = kind | HIDDEN, because or "hidden"
    names = " ".join(filter(None, (classes, identifier, role, get("itemprop"))))
    return Container(tag, parent, kind, because, content, names)


def _holds_data(table: etree._Element) -> bool:
    """Whether a table is one, and no layout: nothing in its cells is larger than a line."""
    below = table.iter(*_LAYS_OUT)
    next(below)  # the table itself
    return next(below, None) is None


def _cell_text(cell: etree._Element) -> str:
    if next(cell.iter(*_NOT_IN_CELLS), None) is not None:
        etree.strip_elements(cell, *_NOT_IN_CELLS, with_tail=False)
    return text_of(cell)
