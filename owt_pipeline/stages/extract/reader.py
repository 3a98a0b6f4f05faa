"""A page in one pass over its parser's events: blocks, containers, and what the metadata needs.

lxml reports starts, ends and text of elements in repaired order; no tree is built. Nothing that a browser shows is left
out here but navigation and footers that are links only, outside the page's main part: 30% of all blocks, and .03% of
the main text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Mapping

from lxml import etree

from owt_pipeline.stages.extract.blocks import CODE, FORMS, HEADING, ITEM, OTHER, Container
from owt_pipeline.stages.extract.formulas import Formula, cleaned, of_image
from owt_pipeline.stages.extract.marks import PageRead
from owt_pipeline.stages.extract.names import (
    BLOCK,
    HIDDEN,
    INLINE,
    NOT_TEXT,
    OF_TAG,
    OPENED,
    UNSHOWN,
    is_unshown,
    may_mark_metadata,
    name_container,
    read_name,
)
from owt_pipeline.stages.extract.structure import SPECIAL, WITH_END, Structure
from owt_pipeline.stages.extract.tables import LAYS_OUT, PARAGRAPHS
from owt_pipeline.stages.extract.text import BREAK, INITIAL, PLAIN

_BARE = INLINE - {"a", "code", "samp", "tt", "sup", "q", "time"}  # mean nothing without attributes
_CODE_TAGS = frozenset(("code", "samp", "tt"))
_END_OF_BREAK = re.compile(r"</br\s*/?>", re.IGNORECASE)

# How the start of an element is read, by its tag; 0 for unknown tags.
_IS_INLINE, _IS_BLOCK, _IS_BREAK, _IS_UNSEEN, _IS_VOID, _IS_PAGE, _IS_BUTTON = range(1, 8)
_ROLES = {
    **dict.fromkeys(NOT_TEXT, _IS_UNSEEN),
    **dict.fromkeys(BLOCK, _IS_BLOCK),
    **dict.fromkeys(INLINE, _IS_INLINE),
    **dict.fromkeys(("html", "head", "body"), _IS_PAGE),
    **dict.fromkeys(("embed", "source", "track"), _IS_VOID),
    "br": _IS_BREAK,
    "button": _IS_BUTTON,
}
# What an element that is no container is on the stack, if it is not PLAIN.
_LINK, _INLINE_CODE, _SUP, _QUOTE = range(1, 5)


def read_page(html: str, *, leaves_navigation: bool = True) -> PageRead:
    """Read a page; empty if there is no markup."""
    if "\x00" in html:  # libxml2 stops at zero characters; browsers drop them
        html = html.replace("\x00", "")
    if "</br" in html or "</BR" in html:  # libxml2 drops them; browsers break the line
        html = _END_OF_BREAK.sub("<br>", html)
    reader = _Reader()
    # `huge_tree` lifts libxml2's limits, since it silently cuts a page at them; `pages` limits time and memory.
    parser = etree.HTMLParser(target=reader, encoding="utf-8", collect_ids=False, huge_tree=True)
    with contextlib.suppress(etree.XMLSyntaxError):  # an empty document
        etree.fromstring(html.encode("utf-8", "replace"), parser)
    return reader.finish(leaves_navigation)


class _Reader(Structure):
    """The target of the parser."""

    def __init__(self) -> None:
        super().__init__()
        self._unseen = 0  # depth within an element without text
        self._script: list[str] | None = None  # its text, if it is needed
        self._script_kind = ""
        self._noscript: Mapping[str, str] | None = None  # an open one whose content is not shown so far
        self._unshown: list[tuple[Container, str | None]] = []  # hidden containers, and their ids

    # The parser's events.

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._within and not self._goes_on(tag, attributes):
            return
        role = _ROLES.get(tag, 0)
        if self._marks.open and role != _IS_INLINE:
            self._marks.add(" ")
        if role == _IS_INLINE:
            if len(attributes) or tag not in _BARE:
                self._start_inline(tag, attributes)
            else:
                self._stack.append(PLAIN)
        elif role == _IS_BLOCK:
            self._start_block(tag, attributes)
        elif role == _IS_BREAK:
            self._pieces.append(BREAK)
            self._stack.append(PLAIN)
        elif role == _IS_UNSEEN:
            self._start_unseen(tag, attributes)
        elif role == _IS_VOID:
            self._stack.append(PLAIN)
        elif role == _IS_PAGE:
            self._start_page(tag, attributes)
        elif role == _IS_BUTTON:
            self._start_button(attributes)
        elif self._pieces or ":" in tag:
            self._stack.append(PLAIN)
        else:
            self._start_block(tag, attributes)

    def _goes_on(self, tag: str, attributes: Mapping[str, str]) -> bool:
        """Take the start of an element in unseen text, code or a formula; whether the page goes on with it instead."""
        if self._unseen:
            if self._noscript is None or tag not in ("p", "article"):
                self._unseen += 1
                return False
            self._show_noscript()
        elif self._lines is not None:
            if "data-cfemail" in attributes:
                self._lines.add(_decoded(attributes["data-cfemail"]))
                self._unseen = 1
            else:
                self._lines.start(tag, attributes)
            return False
        elif self._formula is not None:
            self._formula.start(tag, attributes)
            return False
        return True

    def end(self, tag: str) -> None:
        if self._within:
            if self._unseen:
                self._unseen -= 1
                if not self._unseen:
                    self._within = self._lines is not None
                    self._noscript = None
                    if self._script is not None:
                        self._end_script()
                return
            if self._lines is not None:
                if self._lines.depth > 1:
                    self._lines.end()
                    return
                self._end_lines()
            elif self._formula is not None:
                self._formula.depth -= 1
                if not self._formula.depth:
                    self._end_formula()
                return
        opened = self._stack.pop()
        if isinstance(opened, Container):
            self._end_container(opened)
        elif opened:
            self._end_inline(opened)
        if self._marks.open:
            self._marks.end(len(self._stack))

    def data(self, text: str) -> None:
        if self._within:
            if self._unseen:
                if self._script is not None:
                    self._script.append(text)
                return
            if self._lines is not None:
                self._lines.add(text)
                return
            if self._formula is not None:
                self._formula.add(text)
                return
        self._add(text)

    def close(self) -> None:
        pass

    def finish(self, leaves_navigation: bool) -> PageRead:
        """The page, once the parser is done."""
        if self._lines is not None:
            self._end_lines()
        if self._pieces:
            self._end_block()
        for container in self._at.around():  # those that were never closed
            container.end = self._count
        for container, identifier in self._unshown:
            if identifier in self.page.controlled:
                container.kind &= ~(HIDDEN | UNSHOWN)
        if leaves_navigation:
            self._leave_skipped()
        return self.page

    # Starts.

    def _start_page(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "html" and self.page.language is None:
            self.page.language = attributes.get("lang") or attributes.get("xml:lang")
        if tag == "body" and len(attributes) and not self._body.names:
            name_container(self._body, attributes)
        self._stack.append(PLAIN)

    def _start_block(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._pieces:
            self._end_block()
        self._initial = ""
        parent = self._at
        container = self._contain(tag, parent, FORMS.get(tag, OTHER))
        if parent.form == ITEM and tag in ("p", "div"):
            container.form = ITEM
        self._stack.append(container)
        self._at = container
        if not len(attributes):
            if tag in OF_TAG:
                container.kind, container.names_content = OF_TAG[tag]
        else:
            name_container(container, attributes)
            if container.kind & UNSHOWN:
                self._unshown.append((container, attributes.get("id")))
            classes = attributes.get("class")
            if "itemprop" in attributes or (classes and (self._marks.open or may_mark_metadata[classes])):
                self._marks.start(tag, attributes, container, len(self._stack) - 1)
            if "aria-controls" in attributes:
                self.page.controlled.update(attributes["aria-controls"].split())
        if self._tables:
            table = self._tables[-1]
            if tag in LAYS_OUT:
                table.is_layout = True
            elif tag in PARAGRAPHS:
                table.has_paragraphs = True
        if tag in SPECIAL:
            self._start_special(tag, attributes, container)

    def _start_inline(self, tag: str, attributes: Mapping[str, str]) -> None:
        opened: int | tuple = PLAIN
        if len(attributes):
            if "data-cfemail" in attributes:
                self.data(_decoded(attributes["data-cfemail"]))
                self._unseen, self._within = 1, True
                return
            classes = attributes.get("class")
            kind = read_name("", classes, "")[0] if classes else 0
            if len(attributes) > 1 or classes is None:
                if self._is_left_out(tag, attributes, classes or ""):
                    return
                if "aria-controls" in attributes:
                    self.page.controlled.update(attributes["aria-controls"].split())
            if classes is not None and (kind & HIDDEN or "MathJax" in classes):
                self._unseen, self._within = 1, True
                return
            if "itemprop" in attributes or (classes and (self._marks.open or may_mark_metadata[classes])):
                self._marks.start(tag, attributes, self._at, len(self._stack))
            if tag == "a":
                relation = attributes.get("rel", "")
                if relation == "author":
                    self._marks.start(tag, attributes, self._at, len(self._stack))
                if (href := attributes.get("href")) is not None:
                    self._start_link(href, relation)
                    opened = _LINK
        if tag == "time":
            self._marks.start(tag, attributes, self._at, len(self._stack))
        if tag in _CODE_TAGS:
            opened = _INLINE_CODE
            self._pieces.append(CODE)
        elif tag == "sup":
            opened = (_SUP, len(self.blocks), len(self._pieces), self._links)
        elif tag == "q":
            opened = (_QUOTE, len(self.blocks), len(self._pieces))
            self._pieces.append("“")
        self._stack.append(opened)

    def _is_left_out(self, tag: str, attributes: Mapping[str, str], classes: str) -> bool:
        """Whether an inline element is not shown; one that a control may open becomes a container."""
        unshown = is_unshown(attributes)
        if attributes.get("aria-hidden") == "true" and "cap" not in classes:
            unshown = True
        elif unshown and ("id" in attributes or OPENED[classes]):
            self._start_block(tag, attributes)
            return True
        if unshown:
            self._unseen, self._within = 1, True
        return unshown

    def _start_link(self, href: str, relation: str) -> None:
        self._links_around += 1
        self._links += 1
        self._hrefs.append(href)
        if href.startswith("#"):
            self.page.controlled.add(href[1:])
        self._marks.link("a", relation, href, self._at)

    def _start_unseen(self, tag: str, attributes: Mapping[str, str]) -> None:
        if tag == "template" and ("shadowrootmode" in attributes or "shadowroot" in attributes):
            self._start_block(tag, attributes)
            return
        if tag == "math":
            self._formula, self._within = Formula(attributes), True
            return
        self._unseen, self._within = 1, True
        if tag == "meta":
            self.page.add_meta(attributes)
        elif tag == "title":
            if self.page.title is None:
                self._script, self._script_kind = [], tag
        elif tag == "script":
            kind = attributes.get("type", "").strip().lower()
            if kind == "application/ld+json" or kind.startswith("math/tex"):
                self._script, self._script_kind = [], kind
        elif tag == "noscript":
            self._noscript = dict(attributes)
        elif tag == "link":
            self._marks.link("link", attributes.get("rel", ""), attributes.get("href", ""), self._at)
        elif tag == "img":
            self._images += 1
            found = of_image(attributes)
            if found is not None:
                self._add_formula(*found)
            elif "alt" in attributes and INITIAL.fullmatch(attributes["alt"].strip()):
                self._initial = attributes["alt"].strip()

    def _end_script(self) -> None:
        text, self._script = "".join(self._script or ()), None
        if self._script_kind == "title":
            self.page.title = " ".join(text.split())
        elif self._script_kind == "application/ld+json":
            self.page.scripts.append(text)
        else:
            self._add_formula(cleaned(text), "mode=display" in self._script_kind)

    def _show_noscript(self) -> None:
        """A paragraph begins in it: it holds the page for browsers without scripts."""
        assert self._noscript is not None
        inner, self._unseen, self._within = self._unseen - 1, 0, False
        attributes, self._noscript = self._noscript, None
        self._start_block("noscript", attributes)
        self._stack.extend([PLAIN] * inner)

    def _start_button(self, attributes: Mapping[str, str]) -> None:
        if "aria-controls" in attributes:
            self.page.controlled.update(attributes["aria-controls"].split())
        if self._at.form == HEADING and not self._pieces:
            self._stack.append(PLAIN)  # a heading that opens the text below it
        else:
            self._start_block("button", attributes)

    # Ends.

    def _end_inline(self, opened: int | tuple[int, ...]) -> None:
        if opened == _LINK:
            self._links_around -= 1
            self._hrefs.pop()
        elif opened == _INLINE_CODE:
            self._end_code()
        elif isinstance(opened, tuple) and opened[1] == len(self.blocks):  # no block ended in it
            if opened[0] == _QUOTE:
                self._end_quote(opened[2])
            else:
                in_note = self._links_around > 0 and "#" in self._hrefs[-1] and self._stack[-1] == _LINK
                self._end_superscript(opened[2], is_note=in_note or self._links > opened[3])

    def _end_container(self, container: Container) -> None:
        if self._pieces:
            self._end_block()
        self._initial = ""
        container.end = self._count
        parent = container.parent
        assert parent is not None
        self._at = parent
        tag = container.tag
        if tag in WITH_END:
            self._end_special(tag, container)


def _decoded(protected: str) -> str:
    """The text that Cloudflare protects from robots: its bytes in hexadecimal, each XORed with the first."""
    try:
        key, *text = bytes.fromhex(protected)
    except ValueError:
        return ""
    return bytes(byte ^ key for byte in text).decode("utf-8", "replace")
