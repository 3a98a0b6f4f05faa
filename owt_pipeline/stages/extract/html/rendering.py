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
    """Blocks as plain text."""
    return "\n".join(block.text for block in blocks)


def markdown(blocks: Sequence[Block]) -> str:
    """Blocks as Markdown, with the lists and quotes of their containers."""
    writer = _Writer()
    for table, some in groupby(
        blocks, lambda block: block.container if block.form == ROW else None
    ):
        if table is not None:
            rows = list(some)
            writer.write(_table(rows), table)
            continue
        for block in some:
            writer.write(_block(block), block.container)
    return "\n".join(writer.lines)


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
    """Rows of one table; without a header row, the table gets an empty one, which Markdown
    requires."""
    cells = [
        [
            cell.translate(_MARKS).replace("|", "\\|").replace("\n", "<br>")
            for cell in row.cells or ()
        ]
        for row in rows
    ]
    width = max(map(len, cells))
    if not rows[0].is_header:
        cells.insert(0, [])
    cells.insert(1, ["---"] * width)
    return "\n".join(f"| {' | '.join(row + [''] * (width - len(row)))} |" for row in cells)


class _Writer:
    """The lines so far, and the items and quotes around the last one."""

    def __init__(self) -> None:
        self.lines: list[str] = []
        self._started: dict[
            Container, int
        ] = {}  # items with text so far → indentation of their further lines
        self._around: list[Container] = []

    def write(self, text: str, container: Container) -> None:
        around = [one for one in container.ancestors() if one.tag in ("li", "blockquote")][
            ::-1
        ]  # the outermost first
        if self.lines and not self._follows_closely(around):
            shared = [one for one, other in zip(around, self._around, strict=False) if one is other]
            self.lines.append("".join(map(self._indentation, shared)).rstrip())
        first, rest = "", ""
        for one in around:
            if one in self._started or one.tag == "blockquote":
                first += self._indentation(one)
            else:
                marker = f"{one.number}. " if one.number >= 0 else "- "
                self._started[one] = len(marker)
                first += marker
            rest += self._indentation(one)
        for number, line in enumerate(text.split("\n")):
            self.lines.append((rest if number else first) + line if line else rest.rstrip())
        self._around = around

    def _follows_closely(self, around: list[Container]) -> bool:
        """Whether a block starts another item of the same list, which needs no empty line before
        it."""
        if not around or around[-1] in self._started or around[-1].tag == "blockquote":
            return False
        return not _lists(around).isdisjoint(_lists(self._around))

    def _indentation(self, container: Container) -> str:
        return "> " if container.tag == "blockquote" else " " * self._started.get(container, 0)


def _lists(around: list[Container]) -> set[Container | None]:
    return {one.parent for one in around if one.tag != "blockquote"}
