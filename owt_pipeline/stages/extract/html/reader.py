"""Reads a page in one pass over its parser's events: blocks, containers, parts for the metadata.

lxml reports starts, ends and text of elements in repaired order; no tree is built. The reader keeps
all that a browser shows, except navigation and footers that are mostly links, outside the page's
main part: 30% of all blocks, and .03% of the main text.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from functools import partial

from lxml import etree

from owt_pipeline.stages.extract.html.blocks import CODE, HEADING, ITEM, Container
from owt_pipeline.stages.extract.html.controls import Controls
from owt_pipeline.stages.extract.html.initials import names_initial
from owt_pipeline.stages.extract.html.inner import (
    CLIPPED,
    PROTECTED_ADDRESS,
    WRAPS_LINES,
    Drawing,
    Formula,
    PreText,
    RawElement,
    Unseen,
    address_in,
    address_of_link,
    clean_latex,
    formula_of_image,
    is_flex,
    is_shown_as_block,
    keeps_spaces,
    names_flex,
    names_line,
)
from owt_pipeline.stages.extract.html.marks import ParsedPage, opened_by
from owt_pipeline.stages.extract.html.names import (
    BLOCK,
    CONTROLS,
    FORM_AND_KIND,
    HIDDEN,
    INLINE,
    LINE_NUMBER,
    MARKED,
    NOT_TEXT,
    PLAIN,
    SHOWING_ATTRIBUTES,
    SPACED,
    UNSHOWN,
    ignore_name,
    is_unshown,
    name_container,
    names_opened,
    names_part,
    read_names,
)
from owt_pipeline.stages.extract.html.pieces import BREAK, with_breaks
from owt_pipeline.stages.extract.html.structure import (
    LAYS_OUT,
    SPECIAL,
    STYLED_TAGS,
    TEXT_FORMS,
    WITH_END,
    Structure,
)

# Inline elements that mean nothing without attributes.
_BARE = INLINE - {"a", "code", "samp", "tt", "sup", "q", "time"}
_CODE_TAGS = frozenset(("code", "samp", "tt"))
_INITIAL_TAGS = frozenset(("span", "i", "em", "b", "strong", "big", "font"))
_DRAWINGS = frozenset(("svg", "picture"))
# Values of `rel` for the pages before, after and above this one.
_PAGING = frozenset(("prev", "next", "up"))
# Attributes of inline elements that are noted.
_NOTED_ATTRIBUTES = CONTROLS | {"rel"}

Attributes = Mapping[str, str]


def read_page(html: str, *, leaves_navigation: bool = True) -> ParsedPage:
    """Read a page; it is empty if there is no markup.

    `leaves_navigation` is False where every block is needed, as for the fields of a labelled page.
    """
    # libxml2 stops at zeros, and browsers drop them.
    page = with_breaks(html.encode("utf-8", "replace").replace(b"\x00", b""))
    reader = _Reader()
    # libxml2 silently cuts a page at its limits, so `huge_tree` lifts them. `pages` limits time and
    # memory.
    parser = etree.HTMLParser(target=reader, encoding="utf-8", collect_ids=False, huge_tree=True)
    # Raised for an empty document.
    with contextlib.suppress(etree.XMLSyntaxError):
        etree.fromstring(page, parser)
    parsed = reader.finish(leaves_navigation)
    # lxml's parser is in a cycle, which would keep the page until garbage is collected.
    reader.__dict__.clear()
    return parsed


class _Reader(Structure):
    """The target of the parser."""

    def __init__(self) -> None:
        super().__init__()
        self._controls = Controls()

    def start(self, tag: str, attributes: Attributes) -> None:
        """Take the start of an element from the parser."""
        if self._inner is not None:
            self._inner.start(tag, attributes)
            return
        if self._open_marks and tag not in INLINE:
            self._marks.end_line()
            if tag == "button" and not attributes:
                self._marks.start(tag, attributes, self._at, len(self._stack))
        start = _STARTS.get(tag)
        if start is not None:
            start(self, tag, attributes)
        elif self._pieces or ":" in tag:
            # An unknown element within a text is inline, as in browsers.
            self._stack.append(None)
        else:
            self._start_block(tag, attributes)

    def end(self, tag: str) -> None:
        """Take the end of an element from the parser."""
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
        """Take the end of the page, which needs no work here; lxml requires the method."""

    def finish(self, leaves_navigation: bool) -> ParsedPage:
        """Return the page, once the parser is done."""
        if isinstance(self._inner, PreText):
            self._end_inner()
        if self._pieces:
            self._end_block()
        # These containers were never closed, so they end with the page.
        for container in self._at.ancestors():
            container.end = self._count
        self._controls.show_opened(self.page.controlled)
        if leaves_navigation:
            self._leave_skipped()
        return self.page

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
        if self._aside is not None:
            if tag == "p" and parent is self._aside.parent:
                # Between two paragraphs it is a note, not a sidebar.
                self._aside.tag = "div"
                self._aside.kind = read_names(self._aside.names)
            self._aside = None
        form, kind = FORM_AND_KIND.get(tag, PLAIN)
        container = Container(self._count, tag, parent, form, kind, len(self.blocks))
        self._count += 1
        parent.children += 1
        if parent.form == ITEM and tag in ("p", "div"):
            container.form = ITEM
        if self._initial and not (self._initial_at is parent and container.form in TEXT_FORMS):
            self._initial = ""
        self._stack.append(container)
        self._at = container
        if attributes:
            # Most elements have only classes, and `_name_block` would take longer.
            if len(attributes) == 1 and "class" in attributes:
                classes = attributes["class"]
                container.names = classes
                container.kind = kind | read_names(classes)
                if names_flex(classes):
                    self._flex = container
            else:
                self._name_block(container, parent, attributes)
            if container.kind & MARKED or self._open_marks:
                self._note(tag, attributes)
        if self._open_tables and tag in LAYS_OUT:
            self._open_tables[-1].is_layout = True
        if tag in SPECIAL:
            self._start_special(tag, attributes, container)
        elif container.kind & SPACED and tag in STYLED_TAGS:
            self._inner = PreText(container.names)

    def _name_block(self, container: Container, parent: Container, attributes: Attributes) -> None:
        """Set the names and the kind of a container that has more than classes."""
        name_container(container, attributes)
        if is_flex(attributes):
            self._flex = container
        has_style = "style" in attributes
        if has_style and keeps_spaces(attributes, has_equal_width=container.tag == "code"):
            container.kind |= SPACED
        if has_style and WRAPS_LINES.search(attributes["style"]):
            self._wrapped = container
        if container.kind & UNSHOWN:
            self._controls.hide(container, parent, attributes)

    def _note(self, tag: str, attributes: Attributes) -> None:
        """Note a byline, and the elements that a control opens; the element is on the stack."""
        self._marks.start(tag, attributes, self._at, len(self._stack) - 1)
        if not CONTROLS.isdisjoint(attributes):
            self.page.controlled.update(opened_by(attributes))
            is_inline = self._stack[-1] is not self._at
            self._controls.open_sibling(self._at, attributes, is_inline=is_inline)

    def _start_void(self, tag: str, attributes: Attributes) -> None:
        self._stack.append(None)
        if tag == "br":
            self._pieces.append(BREAK)
        elif tag == "meta":
            self.page.add_meta(attributes)
        elif tag == "link":
            relation = attributes.get("rel", "")
            self._marks.link("link", relation, attributes.get("href", ""), self._at)
        elif tag == "input" and attributes.get("type") == "checkbox":
            self._controls.take_checkbox(attributes.get("id"), self._at)
        elif tag == "img":
            self._images += 1
            formula = formula_of_image(attributes)
            if formula is not None:
                self._add_formula(*formula)
            elif "alt" in attributes:
                self._take_initial(attributes["alt"])

    def _start_bare(self, tag: str, attributes: Attributes) -> None:
        """Take an inline element that means nothing without attributes."""
        if attributes:
            self._start_inline(tag, attributes)
            return
        if self._open_marks and tag != "wbr":
            self._marks.start(tag, attributes, self._at, len(self._stack))
        if self._flex is not None and self._stack[-1] is self._flex:
            self._add_space()
            self._stack.append(self._add_space)
        else:
            self._stack.append(None)

    def _start_inline(self, tag: str, attributes: Attributes) -> None:
        if self._flex is not None and self._stack[-1] is self._flex:
            self._add_space()
            self._stack.append(self._add_space)
        else:
            self._stack.append(None)
        classes = attributes.get("class", "")
        kind = read_names(classes) if classes else 0
        has_showing_attribute = not SHOWING_ATTRIBUTES.isdisjoint(attributes)
        has_unusual_kind = kind & (HIDDEN | SPACED | LINE_NUMBER) or "MathJax" in classes
        may_be_unusual = has_showing_attribute or has_unusual_kind
        if may_be_unusual and self._start_unusual_inline(tag, attributes, classes, kind):
            return
        if (
            kind & MARKED
            or tag == "time"
            or self._open_marks
            or not _NOTED_ATTRIBUTES.isdisjoint(attributes)
        ):
            self._note(tag, attributes)
        if not self._pieces and tag in _INITIAL_TAGS:
            self._has_named_initial = names_initial(classes)
            if "aria-label" in attributes:
                self._take_label(attributes["aria-label"])
                if attributes.get("role") == "img":
                    self._take_initial(attributes["aria-label"])
        if tag == "a" and "href" in attributes:
            self._start_link(attributes)
        elif tag in _CODE_TAGS:
            self._stack[-1] = partial(self._end_code, len(self.blocks), len(self._pieces))
            self._pieces.append(CODE)
        elif tag == "sup":
            self._stack[-1] = partial(
                self._end_superscript, len(self.blocks), len(self._pieces), self._link_chars
            )
        elif tag == "q":
            self._stack[-1] = partial(self._end_quote, len(self.blocks), len(self._pieces))
            self._pieces.append("“")

    def _start_unusual_inline(
        self, tag: str, attributes: Attributes, classes: str, kind: int
    ) -> bool:
        """Take an inline element that is shown as a block, or is hidden; return whether it is."""
        if "data-cfemail" in attributes:
            self.data(address_in(attributes))
            self._inner = RawElement()
            return True
        is_unshown_itself = False
        if "style" in attributes or "hidden" in attributes or "aria-hidden" in attributes:
            is_unshown_itself = is_unshown(attributes)
            # A control may open an element that has an id.
            has_control = "id" in attributes or names_opened(classes)
            is_code = tag == "code" and is_shown_as_block(attributes)
            is_code = is_code and keeps_spaces(attributes, has_equal_width=True)
            if (is_unshown_itself and has_control) or is_code:
                self._stack.pop()
                self._start_block(tag, attributes)
                return True
            is_decoration = attributes.get("aria-hidden") == "true"
            if is_unshown_itself or is_decoration or CLIPPED.search(attributes.get("style", "")):
                kind |= HIDDEN
        if kind & SPACED and tag == "code" and not self._pieces:
            self._stack.pop()
            self._start_block(tag, attributes)
            return True
        is_number = kind & LINE_NUMBER and names_line(self._at.names)
        is_drawn = "MathJax" in classes and not tag.startswith("mjx-")
        if not (kind & HIDDEN or is_number or is_drawn):
            return False
        if kind & HIDDEN and not is_unshown_itself:
            self._inner = Unseen(is_for_reader=attributes.get("aria-hidden") != "true")
        else:
            self._inner = RawElement()
        return True

    def _start_link(self, attributes: Attributes) -> None:
        href = attributes["href"]
        self._links_around += 1
        self._links += 1
        self._link_start = len(self._pieces)
        is_spaced_itself = self._stack[-1] is not None
        self._stack[-1] = self._end_spaced_link if is_spaced_itself else self._end_link
        if href.startswith(PROTECTED_ADDRESS):
            self._stack[-1] = partial(
                self._end_protected_link, len(self.blocks), len(self._pieces), href
            )
        if href.startswith("javascript:"):
            self.page.controlled.update(opened_by({"onclick": href}))
        elif href.startswith("#"):
            if "modal" not in attributes.get("rel", ""):
                self.page.controlled.add(href[1:])
            if self._at.form == HEADING and self._at.parent is not None:
                ignore_name(self._at.parent, href[1:])
        relation = attributes.get("rel", "")
        if not _PAGING.isdisjoint(relation.lower().split()):
            self._paging_links += 1
        if relation or "creativecommons.org/" in href:
            self._marks.link("a", relation, href, self._at)

    def _end_link(self) -> None:
        self._links_around -= 1

    def _end_protected_link(self, num_blocks: int, start: int, href: str) -> None:
        """Write the address of a link in place of `[email protected]`."""
        self._links_around -= 1
        if num_blocks < len(self.blocks):
            return
        address = address_of_link("".join(self._pieces[start:]), href)
        if address:
            self._pieces[start:] = [address]

    def _end_spaced_link(self) -> None:
        self._links_around -= 1
        self._add_space()

    def _start_unseen(self, tag: str, attributes: Attributes) -> None:
        """Take an element that a browser does not show as text, or shows in its own way."""
        is_shadow = tag == "template" and (
            "shadowrootmode" in attributes or "shadowroot" in attributes
        )
        # A <noscript> between two blocks may be the page for browsers without scripts.
        if is_shadow or (tag == "noscript" and not self._pieces):
            self._start_block(tag, attributes)
            return
        self._stack.append(None)
        if tag == "math":
            self._inner = Formula(attributes)
            return
        if tag in _DRAWINGS and not self._pieces:
            self._inner = Drawing(attributes.get("aria-label", ""))
            return
        kind = attributes.get("type", "").strip().lower() if tag == "script" else ""
        is_title = tag == "title" and self.page.title is None
        is_needed = is_title or kind.startswith(("application/ld+json", "math/tex"))
        self._inner = RawElement(kind if is_needed else None)

    def _end_inner(self) -> None:
        """Take the end of an element whose content was read on its own."""
        inner = self._inner
        self._inner = None
        if isinstance(inner, PreText):
            self._add_lines(inner)
        elif isinstance(inner, Formula):
            latex = inner.latex()
            if latex:
                self._add_formula(latex, inner.is_large)
            elif text := inner.text():
                self.data(text)
        elif isinstance(inner, Drawing):
            self._take_initial(inner.text())
        elif isinstance(inner, Unseen):
            self._add_unseen(inner)
        elif inner is not None and inner.kind is not None:
            text = "".join(inner.pieces)
            if not inner.kind:
                self.page.title = " ".join(text.split())
            elif inner.kind.startswith("application/ld+json"):
                self.page.scripts.append(text)
            else:
                self._add_formula(clean_latex(text), "mode=display" in inner.kind)

    def _start_button(self, tag: str, attributes: Attributes) -> None:
        if "class" in attributes and names_part(attributes["class"]):
            self._controls.open_next(self._at)
        # A button in a heading opens the text below it.
        if self._at.form == HEADING and not self._pieces:
            self._stack.append(None)
            self._note(tag, attributes)
        else:
            self._start_block(tag, attributes)


_VOID = "br meta link img input base area param frame embed source track".split()
_STARTS: dict[str, Callable[[_Reader, str, Attributes], None]] = {
    **dict.fromkeys(NOT_TEXT, _Reader._start_unseen),
    **dict.fromkeys(BLOCK, _Reader._start_block),
    **dict.fromkeys(INLINE, _Reader._start_inline),
    **dict.fromkeys(_BARE, _Reader._start_bare),
    **dict.fromkeys(("html", "head", "body"), _Reader._start_page),
    **dict.fromkeys(_VOID, _Reader._start_void),
    "button": _Reader._start_button,
}
"""How the start of an element is read."""
