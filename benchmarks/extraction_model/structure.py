"""Compares the structure of an extractor's Markdown with the known HTML of a page's main text.

The HTML of the main part and the Markdown (parsed by markdown-it, CommonMark with tables) are split
into pieces:

    headings    their words
    items       the words of an item of a list, without lists in it
    cells       the words of a cell of a table
    rows        all cells of a row, in order
    code        a line of preformatted text, with its indentation, letter by letter

Layout tables are ignored, as are list items written by hand (lines that begin with a hyphen), notes
outside lists, and Wikipedia's "[edit]".
"""

from __future__ import annotations

import gzip
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from lxml import etree, html
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from owt_pipeline.stages.extract.html.reader import read_page
from owt_pipeline.stages.extract.html.rendering import markdown

KINDS = ("headings", "items", "cells", "rows", "code")
WORD = re.compile(r"\w+")
# A note of GitHub's Markdown: an item of the list of notes.
NOTE = re.compile(r"^\[\^[^\]\s]+\]:", re.MULTILINE)
HAND_WRITTEN = re.compile(r"\s*[-+*•–]\s")
HEADINGS = ("h1", "h2", "h3", "h4", "h5", "h6")
# Elements in an item of a list whose text is not the item's own.
PARTS_OF_ITEM = ("ul", "ol", "pre", "table", *HEADINGS)
# Tables with longer cells are layouts.
MAX_CELL_CHARS = 800
INLINE = (
    "a abbr b bdi cite code em i font kbd q s small span strike strong sub sup time tt u var"
).split()

Pieces = dict[str, Counter[Any]]
"""Pieces by kind. `neither` are ignored: they may be items or not."""


def readability_pages(folder: Path) -> list[dict[str, Any]]:
    """Return Mozilla Readability's test pages, with the HTML of their main part and metadata."""
    with gzip.open(folder / "readability-pages.jsonl.gz", "rt", encoding="utf-8") as lines:
        return list(map(json.loads, lines))


def main_part(page: dict[str, Any]) -> str:
    """Return the known main part as a page of its own, so that no block has to be chosen."""
    return f"<html><body><article>{page['expected_html']}</article></body></html>"


def ours_without_choice(page: str) -> str:
    """Return the Markdown of all blocks of a page."""
    return markdown(read_page(page, leaves_navigation=False).blocks)


def kept_and_right(
    truths: Sequence[Pieces], written: Sequence[Pieces]
) -> dict[str, tuple[float, float]]:
    """Return two shares by kind, for the pieces of pages' HTML and of their Markdown.

    The first is the share of the HTML's pieces that are in the Markdown, the second the share of
    the Markdown's pieces that are in the HTML.
    """
    shares = {}
    for kind in KINDS:
        num_shared = 0
        num_written = 0
        for of_html, of_markdown in zip(truths, written, strict=True):
            num_shared += (of_html[kind] & of_markdown[kind]).total()
            ignored = of_html["neither"] if kind == "items" else Counter()
            num_written += (of_markdown[kind] - ignored).total()
        num_true = sum(of_html[kind].total() for of_html in truths)
        shares[kind] = num_shared / max(1, num_true), num_shared / max(1, num_written)
    return shares


def pieces_of_html(text: str) -> Pieces:
    """Return the pieces of a page's main part, read from its HTML without our reader."""
    root = html.fromstring(f"<div>{text}</div>")
    for element in list(root.iter("script", "style", "svg", "button")):
        element.drop_tree()
    pieces = empty()
    for element in root.iter(*HEADINGS):
        add(pieces, "headings", heading("".join(element.itertext())))
    for element in root.iter("li"):
        add(pieces, "items", words("".join(own_text(element))))
    for element in root.iter("p", "div", "dd", "td"):
        add_hand_written(pieces, element)
    pieces["neither"] -= pieces["items"]
    for table in root.iter("table"):
        rows = rows_of(table)
        if is_data(table, rows):
            add_rows(pieces, rows)
    for element in root.iter("pre"):
        if not any(ancestor.tag == "pre" for ancestor in element.iterancestors()):
            add_code(pieces, "".join(lines_of(element)))
    return pieces


def add_hand_written(pieces: Pieces, element: etree._Element) -> None:
    """Add to `neither` the lines of an element that may be items: written by hand, or notes."""
    text = "".join("\n" if piece is None else piece for piece in texts_and_breaks(element))
    lines = text.split("\n")
    num_by_line = {}
    for line in lines:
        is_item = element.get("id") or HAND_WRITTEN.match(line)
        if is_item and (line_words := words(line)):
            # Markdown has a line of the element this often at most.
            num_by_line[line_words] = len(lines)
    pieces["neither"].update(num_by_line)


def rows_of(table: etree._Element) -> list[list[str]]:
    """Return the words of each cell of each row."""
    rows = []
    for row in table.iter("tr"):
        cells = [cell for cell in row if cell.tag in ("td", "th")]
        rows.append([words(" ".join(cell.itertext())) for cell in cells])
    return rows


def texts_and_breaks(element: etree._Element) -> Iterator[str | None]:
    """Yield the texts below an element, and None for each line break."""
    for event, below in etree.iterwalk(element, events=("start", "end")):
        if event == "start":
            yield None if below.tag == "br" else (below.text or "").replace("\n", " ")
        elif below is not element:
            yield (below.tail or "").replace("\n", " ")


def is_data(table: etree._Element, rows: list[list[str]]) -> bool:
    """Return whether a table has data.

    It has two columns and rows or more, no table in it, no cell with a page's text, and no code
    with its numbers.
    """
    if any(below.tag in ("table", "pre") for below in table.iterdescendants()):
        return False
    if len(rows) < 2 or max(map(len, rows)) < 2:
        return False
    return all(len(cell) < MAX_CELL_CHARS for row in rows for cell in row)


def own_text(item: etree._Element) -> Iterator[str]:
    """Yield the text of an item without the lists, headings, tables and code in it."""
    yield item.text or ""
    for child in item:
        if child.tag not in PARTS_OF_ITEM:
            yield from own_text(child)
        if child.tag not in INLINE:
            yield " "
        yield child.tail or ""


def lines_of(element: etree._Element) -> Iterator[str]:
    """Yield the text of preformatted text, with a line end before each element that is a line."""
    yield element.text or ""
    for child in element:
        if child.tag == "br":
            yield "\n"
        else:
            if child.tag in ("div", "p", "li"):
                yield "\n"
            yield from lines_of(child)
        yield child.tail or ""


def pieces_of_markdown(text: str) -> Pieces:
    """Return the pieces of a page's Markdown."""
    pieces = empty()
    root = SyntaxTreeNode(MARKDOWN.parse(NOTE.sub("-", text)))
    for node in root.walk():
        if node.type == "heading":
            add(pieces, "headings", heading(inline_text(node)))
        elif node.type == "list_item":
            texts = [child for child in node.children if child.type in ("paragraph", "blockquote")]
            add(pieces, "items", words(" ".join(map(inline_text, texts))))
        elif node.type == "table":
            rows = []
            for part in node.children:
                for row in part.children:
                    rows.append([words(inline_text(cell)) for cell in row.children])
            add_rows(pieces, rows)
        elif node.type in ("fence", "code_block"):
            add_code(pieces, node.content)
    return pieces


MARKDOWN = MarkdownIt("commonmark").enable("table")


def inline_text(node: SyntaxTreeNode) -> str:
    parts = []
    for below in node.walk():
        if below.type in ("text", "code_inline"):
            parts.append(below.content)
        elif below.type in ("softbreak", "hardbreak", "html_inline"):
            parts.append(" ")
    return "".join(parts)


def empty() -> Pieces:
    return {kind: Counter() for kind in (*KINDS, "neither")}


def add(pieces: Pieces, kind: str, piece: str) -> None:
    if piece:
        pieces[kind][piece] += 1


def add_rows(pieces: Pieces, rows: list[list[str]]) -> None:
    for row in rows:
        cells = [cell for cell in row if cell]
        pieces["cells"].update(cells)
        if cells:
            pieces["rows"][tuple(cells)] += 1


def add_code(pieces: Pieces, text: str) -> None:
    lines = text.replace("\xa0", " ").split("\n")
    pieces["code"].update([line.rstrip() for line in lines if line.strip()])


def heading(text: str) -> str:
    return words(text).removesuffix(" edit").removesuffix(" modifier le code")


def words(text: str) -> str:
    return " ".join(WORD.findall(text.lower()))
