"""What the start and the end of lists, tables, headings and parts of a page mean for the blocks in them."""

from __future__ import annotations

import re
from collections.abc import Mapping

from owt_pipeline.stages.extract.blocks import CAPTION, PREFORMATTED, ROW, Block, Container
from owt_pipeline.stages.extract.code import NAMES_CODE_CELL, NAMES_GUTTER, Lines, language_of
from owt_pipeline.stages.extract.tables import Table, cell_of, rows_of_data
from owt_pipeline.stages.extract.text import Text

_PRE = frozenset(("pre", "listing", "xmp", "plaintext"))
_SECTION = re.compile(r"section\b|level\d|sect\d")
_WORD = re.compile(r"[^\W_]+")
_MOST_HEADINGS, _LONGEST_HEADING = 50, 1000
_MOST_IN_FIGURE = 200  # blocks
_MOST_SKIPPED = 4  # most characters of navigation and footers left out, as a multiple of the others'
WITH_END = frozenset(("h1", "article", "main", "td", "th", "caption", "table", "ol", "figure", "nav", "footer"))
SPECIAL = WITH_END | _PRE | {"li", "tr", "thead"}


class Structure(Text):
    """Adds to Text the open parts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self._hrefs: list[str] = []  # of open links
        self._heading: tuple[int, list[str]] | None = None  # of an open <h1>: number of blocks before, links
        self._main = 0  # depth of <article> and <main>
        self._around_navigation = 0  # depth of <nav> and <footer>
        self._skipped: list[tuple[int, int]] = []  # blocks of navigation and footers
        self._uncounted: list[Container] = []  # reversed lists that begin with the number of their items

    def _start_special(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        if tag == "li":
            around = container.parent
            if around is not None and around.tag == "ol" and around.number >= 0:
                container.number = _integer(attributes.get("value"), around.number)
                around.number = container.number + around.step
        elif tag == "ol":
            container.number = _integer(attributes.get("start"), 1)
            container.step = -1 if "reversed" in attributes else 1
            if container.step < 0 and "start" not in attributes:
                self._uncounted.append(container)
        elif tag in _PRE:
            self._start_lines(Lines(), container)
        elif tag == "h1":
            self._heading = (len(self.blocks), list(self._hrefs))
        elif tag in ("article", "main"):
            self._main += 1
        elif tag in ("figure", "nav", "footer"):
            container.number = len(self.blocks)
            self._around_navigation += tag != "figure"
        elif tag in ("td", "th"):
            self._start_cell(tag, attributes, container)
        elif tag == "table":
            self._tables.append(Table(container, len(self.blocks), attributes.get("role", "")))
        elif not self._tables:
            return
        elif tag == "tr":
            section = container.parent.tag if container.parent is not None else ""
            self._tables[-1].rows.append((section, []))
        else:  # thead, caption
            self._tables[-1].has_headers = True
            if tag == "caption":
                self._tables[-1].captions.append((len(self.blocks), len(self.blocks)))

    def _start_cell(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        if not self._tables:
            return
        table = self._tables[-1]
        if table.rows and (container.parent is not None and container.parent.tag == "tr"):
            table.rows[-1][1].append(cell_of(tag, attributes, len(self.blocks)))
        table.has_headers |= tag == "th"
        classes = attributes.get("class", "")
        is_gutter = "data-line-number" in attributes or (classes and NAMES_GUTTER[classes])
        if is_gutter or (table.has_numbers and NAMES_CODE_CELL[classes]):
            self._start_lines(Lines(), container)

    def _end_special(self, tag: str, container: Container) -> None:
        if tag == "h1":
            if self._heading is not None and len(self.page.headings) < _MOST_HEADINGS:
                start, links = self._heading
                text = " ".join(" ".join(block.text for block in self.blocks[start:]).split())
                self.page.headings.append((text[:_LONGEST_HEADING], links))
            self._heading = None
        elif tag in ("article", "main"):
            self._main -= 1
        elif tag in ("td", "th"):
            in_row = container.parent is not None and container.parent.tag == "tr"
            if in_row and self._tables and self._tables[-1].rows and self._tables[-1].rows[-1][1]:
                self._tables[-1].rows[-1][1][-1].end = len(self.blocks)
        elif tag == "caption":
            if self._tables:
                start, _ = self._tables[-1].captions[-1]
                self._tables[-1].captions[-1] = (start, len(self.blocks))
        elif tag == "table":
            self._end_table(self._tables.pop())
        elif tag == "ol":
            if self._uncounted and self._uncounted[-1] is container:
                self._uncounted.pop()
                self._number_reversed(container)
        elif tag == "figure":
            if len(self.blocks) - container.number < _MOST_IN_FIGURE:
                found = self.blocks[container.number :]
                container.is_content = any(block.form in (ROW, PREFORMATTED) for block in found)
            container.number = -1
        else:  # nav, footer
            self._around_navigation -= 1
            if not self._main and not self._around_navigation:
                self._skip(container)
            container.number = -1

    def _number_reversed(self, container: Container) -> None:
        """Number a reversed list without a start from the number of its items on."""
        items = [c for c in self.containers[container.index + 1 :] if c.parent is container and c.tag == "li"]
        for number, item in zip(range(len(items), -1, -1), items, strict=False):
            item.number = number

    def _end_anchor(self, section: Container) -> None:
        """Ignore a section's id that repeats the words of its heading, as in documentation: a target for links."""
        block = self.blocks[-1] if self.blocks else None
        if block is None or block.container.parent is not section or section.is_anchor:
            return
        if section.tag == "section" or _SECTION.match(section.attributes.get("class", "")):
            words = _WORD.findall(section.attributes["id"].lower())
            section.is_anchor = bool(words) and set(words) <= set(_WORD.findall(block.text.lower()))

    def _skip(self, container: Container) -> None:
        """Leave out navigation and a footer that are mostly links, if they are not most of the page."""
        found = self.blocks[container.number :]
        chars = sum(block.chars for block in found)
        links = sum(block.link_chars for block in found)
        if found and (links > 0.6 * chars or (container.tag == "footer" and chars - links < 400)):
            self._skipped.append((len(self.blocks) - len(found), len(self.blocks)))

    def _leave_skipped(self) -> None:
        blocks = self.blocks
        left: set[int] = set()
        for start, end in self._skipped:
            left.update(range(start, end))
        kept = [block for index, block in enumerate(blocks) if index not in left]
        skipped = sum(block.chars for block in blocks) - sum(block.chars for block in kept)
        if left and kept and skipped <= _MOST_SKIPPED * sum(block.chars for block in kept):
            self.page.blocks = kept

    def _end_table(self, table: Table) -> None:
        found = self.blocks[table.start :]
        container = table.container
        if table.code:
            if table.has_numbers and not found:
                self._add_code_of(table)
                return
            for text in filter(str.strip, table.code):
                self.blocks.append(Block(PREFORMATTED, text, 0, container))
            return
        rows = rows_of_data(table, self.blocks)
        if rows is None or (table.has_numbers and all(block.form == PREFORMATTED for block in found)):
            return
        captions = [block for start, end in table.captions for block in self.blocks[start:end]]
        del self.blocks[table.start :]
        del self.containers[container.index + 1 :]
        for block in captions:
            block.container = Container(len(self.containers), "caption", container, CAPTION)
            self.containers.append(block.container)
        container.end = len(self.containers)
        self.blocks += captions + rows

    def _add_code_of(self, table: Table) -> None:
        text = "\n".join(table.code).strip("\n")
        if text.strip():
            around = [table.container, table.container.parent]
            language = language_of(*(one.attributes.get("class") for one in around if one is not None))
            self.blocks.append(Block(PREFORMATTED, text, 0, table.container, language or None))


def _integer(text: str | None, otherwise: int) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise
