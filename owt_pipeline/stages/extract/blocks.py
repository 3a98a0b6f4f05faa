"""A page as blocks of text, in order, each in its container.

A block is a paragraph, a heading, an item of a list, a row of a table or a piece of code. Containers are the
block-level elements around them, numbered in document order, so a container's parent comes before it. Nothing is
filtered here: every text that a browser shows is in a block.

    <div class="post"><h1>Title</h1><p>One <b>two</b></p></div>

    containers   0 body    1 div.post (in 0)    2 h1 (in 1)    3 p (in 1)
    blocks       "Title" heading, in 2          "One two" paragraph, in 3

`rendering` derives the depth of lists and quotes from the containers.
"""

from __future__ import annotations

import re

from lxml import etree

from owt_pipeline.stages.extract.containers import Container, container_of, misnamed, rename, without_title, words_of
from owt_pipeline.stages.extract.formulas import formula_of, is_drawn
from owt_pipeline.stages.extract.layout import code_of, code_of_table, is_preformatted, language_of, rows_of_data
from owt_pipeline.stages.extract.names import (
    BLOCK,
    HEADINGS,
    INLINE,
    LINES_OF_CODE,
    NOT_TEXT,
    has_hidden_class,
    is_hidden,
)
from owt_pipeline.stages.extract.scripts import CONTEXT, link_of, subscript, superscript
from owt_pipeline.stages.extract.shortcodes import opens_shortcode, without_markup, without_spanning
from owt_pipeline.stages.extract.tree import PERMALINK, text_of

MAX_DEPTH = 250
"""Nesting depth at which elements are distinguished; deeper text belongs to the element at this depth. Python limits
recursion, and beyond a depth of about a hundred there are only tags that were never closed."""

HEADING, ITEM, ROW, PREFORMATTED, CELL, PARAGRAPH, CAPTION, OTHER = (
    "heading", "item", "row", "pre", "cell", "paragraph", "caption", "other",
)  # fmt: skip
_FORMS = dict.fromkeys(HEADINGS, HEADING) | {
    "li": ITEM,
    "td": CELL,
    "th": CELL,
    "p": PARAGRAPH,
    "blockquote": PARAGRAPH,
    "dd": PARAGRAPH,
    "figcaption": CAPTION,
    "caption": CAPTION,
}

CODE, FORMULA, DISPLAY, NOTE, NOTE_END = "\x01", "\x02", "\x03", "\x04", "\x05"
"""Marks in a block's `marked` text: around code, inline formulas, displayed formulas, and references to notes."""
_MARK = re.compile("[\x00-\x05]")
_BREAK = "\x00"  # represents <br> until a block is complete; parsed text has no zero characters
UNMARKED = str.maketrans({CODE: None, FORMULA: None, DISPLAY: None, NOTE: "[", NOTE_END: "]"})

# How the walk treats an element, by its tag; 0 for unknown tags.
_IS_BLOCK, _IS_INLINE, _IS_BREAK, _MAY_BE_FORMULA, _IS_NO_TEXT, _IS_BUTTON, _IS_VOID = 1, 2, 3, 4, 5, 6, 7
_ROLES = {
    **dict.fromkeys(NOT_TEXT, _IS_NO_TEXT),
    **dict.fromkeys(BLOCK, _IS_BLOCK),
    **dict.fromkeys(INLINE, _IS_INLINE),
    **dict.fromkeys(("math", "script", "img"), _MAY_BE_FORMULA),
    "br": _IS_BREAK,
    "button": _IS_BUTTON,
    **dict.fromkeys(("embed", "source", "track"), _IS_VOID),  # libxml2 reads what follows them as their content
}
_CODE_TAGS = frozenset(("code", "samp", "tt"))
_SCRIPTS = frozenset(("sup", "sub"))
_SPECIAL_TAGS = frozenset(("ol", "li", "table", "pre", "listing", "xmp", "plaintext"))
_LINKS_TO_SELF = frozenset((PERMALINK, "#", "🔗", "↩", "↩︎", "⤴", "⏎"))

_LONGEST_LINE = 120  # of lines whose indentation is kept; a longer line is a paragraph
_NOTE_LABEL = re.compile(r"\[?\s*(\d{1,4}|[a-z]{1,2}|[*†‡§¶]{1,3}|[a-z]+[ .]\d{1,3})\s*\]?", re.IGNORECASE)
_NOTE_CLASS = re.compile(r"footnote|noteref|fn-?ref", re.IGNORECASE)


class Block:
    """A piece of text.

    Attributes:
      form: HEADING, ITEM, ROW, PREFORMATTED, CELL, PARAGRAPH, CAPTION or OTHER.
      text: its text, with a newline for each `<br>`; a row's cells are separated by tabs.
      marked: `text` with the marks of code, formulas and notes, and empty lines between paragraphs; for preformatted
        text, the name of its language. None if there is nothing to add to `text`.
      cells: for a row, its cells, marked as above and with a newline between paragraphs; else None.
      is_header: for a row, whether all its cells are headers.
      link_chars: number of its characters within links.
      container: index of its container.
      chars: length of `text`.
      links: number of links that begin in it.
      images: number of images between it and the text before it.
    """

    __slots__ = ("cells", "chars", "container", "form", "images", "is_header", "link_chars", "links", "marked", "text")

    def __init__(self, form: str, text: str, link_chars: int, container: int, marked: str | None = None):
        self.form, self.text, self.link_chars, self.container, self.marked = form, text, link_chars, container, marked
        self.chars = len(text)
        self.cells: tuple[str, ...] | None = None
        self.is_header = False
        self.links = self.images = 0

    def cut(self, text: str) -> None:
        """Reduce it to a part of its text."""
        self.text, self.marked, self.chars = text, None, len(text)
        self.link_chars = min(self.link_chars, self.chars)

    @property
    def is_formula(self) -> bool:
        """Whether it is a single formula, apart from punctuation after it."""
        if self.marked is None:
            return False
        marked = self.marked.rstrip(" .,;")
        return len(marked) > 2 and marked[0] in (FORMULA, DISPLAY) and marked.find(marked[0], 1) == len(marked) - 1


def read_blocks(root: etree._Element) -> tuple[list[Block], list[Container]]:
    """The blocks of a page and their containers, of which the first is the body."""
    body = root.find("body")
    reader = _Reader({}, root)
    reader.read_container(root if body is None else body, "body", -1, OTHER, 0)
    if reader.open_shortcodes:
        for index, text in without_spanning([block.text for block in reader.blocks], reader.open_shortcodes).items():
            reader.blocks[index].cut(text)
        reader.blocks = [block for block in reader.blocks if block.text]
    return reader.blocks, reader.containers


