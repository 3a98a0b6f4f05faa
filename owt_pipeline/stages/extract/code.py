"""Code and other preformatted text as its lines, without line numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping

from owt_pipeline.stages.extract.names import BLOCK, NOT_TEXT, finder

_NAMES_GUTTER = finder(
    re.compile(
        r"(?:^|[\s_-])(?:line-?nos?|linenumbers?|line-?nums?|line-numbers?|ln|lnt|gutter|blob-num|rouge-gutter|gl"
        r"|hljs-ln-numbers|hljs-ln-n|line-numbers-rows|linenodiv|td-line-number)(?=[\s_-]|$)",
        re.IGNORECASE,
    )
)
_NAMES_LINE = finder(  # `line`, `code-line`, `CodeMirror-line`, `codeLine_x8a`, but not `inline`
    re.compile(
        r"(?:^|[\s_-])(?:cl|(?!inline|underline|outline|headline|newline)[A-Za-z]*?[lL]ine)"
        r"(?:[-_]?(?:text|code|content|wrapper))?(?=$|[\s_]|\d|-\d|-[a-z]+\d)"
    )
)
_LANGUAGE = re.compile(
    r"(?:^|\s)(?:language|lang|highlight-source|highlight|brush:|sourceCode)[-\s]?\s*"
    r"(?!(?:none|text|plaintext|default|source|wrapper|container|box|block|frame)\b)([a-z][a-z0-9+#]{0,15})(?=[\s;]|$)",
    re.IGNORECASE,
)
_NUMBERS = re.compile(r"[\d\s]*")
_SHOWN_AS_BLOCK = re.compile(r"display\s*:\s*(?:block|flex|grid)", re.IGNORECASE)


def language_of(*classes: str | None) -> str:
    """The first language that is named by one of these classes; "" if there is none."""
    for names in classes:
        if names and (match := _LANGUAGE.search(names)):
            return match[1].lower()
    return ""


def counts_up(text: str) -> bool:
    """Whether a text is at least two consecutive numbers, which are those of the lines next to it."""
    numbers = text.split()
    if len(numbers) < 2 or not numbers[0].isdecimal() or len(numbers[0]) > 6:
        return False
    first = int(numbers[0])
    return numbers == [str(first + index) for index in range(len(numbers))]


class Lines:
    """The lines of an open element, from the parser's events in it.

    Attributes:
      depth: number of open elements, with the first.
      classes: those of a `<code>` in it; None if there is none.
      pieces: the text so far.
    """

    def __init__(self) -> None:
        self.depth = 1
        self.classes: str | None = None
        self.pieces: list[str] = []
        self._line_ended = False
        self._after_break = 0  # pieces up to and including the last <br>
        self._gutters: list[tuple[int, int, bool]] = []  # depth of an element of line numbers, its first piece
        self._blocks: list[int] = []  # depths of open elements that are lines of their own
        self._unseen = 0  # depth of an element without text

    def text(self) -> str:
        text = "".join(self.pieces)
        if "\r" in text:
            text = text.replace("\r\n", "\n").replace("\r", "\n")
        text = text.replace("\xa0", " ").replace("\u200b", "")
        return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if self._unseen:
            return
        if tag == "br":
            self._end_line()
            self.pieces.append("\n")
            self._after_break = len(self.pieces)
            return
        if tag in NOT_TEXT:
            self._unseen = self.depth
            return
        classes = attributes.get("class", "")
        if tag == "code" and self.classes is None:
            self.classes = classes
        if (classes and _NAMES_GUTTER[classes]) or "data-line-number" in attributes:
            self._gutters.append((self.depth, len(self.pieces), self._line_ended))
        style = attributes.get("style")
        is_block = tag in BLOCK or (style is not None and _SHOWN_AS_BLOCK.search(style) is not None)
        if is_block:
            self._blocks.append(self.depth)
        if is_block or (classes and _NAMES_LINE[classes]) or "data-line" in attributes:
            self._end_line()
            if self.pieces and not self.pieces[-1].endswith("\n"):
                self.pieces.append("\n")

    def end(self) -> None:
        depth, self.depth = self.depth, self.depth - 1
        if self._unseen:
            if self._unseen == depth:
                self._unseen = 0
            return
        if self._blocks and self._blocks[-1] == depth:
            self._blocks.pop()
            self._end_line()
            if self.pieces and self._after_break == len(self.pieces):
                self.pieces.pop()  # the <br> only ends the element's line
            self._line_ended = True
        if self._gutters and self._gutters[-1][0] == depth:
            _, first, line_ended = self._gutters.pop()
            if _NUMBERS.fullmatch("".join(self.pieces[first:])):
                del self.pieces[first:]
                self._line_ended = line_ended

    def add(self, text: str) -> None:
        if self._unseen:
            return
        if self._line_ended:
            self._line_ended = False
            if text.isspace() and "\n" in text:
                text = "\n"  # between two lines that are elements
            elif not text.startswith("\n"):
                self.pieces.append("\n")
        self.pieces.append(text)

    def _end_line(self) -> None:
        if self._line_ended:
            self.pieces.append("\n")
            self._line_ended = False
