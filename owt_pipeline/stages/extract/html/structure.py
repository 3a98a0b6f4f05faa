"""Blocks of text from the parser's events, with the effects of lists, tables and headings.

Whether a table has data is decided when it ends, from the blocks in it (`tables`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice

from owt_pipeline.stages.extract.html.blocks import (
    CODE,
    DISPLAY,
    FORMULA,
    HEADING,
    OTHER,
    PARAGRAPH,
    PREFORMATTED,
    ROW,
    Block,
    Container,
)
from owt_pipeline.stages.extract.html.initials import (
    INITIAL,
    initial_in,
    is_initial,
    with_initial,
    without_gap,
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
from owt_pipeline.stages.extract.html.pieces import (
    BREAK,
    is_missing_value,
    read_lines,
    read_pieces,
    superscript,
)
from owt_pipeline.stages.extract.html.tables import (
    Cell,
    Table,
    awaits_line,
    integer_in,
    numbered_lines,
    rows_of_data,
    span_in,
)

_MAX_UNSEEN_CHARS = 1000  # of texts for screen readers only and for all others only
TEXT_FORMS = frozenset((PARAGRAPH, OTHER))
"""Forms of text that may begin with a large letter."""
_MAX_VALUE_CHARS = 10
_LINKS_TO_SELF = frozenset(("¶", "§", "#", "🔗", "↩", "↩︎", "⤴", "⏎"))
_MAX_SCRIPT_PIECES = 20

Opened = Container | Callable[[], None] | None
"""An open element: a container, what to do at the end of another one, or None for nothing."""

STYLED_TAGS = frozenset(("div", "p", "span", "code"))
"""Elements that are preformatted if their style keeps spaces."""
PREFORMATTED_TAGS = frozenset(("pre", "listing", "xmp", "plaintext"))
_MAX_HEADINGS = 50
_MAX_HEADING_CHARS = 1000
_MAX_BLOCKS_IN_FIGURE = 200
# Characters of navigation and footers that may be left out, for each character of other text.
_MAX_SKIPPED_SHARE = 4
# Navigation and footers are left out if links are a larger share of them.
_MIN_LINKED_SHARE = 0.6
# A footer with less text that is not linked is left out, too.
_MIN_FOOTER_CHARS = 400
WITH_END = frozenset(("h1", "td", "th", "table", "figure", "nav", "footer", "noscript", "aside"))
SPECIAL = PREFORMATTED_TAGS | {"li", "ol", "table", "tr", "td", "th", "thead", "caption"}

_OF_PAGE = frozenset(("article", "main", "nav", "footer"))
"""Elements whose navigation and footers are not the page's."""
LAYS_OUT = frozenset(("table", "h1", "h2", "form", "article", "section", "textarea"))
"""Elements that show a layout table."""
# Characters after which lines that are elements are another block: joining takes their square.
_MAX_JOINED_LINES = 20_000


