"""Blocks as plain text or Markdown.

Plain text has one line per block (several with `<br>` and in code), with a row's cells separated by tabs and no markup.
Markdown is CommonMark with GitHub's tables and notes, and formulas as `$…$` and `$$…$$`; it has the same content in the
same order. Text is not escaped (a line that starts with `#` by chance stays as it is), since models read it, not
browsers. Only bars in tables are escaped, since they would shift the cells.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import groupby

from owt_pipeline.stages.extract.blocks import CODE, DISPLAY, FORMULA, HEADING, NOTE, NOTE_END, PREFORMATTED, ROW, Block
from owt_pipeline.stages.extract.containers import Container
from owt_pipeline.stages.extract.names import HEADINGS

_NOTE = re.compile(f"{NOTE}([^{NOTE_END}]*){NOTE_END}")
_MARKS = str.maketrans({CODE: "`", FORMULA: "$", DISPLAY: "$$"})


def plain_text(blocks: Sequence[Block]) -> str:
    """Blocks as plain text."""
    return "\n".join(block.text for block in blocks)


def markdown(blocks: Sequence[Block], containers: Sequence[Container]) -> str:
    """Blocks as Markdown, with the lists, quotes and notes of their containers."""
    writer = _Writer(containers)
    for table, some in groupby(blocks, lambda block: block.container if block.form == ROW else None):
        if table is not None:
            rows = list(some)
            writer.write(_table(rows), rows[0])
            continue
        for block in some:
            writer.write(_block(block, containers), block)
    return "\n".join(writer.lines)


def _block(block: Block, containers: Sequence[Container]) -> str:
    if block.form == PREFORMATTED:
        fence = "```"
        while fence in block.text:
            fence += "`"
        return f"{fence}{block.marked or ''}\n{block.text}\n{fence}"
    text = block.text if block.marked is None else _with_marks(block.marked)
    if block.form == HEADING:
        return f"{'#' * HEADINGS.get(containers[block.container].tag, 6)} {' '.join(text.split())}"
    return text


def _table(rows: Sequence[Block]) -> str:
    """Rows of one table; without a header row, the table gets an empty one, which Markdown requires."""
    cells = [[_with_marks(cell).replace("|", "\\|").replace("\n", "<br>") for cell in row.cells or ()] for row in rows]
    width = max(map(len, cells))
    if not rows[0].is_header:
        cells.insert(0, [])
    cells.insert(1, ["---"] * width)
    return "\n".join(f"| {' | '.join(row + [''] * (width - len(row)))} |" for row in cells)


def _with_marks(text: str) -> str:
    if NOTE in text:
        text = _NOTE.sub(lambda match: _note(match[1]), text)
    return text.translate(_MARKS)


def _note(label: str) -> str:
    return f"[^{label.replace(' ', '-')}]"


class _Writer:
    """The lines so far, and the items, quotes and notes around the last one."""

    def __init__(self, containers: Sequence[Container]) -> None:
        self.lines: list[str] = []
        self._containers = containers
        self._started: dict[int, int] = {}  # items and notes with text so far → indentation of their further lines
        self._around: list[int] = []

    def write(self, text: str, block: Block) -> None:
        around = self._nesting(block.container)
        if self.lines and not self._follows_closely(around):
            shared = [index for index, other in zip(around, self._around, strict=False) if index == other]
            self.lines.append("".join(map(self._indentation, shared)).rstrip())
        first, rest = "", ""
        for index in around:
            if index in self._started or self._containers[index].tag == "blockquote":
                first += self._indentation(index)
            else:
                container = self._containers[index]
                if container.note:  # often starts with a link back that has the same label
                    text = text.removeprefix(_note(container.note)).lstrip()
                    marker, self._started[index] = f"{_note(container.note)}: ", 4
                else:
                    marker = f"{container.number}. " if container.number >= 0 else "- "
                    self._started[index] = len(marker)
                first += marker
            rest += self._indentation(index)
        for number, line in enumerate(text.split("\n")):
            self.lines.append((rest if number else first) + line if line else rest.rstrip())
        self._around = around

    def _nesting(self, container: int) -> list[int]:
        """The items, notes and quotes around a container, from the outermost."""
        around = []
        while container >= 0:
            if self._containers[container].tag in ("li", "blockquote") or self._containers[container].note:
                around.append(container)
            container = self._containers[container].parent
        return around[::-1]

    def _follows_closely(self, around: list[int]) -> bool:
        """Whether a block starts another item of the same list, which needs no empty line before it."""
        if not around or around[-1] in self._started or self._containers[around[-1]].tag == "blockquote":
            return False
        return not self._lists(around).isdisjoint(self._lists(self._around))

    def _lists(self, around: list[int]) -> set[int]:
        return {self._containers[index].parent for index in around if self._containers[index].tag != "blockquote"}

    def _indentation(self, container: int) -> str:
        return "> " if self._containers[container].tag == "blockquote" else " " * self._started.get(container, 0)
