"""What the start and the end of lists, tables, headings and parts of a page mean for the blocks in them."""

from __future__ import annotations

from collections.abc import Mapping

from owt_pipeline.stages.extract.blocks import CAPTION, PREFORMATTED, ROW, Container
from owt_pipeline.stages.extract.code import Lines
from owt_pipeline.stages.extract.names import COMMENT, HIDDEN, UNSHOWN
from owt_pipeline.stages.extract.tables import Table, cell_of, rows_of_data
from owt_pipeline.stages.extract.text import Text

_PRE = frozenset(("pre", "listing", "xmp", "plaintext"))
_MOST_HEADINGS, _LONGEST_HEADING = 50, 1000
_MOST_IN_FIGURE = 200  # blocks
_MOST_SKIPPED = 4  # most characters of navigation and footers left out, as a multiple of the others'
WITH_END = frozenset(("h1", "article", "main", "td", "th", "caption", "table", "figure", "nav", "footer"))
SPECIAL = WITH_END | _PRE | {"li", "ol", "tr", "thead"}


class Structure(Text):
    """Adds to Text the open parts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self._hrefs: list[str] = []  # of open links
        self._heading: int | None = None  # number of blocks before an open <h1>
        self._main = 0  # depth of <article> and <main>
        self._around_navigation = 0  # depth of <nav> and <footer>
        self._skipped: list[tuple[int, int]] = []  # blocks of navigation and footers

    def _start_special(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        if tag == "li":
            around = container.parent
            if around is not None and around.tag == "ol" and around.number >= 0:
                container.number = _integer(attributes.get("value"), around.number)
                around.number = container.number + 1
        elif tag == "ol":
            container.number = _integer(attributes.get("start"), 1)
        elif tag in _PRE:
            self._start_lines(Lines(), container)
        elif tag == "h1":
            self._heading = len(self.blocks)
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

    def _end_special(self, tag: str, container: Container) -> None:
        if tag == "h1":
            if self._heading is not None and len(self.page.headings) < _MOST_HEADINGS:
                text = " ".join(" ".join(block.text for block in self.blocks[self._heading :]).split())
                self.page.headings.append(text[:_LONGEST_HEADING])
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
        elif tag == "figure":
            if len(self.blocks) - container.number < _MOST_IN_FIGURE:
                found = self.blocks[container.number :]
                if any(block.form in (ROW, PREFORMATTED) for block in found):
                    container.kind &= COMMENT | HIDDEN | UNSHOWN
            container.number = -1
        else:  # nav, footer
            self._around_navigation -= 1
            if not self._main and not self._around_navigation:
                self._skip(container)
            container.number = -1

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
        container = table.container
        rows = rows_of_data(table, self.blocks)
        if rows is None:
            return
        captions = [block for start, end in table.captions for block in self.blocks[start:end]]
        del self.blocks[table.start :]
        self._count, container.children = container.index + 1, 0
        for block in captions:
            block.container = self._contain("caption", container, CAPTION)
        container.end = self._count
        self.blocks += captions + rows


def _integer(text: str | None, otherwise: int) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise
