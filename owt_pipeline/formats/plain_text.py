"""Plain text split into texts: paragraphs between blank lines, or the articles of WikiText."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

# The title of an article of WikiText. " = = Career = = " is the title of a section.
_TITLE = re.compile(rb" = (?!=)[^\n]*(?<!=) = \r?\n?")


@dataclass(frozen=True)
class TextPiece:
    """A text within a file.

    Attributes:
      line: the number of its first line, from 1.
      content: its lines; of a text that is longer than the limit, only the first lines.
      num_bytes: the length of all its lines.
    """

    line: int
    content: bytes
    num_bytes: int


def paragraphs(lines: Iterable[bytes], max_bytes: int) -> Iterator[TextPiece]:
    """Yield the texts between blank lines, without line ends around them."""
    for piece in _split(lines, max_bytes, is_wikitext=False):
        yield TextPiece(piece.line, piece.content.strip(b"\n"), piece.num_bytes)


def articles(lines: Iterable[bytes], max_bytes: int) -> Iterator[TextPiece]:
    """Yield the articles of WikiText, byte for byte.

    The first one includes the blank line before its title. An article begins with a title after a
    blank line; in a file without blank lines, with any title.
    """
    yield from _split(lines, max_bytes, is_wikitext=True)


def _split(lines: Iterable[bytes], max_bytes: int, is_wikitext: bool) -> Iterator[TextPiece]:
    waiting: list[bytes] = []
    first_line = num_bytes = 0
    has_text = False
    is_after_blank = True
    has_blank_lines = False
    for number, line in enumerate(itertools.chain(lines, [b""]), start=1):
        is_end = not line
        is_blank = not line.strip()
        may_be_title = is_after_blank or not has_blank_lines
        starts_article = is_wikitext and has_text and may_be_title and _TITLE.fullmatch(line)
        ends_paragraph = is_blank and not is_wikitext
        if waiting and (is_end or starts_article or ends_paragraph):
            yield TextPiece(first_line, b"".join(waiting), num_bytes)
            waiting = []
            num_bytes = 0
            has_text = False
        if is_wikitext or not is_blank:
            if not waiting:
                first_line = number
            num_bytes += len(line)
            # A longer text is rejected, so its other lines are not kept.
            if not waiting or num_bytes <= max_bytes + 1:
                waiting.append(line)
            has_text = has_text or not is_blank
        is_after_blank = is_blank
        has_blank_lines = has_blank_lines or is_blank
