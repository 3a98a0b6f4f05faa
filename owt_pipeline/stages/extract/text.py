"""Text from the parser's events to blocks."""

from __future__ import annotations

import re
from collections.abc import Callable

from owt_pipeline.stages.extract.blocks import (
    CODE,
    DISPLAY,
    FORMULA,
    HEADING,
    ITEM,
    OTHER,
    ROW,
    Block,
    Container,
)
from owt_pipeline.stages.extract.inner import Inner
from owt_pipeline.stages.extract.marks import Marks, PageRead

BREAK = "\x00"
"""Represents `<br>` until a block is complete; parsed text has no zero characters."""
INITIAL = re.compile(r"[\"“‘'«¿¡]?[^\W\d_a-z]{1,2}")
"""A letter that begins a text and is larger than it."""
_UNMARKED = str.maketrans({CODE: None, FORMULA: None, DISPLAY: None})
_LINKS_TO_SELF = frozenset(("¶", "#", "🔗", "↩", "↩︎", "⤴", "⏎"))
_LONGEST_SCRIPT = 20  # pieces of text
# Superscripts that keep meaning after a digit, a bracket or a word of one or two letters; `e` and `o` are ordinals.
_EXPONENT = re.compile(r"[-−–+]?(?:\d+[a-z]?|[bijkmnpqtxyzA-Z])(?:[-−–+](?:\d+|[a-z]))?[-−–+]?")
_BASE = re.compile(r"(?:[\d)\]}]|(?<![^\W\d_])[^\W\d_]{1,2})$")

Opened = Container | Callable[[], None] | None
"""An open element: a container, what to do at the end of another one, or None for nothing."""


class Text:
    """The blocks and containers so far, and the text since the end of the last block."""

    def __init__(self) -> None:
        self.page = PageRead()
        self.blocks = self.page.blocks
        self._marks = Marks(self.page)
        self._open_marks = self._marks.open
        self._inner: Inner | None = None
        self._at = self._body = Container(0, "body", None, OTHER)  # the container of the text that follows
        self._count = 1  # containers so far
        self._stack: list[Opened] = []
        self._pieces: list[str] = []
        self._has_marks = False
        self._link_chars = self._links = self._images = 0
        self._links_around = 0
        self._initial = ""  # a letter that is an image

    def _contain(self, tag: str, parent: Container, form: int) -> Container:
        container = Container(self._count, tag, parent, form)
        self._count += 1
        parent.children += 1
        return container

    def data(self, text: str) -> None:
        """Take text from the parser."""
        if self._inner is not None:
            self._inner.add(text)
            return
        if self._open_marks:
            self._marks.add(text)
        if not self._pieces and text.isspace() and "\xa0" not in text:  # half of all texts, between two blocks
            return
        if self._initial:
            start = text.lstrip()
            text = self._initial + start if start[:1].islower() else text
            self._initial = ""
        if self._links_around:
            if text in _LINKS_TO_SELF:
                return
            self._link_chars += len(text.strip())
        self._pieces.append(text)

    def _end_block(self) -> None:
        joined = "".join(self._pieces)
        marked = None
        self._has_marks = self._has_marks or CODE in joined  # code may continue in the next block
        if BREAK in joined:
            lines = [" ".join(line.split()) for line in joined.split(BREAK)]
            text = "\n".join(filter(None, lines))
            if "" in lines:
                marked = re.sub("\n{3,}", "\n\n", "\n".join(lines).strip("\n"))
        elif joined.isprintable() and "  " not in joined:  # no white space but single blanks, which is quickly known
            text = joined.strip()
        else:
            text = " ".join(joined.split())
        if text and self._has_marks:
            marked = marked or text
            if marked.count(CODE) % 2:  # around several blocks
                marked = marked.replace(CODE, "")
            text = text.translate(_UNMARKED).strip()  # empty if code begins or ends around other blocks
        if text:
            self._marks.end_block(text)
            container = self._at
            block = Block(container.form, text, min(self._link_chars, len(text)), container, marked)
            block.links, block.images = self._links, self._images
            last = self.blocks[-1] if self.blocks else None
            if last is not None and last.chars < 4 and _is_initial(last, block):
                self.blocks.pop()
                block.text = last.text + text
                block.marked = marked and last.text + marked
                block.chars = len(block.text)
            self.blocks.append(block)
            self._images = 0
        self._pieces, self._link_chars, self._links, self._has_marks = [], 0, 0, False
        self._initial = ""

    def _add_formula(self, latex: str, is_large: bool) -> None:
        if not latex or (self._pieces and self._pieces[-1].strip(FORMULA + DISPLAY) == latex):
            return  # the same formula as MathML and as an image
        mark = DISPLAY if is_large else FORMULA
        self._pieces.append(f"{mark}{latex}{mark}")
        self._has_marks = True

    def _end_code(self) -> None:
        start = max((i for i, piece in enumerate(self._pieces) if piece == CODE), default=-1)
        if start < 0:
            return  # a block ended in it
        if start == len(self._pieces) - 1:
            self._pieces.pop()
            return
        self._pieces.append(CODE)
        self._has_marks = True

    def _end_quote(self, blocks: int, start: int) -> None:
        """Close a `<q>`, whose quotation mark is the piece `start`, unless it has its own or a block ended in it."""
        if blocks < len(self.blocks):
            return
        inner = "".join(self._pieces[start + 1 :]).strip()
        if not inner or inner[0] in '"“”„«»‘‚「':
            del self._pieces[start]
        else:
            self._pieces.append("”")

    def _end_superscript(self, blocks: int, start: int, links: int) -> None:
        """Write a superscript, which is the text from the piece `start` on: `10^6` is not 106."""
        if blocks < len(self.blocks) or len(self._pieces) >= start + _LONGEST_SCRIPT:
            return
        text, before = "".join(self._pieces[start:]), "".join(self._pieces[max(start - 8, 0) : start])
        script = text.strip()
        is_note = self._links_around > 0 or self._links > links
        if is_note and script.isdecimal():
            self._pieces[start:] = [f"[{script}]"]
        elif not is_note and _EXPONENT.fullmatch(script) and _BASE.search(before):
            written = script if script.lstrip("-−–+").isalnum() else f"{{{script}}}"
            self._pieces[start:] = [f"^{written}", text[len(text.rstrip()) :]]


def _is_initial(last: Block, block: Block) -> bool:
    """Whether the block before is the first letter of this one, which an element of its own makes large."""
    if last.form in (ITEM, HEADING, ROW) or block.form in (ITEM, HEADING):
        return False
    return block.text[0].islower() and INITIAL.fullmatch(last.text) is not None