class Structure:
    """The blocks and containers so far, and the text since the end of the last block.

    Attributes:
      page: the page that is read.
      blocks: its blocks.
    """

    def __init__(self) -> None:
        self.page = ParsedPage()
        self.blocks = self.page.blocks
        self._marks = MarkCollector(self.page)
        self._open_marks = self._marks.open
        self._inner: RawElement | None = None
        self._body = Container(0, "body", None, OTHER)
        # The container of the text that follows.
        self._at = self._body
        # The number of containers so far.
        self._count = 1
        self._stack: list[Opened] = []
        # The latest container whose inline elements stand side by side, with space between them.
        self._flex: Container | None = None
        self._pieces: list[str] = []
        # The linked characters, links and images in the pieces.
        self._link_chars = 0
        self._links = 0
        self._images = 0
        # The number of links in the pieces to the pages before, after and above this one.
        self._paging_links = 0
        # The number of open links, and the index of the first piece of the latest one.
        self._links_around = 0
        self._link_start = 0
        # A large first letter that is an image or is hidden from screen readers, and the container
        # that it is in, or was in if that has ended.
        self._initial = ""
        self._initial_at = self._at
        # Whether the text begins in an element that is named as a large first letter.
        self._has_named_initial = False
        # The latest inline elements that are for screen readers only, and for all others only,
        # and where they are: the number of blocks and of pieces before them.
        self._for_readers = ""
        self._for_eyes = ""
        self._unseen_at = 0, 0
        # The blocks of navigation and footers.
        self._skipped: list[Block] = []
        self._open_tables: list[Table] = []
        # The latest container of code.
        self._last_line: Container | None = None
        # The latest container whose style breaks its lines as they are written.
        self._wrapped: Container | None = None
        # An <aside> that has just ended, with few links and after a paragraph.
        self._aside: Container | None = None

    def data(self, text: str) -> None:
        """Take text from the parser."""
        if self._inner is not None:
            self._inner.add(text)
            return
        if self._open_marks:
            self._marks.add(text)
        # Half of all texts are white space between two blocks.
        if not self._pieces and text.isspace() and "\xa0" not in text:
            return
        if self._initial:
            text = with_initial(self._initial, text)
            self._initial = ""
        if self._links_around:
            if text in _LINKS_TO_SELF and len(self._pieces) == self._link_start:
                return
            self._link_chars += len(text.strip())
        self._pieces.append(text)

    def _end_block(self) -> None:
        """Make a block of the pieces."""
        joined = "".join(self._pieces)
        text, marked = read_pieces(joined)
        if self._wrapped is self._at and "\n" in joined.strip():
            text = read_lines(joined.replace("  ", "\xa0\xa0").replace("\n", BREAK))
            marked = None
        if text[1:2] == " " and len(self._pieces[0].strip()) == 1 and marked is None:
            text = without_gap(text, is_named=self._has_named_initial)
        container = self._at
        may_be_value = (len(text) < _MAX_VALUE_CHARS or text[0] == "[") and marked is None
        is_missing = may_be_value and is_missing_value(text, container, bool(self._open_tables))
        if text and not is_missing:
            self._marks.end_block(text)
            block = Block(container.form, text, 0, container, marked if marked != text else None)
            if self._link_chars:
                block.link_chars = min(self._link_chars, block.chars)
            block.links = self._links
            block.images = self._images
            self._images = 0
            # A short text in a cell is whole.
            last = self.blocks[-1] if self.blocks and not self._open_tables else None
            if last is not None and last.chars < 4 and is_initial(last, block):
                self.blocks.pop()
                block.text = last.text + text
                block.marked = block.marked and last.text + block.marked
                block.chars = len(block.text)
            self.blocks.append(block)
            is_mostly_linked = block.link_chars > _MIN_LINKED_SHARE * block.chars
            if self._paging_links > 1 or (self._paging_links and is_mostly_linked):
                self._skipped.append(block)
        self._paging_links = 0
        self._pieces = []
        self._link_chars = 0
        self._links = 0
        self._initial = ""
        self._has_named_initial = False

    def _take_initial(self, text: str) -> None:
        """Take the text for a picture, if it is a large first letter."""
        initial = initial_in(text)
        if initial and not self._links_around:
            self._initial = initial
            self._initial_at = self._at

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
        # Comparing takes the square.
        if len(self._for_readers) + len(self._for_eyes) > _MAX_UNSEEN_CHARS:
            return
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
        # The other of the two may be a drawing.
        elif INITIAL.fullmatch(self._for_eyes or self._for_readers):
            self._initial = self._for_eyes or self._for_readers
            self._initial_at = self._at

    def _take_label(self, label: str) -> None:
        """Take the text for screen readers of an element whose parts are for all others only."""
        self._unseen_at = len(self.blocks), len(self._pieces)
        self._for_eyes = ""
        self._for_readers = label[:_MAX_UNSEEN_CHARS]

    def _add_formula(self, latex: str, is_large: bool) -> None:
        """Add a formula; `is_large` if it stands on lines of its own."""
        if not latex:
            return
        if self._pieces and self._pieces[-1].strip(FORMULA + DISPLAY) == latex:
            # The same formula, as MathML and as an image.
            return
        mark = DISPLAY if is_large else FORMULA
        self._pieces.append(f"{mark}{latex}{mark}")

    def _add_space(self) -> None:
        if self._pieces:
            self._pieces.append(" ")

    def _end_code(self, num_blocks: int, start: int) -> None:
        """Take the end of an inline element of code; one with `<br>` is a block of lines.

        `num_blocks` and `start` are the numbers of blocks and of pieces at its start.
        """
        if num_blocks == len(self.blocks) and BREAK in self._pieces[start:]:
            code = read_lines("".join(self._pieces[start:]))
            if "\n" in code and self._at.form != HEADING:
                del self._pieces[start:]
                if self._pieces:
                    self._end_block()
                self.blocks.append(Block(PREFORMATTED, code, 0, self._at))
                return
        self._pieces.append(CODE)

    def _end_quote(self, num_blocks: int, start: int) -> None:
        """Close a `<q>`, unless it has its own quotation marks or a block ended in it.

        `num_blocks` is the number of blocks at its start, `start` the index of its quotation mark
        in the pieces.
        """
        if num_blocks < len(self.blocks):
            return
        inner = "".join(self._pieces[start + 1 :]).strip()
        if not inner or inner[0] in '"“”„«»‘‚「':
            del self._pieces[start]
        else:
            self._pieces.append("”")

    def _end_superscript(self, num_blocks: int, start: int, link_chars: int) -> None:
        """Write a superscript, the text from the piece `start` on: `10^6` is not 106.

        `num_blocks` and `link_chars` are the numbers at its start.
        """
        if num_blocks < len(self.blocks) or len(self._pieces) >= start + _MAX_SCRIPT_PIECES:
            return
        pieces = superscript(
            "".join(self._pieces[start:]),
            "".join(self._pieces[max(start - 8, 0) : start]),
            is_note=self._link_chars > link_chars,
        )
        if pieces is not None:
            self._pieces[start:] = pieces

    def _start_special(self, tag: str, attributes: Mapping[str, str], container: Container) -> None:
        """Take the start of code, and of a part of a list or a table."""
        parent = container.parent or container
        is_line = tag == "td" and not is_line_number(attributes)
        is_line = is_line and bool(self._open_tables) and awaits_line(self._open_tables[-1])
        if is_line or tag in PREFORMATTED_TAGS:
            self._inner = PreText(container.names)
            # `signature` names that of a function here, not that of a user.
            container.kind &= ~CHROME
        if tag == "li":
            if parent.tag == "ol":
                container.number = integer_in(attributes.get("value"), parent.number)
                parent.number = container.number + 1
        elif tag == "ol":
            container.number = integer_in(attributes.get("start"), 1)
        elif tag == "table":
            is_layout = attributes.get("role") in ("presentation", "none")
            self._open_tables.append(Table(container, is_layout))
        elif self._open_tables:
            table = self._open_tables[-1]
            table.has_headers |= tag in ("th", "thead", "caption")
            if tag == "tr":
                table.rows.append((parent.tag == "thead", []))
            elif tag in ("td", "th") and table.rows and parent.tag == "tr":
                # On other cells, the number is that of the line in it.
                is_first_numbered = "data-line" in attributes and not table.rows[-1][1]
                cell = Cell(
                    container,
                    columns=span_in(attributes, "colspan"),
                    rows=span_in(attributes, "rowspan"),
                    is_line_number=is_line_number(attributes) or is_first_numbered,
                )
                table.rows[-1][1].append(cell)

    def _end_special(self, tag: str, container: Container) -> None:
        """Take the end of an element of WITH_END."""
        blocks = self.blocks[container.start :]
        if tag == "h1":
            if len(self.page.headings) < _MAX_HEADINGS:
                texts = [block.text for block in blocks if block.container.tag != "button"]
                text = " ".join(" ".join(texts).split())
                self.page.headings.append(text[:_MAX_HEADING_CHARS])
        elif tag in ("td", "th"):
            self._end_cell(container, blocks)
        elif tag == "table":
            self._end_table(self._open_tables.pop(), blocks)
        elif tag == "figure":
            if any(block.form in (ROW, PREFORMATTED) for block in blocks[:_MAX_BLOCKS_IN_FIGURE]):
                container.kind &= ~CHROME
        elif tag == "aside":
            has_links = any(block.link_chars > block.chars / 2 for block in blocks)
            # With a heading, it is a box with a text of its own.
            is_note = not has_links and all(block.form != HEADING for block in blocks)
            last = self.blocks[container.start - 1].container if container.start else container
            if last.tag == "p" and last.parent is container.parent and is_note:
                self._aside = container
        elif tag == "noscript":
            if all(block.form != PARAGRAPH for block in blocks):
                # A notice, not the page for browsers without scripts.
                del self.blocks[container.start :]
        else:
            self._end_navigation(container, blocks)

    def _end_cell(self, container: Container, blocks: list[Block]) -> None:
        if not self._open_tables or not self._open_tables[-1].rows:
            return
        cells = self._open_tables[-1].rows[-1][1]
        if cells and cells[-1].container is container:
            cells[-1].blocks = blocks

    def _end_navigation(self, container: Container, blocks: list[Block]) -> None:
        """Skip navigation and a footer of the page that are mostly links.

        `_leave_skipped` brings them back if they are most of the page.
        """
        ancestors = islice(container.ancestors(), 1, None)
        if any(ancestor.tag in _OF_PAGE for ancestor in ancestors):
            return
        chars = sum(block.chars for block in blocks)
        link_chars = sum(block.link_chars for block in blocks)
        is_short_footer = container.tag == "footer" and chars - link_chars < _MIN_FOOTER_CHARS
        if link_chars > _MIN_LINKED_SHARE * chars or is_short_footer:
            self._skipped += blocks

    def _leave_skipped(self) -> None:
        """Leave out the skipped blocks, unless they are most of the page."""
        if not self._skipped:
            return
        skipped = set(self._skipped)
        kept = [block for block in self.blocks if block not in skipped]
        chars = sum(block.chars for block in self._skipped)
        if kept and chars <= _MAX_SKIPPED_SHARE * sum(block.chars for block in kept):
            self.page.blocks = kept

    def _add_lines(self, lines: PreText) -> None:
        """Add code, as a block of its own or to the line of code before it."""
        text = lines.text()
        is_continued = "\n" not in text and self._continues_lines()
        self._last_line = self._at
        if is_continued:
            last = self.blocks[-1]
            last.text = f"{last.text}\n{text}"
            last.chars = len(last.text)
            return
        # In a table these may be the numbers of the lines in another cell.
        is_numbering = bool(self._open_tables) and counts_up(text)
        if text.strip() and not is_numbering:
            self.blocks.append(Block(PREFORMATTED, text, 0, self._at, lines.language))

    def _continues_lines(self) -> bool:
        """Return whether the open container continues the code of the last block.

        Both are lines of code, since their style keeps spaces.
        """
        line = self._last_line
        if not self.blocks or line is None or self._at.tag not in STYLED_TAGS:
            return False
        last = self.blocks[-1]
        if last.form != PREFORMATTED or last.chars > _MAX_JOINED_LINES:
            return False
        is_next = line.end == self._at.index and line.parent is self._at.parent
        return is_next and line.tag == self._at.tag and last.container.parent is line.parent

    def _end_table(self, table: Table, blocks: list[Block]) -> None:
        """Replace the blocks in a table by its code or its rows, unless it is a layout."""
        container = table.container
        code = numbered_lines(table, blocks)
        rows = [code] if code is not None else rows_of_data(table, blocks)
        if rows is None:
            return
        self.blocks[container.start :] = rows
        self._count = container.index + 1
        container.children = 0
        captions = [block for block in rows if block.form != ROW and block is not code]
        for block in captions:
            block.container = Container(self._count, "caption", container, OTHER)
            self._count += 1
            container.children += 1
        container.end = self._count