class _Reader:
    """The walk over the tree; `_pieces` is the text since the end of the last block."""

    def __init__(self, notes: dict[str, str], root: etree._Element | None = None) -> None:
        self.blocks: list[Block] = []
        self.containers: list[Container] = []
        self.open_shortcodes: list[int] = []  # blocks in which a shortcode begins but does not end
        self._root = root
        self._title: str | None = None  # the words of the page's title, once needed
        self._without_title: dict[str, str] = {}  # names of containers → those that are not the title
        self._notes = notes  # id of an element → the label of the first reference to it
        self._pieces: list[str] = []
        self._has_marks = False
        self._link_chars = self._links = self._images = 0
        self._links_around = 0

    def read_container(self, element: etree._Element, tag: str, parent: int, form: str, depth: int) -> None:
        """Read a block-level element; `form` is that of the text around it."""
        if self._pieces:
            self._end_block(form, parent)
        index = len(self.containers)
        if tag not in _SPECIAL_TAGS and not len(element):
            text = element.text
            if not text or text.isspace():  # without text, its names are not needed
                self.containers.append(Container(tag, parent, 0, False, "", index + 1))
                return
        container = container_of(element, tag, parent)
        if misnamed(container):
            self._forget_title(container)
        self.containers.append(container)
        if self._notes:
            container.note = self._notes.get(element.get("id"), "")
        inner = _FORMS.get(tag, OTHER)
        if form == ITEM and tag in ("p", "div"):
            inner = ITEM
        if tag in _SPECIAL_TAGS:
            self._read_special(element, tag, container, index, inner, depth)
        elif container.kind & LINES_OF_CODE:
            self._add_code(code_of(element), language_of(element), index)
        elif "MathJax" not in container.names or not is_drawn(element):
            self._read_children(element, index, inner, depth)
        if self._pieces:
            self._end_block(inner, index)
        container.end = len(self.containers)

    def _forget_title(self, container: Container) -> None:
        """Remove a container's names that are the page's title; a page has many containers of the same names."""
        kept = self._without_title.get(container.names)
        if kept is None:
            if self._title is None:
                title = next(self._root.iter("title"), None) if self._root is not None else None
                self._title = "" if title is None else words_of(text_of(title))
            kept = self._without_title[container.names] = without_title(container.names, self._title)
        if kept != container.names:
            rename(container, kept)

    def _read_special(
        self, element: etree._Element, tag: str, container: Container, index: int, form: str, depth: int
    ) -> None:
        """Read a list, an item, a table or preformatted text."""
        if tag == "table":
            self._read_table(element, index, form, depth)
            return
        if tag == "ol":
            is_reversed = element.get("reversed") is not None
            container.number = _integer(element.get("start"), len(element.findall("li")) if is_reversed else 1)
            container.step = -1 if is_reversed else 1
        elif tag == "li":
            around = self.containers[container.parent]
            if around.tag == "ol" and around.number >= 0:
                container.number = _integer(element.get("value"), around.number)
                around.number = container.number + around.step
        elif is_preformatted(element):
            self._add_code(code_of(element), language_of(element), index)
            return
        self._read_children(element, index, form, depth)

    def _read_children(self, element: etree._Element, container: int, form: str, depth: int) -> None:
        if depth > MAX_DEPTH:
            etree.strip_elements(element, *NOT_TEXT, with_tail=False)
            self._add(" ".join(element.itertext()))
            return
        text = element.text
        if text and (self._pieces or not text.isspace()):
            self._add(text)
        for child in element:
            tag = child.tag
            role = _ROLES.get(tag, 0)
            if role == _IS_INLINE:
                self._read_inline(child, tag, container, form, depth)
            elif role == _IS_BLOCK:
                self.read_container(child, tag, container, form, depth + 1)
            elif role == _IS_BREAK:
                self._pieces.append(_BREAK)
            elif role == _MAY_BE_FORMULA:
                if tag == "math" and next(child.iter(*BLOCK), None) is not None:  # never closed
                    self.read_container(child, tag, container, form, depth + 1)
                else:
                    self._read_formula(child, tag)
            elif role == _IS_BUTTON:
                if self._is_in_sentence(child, form):
                    self._read_inline(child, tag, container, form, depth)
                else:
                    self.read_container(child, tag, container, form, depth + 1)
            elif role == _IS_NO_TEXT:
                if tag == "noscript" and next(child.iter("p", "article"), None) is not None:
                    self.read_container(child, tag, container, form, depth + 1)  # the page for browsers without scripts
            elif role == _IS_VOID:
                self._read_content(child, container, form, depth)
            elif role == 0:
                if self._is_within_text(child, tag):
                    self._read_inline(child, tag, container, form, depth)
                else:
                    self.read_container(child, tag, container, form, depth + 1)
            text = child.tail
            if text and (self._pieces or not text.isspace()):  # half of all texts are white space between two blocks
                self._add(text)

    def _read_inline(self, element: etree._Element, tag: str, container: int, form: str, depth: int) -> None:
        items = element.items()
        classes = href = None
        if len(items) == 1 and items[0][0] == "href":  # most links
            href = items[0][1]
        elif len(items) == 1 and items[0][0] == "class":
            classes = items[0][1]
            if has_hidden_class(classes):
                return
        elif items:
            get = dict(items).get
            classes, href = get("class"), get("href")
            aria_hidden = get("aria-hidden")
            if aria_hidden == "true" and _has_twin(element, classes or ""):
                aria_hidden = None
            if is_hidden(classes, get("style"), get("hidden"), aria_hidden):
                return
        if tag == "a":
            if href is not None:
                if "#" in href and len(items) > 1 and _refers_to_note(element, classes) and self._read_note(element):
                    return
                self._links_around += 1
                self._links += 1
                self._read_content(element, container, form, depth)
                self._links_around -= 1
                return
        elif tag in _CODE_TAGS:
            self._read_code(element, container, form, depth)
            return
        elif tag in _SCRIPTS:
            self._read_script(element, tag, container, form, depth)
            return
        elif classes is not None and "MathJax" in classes and is_drawn(element):
            return
        self._read_content(element, container, form, depth)

    def _read_content(self, element: etree._Element, container: int, form: str, depth: int) -> None:
        """Read the text and the elements in an inline element."""
        if len(element):
            self._read_children(element, container, form, depth + 1)
            return
        text = element.text
        if text and (self._pieces or not text.isspace()):
            self._add(text)

    def _is_within_text(self, element: etree._Element, tag: str) -> bool:
        """Whether an element with an unknown tag is part of a sentence: text around it and no blocks in it."""
        if len(element) and next(element.iter(*BLOCK), None) is not None:
            return False
        return bool(self._pieces) or ":" in tag or bool(element.tail and not element.tail.isspace())

    def _is_in_sentence(self, button: etree._Element, form: str) -> bool:
        """Whether a button is part of a sentence, or a heading that opens the text below it."""
        if len(button) and next(button.iter(*BLOCK), None) is not None:  # never closed, it holds the rest of the page
            return False
        if form == HEADING:
            return not self._pieces
        tail = button.tail
        return bool(self._pieces and self._pieces[-1] != _BREAK and tail and any(map(str.isalpha, tail)))

    def _read_code(self, element: etree._Element, container: int, form: str, depth: int) -> None:
        if len(element) and next(element.iter("br", "div", "p"), None) is not None:
            self._end_block(form, container)
            self._add_code(code_of(element, keeps_spaces=False), language_of(element), container)
            return
        before = len(self._pieces)
        self._pieces.append(CODE)
        self._read_children(element, container, form, depth + 1)
        if len(self._pieces) == before + 1:
            self._pieces.pop()
        else:
            self._pieces.append(CODE)
            self._has_marks = True

    def _read_formula(self, element: etree._Element, tag: str) -> None:
        if tag == "img":
            self._images += 1
        found = formula_of(element, tag)
        if found is None or not found[0]:
            return
        latex, is_display = found
        if self._pieces and self._pieces[-1].strip(FORMULA + DISPLAY) == latex:
            return  # the same formula as MathML and as an image
        mark = DISPLAY if is_display else FORMULA
        self._pieces.append(f"{mark}{latex}{mark}")
        self._has_marks = True

    def _read_script(self, element: etree._Element, tag: str, container: int, form: str, depth: int) -> None:
        """Read a superscript or a subscript."""
        if tag == "sup" and self._read_note(element):
            return
        pieces = self._pieces
        before, start = "".join(pieces[-8:]).rpartition(_BREAK)[2][-CONTEXT:], len(pieces)
        self._read_content(element, container, form, depth + 1)  # counts twice: it takes four frames of Python's stack
        text = "".join(pieces[start:])
        if text and pieces is self._pieces and not _MARK.search(text):  # no block ended in it
            after = element.tail or ""
            if tag == "sub":
                pieces[start:] = [subscript(text, before, after)]
            else:
                pieces[start:] = [superscript(text, before, after, in_link=link_of(element) is not None)]

    def _read_note(self, element: etree._Element) -> bool:
        """Read a reference to a note; returns whether it is one."""
        link = element if element.tag == "a" else link_of(element)
        target = link.get("href", "").partition("#")[2] if link is not None else ""
        label = _NOTE_LABEL.fullmatch("".join(element.itertext()).strip()) if target else None
        if label is None:
            return False
        self._notes.setdefault(target, label[1])
        self._pieces.append(f"{NOTE}{label[1]}{NOTE_END}")
        self._link_chars += len(label[1]) + 2
        self._has_marks = True
        return True

    def _read_table(self, table: etree._Element, container: int, form: str, depth: int) -> None:
        code = code_of_table(table)
        if code is not None:
            self._add_code(code, language_of(table), container)
            return
        rows = rows_of_data(table) if depth < MAX_DEPTH else None
        if rows is None:
            self._read_children(table, container, form, depth + 1)  # counts twice, too
            return
        for caption in table.iterchildren("caption"):
            self.read_container(caption, "caption", container, OTHER, depth + 1)
        read = [
            ([("", "", 0) if cell is None else self._read_cell(cell, depth) for cell in row], is_header)
            for row, is_header in rows
        ]
        empty = min((next((i for i, cell in enumerate(cells) if cell[0]), len(cells)) for cells, _ in read), default=0)
        for cells, is_header in read:
            text = "\t".join(plain for plain, _, _ in cells[empty:]).rstrip()
            if text:
                block = Block(ROW, text, min(sum(links for _, _, links in cells), len(text)), container)
                block.cells = tuple(marked for _, marked, _ in cells)
                block.is_header = is_header
                self.blocks.append(block)

    def _read_cell(self, cell: etree._Element, depth: int) -> tuple[str, str, int]:
        """A cell's text in one line, the same with marks and lines, and the number of its characters in links."""
        if not len(cell):
            text = " ".join((cell.text or "").split())
            return text, text, 0
        reader = _Reader(self._notes)
        reader.read_container(cell, cell.tag, -1, CELL, depth + 1)
        text = " ".join(" ".join(block.text.split()) for block in reader.blocks)
        return text, "\n".join(map(_in_cell, reader.blocks)), sum(block.link_chars for block in reader.blocks)

    def _add(self, text: str) -> None:
        if self._links_around:
            if text in _LINKS_TO_SELF:
                return
            self._link_chars += len(text.strip())
        self._pieces.append(text)

    def _add_code(self, text: str, language: str, container: int) -> None:
        if text.strip():
            self.blocks.append(Block(PREFORMATTED, text, 0, container, language or None))

    def _end_block(self, form: str, container: int) -> None:
        joined = "".join(self._pieces)
        marked = None
        self._has_marks = self._has_marks or CODE in joined  # code may continue in the next block
        if _BREAK in joined:
            lines = [" ".join(line.split()) for line in joined.split(_BREAK)]
            if "\xa0" in joined:
                lines = _indented(lines, joined.split(_BREAK))
            text = "\n".join(filter(None, lines))
            if "" in lines:
                marked = re.sub("\n{3,}", "\n\n", "\n".join(lines).strip("\n"))
        else:
            text = " ".join(joined.split())
        if text and ("<" in text or "[" in text):
            text, marked = _without_markup(text), marked and _without_markup(marked)
            if opens_shortcode(text):
                self.open_shortcodes.append(len(self.blocks))
        if text and self._has_marks:
            marked = marked or text
            if marked.count(CODE) % 2:  # around several blocks
                marked = marked.replace(CODE, "")
            text = text.translate(UNMARKED).strip()  # empty if code begins or ends around other blocks
        if text:
            block = Block(form, text, min(self._link_chars, len(text)), container, marked)
            block.links, block.images = self._links, self._images
            is_again = self._has_marks and block.is_formula and self.blocks and self.blocks[-1].text == text
            if not is_again:  # a formula, followed by its image
                self.blocks.append(block)
            self._images = 0
        self._pieces, self._link_chars, self._links, self._has_marks = [], 0, 0, False


def _has_twin(element: etree._Element, classes: str) -> bool:
    """Whether an inline element is shown and the one next to it says the same to screen readers, as for many prices."""
    if "icon" in classes or not any(map(str.isalnum, "".join(element.itertext()))):
        return False
    before, after = element.getprevious(), element.getnext()
    return any(
        twin is not None
        and twin.tag in INLINE
        and has_hidden_class(twin.get("class") or "")
        and not (left.tail or "").strip()
        for left, twin in ((before, before), (element, after))
    )


def _refers_to_note(link: etree._Element, classes: str | None) -> bool:
    """Whether a link is marked as a reference to a note: by a class, EPUB's type or ARIA's role."""
    return (
        (classes is not None and _NOTE_CLASS.search(classes) is not None)
        or link.get("epub:type") == "noteref"
        or link.get("role") == "doc-noteref"
    )


def _without_markup(text: str) -> str:
    """`text` without markup that the page shows as text; code is left alone."""
    parts = text.split(CODE)
    parts[::2] = map(without_markup, parts[::2])
    found = CODE.join(parts)
    return found if found == text else re.sub(r"(?<=[^ \n]) {2,}", " ", found).strip()


def _in_cell(block: Block) -> str:
    if block.form == PREFORMATTED:
        return "\n".join(f"{CODE}{line}{CODE}" for line in block.text.split("\n") if line)
    return f"- {block.marked or block.text}" if block.form == ITEM else block.marked or block.text


def _indented(lines: list[str], raw: list[str]) -> list[str]:
    """`lines` with their relative indentation by `&nbsp;`: code and verse written with `<br>`."""
    if max(map(len, lines)) > _LONGEST_LINE:
        return lines
    before = (len(line.lstrip(" \t\r\n")) - len(line.lstrip()) for line in raw)
    widths = [width if text else _LONGEST_LINE for width, text in zip(before, lines, strict=True)]
    least = min(widths)
    return [" " * (width - least) + text if text else "" for width, text in zip(widths, lines, strict=True)]


def _integer(text: str | None, otherwise: int) -> int:
    text = (text or "").strip()
    return int(text) if text.isdecimal() and len(text) < 10 else otherwise
