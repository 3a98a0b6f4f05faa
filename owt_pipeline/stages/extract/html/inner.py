"""Elements whose content is read on its own: hidden text, formulas and code.

A formula is written as LaTeX if the page has its source:

- MathML with an `<annotation>` or `alttext`: KaTeX, LaTeXML, Wikipedia, MathJax 3 with assistive
  markup;
- scripts of MathJax 2 (`<script type="math/tex">`), whose drawings are skipped;
- images with the source as alternative text (Wikipedia, WordPress, CodeCogs).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import lru_cache

from owt_pipeline.stages.extract.html.names import BLOCK, NOT_TEXT

_TEX_ENCODINGS = ("application/x-tex", "application/x-latex", "latex", "tex", "text/x-tex")
_FORMULA_NAME = re.compile(
    r"(?:^|\s)(?:mwe-math|latex|tex|math|katex|mathjax|equation)(?=[\s_-]|$)", re.IGNORECASE
)
_IMAGE_SOURCE = re.compile(r"latex\.codecogs\.com|chart\?cht=tx|/latex\.php|quicklatex\.com")
_LATEX = re.compile(r"[\\^_=]")
_STYLE = re.compile(
    r"^\{\s*\\(?:display|text)style\s*(.*)\}$|^\\(?:display|text)style\b\s*(.*)$", re.DOTALL
)
_DOLLARS = re.compile(r"(\$\$?)([^$]+)\1")
_COPY_NAME = re.compile(r"(?:^|[\s_-])(?:copy|clipboard)(?:btn|button)?(?=[\s_-]|$)", re.IGNORECASE)
_GUTTER_NAME = re.compile(
    r"(?:^|[\s_-])(?:line-?nos?|lines-num|linenumbers?|line-?nums?|line-numbers?|ln|lnt|gutter|blob-num"
    r"|rouge-gutter|gl|hljs-ln-numbers|hljs-ln-n|line-numbers-rows|linenodiv|td-line-number)"
    r"(?=[\s_-]|$)",
    re.IGNORECASE,
)
# `line`, `code-line`, `CodeMirror-line`, `codeLine_x8a`, but not `inline`.
_LINE_NAME = re.compile(
    r"(?:^|[\s_-])(?:cl|(?!inline|underline|outline|headline|newline)[A-Za-z]*?[lL]ine)"
    r"(?:[-_]?(?:text|code|content|wrapper))?(?=$|[\s_]|\d|-\d|-[a-z]+\d)"
)
PROTECTED_ADDRESS = "/cdn-cgi/l/email-protection#"
"""Start of the links in which Cloudflare hides an address, as `address_in` reads it."""
# Attributes with the number of a line: of the element with the number, or of the line itself.
_NUMBER_ATTRIBUTES = frozenset(("data-line-number", "data-linenumber", "data-lineno"))
_LINE_ATTRIBUTES = _NUMBER_ATTRIBUTES | {"data-line"}
_LANGUAGE = re.compile(
    r"(?:^|\s)lang(?:uage)?-(?!none\b|text\b|plain)([a-z][a-z0-9+#]{0,15})(?=\s|$)", re.IGNORECASE
)
# Marks in the pieces of a preformatted text: a <br>, and the start and end of an element that is a
# line.
_BREAK = "\x04"
_START = "\x05"
_END = "\x06"
# A line may be several elements, one in the other.
_ENDED = re.compile(f"\n?(?:{_END}\n?)+")
_STARTED = re.compile(f"\n?{_START}+")
# The number of open elements with one that is directly in the <pre>.
_DEPTH_IN_PRE = 2
_NUMBERS = re.compile(f"[\\d\\s{_BREAK}{_START}{_END}]*")
_COPY = re.compile(
    f"[\\s{_START}{_END}]*[^\\W\\d_]{{2,20}}(?: [^\\W\\d_]{{2,20}}){{0,3}}!?[\\s{_START}{_END}]*"
)
_SHOWN_AS_FLEX = re.compile(r"display\s*:\s*(?:inline-)?(?:flex|grid)", re.IGNORECASE)
# Editors write `pre-wrap` and `pre-line` for prose, too: these need letters of equal width.
_KEEPS_SPACES = re.compile(r"white-space\s*:\s*pre\s*(?:!|;|$)", re.IGNORECASE)
_KEEPS_SPACES_AND_WRAPS = re.compile(r"white-space\s*:\s*(?:pre-wrap|break-spaces)", re.IGNORECASE)
WRAPS_LINES = re.compile(r"white-space\s*:\s*(?:pre-wrap|pre-line|break-spaces)", re.IGNORECASE)
"""A style that breaks lines as they are written."""
CLIPPED = re.compile(
    r"clip\s*:\s*rect\(\s*[01](?:px)?[\s,]|clip-path\s*:\s*inset\(\s*(?:50|100)%"
    r"|(?:left|top)\s*:\s*-\d{3,}",
    re.IGNORECASE,
)
"""A style that hides a text from sight, but not from screen readers."""
_EQUAL_WIDTH = re.compile(
    r"font(?:-family)?\s*:[^;]*(?:mono|courier|consolas|menlo|monaco)", re.IGNORECASE
)
_FLEX_NAME = re.compile(r"(?:^|\s)(?:d-|is-|uk-)?(?:inline-)?(?:flex|grid)(?=\s|$)")
_SHOWN_AS_BLOCK = re.compile(
    r"display\s*:\s*(?:block|flex|grid|table|list-item)\b(?!-)", re.IGNORECASE
)


class RawElement:
    """An open element that receives the parser's events in it.

    Attributes:
      depth: the number of open elements, with itself.
      kind: the use of its text: the type of a script, or "" for the page's title. None if the text
        is not needed.
      pieces: its text.
    """

    def __init__(self, kind: str | None = None) -> None:
        self.depth = 1
        self.kind = kind
        self.pieces: list[str] = []

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        """Take the start of an element in it."""
        self.depth += 1

    def end(self) -> None:
        """Take the end of an element in it, or its own."""
        self.depth -= 1

    def add(self, text: str) -> None:
        """Take a text in it."""
        if self.kind is not None:
            self.pieces.append(text)


class Unseen(RawElement):
    """An inline element that is hidden from sight, or from screen readers.

    Attributes:
      is_for_reader: whether it is for screen readers.
    """

    def __init__(self, is_for_reader: bool) -> None:
        super().__init__("unseen")
        self.is_for_reader = is_for_reader

    def text(self) -> str:
        """Return its text in one line."""
        return " ".join("".join(self.pieces).split())


class Drawing(RawElement):
    """A drawing or a picture, whose title or alternative text may be a large first letter."""

    def __init__(self, label: str) -> None:
        super().__init__("drawing")
        self.pieces.append(label)

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if tag == "img":
            self.pieces.append(attributes.get("alt", ""))

    def text(self) -> str:
        """Return its title, or the text that it shows, in one line."""
        return " ".join("".join(self.pieces).split())


class Formula(RawElement):
    """A `<math>`."""

    def __init__(self, attributes: Mapping[str, str]) -> None:
        super().__init__()
        self.is_large = attributes.get("display") == "block" or attributes.get("mode") == "display"
        self._alternative = attributes.get("alttext") or ""
        self._source: list[str] = []
        self._annotation_depth = 0
        self._is_source = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if tag in ("annotation", "annotation-xml"):
            self._annotation_depth = self.depth
            encoding = (attributes.get("encoding") or "").lower()
            self._is_source = encoding in _TEX_ENCODINGS and not self._source

    def add(self, text: str) -> None:
        if not self._annotation_depth or self.depth < self._annotation_depth:
            self.pieces.append(text)
        elif self._is_source:
            self._source.append(text)

    def latex(self) -> str:
        """Return its source in LaTeX; "" if the page does not have it."""
        return clean_latex("".join(self._source) or self._alternative)

    def text(self) -> str:
        """Return the text that it shows, in one line."""
        return " ".join("".join(self.pieces).split())


def formula_of_image(attributes: Mapping[str, str]) -> tuple[str, bool] | None:
    """Return the LaTeX of an image, and whether it stands on lines of its own.

    Return None for an image that is not a formula.
    """
    alternative = attributes.get("alt")
    if not alternative:
        return None
    classes = attributes.get("class")
    is_named = bool(classes) and _FORMULA_NAME.search(classes or "") is not None
    if not is_named:
        if not _LATEX.search(alternative):
            return None
        if not _IMAGE_SOURCE.search(attributes.get("src") or ""):
            return None
    return clean_latex(alternative), classes is not None and "display" in classes


def clean_latex(latex: str) -> str:
    """Return a formula in one line, without its style and without dollars around it."""
    latex = " ".join(latex.split())
    if match := _STYLE.match(latex):
        latex = (match[1] or match[2] or "").strip()
    match = _DOLLARS.fullmatch(latex)
    return match[2].strip() if match else latex


class PreText(RawElement):
    """Code, or another preformatted text, without the numbers of its lines."""

    def __init__(self, classes: str) -> None:
        super().__init__()
        self.language = _language_of(classes)
        # The depth and the first piece of each open element of line numbers, or of a button that
        # copies the code.
        self._gutters: list[tuple[int, int]] = []
        # The depths of open elements that are lines of their own.
        self._line_depths: list[int] = []
        # The depth of the open element without text; 0 if there is none.
        self._unseen_depth = 0
        # The number of pieces at the end of the last <code>; -1 before one.
        self._code_end = -1
        self._is_code_open = False

    def text(self) -> str:
        """Return its lines, without empty ones around them."""
        text = "".join(self.pieces).replace("\r\n", "\n").replace("\r", "\n")
        text = text.replace("\xa0", " ").replace("\u200b", "")
        # A <br> at the end of an element that is a line only ends this line.
        text = text.replace(_BREAK + _END, _END)
        text = _ENDED.sub("\n", text).replace(_BREAK, "\n")
        text = _STARTED.sub("\n", text)
        return "\n".join(line.rstrip() for line in text.split("\n")).strip("\n")

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        self.depth += 1
        if self._unseen_depth:
            return
        if tag == "br":
            self.pieces.append(_BREAK)
            return
        if "data-cfemail" in attributes:
            self.add(address_in(attributes))
        if tag in NOT_TEXT or "data-cfemail" in attributes:
            self._unseen_depth = self.depth
            return
        classes = attributes.get("class", "")
        if self.depth == _DEPTH_IN_PRE:
            self._is_code_open = tag == "code"
            if self._is_code_open and self._code_end == len(self.pieces):
                self.pieces.append("\n")
        if tag in ("code", "pre"):
            self.language = self.language or _language_of(classes)
        if is_line_number(attributes) or _is_copy_button(tag, attributes):
            self._gutters.append((self.depth, len(self.pieces)))
        is_block = tag in BLOCK or is_shown_as_block(attributes)
        if is_block:
            # The source may break between the starts of a row and of the cell in it.
            is_first = bool(self._line_depths) and self._line_depths[-1] == self.depth - 1
            if is_first and self.pieces[-1].isspace() and self.pieces[-2:-1] == [_START]:
                self.pieces.pop()
            self._line_depths.append(self.depth)
        if is_block or names_line(classes) or not _LINE_ATTRIBUTES.isdisjoint(attributes):
            self.pieces.append(_START)

    def end(self) -> None:
        depth = self.depth
        self.depth -= 1
        if self._unseen_depth:
            if self._unseen_depth == depth:
                self._unseen_depth = 0
            return
        if depth == _DEPTH_IN_PRE and self._is_code_open:
            self._code_end = len(self.pieces)
        if self._line_depths and self._line_depths[-1] == depth:
            self._line_depths.pop()
            self.pieces.append(_END)
        if self._gutters and self._gutters[-1][0] == depth:
            _, first = self._gutters.pop()
            text = "".join(self.pieces[first:])
            if _NUMBERS.fullmatch(text) or _COPY.fullmatch(text):
                del self.pieces[first:]

    def add(self, text: str) -> None:
        if self._unseen_depth:
            return
        # The source of a page often breaks between two lines that are elements.
        is_between = self.pieces and self.pieces[-1] == _END and "\n" in text and text.isspace()
        self.pieces.append("\n" if is_between else text)


def _language_of(classes: str) -> str | None:
    match = _LANGUAGE.search(classes)
    return match[1].lower() if match else None


def is_line_number(attributes: Mapping[str, str]) -> bool:
    """Return whether an element is marked as the number of a line of code."""
    classes = attributes.get("class")
    is_named = classes is not None and _names_gutter(classes)
    return is_named or not _NUMBER_ATTRIBUTES.isdisjoint(attributes)


def _is_copy_button(tag: str, attributes: Mapping[str, str]) -> bool:
    """Return whether an element in code is marked as a button that copies it."""
    if tag not in ("a", "div", "span", "p", "i"):
        return False
    if attributes.get("role") == "button":
        return True
    classes = attributes.get("class")
    return classes is not None and _names_copy(classes)


# A page of code has thousands of lines with the same few classes.
@lru_cache(1 << 10)
def _names_gutter(classes: str) -> bool:
    return _GUTTER_NAME.search(classes) is not None


@lru_cache(1 << 10)
def _names_copy(classes: str) -> bool:
    return _COPY_NAME.search(classes) is not None


@lru_cache(1 << 10)
def names_line(classes: str) -> bool:
    """Return whether classes name a line of code."""
    return _LINE_NAME.search(classes) is not None


def keeps_spaces(attributes: Mapping[str, str], *, has_equal_width: bool = False) -> bool:
    """Return whether an element's own style shows its text as it is written, like code.

    `has_equal_width` is for elements whose letters have equal width without a style.
    """
    style = attributes.get("style")
    # Few styles have the word, and searching for it is faster than an expression.
    if style is None or "white-space" not in style.lower():
        return False
    if _KEEPS_SPACES.search(style) is not None:
        return True
    has_equal_width = has_equal_width or _EQUAL_WIDTH.search(style) is not None
    return has_equal_width and _KEEPS_SPACES_AND_WRAPS.search(style) is not None


def is_shown_as_block(attributes: Mapping[str, str]) -> bool:
    """Return whether an element's own style shows it as a block, whatever its tag."""
    style = attributes.get("style")
    return style is not None and _SHOWN_AS_BLOCK.search(style) is not None


def names_flex(classes: str) -> bool:
    """Return whether Tailwind, Bootstrap and others show elements of these classes as flex.

    A grid has the same effect on the elements in it.
    """
    # Few classes have a word, and searching for it is faster than an expression.
    may_be_flex = "flex" in classes or "grid" in classes
    return may_be_flex and _FLEX_NAME.search(classes) is not None


def is_flex(attributes: Mapping[str, str]) -> bool:
    """Return whether the elements in an element stand side by side, with space between them."""
    style, classes = attributes.get("style"), attributes.get("class")
    is_styled = style is not None and _SHOWN_AS_FLEX.search(style) is not None
    return is_styled or (classes is not None and names_flex(classes))


def counts_up(text: str) -> bool:
    """Return whether a text is at least two consecutive numbers, as beside lines of code."""
    numbers = text.split()
    if len(numbers) < 2 or not numbers[0].isdecimal() or len(numbers[0]) > 6:
        return False
    first = int(numbers[0])
    return numbers == [str(first + index) for index in range(len(numbers))]


def address_in(attributes: Mapping[str, str]) -> str:
    """Return the address that Cloudflare hides from robots.

    Its bytes are in hexadecimal, each XORed with the first one.
    """
    try:
        key, *text = bytes.fromhex(attributes["data-cfemail"])
    except ValueError:
        return ""
    return bytes(byte ^ key for byte in text).decode("utf-8", "replace")


def address_of_link(text: str, href: str) -> str:
    """Return the address in a link of Cloudflare's; "" if the link has a text of its own."""
    if " ".join(text.split()) != "[email protected]":
        return ""
    return address_in({"data-cfemail": href.removeprefix(PROTECTED_ADDRESS)})
