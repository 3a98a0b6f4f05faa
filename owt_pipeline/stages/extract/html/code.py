"""Code outside of `<pre>`, whose lines are indented by spaces that a browser does not collapse.

Such lines are in one element with `<br>` between them, or each in an element of its own. Prose is
indented like this, too, so most of the lines have to be written as only code is.
"""

from __future__ import annotations

import re

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
from owt_pipeline.stages.extract.html.inner import names_line
from owt_pipeline.stages.extract.html.pieces import BREAK

# What a line of code begins with, ends with or contains, and a line of prose or of a poem does not.
_CODE_LINE = re.compile(
    # Words of many languages, with the signs that follow them in code.
    r"^\s*(?:"
    r"#include|#define|#!|//|/\*|</?[a-zA-Z]|[$>]\s\S|import\s\w|from\s\w\S*\simport"
    r"|(?:async\s|)(?:def|class|with|for|while|if|elif|else|try|except|finally)\b.*:\s*$"
    r"|(?:public|private|static|const|let|var|void|int|return|function|class|struct|using)\s"
    r"[\w<$][^,.!?]*[;={:()]"
    r"|(?:if|for|while|switch|catch)\s?\("
    r"|(?:return|pass|break|continue|else|try|end|fi|done);?:?\s*$"
    r")"
    # The end of a line.
    r"|[{}\]]\s*[;,)]*\s*$|\w\(.*\)[;:,]*\s*$|\)\s*[;{:]\s*$|^[^ ]+(?: [^ ]+){0,4};\s*$"
    # Operators and calls.
    r"|\s(?:[-+*/|&:!=<>]?=|=>|->|&&|\|\||<<|>>)\s|\w\.\w+\(|\w::\w|\w\[\w+\]|\(\)"
)
_INDENTED = re.compile(r"[ \xa0]{2,}\S")
_MAY_BE_INDENTED = re.compile(f"[{CODE}{FORMULA}{DISPLAY}]*[ \xa0]")
# White space that a browser collapses.
_SPACE = " \t\n\r\f"
_SPACES = re.compile(f"[{_SPACE}]+")
_MARKS = str.maketrans(dict.fromkeys((CODE, FORMULA, DISPLAY)))
# The other lines are words of a longer text, or the end of a long line.
_MIN_CODE_SHARE = 0.6
_MIN_LINES = 2
_LINE_TAGS = frozenset(("p", "div", "li", "dd"))
# Lines before the first one that is indented.
_MAX_LINES_BEFORE = 50
# Appending to a text takes the square.
_MAX_CODE_CHARS = 20_000
_MAX_LINE_CHARS = 500
# Empty paragraphs between two lines.
_MAX_CONTAINERS_BETWEEN = 2


def is_code(line: str) -> bool:
    """Return whether a line is written as only code is."""
    return len(line) <= _MAX_LINE_CHARS and _CODE_LINE.search(line) is not None


def read_lines(pieces: str) -> str:
    """Return code with a line for each `<br>`, with the indentation that a browser shows."""
    lines = []
    for line in pieces.translate(_MARKS).split(BREAK):
        start = line.lstrip(_SPACE)
        space = line[: len(line) - len(start)]
        # A space after a line end is in the page's source only, and a tab without one is code.
        indentation = "" if "\n" in space else space.replace(" ", "")
        lines.append(indentation + _SPACES.sub(" ", start).replace("\xa0", " ").rstrip())
    return "\n".join(lines).strip("\n")


def _code_of(pieces: str) -> str | None:
    """Return the code in a text of several lines; None if it is not code."""
    if BREAK not in pieces:
        return None
    text = read_lines(pieces)
    lines = [line for line in text.split("\n") if line]
    has_indentation = any(_INDENTED.match(line) for line in lines[1:])
    if len(lines) < _MIN_LINES or not has_indentation:
        return None
    num_code = sum(map(is_code, lines))
    return text if num_code >= max(_MIN_LINES, _MIN_CODE_SHARE * len(lines)) else None


def take_code(blocks: list[Block], pieces: str, container: Container) -> bool:
    """Take a text as code that is not in a `<pre>`; return whether it is.

    Args:
      blocks: the blocks so far, which receive it.
      pieces: the text, with its white space.
      container: the element that it is in.
    """
    code = _code_of(pieces)
    if code is not None:
        blocks.append(Block(PREFORMATTED, code, 0, container))
        return True
    # Only lines of an editor begin with spaces that are not fixed.
    if not names_line(container.names) or "\n" in pieces:
        pieces = pieces.lstrip(_SPACE)
    return _join_line(blocks, pieces.strip("\n" + BREAK), container)


def _join_line(blocks: list[Block], pieces: str, container: Container) -> bool:
    """Append a line of code to the lines before it; return whether it and they are code.

    Args:
      blocks: the blocks so far; the last ones become one.
      pieces: the text of the line, with its white space.
      container: the element that the line is in.
    """
    if not blocks or container.tag not in _LINE_TAGS:
        return False
    last = blocks[-1]
    if last.chars > _MAX_CODE_CHARS or not _is_next(last, container):
        return False
    is_after_code = last.form == PREFORMATTED
    # Most lines are paragraphs, and to look for the signs of code in them takes 1% of the time.
    if not is_after_code and not _MAY_BE_INDENTED.match(pieces):
        return False
    line = pieces.translate(_MARKS).replace("\xa0", " ").rstrip()
    is_indented = _INDENTED.match(line) is not None
    is_line = is_code(line) or names_line(container.names)
    if is_after_code:
        if not is_indented and not is_line:
            return False
    elif not is_indented or not is_code(last.text) or not is_line:
        return False
    if not is_after_code:
        _join_before(blocks)
        last = blocks[-1]
    last.text = f"{last.text}\n{line}"
    last.chars = len(last.text)
    last.container = container
    return True


def _join_before(blocks: list[Block]) -> None:
    """Make the last block code, with the lines of code right before it."""
    last = blocks.pop()
    lines = [last.text]
    first = last.container
    while blocks and len(lines) < _MAX_LINES_BEFORE:
        block = blocks[-1]
        is_line = block.form not in (HEADING, ROW, PREFORMATTED) and is_code(block.text)
        if not is_line or not _is_next(block, first):
            break
        first = block.container
        lines.insert(0, block.text)
        blocks.pop()
    blocks.append(Block(PREFORMATTED, "\n".join(lines), 0, last.container))


def _is_next(block: Block, container: Container) -> bool:
    """Return whether a container is the next sibling of the one that a block is in."""
    before = block.container
    is_like = before.tag == container.tag and before.parent is container.parent
    return is_like and 0 <= container.index - before.end <= _MAX_CONTAINERS_BETWEEN
