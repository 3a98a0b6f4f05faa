"""Parsing of a page's markup into a tree."""

from __future__ import annotations

import re

from lxml import etree

from owt_pipeline.stages.extract.names import BLOCK, NOT_TEXT

PERMALINK = "¶"
"""The text of the link to itself that Sphinx and MkDocs add to each heading."""

# `huge_tree` lifts libxml2's limits on depth and on a node's size, since libxml2 silently cuts a page at its limits;
# `pages` limits the time and memory of a page.
_PARSER = etree.HTMLParser(
    encoding="utf-8", remove_comments=True, remove_pis=True, collect_ids=False, default_doctype=False, huge_tree=True
)
# What may be in the head of a page that writes neither </head> nor <body>; the first other element begins the body.
_OF_HEAD = frozenset("base basefont bgsound link meta noscript object script style template title".split())
_END_OF_BREAK = re.compile(r"</br\s*/?>", re.IGNORECASE)
_APART = BLOCK | {"br"}
_MOST_CHARS = 2000  # of an element in one line; all uses are for shorter texts


def parse(html: str) -> etree._Element:
    """The root of the tree, empty if there is no markup; lxml repairs invalid markup."""
    if "\x00" in html:  # libxml2 stops at zero characters; browsers drop them
        html = html.replace("\x00", "")
    if "</br" in html or "</BR" in html:  # libxml2 drops them; browsers break the line
        html = _END_OF_BREAK.sub("<br>", html)
    try:
        root = etree.fromstring(html.encode("utf-8", "replace"), _PARSER)
    except etree.XMLSyntaxError:  # an empty document
        root = None
    if not isinstance(root, etree._Element):
        return etree.Element("html")
    _move_into_body(root)
    return root


def _move_into_body(root: etree._Element) -> None:
    """Move what follows an early `</body>` or `</html>`, or what libxml2 leaves in the head, into the body."""
    head, body = root.find("head"), root.find("body")
    first = None if head is None else next((child for child in head if child.tag not in _OF_HEAD), None)
    if first is not None:  # an element that libxml2 does not know, such as <main>
        if body is None:
            body = etree.SubElement(root, "body")
        early = [first, *first.itersiblings()]
        early[-1].tail, body.text = (early[-1].tail or "") + (body.text or ""), None
        body[:0] = early
    if body is None:
        body = root
    if body.tail is not None and not body.tail.isspace():
        etree.SubElement(body, "div").text, body.tail = body.tail, None
    for after in (*body.itersiblings(), *root.itersiblings()):
        if after.tag == "html":  # libxml2 makes a second root of it
            after.tag = "div"
        body.append(after)


def text_of(element: etree._Element) -> str:
    """The text that `element` shows, in one line; cut after 2,000 characters, since it may be the page."""
    if not len(element):
        return " ".join((element.text or "").split())
    pieces, chars = [], 0
    walk = etree.iterwalk(element, events=("start", "end"))
    for event, inner in walk:
        if event == "end":
            text = inner.tail if inner is not element else None
        elif inner.tag in NOT_TEXT and inner is not element:
            walk.skip_subtree()
            continue
        else:
            text = inner.text
        if inner.tag in _APART:
            pieces.append(" ")
        if text:
            pieces.append(text)
            chars += len(text.strip())
            if chars > _MOST_CHARS:
                break
    return " ".join("".join(pieces).split())
