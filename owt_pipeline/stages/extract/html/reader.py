"""A page in one pass over its parser's events: blocks, containers, and what the metadata needs.

lxml reports starts, ends and text of elements in repaired order; no tree is built. Nothing that a
browser shows is left out here but navigation and footers that are links only, outside the page's
main part: 30% of all blocks, and .03% of the main text.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Mapping
from functools import partial
from itertools import islice

from lxml import etree

from owt_pipeline.stages.extract.html.blocks import CODE, FORMS, HEADING, ITEM, OTHER, Container
from owt_pipeline.stages.extract.html.comments import mark_comments
from owt_pipeline.stages.extract.html.inner import (
    Formula,
    PreText,
    RawElement,
    Unseen,
    address_in,
    cleaned,
    is_flex,
    is_shown_as_block,
    keeps_spaces,
    names_flex,
    of_image,
)
from owt_pipeline.stages.extract.html.marks import ParsedPage, opened_by, sibling_opened_by
from owt_pipeline.stages.extract.html.names import (
    BLOCK,
    CONTROLS,
    HIDDEN,
    INLINE,
    MARKED,
    NOT_TEXT,
    TAG_KIND,
    UNSHOWN,
    ignore_name,
    is_unshown,
    name_container,
    names_opened,
    read_names,
)
from owt_pipeline.stages.extract.html.structure import (
    BREAK,
    INITIAL,
    LAYS_OUT,
    SPECIAL,
    STYLED_TAGS,
    TEXT_FORMS,
    WITH_END,
    Structure,
)

_BARE = INLINE - {"a", "code", "samp", "tt", "sup", "q", "time"}  # mean nothing without attributes
_CODE_TAGS = frozenset(("code", "samp", "tt"))
# Classes of an empty <span> that is drawn as the end of a line.
_BREAK_NAMES = frozenset(("br", "break", "line-break", "linebreak", "newline"))
_SAY_MORE = CONTROLS | {"rel"}
_END_OF_BREAK = re.compile(rb"</br\s*/?>", re.IGNORECASE)

Attributes = Mapping[str, str]


def read_page(html: str, *, leaves_navigation: bool = True) -> ParsedPage:
    """Read a page; empty if there is no markup."""
    page = html.encode("utf-8", "replace").replace(
        b"\x00", b""
    )  # libxml2 stops at zeros; browsers drop them
    page = _END_OF_BREAK.sub(b"<br>", page)  # libxml2 drops them, browsers break the line
    reader = _Reader()
    # `huge_tree` lifts libxml2's limits, since it silently cuts a page at them; `pages` limits time
    # and memory.
    parser = etree.HTMLParser(target=reader, encoding="utf-8", collect_ids=False, huge_tree=True)
    with contextlib.suppress(etree.XMLSyntaxError):  # an empty document
        etree.fromstring(page, parser)
    found = reader.finish(leaves_navigation)
    # lxml's parser is in a cycle, which would keep the page until garbage is collected
    reader.__dict__.clear()
    return found


class _Reader(Structure):
    """The target of the parser."""

    def __init__(self) -> None:
        super().__init__()
        self._unshown: list[tuple[Container, str | None]] = []  # hidden containers, and their ids
        # Containers with a control that opens the hidden element after it.
        self._opens_next: set[Container] = set()

    # The parser's events.

    def start(self, tag: str, attributes: Attributes) -> None:
        if self._inner is not None:
            self._inner.start(tag, attributes)
            return
        if tag in _BARE:
            if attributes:
                self._start_inline(tag, attributes)
            elif self._flex is not None and self._stack[-1] is self._flex:
                self._add_space()
                self._stack.append(self._add_space)
            else:
                self._stack.append(None)
            return
        if self._open_marks and tag not in INLINE:
            self._marks.add(" ")
        start = _STARTS.get(tag)
        if start is not None:
            start(self, tag, attributes)
        elif self._pieces or ":" in tag:  # an unknown element
            self._stack.append(None)
        else:
            self._start_block(tag, attributes)

    def end(self, tag: str) -> None:
        if self._inner is not None:
            self._inner.end()
            if self._inner.depth:
                return
            self._end_inner()
        opened = self._stack.pop()
        if opened is not None:
            if isinstance(opened, Container):
                if self._pieces:
                    self._end_block()
                elif self._initial:
                    self._leave_initial(opened)
                opened.end = self._count
                self._at = opened.parent or opened
                if opened.tag in WITH_END:
                    self._end_special(opened.tag, opened)
            else:
                opened()
        if self._open_marks:
            self._marks.end(len(self._stack))

    def close(self) -> None:
        pass

    def finish(self, leaves_navigation: bool) -> ParsedPage:
        """The page, once the parser is done."""
        if isinstance(self._inner, PreText):
            self._end_inner()
        if self._pieces:
            self._end_block()
        for container in self._at.ancestors():  # those that were never closed
            container.end = self._count
        controlled = self.page.controlled
        for container, identifier in self._unshown:
            classes = (f".{name}" for name in container.names.split())
            if identifier in controlled or not controlled.isdisjoint(classes):
                container.kind &= ~(HIDDEN | UNSHOWN)
        mark_comments(self.blocks)
        if leaves_navigation:
            self._leave_skipped()
        return self.page

    # Starts.

    def _start_page(self, tag: str, attributes: Attributes) -> None:
        if tag == "html" and self.page.language is None:
            self.page.language = attributes.get("lang") or attributes.get("xml:lang")
        if tag == "body" and len(attributes) and not self._body.names:
            name_container(self._body, attributes)
        self._stack.append(None)

    def _start_block(self, tag: str, attributes: Attributes) -> None:
        if self._pieces:
            self._end_block()
        parent = self._at
        container = Container(
            self._count, tag, parent, FORMS.get(tag, OTHER), TAG_KIND.get(tag, 0), len(self.blocks)
        )
        self._count += 1
        parent.children += 1
        if parent.form == ITEM and tag in ("p", "div"):
            container.form = ITEM
        if self._initial and not (self._initial_at is parent and container.form in TEXT_FORMS):
            self._initial = ""
        self._stack.append(container)
        self._at = container
        if attributes:
            if len(attributes) == 1 and "class" in attributes:  # most
                container.names = attributes["class"]
                container.kind |= read_names(container.names)
                if names_flex(container.names):
                    self._flex = container
            else:
                name_container(container, attributes)
                if is_flex(attributes):
                    self._flex = container
                if container.kind & UNSHOWN:
                    if parent in self._opens_next:
                        self._opens_next.discard(parent)
                        container.kind &= ~(HIDDEN | UNSHOWN)
                    else:
                        self._unshown.append((container, attributes.get("id")))
            if container.kind & MARKED or self._open_marks:
                self._note(tag, attributes)
        if self._tables and tag in LAYS_OUT:
            self._tables[-1].is_layout = True
        if tag in SPECIAL:
            self._start_special(tag, attributes, container)
        elif tag in STYLED_TAGS and "style" in attributes and keeps_spaces(attributes):
            self._inner = PreText(container.names)

    def _note(self, tag: str, attributes: Attributes) -> None:
        """Note what a start says of other parts of the page; the element itself is on the stack."""
        self._marks.start(tag, attributes, self._at, len(self._stack) - 1)
        if not CONTROLS.isdisjoint(attributes):
            self.page.controlled.update(opened_by(attributes))
            num_parents = sibling_opened_by(attributes)
            if num_parents is not None:
                is_inline = self._stack[-1] is not self._at
                around = islice(self._at.ancestors(), num_parents + (not is_inline), None)
                self._opens_next.update(islice(around, 1))

    def _start_void(self, tag: str, attributes: Attributes) -> None:
        self._stack.append(None)
        if tag == "br":
            self._pieces.append(BREAK)
        elif tag == "meta":
            self.page.add_meta(attributes)
        elif tag == "link":
            self._marks.link(
                "link", attributes.get("rel", ""), attributes.get("href", ""), self._at
            )
        elif tag == "img":
            self._images += 1
            found = of_image(attributes)
            if found is not None:
                self._add_formula(*found)
            elif "alt" in attributes and INITIAL.fullmatch(attributes["alt"].strip()):
                self._initial = attributes["alt"].strip()
                self._initial_at = self._at

    def _start_inline(self, tag: str, attributes: Attributes) -> None:
        if self._flex is not None and self._stack[-1] is self._flex:
            self._add_space()
            self._stack.append(self._add_space)
        else:
            self._stack.append(None)
        kind, classes, unshown = 0, "", False
        if attributes:
            if "data-cfemail" in attributes:
                self.data(address_in(attributes))
                self._inner = RawElement()
                return
            classes = attributes.get("class", "")
            kind = read_names(classes)
            if "style" in attributes or "hidden" in attributes or "aria-hidden" in attributes:
                unshown = is_unshown(attributes)
                # A control may open what has an id.
                is_opened = unshown and ("id" in attributes or names_opened(classes))
                is_block = is_shown_as_block(attributes) and (
                    tag == "span" or (tag == "code" and keeps_spaces(attributes))
                )
                if is_opened or is_block:
                    self._stack.pop()
                    self._start_block(tag, attributes)
                    return
                if unshown or (attributes.get("aria-hidden") == "true" and "cap" not in classes):
                    kind |= HIDDEN
            if kind & HIDDEN or "MathJax" in classes:
                is_for_reader = attributes.get("aria-hidden") != "true"
                self._inner = (
                    Unseen(is_for_reader) if kind & HIDDEN and not unshown else RawElement()
                )
                return
        if (
            kind & MARKED
            or tag == "time"
            or self._open_marks
            or not _SAY_MORE.isdisjoint(attributes)
        ):
            self._note(tag, attributes)
        if tag == "span" and classes in _BREAK_NAMES:
            self._pieces.append(BREAK)
        elif tag == "a" and "href" in attributes:
            href = attributes["href"]
            self._links_around += 1
            self._links += 1
            self._stack[-1] = self._end_link
            if href.startswith("#"):
                self.page.controlled.add(href[1:])
                if self._at.form == HEADING and self._at.parent is not None:
                    ignore_name(self._at.parent, href[1:])
            if "rel" in attributes or "creativecommons.org/" in href:
                self._marks.link(tag, attributes.get("rel", ""), href, self._at)
        elif tag in _CODE_TAGS:
            self._pieces.append(CODE)
            self._stack[-1] = self._end_code
        elif tag == "sup":
            self._stack[-1] = partial(
                self._end_superscript, len(self.blocks), len(self._pieces), self._link_chars
            )
        elif tag == "q":
            self._stack[-1] = partial(self._end_quote, len(self.blocks), len(self._pieces))
            self._pieces.append("“")

    def _end_link(self) -> None:
        self._links_around -= 1
        if self._flex is not None and self._stack[-1] is self._flex:
            self._add_space()

    def _start_unseen(self, tag: str, attributes: Attributes) -> None:
        is_shadow = tag == "template" and (
            "shadowrootmode" in attributes or "shadowroot" in attributes
        )
        if is_shadow or (
            tag == "noscript" and not self._pieces
        ):  # that of a page for browsers without scripts
            self._start_block(tag, attributes)
            return
        self._stack.append(None)
        kind = attributes.get("type", "").strip().lower() if tag == "script" else ""
        is_needed = (tag == "title" and self.page.title is None) or kind.startswith(
            ("application/ld+json", "math/tex")
        )
        self._inner = (
            Formula(attributes) if tag == "math" else RawElement(kind if is_needed else None)
        )

    def _end_inner(self) -> None:
        inner, self._inner = self._inner, None
        if isinstance(inner, PreText):
            self._add_lines(inner)
        elif isinstance(inner, Formula):
            latex = inner.latex()
            if latex:
                self._add_formula(latex, inner.is_large)
            elif text := inner.text():
                self.data(text)
        elif isinstance(inner, Unseen):
            self._add_unseen(inner)
        elif inner is not None and inner.kind is not None:
            text = "".join(inner.pieces)
            if not inner.kind:
                self.page.title = " ".join(text.split())
            elif inner.kind.startswith("application/ld+json"):
                self.page.scripts.append(text)
            else:
                self._add_formula(cleaned(text), "mode=display" in inner.kind)

    def _start_button(self, tag: str, attributes: Attributes) -> None:
        if self._at.form == HEADING and not self._pieces:  # a heading that opens the text below it
            self._stack.append(None)
            self._note(tag, attributes)
        else:
            self._start_block(tag, attributes)


_VOID = (
    "br",
    "meta",
    "link",
    "img",
    "input",
    "base",
    "area",
    "param",
    "frame",
    "embed",
    "source",
    "track",
)
_STARTS: dict[str, Callable[[_Reader, str, Attributes], None]] = {
    **dict.fromkeys(NOT_TEXT, _Reader._start_unseen),
    **dict.fromkeys(BLOCK, _Reader._start_block),
    **dict.fromkeys(INLINE, _Reader._start_inline),
    **dict.fromkeys(("html", "head", "body"), _Reader._start_page),
    **dict.fromkeys(_VOID, _Reader._start_void),
    "button": _Reader._start_button,
}
"""How the start of an element is read."""
