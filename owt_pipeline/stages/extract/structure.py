"""What the start and the end of lists, tables, headings and parts of a page mean for the blocks in them."""

from __future__ import annotations

from collections.abc import Mapping

from owt_pipeline.stages.extract.blocks import CAPTION, PARAGRAPH, PREFORMATTED, ROW, Block, Container
from owt_pipeline.stages.extract.names import COMMENT, HIDDEN, UNSHOWN
from owt_pipeline.stages.extract.tables import Table, cell_of, rows_of_data
from owt_pipeline.stages.extract.text import Text

PREFORMATTED_TAGS = frozenset(("pre", "listing", "xmp", "plaintext"))
_MOST_HEADINGS, _LONGEST_HEADING = 50, 1000
_MOST_IN_FIGURE = 200  # blocks
_MOST_SKIPPED = 4  # most characters of navigation and footers left out, as a multiple of the others'
WITH_END = frozenset(("h1", "article", "main", "td", "th", "table", "figure", "nav", "footer", "noscript"))
SPECIAL = WITH_END | PREFORMATTED_TAGS | {"li", "ol", "tr", "thead", "caption"}


class Structure(Text):
    """Adds to Text the open parts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self._heading: int | None = None  # number of blocks before an open <h1>
        self._main = 0  # depth of <article> and <main>
        self._around_navigation = 0  # depth of <nav> and <footer>
        self._skipped: list[Block] = []  # those of navigation and footers

    def _start_special(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        if tag == "li":
            around = container.parent
            if around is not None and around.tag == "ol" and around.number >= 0:
                container.number = _integer(attributes.get("value"), around.number)
                around.number = container.number + 1
        elif tag == "ol":
            container.number = _integer(attributes.get("start"), 1)
        elif tag == "h1":
            self._heading = len(self.blocks)
        elif tag in ("article", "main"):
            self._main += 1
        elif tag in ("figure", "nav", "footer", "noscript"):
            container.number = len(self.blocks)
            self._around_navigation += tag in ("nav", "footer")
        elif tag in ("td", "th"):
            self._start_cell(tag, attributes, container)
        elif tag == "table":
            self._tables.append(Table(container, len(self.blocks)))
            self._tables[-1].is_layout = attributes.get("role") in ("presentation", "none")
        elif not self._tables:
            return
        elif tag == "tr":
            section = container.parent.tag if container.parent is not None else ""
            self._tables[-1].rows.append((section, []))
        elif tag in ("thead", "caption"):
            self._tables[-1].has_headers = True

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
        elif tag == "table":
            self._end_table(self._tables.pop())
        elif tag == "figure":
            if len(self.blocks) - container.number < _MOST_IN_FIGURE:
                found = self.blocks[container.number :]
                if any(block.form in (ROW, PREFORMATTED) for block in found):
                    container.kind &= COMMENT | HIDDEN | UNSHOWN
            container.number = -1
        elif tag == "noscript":
            if all(block.form != PARAGRAPH for block in self.blocks[container.number :]):
                del self.blocks[container.number :]  # not the page for browsers without scripts, but a notice
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
        if links > 0.6 * chars or (container.tag == "footer" and chars - links < 400):
            self._skipped += found

    def _leave_skipped(self) -> None:
        skipped = set(self._skipped)
        kept = [block for block in self.blocks if block not in skipped]
        chars = sum(block.chars for block in self._skipped)
        if kept and chars <= _MOST_SKIPPED * sum(block.chars for block in kept):
            self.page.blocks = kept

    def _end_table(self, table: Table) -> None:
        container = table.container
        rows = rows_of_data(table, self.blocks)
        if rows is None:
            return
        self.blocks[table.start :] = rows
        self._count, container.children = container.index + 1, 0
        for block in rows:
            if block.form != ROW:
                block.container = self._contain("caption", container, CAPTION)
        container.end = self._count


def _integer(text: str | None, otherwise: int) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise
