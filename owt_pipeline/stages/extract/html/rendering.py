"""Blocks as plain text or Markdown.

Plain text has one line per block (several with `<br>` and in code), with a row's cells separated by
tabs and no markup. Markdown is CommonMark with GitHub's tables, and formulas as `$…$` and `$$…$$`;
it has the same content in the same order. Text is not escaped (a line that starts with `#` by
chance stays as it is), since models read it, not browsers. Only bars in tables are escaped, since
they would shift the cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

from owt_pipeline.stages.extract.html.blocks import (
    CODE,
    DISPLAY,
    FORMULA,
    HEADING,
    PREFORMATTED,
    ROW,
    Block,
    Container,
)
from owt_pipeline.stages.extract.html.names import HEADINGS

_MARKS = str.maketrans({CODE: "`", FORMULA: "$", DISPLAY: "$$"})


def plain_text(blocks: Sequence[Block]) -> str:
    """Return blocks as plain text."""
    return "\n".join(block.text for block in blocks)


def markdown(blocks: Sequence[Block]) -> str:
    """Return blocks as Markdown, with the lists and quotes of their containers."""
    writer = _Writer()
    for table, group in groupby(blocks, _table_of):
        if table is not None:
            writer.write(_table(list(group)), table)
            continue
        for block in group:
            writer.write(_block(block), block.container)
    return "\n".join(writer.lines)


def _table_of(block: Block) -> Container | None:
    return block.container if block.form == ROW else None


def _block(block: Block) -> str:
    if block.form == PREFORMATTED:
        fence = "```"
        while fence in block.text:
            fence += "`"
        return f"{fence}{block.marked or ''}\n{block.text}\n{fence}"
    text = block.text if block.marked is None else block.marked.translate(_MARKS)
    if block.form == HEADING:
        return f"{'#' * HEADINGS.get(block.container.tag, 6)} {' '.join(text.split())}"
    return text


def _table(rows: Sequence[Block]) -> str:
    """Return the rows of one table.

    A table without a header row gets an empty one, which Markdown requires.
    """
    lines = [[_escape_cell(cell) for cell in row.cells or ()] for row in rows]
    width = max(map(len, lines))
    if not rows[0].is_header:
        lines.insert(0, [])
    lines.insert(1, ["---"] * width)
    return "\n".join(f"| {' | '.join(line + [''] * (width - len(line)))} |" for line in lines)


def _escape_cell(cell: str) -> str:
    return cell.translate(_MARKS).replace("|", "\\|").replace("\n", "<br>")


class _Writer:
    """The lines so far.

    Attributes:
      lines: the lines.
    """

    def __init__(self) -> None:
        self.lines: list[str] = []
        # For each item with text so far the indentation of its further lines.
        self._indentation_of_item: dict[Container, int] = {}
        # The items and quotes around the last block, the outermost first.
        self._last_ancestors: list[Container] = []

    def write(self, text: str, container: Container) -> None:
        """Add a text in its items and quotes."""
        ancestors = [one for one in container.ancestors() if one.tag in ("li", "blockquote")]
        ancestors.reverse()
        if self.lines and not self._follows_closely(ancestors):
            self.lines.append(self._empty_line(ancestors))
        first_prefix = ""
        rest_prefix = ""
        for ancestor in ancestors:
            if ancestor in self._indentation_of_item or ancestor.tag == "blockquote":
                first_prefix += self._indentation(ancestor)
            else:
                marker = f"{ancestor.number}. " if ancestor.number >= 0 else "- "
                self._indentation_of_item[ancestor] = len(marker)
                first_prefix += marker
            rest_prefix += self._indentation(ancestor)
        for number, line in enumerate(text.split("\n")):
            prefix = rest_prefix if number else first_prefix
            self.lines.append(prefix + line if line else rest_prefix.rstrip())
        self._last_ancestors = ancestors

    def _empty_line(self, ancestors: list[Container]) -> str:
        """Return the line between two blocks, within the quotes that both are in."""
        shared = []
        for ancestor, last_ancestor in zip(ancestors, self._last_ancestors, strict=False):
            if ancestor is last_ancestor:
                shared.append(self._indentation(ancestor))
        return "".join(shared).rstrip()

    def _follows_closely(self, ancestors: list[Container]) -> bool:
        """Return whether a block starts another item of the same list.

        It needs no empty line before it.
        """
        if not ancestors or ancestors[-1].tag == "blockquote":
            return False
        if ancestors[-1] in self._indentation_of_item:
            return False
        return not _lists(ancestors).isdisjoint(_lists(self._last_ancestors))

    def _indentation(self, container: Container) -> str:
        if container.tag == "blockquote":
            return "> "
        return " " * self._indentation_of_item.get(container, 0)


def _lists(ancestors: list[Container]) -> set[Container | None]:
    """Return the lists that items are in."""
    return {ancestor.parent for ancestor in ancestors if ancestor.tag != "blockquote"}
