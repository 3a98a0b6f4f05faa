"""Blocks of text and the containers that hold them, as `reader` finds them on a page.

A block is a paragraph, a heading, an item of a list, a row of a table or a piece of code.
Containers are the block-level elements around them, numbered in document order, so a container's
parent comes before it.

    <div class="post"><h1>Title</h1><p>One <b>two</b></p></div>

    containers   0 body    1 div.post (in 0)    2 h1 (in 1)    3 p (in 1)
    blocks       "Title" heading, in 2          "One two" paragraph, in 3
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from itertools import islice

HEADING, ITEM, PARAGRAPH, PREFORMATTED, ROW, OTHER = range(6)
"""The forms of text; the first four are features of the model."""
FORMS = dict.fromkeys(("h1", "h2", "h3", "h4", "h5", "h6"), HEADING) | {"li": ITEM}
FORMS |= dict.fromkeys(("p", "blockquote", "dd"), PARAGRAPH)
"""The form of text by the element around it; OTHER in all others."""

_MIN_PROSE_CHARS = 80
_MAX_PROSE_LINKED_SHARE = 0.4
# A text with more characters between two spaces is in a script without spaces, like Chinese.
_MAX_CHARS_PER_WORD = 15
# A word of such a script has about as many characters.
_CHARS_PER_WORD_WITHOUT_SPACES = 2
_MIN_PROSE_CHARS_WITHOUT_SPACES = 35
_DIGITS = re.compile(r"\d+")

# Marks in a block's `marked` text: around code, inline formulas and displayed formulas.
CODE = "\x01"
FORMULA = "\x02"
DISPLAY = "\x03"


class Container:
    """A block-level element.

    Attributes:
      index: its number.
      tag: its tag.
      parent: the container around it; None for the body.
      children: the number of containers directly in it.
      end: one more than the index of the last container in it.
      form: the form of the text directly in it.
      start: the number of blocks before it.
      number: for an item of a numbered list, its number; for such a list, the number of its next
        item; else -1.
      names: its classes, id, role and `itemprop` as written, without an id made from a heading.
      kind: its kind by its tag, names and attributes, flags of `names`.
    """

    __slots__ = (
        "children",
        "end",
        "form",
        "index",
        "kind",
        "names",
        "number",
        "parent",
        "start",
        "tag",
    )

    def __init__(
        self,
        index: int,
        tag: str,
        parent: Container | None,
        form: int,
        kind: int = 0,
        start: int = 0,
    ):
        self.index = index
        self.tag = tag
        self.parent = parent
        self.form = form
        self.kind = kind
        self.start = start
        self.names = ""
        self.children = 0
        self.end = index + 1
        self.number = -1

    def ancestors(self) -> Iterator[Container]:
        """Yield the container itself and those around it, outwards."""
        container: Container | None = self
        while container is not None:
            yield container
            container = container.parent

    def holds(self, other: Container) -> bool:
        """Return whether it is another one or is around it."""
        return self.index <= other.index < self.end


class Block:
    """A piece of text.

    Attributes:
      form: HEADING, ITEM, ROW, PARAGRAPH, PREFORMATTED or OTHER.
      text: its text, with a newline for each `<br>`; a row's cells are separated by tabs.
      marked: `text` with the marks of code and formulas, and empty lines between paragraphs; for
        preformatted text, the name of its language. None if there is nothing to add to `text`.
      cells: for a row, its cells, marked as above and with a newline between paragraphs; else None.
      is_header: for a row, whether all its cells are headers.
      link_chars: number of its characters within links.
      container: the container directly around it.
      chars: length of `text`.
      links: number of links that begin in it.
      images: number of images between it and the text before it.
    """

    __slots__ = (
        "cells",
        "chars",
        "container",
        "form",
        "images",
        "is_header",
        "link_chars",
        "links",
        "marked",
        "text",
    )

    def __init__(
        self, form: int, text: str, link_chars: int, container: Container, marked: str | None = None
    ):
        self.form = form
        self.text = text
        self.link_chars = link_chars
        self.container = container
        self.marked = marked
        self.chars = len(text)
        self.cells: tuple[str, ...] | None = None
        self.is_header = False
        self.links = 0
        self.images = 0


def num_words(block: Block) -> int:
    """Return the number of words of a block; of a script without spaces, an estimate."""
    num = block.text.count(" ") + 1
    if is_without_spaces(block, num):
        return block.chars // _CHARS_PER_WORD_WITHOUT_SPACES
    return num


def is_without_spaces(block: Block, num_words: int) -> bool:
    """Return whether a block with so many words between spaces is in a script without spaces."""
    return block.chars > _MAX_CHARS_PER_WORD * num_words and not block.text.isascii()


def is_prose(block: Block) -> bool:
    """Return whether a block has a sentence or two that are not mostly links."""
    if block.form == HEADING or block.link_chars >= _MAX_PROSE_LINKED_SHARE * block.chars:
        return False
    if block.chars > _MIN_PROSE_CHARS:
        return True
    if block.chars <= _MIN_PROSE_CHARS_WITHOUT_SPACES:
        return False
    return is_without_spaces(block, block.text.count(" ") + 1)


def is_definition(block: Block) -> bool:
    """Return whether a block is a paragraph of a definition, in a `<dd>`."""
    return any(container.tag == "dd" for container in islice(block.container.ancestors(), 2))


def kind_of(container: Container) -> tuple[str, str]:
    """Return what elements of one kind have in common: the tag and the first class."""
    return container.tag, _first_class(container.names)


# Elements of one kind have the same names.
@lru_cache(1 << 12)
def _first_class(names: str) -> str:
    """Return the first of names, without digits."""
    return _DIGITS.sub("", names.partition(" ")[0])
