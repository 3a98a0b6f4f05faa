"""From the parser's events to blocks of text, and what lists, tables, headings and parts of a
page mean for them.

Whether a table has data is decided when it ends, from the blocks in it (`tables`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import (
    CODE,
    DISPLAY,
    FORMULA,
    HEADING,
    ITEM,
    OTHER,
    PARAGRAPH,
    PREFORMATTED,
    ROW,
    Block,
    Container,
)
from owt_pipeline.stages.extract.html.inner import (
    PreText,
    RawElement,
    Unseen,
    counts_up,
    is_line_number,
)
from owt_pipeline.stages.extract.html.marks import MarkCollector, ParsedPage
from owt_pipeline.stages.extract.html.names import CHROME
from owt_pipeline.stages.extract.html.tables import (
    MAX_SPAN,
    Cell,
    Table,
    numbered_lines,
    rows_of_data,
)

BREAK = "\x00"
"""Represents `<br>` until a block is complete; parsed text has no zero characters."""
INITIAL = re.compile(r"[\"“‘'«¿¡]?[^\W\d_a-z]{1,2}")
"""A letter that begins a text and is larger than it."""
_CAPITALS = re.compile(r"(?:[^\W\d_a-z] )?[^\W\d_a-z]{2,}(?=[\s,’'-])")
"""The capitals after a large letter, as in `T` and `HE FERRY to the islands`."""
_LETTER_WORDS = frozenset("AEIOYÀÉ")  # letters that are words of English, French, Italian, Spanish
_MAX_UNSEEN_CHARS = 1000  # of texts for screen readers only and for all others only
_MIN_CHARS_AFTER_CAPITALS = 30  # of a text that is not a title in capitals
TEXT_FORMS = frozenset((PARAGRAPH, OTHER))
"""Forms of text that may begin with a large letter."""
# What a script writes that takes an object for a text.
_SCRIPT_OBJECT = "[object Object]"
_LINE_ENDS, _EMPTY_LINES = re.compile("\n+"), re.compile("\n{3,}")
_LINKS_TO_SELF = frozenset(("¶", "#", "🔗", "↩", "↩︎", "⤴", "⏎"))
_LONGEST_SCRIPT = 20  # pieces of text
# Superscripts that keep meaning after a digit, a bracket or a word of one or two letters; `e` and
# `o` are ordinals.
_EXPONENT = re.compile(r"[-−–+]?(?:\d+[a-z]?|[bijkmnpqtxyzA-Z])(?:[-−–+](?:\d+|[a-z]))?[-−–+]?")
_BASE = re.compile(r"(?:[\d)\]}]|(?<![^\W\d_])[^\W\d_]{1,2})$")

Opened = Container | Callable[[], None] | None
"""An open element: a container, what to do at the end of another one, or None for nothing."""

STYLED_TAGS = frozenset(("div", "p", "span", "code"))
"""Elements that are preformatted if their style keeps spaces."""
PREFORMATTED_TAGS = frozenset(("pre", "listing", "xmp", "plaintext"))
_MOST_HEADINGS, _LONGEST_HEADING = 50, 1000
_MOST_IN_FIGURE = 200  # blocks
_MOST_SKIPPED = (
    4  # most characters of navigation and footers left out, as a multiple of the others'
)
WITH_END = frozenset(("h1", "td", "th", "table", "figure", "nav", "footer", "noscript"))
SPECIAL = PREFORMATTED_TAGS | {"li", "ol", "table", "tr", "td", "th", "thead", "caption"}

_OF_PAGE = frozenset(("article", "main", "nav", "footer"))
"""Elements in which navigation and footers are not those of the page."""
LAYS_OUT = frozenset(("table", "h1", "h2", "form", "article", "section", "textarea"))
"""Elements that show a layout table."""
# Characters after which lines that are elements are another block: joining takes their square.
_MAX_JOINED_LINES = 20_000


class Structure:
    """The blocks and containers so far, the open parts of the page, and the text since the end
    of the last block."""

    def __init__(self) -> None:
        self.page = ParsedPage()
        self.blocks = self.page.blocks
        self._marks = MarkCollector(self.page)
        self._open_marks = self._marks.open
        self._inner: RawElement | None = None
        self._at = self._body = Container(
            0, "body", None, OTHER
        )  # the container of the text that follows
        self._count = 1  # containers so far
        self._stack: list[Opened] = []
        # The latest container whose inline elements stand side by side, with space between them.
        self._flex: Container | None = None
        self._pieces: list[str] = []
        self._link_chars = self._links = self._images = 0
        self._links_around = 0
        self._initial = ""  # a letter that is an image or is hidden from screen readers
        self._initial_at = self._at  # the container that it is in, or was in if that has ended
        # The latest inline elements that are for screen readers only, and for all others only,
        # and where they are: the number of blocks and of pieces before them.
        self._for_readers, self._for_eyes = "", ""
        self._unseen_at = 0, 0
        self._skipped: list[Block] = []  # those of navigation and footers
        self._tables: list[Table] = []  # open ones
        self._last_line: Container | None = None  # the latest container of code

    def data(self, text: str) -> None:
        """Take text from the parser."""
        if self._inner is not None:
            self._inner.add(text)
            return
        if self._open_marks:
            self._marks.add(text)
        if (
            not self._pieces and text.isspace() and "\xa0" not in text
        ):  # half of all texts, between two blocks
            return
        if self._initial:
            text = _with_initial(self._initial, text)
            self._initial = ""
        if self._links_around:
            if text in _LINKS_TO_SELF:
                return
            self._link_chars += len(text.strip())
        self._pieces.append(text)

    def _end_block(self) -> None:
        joined = "".join(self._pieces)
        marked = None
        if (
            joined.isprintable() and "  " not in joined
        ):  # nothing but text and single blanks, which is quickly known
            text = joined.strip()
        elif not (BREAK in joined or CODE in joined or FORMULA in joined or DISPLAY in joined):
            text = " ".join(joined.split())
        else:
            lines = "\n".join(
                " ".join(line.split()) for line in joined.replace(CODE + CODE, "").split(BREAK)
            )
            if lines.count(CODE) % 2:  # code begins or ends around other blocks
                lines = lines.replace(CODE, "")
            unmarked = lines.replace(CODE, "").replace(FORMULA, "").replace(DISPLAY, "")
            text = _LINE_ENDS.sub("\n", unmarked).strip()
            marked = _EMPTY_LINES.sub("\n\n", lines.strip("\n"))
        if text and text != _SCRIPT_OBJECT:
            self._marks.end_block(text)
            container = self._at
            block = Block(
                container.form,
                text,
                min(self._link_chars, len(text)),
                container,
                marked if marked != text else None,
            )
            block.links, block.images, self._images = self._links, self._images, 0
            last = self.blocks[-1] if self.blocks else None
            if last is not None and last.chars < 4 and _is_initial(last, block):
                self.blocks.pop()
                block.text = last.text + text
                block.marked = block.marked and last.text + block.marked
                block.chars = len(block.text)
            self.blocks.append(block)
        self._pieces, self._link_chars, self._links, self._initial = [], 0, 0, ""

    def _leave_initial(self, container: Container) -> None:
        """Keep a letter at the end of a container that has nothing else, like a figure, for the
        text that follows it."""
        is_only_letter = len(self._initial) == 1 and self._initial_at is container
        if is_only_letter and container.form in TEXT_FORMS and container.parent is not None:
            self._initial_at = container.parent
        else:
            self._initial = ""

    def _add_unseen(self, unseen: Unseen) -> None:
        """Take an element that is for screen readers or for all others only.

        Both have the same text where a part of it is drawn, like a large first letter: this text
        is read once. Otherwise the one for all others is an icon, and the other one its name.
        """
        text = unseen.text()
        position = len(self.blocks), len(self._pieces)
        if position != self._unseen_at:
            self._unseen_at = position
            self._for_readers = self._for_eyes = ""
        if len(self._for_readers) + len(self._for_eyes) > _MAX_UNSEEN_CHARS:
            return  # comparing takes the square
        if unseen.is_for_reader:
            self._for_readers += text
        else:
            self._for_eyes += text
        if not text:
            return
        if self._for_eyes and "".join(self._for_eyes.split()) == "".join(self._for_readers.split()):
            self.data(self._for_readers)
        elif self._pieces or self._links_around or self._at.form not in TEXT_FORMS:
            return
        elif not unseen.is_for_reader and INITIAL.fullmatch(self._for_eyes):
            self._initial, self._initial_at = self._for_eyes, self._at

    def _add_formula(self, latex: str, is_large: bool) -> None:
        if not latex or (self._pieces and self._pieces[-1].strip(FORMULA + DISPLAY) == latex):
            return  # the same formula as MathML and as an image
        mark = DISPLAY if is_large else FORMULA
        self._pieces.append(f"{mark}{latex}{mark}")

    def _add_space(self) -> None:
        if self._pieces:
            self._pieces.append(" ")

    def _end_code(self) -> None:
        self._pieces.append(CODE)

    def _end_quote(self, blocks: int, start: int) -> None:
        """Close a `<q>`, whose quotation mark is the piece `start`, unless it has its own or a
        block ended in it."""
        if blocks < len(self.blocks):
            return
        inner = "".join(self._pieces[start + 1 :]).strip()
        if not inner or inner[0] in '"“”„«»‘‚「':
            del self._pieces[start]
        else:
            self._pieces.append("”")

    def _end_superscript(self, blocks: int, start: int, link_chars: int) -> None:
        """Write a superscript, which is the text from the piece `start` on: `10^6` is not 106."""
        if blocks < len(self.blocks) or len(self._pieces) >= start + _LONGEST_SCRIPT:
            return
        text, before = (
            "".join(self._pieces[start:]),
            "".join(self._pieces[max(start - 8, 0) : start]),
        )
        script = text.strip()
        is_note = self._link_chars > link_chars
        if is_note and script.isdecimal():
            self._pieces[start:] = [f"[{script}]"]
        elif not is_note and _EXPONENT.fullmatch(script) and _BASE.search(before):
            written = script if script.lstrip("-−–+").isalnum() else f"{{{script}}}"
            self._pieces[start:] = [f"^{written}", text[len(text.rstrip()) :]]

    def _start_special(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        around = container.parent or container
        is_line = tag == "td" and self._is_numbered_line(attributes)
        if is_line or tag in PREFORMATTED_TAGS:
            self._inner = PreText(container.names)
        if tag == "li":
            if around.tag == "ol":
                container.number = _integer(attributes.get("value"), around.number)
                around.number = container.number + 1
        elif tag == "ol":
            container.number = _integer(attributes.get("start"), 1)
        elif tag == "table":
            self._tables.append(
                Table(container, attributes.get("role") in ("presentation", "none"))
            )
        elif self._tables:
            table = self._tables[-1]
            table.has_headers |= tag in ("th", "thead", "caption")
            if tag == "tr":
                table.rows.append((around.tag == "thead", []))
            elif tag in ("td", "th") and table.rows and around.tag == "tr":
                spans = (_integer(attributes.get(name), 1) for name in ("colspan", "rowspan"))
                columns, rows = (min(max(span, 1), MAX_SPAN) for span in spans)
                cell = Cell(container, columns, rows, is_line_number=is_line_number(attributes))
                table.rows[-1][1].append(cell)

    def _is_numbered_line(self, attributes: Mapping[str, str]) -> bool:
        """Return whether a cell that starts is a line of code: the one before it has its number."""
        if not self._tables or not self._tables[-1].rows or is_line_number(attributes):
            return False
        cells = self._tables[-1].rows[-1][1]
        if not cells or not all(cell.is_line_number for cell in cells):
            return False
        return all(block.text.isdecimal() for cell in cells for block in cell.blocks)

    def _end_special(self, tag: str, container: Container) -> None:
        found = self.blocks[container.start :]
        if tag == "h1":
            if len(self.page.headings) < _MOST_HEADINGS:
                text = " ".join(" ".join(block.text for block in found).split())
                self.page.headings.append(text[:_LONGEST_HEADING])
        elif tag in ("td", "th"):
            cells = self._tables[-1].rows[-1][1] if self._tables and self._tables[-1].rows else []
            if cells and cells[-1].container is container:
                cells[-1].blocks = found
        elif tag == "table":
            self._end_table(self._tables.pop(), found)
        elif tag == "figure":
            if any(block.form in (ROW, PREFORMATTED) for block in found[:_MOST_IN_FIGURE]):
                container.kind &= ~CHROME
        elif tag == "noscript":
            if all(block.form != PARAGRAPH for block in found):
                del self.blocks[
                    container.start :
                ]  # not the page for browsers without scripts, but a notice
        elif all(around.tag not in _OF_PAGE for around in islice(container.ancestors(), 1, None)):
            # Navigation and a footer that are mostly links, if they are not most of the page.
            chars = sum(block.chars for block in found)
            links = sum(block.link_chars for block in found)
            if links > 0.6 * chars or (tag == "footer" and chars - links < 400):
                self._skipped += found

    def _leave_skipped(self) -> None:
        skipped = set(self._skipped)
        kept = [block for block in self.blocks if block not in skipped]
        chars = sum(block.chars for block in self._skipped)
        if kept and chars <= _MOST_SKIPPED * sum(block.chars for block in kept):
            self.page.blocks = kept

    def _add_lines(self, lines: PreText) -> None:
        text = lines.text()
        is_continued = self._continues_lines()
        self._last_line = self._at
        if is_continued:
            last = self.blocks[-1]
            last.text = f"{last.text}\n{text}"
            last.chars = len(last.text)
        elif text.strip() and not (
            self._tables and counts_up(text)
        ):  # the numbers of lines in another cell
            self.blocks.append(Block(PREFORMATTED, text, 0, self._at, lines.language))

    def _continues_lines(self) -> bool:
        """Return whether the last block is the line of code before that of the open container:
        the style of both keeps spaces."""
        last, line = self.blocks[-1] if self.blocks else None, self._last_line
        if last is None or line is None or self._at.tag not in STYLED_TAGS:
            return False
        if last.form != PREFORMATTED or last.chars > _MAX_JOINED_LINES:
            return False
        is_next = line.end == self._at.index and line.parent is self._at.parent
        return is_next and line.tag == self._at.tag and last.container.parent is line.parent

    def _end_table(self, table: Table, found: list[Block]) -> None:
        container = table.container
        lines = numbered_lines(table, found)
        if lines is not None:
            self.blocks[container.start :] = [lines]
            self._count, container.children = container.index + 1, 0
            container.end = self._count
            return
        rows = rows_of_data(table, found)
        if rows is not None:
            self.blocks[container.start :] = rows
            self._count, container.children = container.index + 1, 0
            for block in rows:
                if block.form != ROW:
                    block.container = Container(self._count, "caption", container, OTHER)
                    self._count += 1
                    container.children += 1
            container.end = self._count


def _is_initial(last: Block, block: Block) -> bool:
    """Whether the block before is the first letter of this one, which an element of its own
    makes large."""
    if last.form in (ITEM, HEADING, ROW) or block.form in (ITEM, HEADING):
        return False
    return INITIAL.fullmatch(last.text) is not None and _continues(last.text, block.text)


def _continues(initial: str, text: str) -> bool:
    """Return whether a text continues the word that a large letter begins.

    It starts in lower case, or with other capitals and then goes on in lower case. An entry of an
    index starts with the same letter as its heading, and a question after `Q` with any.
    """
    if text[:1].islower():
        return True
    capitals = _CAPITALS.match(text)
    if capitals is None or not capitals[0].isupper() or text.isupper():
        return False
    is_index = text[0] == initial[-1] or (initial == "Q" and text[0] != "U")
    is_one_letter = sum(map(str.isalpha, initial)) == 1
    return is_one_letter and not is_index and len(text) >= _MIN_CHARS_AFTER_CAPITALS


def _with_initial(initial: str, text: str) -> str:
    """Return a text with the large letter before it, if the two are one."""
    start = text.lstrip()
    if not _continues(initial, start):
        return text
    is_word = initial in _LETTER_WORDS and text[0] == " "
    return f"{initial} {start}" if is_word else initial + start


def _integer(text: str | None, otherwise: int) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise
