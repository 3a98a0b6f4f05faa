"""The structure of a page's main text: what an extractor's Markdown keeps of the HTML that is
known for it.

The HTML of the main part and the Markdown (parsed by markdown-it, CommonMark with tables) are split
into pieces:

    headings    their words
    items       the words of a list's item alone
    cells       the words of a table's cell
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
NOTE = re.compile(
    r"^\[\^[^\]\s]+\]:", re.MULTILINE
)  # of GitHub's Markdown: an item of the list of notes
HAND_WRITTEN = re.compile(r"\s*[-+*•–]\s")
LISTS = ("ul", "ol")
INLINE = (
    "a abbr b bdi cite code em i font kbd q s small span strike strong sub sup time tt u var"
).split()

Pieces = dict[str, Counter[Any]]
"""Pieces by kind; `neither` are for no score."""


def readability_pages(folder: Path) -> list[dict[str, Any]]:
    """Mozilla Readability's test pages, with the HTML of their main part and their metadata."""
    with gzip.open(folder / "readability-pages.jsonl.gz", "rt", encoding="utf-8") as lines:
        return list(map(json.loads, lines))


def main_part(page: dict[str, Any]) -> str:
    """The known main part as a page of its own, so that no choice of blocks is involved."""
    return f"<html><body><article>{page['expected_html']}</article></body></html>"


def ours_without_choice(page: str) -> str:
    return markdown(read_page(page, leaves_navigation=False).blocks)


def kept_and_right(
    wanted: Sequence[Pieces], found: Sequence[Pieces]
) -> dict[str, tuple[float, float]]:
    """By kind, the share of the HTML's pieces that are found, and of found pieces that are in
    the HTML."""
    shares = {}
    for kind in KINDS:
        both = sum(
            (truth[kind] & given[kind]).total() for truth, given in zip(wanted, found, strict=True)
        )
        given_pieces = sum(
            (given[kind] - (truth["neither"] if kind == "items" else Counter())).total()
            for truth, given in zip(wanted, found, strict=True)
        )
        shares[kind] = (
            both / max(1, sum(truth[kind].total() for truth in wanted)),
            both / max(1, given_pieces),
        )
    return shares


def pieces_of_html(text: str) -> Pieces:
    """The pieces of a page's main part, read from its HTML and nothing of ours."""
    root = html.fromstring(f"<div>{text}</div>")
    for element in list(root.iter("script", "style", "svg", "button")):
        element.drop_tree()
    pieces = empty()
    for element in root.iter("h1", "h2", "h3", "h4", "h5", "h6"):
        add(pieces, "headings", heading("".join(element.itertext())))
    for element in root.iter("li"):
        add(pieces, "items", words("".join(own_text(element))))
    for element in root.iter("p", "div", "dd", "td"):
        lines = "".join(
            "\n" if piece is None else piece for piece in texts_and_breaks(element)
        ).split("\n")
        by_hand = [line for line in lines if element.get("id") or HAND_WRITTEN.match(line)]
        pieces["neither"].update({words(line): len(lines) for line in by_hand if words(line)})
    pieces["neither"] -= pieces["items"]
    for table in root.iter("table"):
        rows = [
            [words(" ".join(cell.itertext())) for cell in row if cell.tag in ("td", "th")]
            for row in table.iter("tr")
        ]
        if is_data(table, rows):
            add_rows(pieces, rows)
    for element in root.iter("pre"):
        if not any(above.tag == "pre" for above in element.iterancestors()):
            add_code(pieces, "".join(lines_of(element)))
    return pieces


def texts_and_breaks(element: etree._Element) -> Iterator[str | None]:
    """The texts below an element, None for each line break."""
    for event, below in etree.iterwalk(element, events=("start", "end")):
        if event == "start":
            yield None if below.tag == "br" else (below.text or "").replace("\n", " ")
        elif below is not element:
            yield (below.tail or "").replace("\n", " ")


def is_data(table: etree._Element, rows: list[list[str]]) -> bool:
    """Two columns and rows at least, no table in a table, no cell of a page's text, and no code
    with its numbers."""
    if any(below.tag in ("table", "pre") for below in table.iterdescendants()):
        return False
    return (
        len(rows) > 1
        and max(map(len, rows)) > 1
        and max(len(cell) for row in rows for cell in row) < 800
    )


def own_text(item: etree._Element) -> Iterator[str]:
    """The text of an item without that of lists, quotes, tables and code in it."""
    yield item.text or ""
    for child in item:
        if child.tag not in (*LISTS, "pre", "table", "h1", "h2", "h3", "h4", "h5", "h6"):
            yield from own_text(child)
        if child.tag not in INLINE:
            yield " "
        yield child.tail or ""


def lines_of(element: etree._Element) -> Iterator[str]:
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
    pieces = empty()
    for node in SyntaxTreeNode(MARKDOWN.parse(NOTE.sub("-", text))).walk():
        if node.type == "heading":
            add(pieces, "headings", heading(inline_text(node)))
        elif node.type == "list_item":
            own = [child for child in node.children if child.type in ("paragraph", "blockquote")]
            add(pieces, "items", words(" ".join(map(inline_text, own))))
        elif node.type == "table":
            rows = [row.children for part in node.children for row in part.children]
            add_rows(pieces, [[words(inline_text(cell)) for cell in row] for row in rows])
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
    pieces["code"].update(
        line.rstrip() for line in text.replace("\xa0", " ").split("\n") if line.strip()
    )


def heading(text: str) -> str:
    return words(text).removesuffix(" edit").removesuffix(" modifier le code")


def words(text: str) -> str:
    return " ".join(WORD.findall(text.lower()))
