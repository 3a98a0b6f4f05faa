"""The structure kept in Markdown: ours, trafilatura's and html2text's, on the same pages in one run.

    .venv/bin/python benchmarks/structure.py [--data SHARED_DATA] [--misses KIND]

The pages are Mozilla Readability's, for which the HTML of the main part is known. That HTML and each extractor's
Markdown (parsed by markdown-it, CommonMark with tables) are split into pieces, compared page by page and summed up:

    headings    their words                       (depth: the share of kept ones with the right level)
    items       the words of a list's item alone  (depth: of kept ones, as deep in lists as they should be)
    cells       the words of a table's cell
    rows        all cells of a row, in order
    code        a line of preformatted text, with its indentation, letter by letter

`kept` is the share of the HTML's pieces that are found, `right` the share of found pieces that are in the HTML.
html2text converts the complete page, so it keeps much, of which little is right. In the second table, which measures
conversion alone, the input is the HTML of the main part. Layout tables are ignored, as are list items written by hand
(lines that begin with a hyphen), notes outside lists, and Wikipedia's "[edit]". Exits 1 if one of ours has a lower F1
than another's.
"""

from __future__ import annotations

import argparse
import gzip
import json
import logging
import os
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import html2text
import trafilatura
from lxml import etree, html
from markdown_it import MarkdownIt
from markdown_it.tree import SyntaxTreeNode

from owt_pipeline.stages.extract.extractor import Page, Settings, load
from owt_pipeline.stages.extract.reader import read_page
from owt_pipeline.stages.extract.rendering import markdown

REPOSITORY = Path(__file__).resolve().parents[1]
DATA = Path(os.environ.get("OWT_TESTDATA", REPOSITORY.parent / "shared" / "data"))
FETCHED_AT = 1_767_225_600
KINDS = ("headings", "items", "cells", "rows", "code")
WORD = re.compile(r"\w+")
NOTE = re.compile(r"^\[\^[^\]\s]+\]:", re.MULTILINE)  # of GitHub's Markdown: an item of the list of notes
HAND_WRITTEN = re.compile(r"\s*[-+*•–]\s")
LISTS = ("ul", "ol")
INLINE = "a abbr b bdi cite code em i font kbd q s small span strike strong sub sup time tt u var".split()

Pieces = dict[str, Counter[Any]]
"""Pieces by kind; `headings deep` and `items deep` are pairs of a piece and its depth, `neither` are for no score."""


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--data", type=Path, default=DATA, metavar="DIR", help="the folder of real data")
    parser.add_argument("--misses", choices=KINDS, metavar="KIND", help="print what ours misses and adds, by page")
    arguments = parser.parse_args()
    logging.disable(logging.CRITICAL)
    pages = list(read_pages(arguments.data))
    wanted = [pieces_of_html(page["expected_html"]) for page in pages]
    print(
        f"{len(pages)} pages with " + ", ".join(f"{sum(len(w[k]) and w[k].total() for w in wanted)} {k}" for k in KINDS)
    )
    worse = compare("from the page", [page["html"] for page in pages], wanted, EXTRACTORS)
    bare = [f"<html><body><article>{page['expected_html']}</article></body></html>" for page in pages]
    worse += compare("from the known main part", bare, wanted, WRITERS)
    if arguments.misses:
        for page, truth in zip(pages, wanted, strict=True):
            found = pieces_of_markdown(EXTRACTORS["ours"](page["html"]))
            for sign, pieces in (("-", truth[arguments.misses] - found[arguments.misses]),
                                 ("+", found[arguments.misses] - truth[arguments.misses])):  # fmt: skip
                for piece, count in pieces.items():
                    print(f"{page['name']}: {sign} {count}× {piece!r:.150}")
    return int(worse > 0)


def compare(title: str, pages: list[str], wanted: list[Pieces], writers: dict[str, Callable[[str], str]]) -> int:
    """Print a table of all writers on all kinds; returns how often ours has a lower F1 than another."""
    print(f"\n{title:26}" + "".join(f"{kind:^24}" for kind in KINDS))
    print(f"{'':26}" + "kept  right  F1   depth  " * len(KINDS))
    scores: dict[str, list[float]] = {}
    for name, write in writers.items():
        found = [pieces_of_markdown(write(page)) for page in pages]
        line, scores[name] = f"{name:26}", []
        for kind in KINDS:
            both = sum((truth[kind] & given[kind]).total() for truth, given in zip(wanted, found, strict=True))
            kept = both / max(1, sum(truth[kind].total() for truth in wanted))
            given = sum(
                (given[kind] - (truth["neither"] if kind == "items" else Counter())).total()
                for truth, given in zip(wanted, found, strict=True)
            )
            right = both / max(1, given)
            f1 = 2 * kept * right / max(kept + right, 1e-9)
            scores[name].append(f1)
            line += f"{kept:.3f} {right:.3f} {f1:.3f} {depth_kept(kind, wanted, found, both)}  "
        print(line.rstrip(), flush=True)
    ours = scores["ours"]
    return sum(
        mine < other for name in scores if name != "ours" for mine, other in zip(ours, scores[name], strict=True)
    )


def depth_kept(kind: str, wanted: list[Pieces], found: list[Pieces], both: int) -> str:
    if kind not in ("headings", "items") or not both:
        return "     "
    deep = sum((t[f"{kind} deep"] & g[f"{kind} deep"]).total() for t, g in zip(wanted, found, strict=True))
    return f"{deep / both:.3f}"


def ours() -> Callable[[str], str]:
    extract = load(Settings(text_format="markdown"))

    def write(page: str) -> str:
        found = extract(Page("http://page.example/", page, FETCHED_AT))
        return found.text if found else ""

    return write


def ours_without_choice(page: str) -> str:
    return markdown(read_page(page, leaves_navigation=False).blocks)


def with_trafilatura(**options: bool) -> Callable[[str], str]:
    return lambda page: trafilatura.extract(page, output_format="markdown", include_comments=False, **options) or ""


def with_html2text(page: str) -> str:
    writer = html2text.HTML2Text(bodywidth=0)
    writer.ignore_images = writer.ignore_links = True
    return writer.handle(page)


EXTRACTORS = {
    "ours": ours(),
    "trafilatura": with_trafilatura(),
    "trafilatura, recall": with_trafilatura(favor_recall=True),
    "html2text": with_html2text,
}
WRITERS = EXTRACTORS | {"ours": ours_without_choice}


def pieces_of_html(text: str) -> Pieces:
    """The pieces of a page's main part, read from its HTML and nothing of ours."""
    root = html.fromstring(f"<div>{text}</div>")
    for element in list(root.iter("script", "style", "svg", "button")):
        element.drop_tree()
    pieces = empty()
    for element in root.iter("h1", "h2", "h3", "h4", "h5", "h6"):
        add(pieces, "headings", heading("".join(element.itertext())), int(element.tag[1]))
    for element in root.iter("li"):
        depth = sum(above.tag in LISTS for above in element.iterancestors())
        add(pieces, "items", words("".join(own_text(element))), depth)
    for element in root.iter("p", "div", "dd", "td"):
        lines = "".join("\n" if piece is None else piece for piece in texts_and_breaks(element)).split("\n")
        by_hand = [line for line in lines if element.get("id") or HAND_WRITTEN.match(line)]
        pieces["neither"].update({words(line): len(lines) for line in by_hand if words(line)})
    pieces["neither"] -= pieces["items"]
    for table in root.iter("table"):
        rows = [
            [words(" ".join(cell.itertext())) for cell in row if cell.tag in ("td", "th")] for row in table.iter("tr")
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
    """Two columns and rows at least, no table in a table, no cell of a page's text, and no code with its numbers."""
    if any(below.tag in ("table", "pre") for below in table.iterdescendants()):
        return False
    return len(rows) > 1 and max(map(len, rows)) > 1 and max(len(cell) for row in rows for cell in row) < 800


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
            add(pieces, "headings", heading(inline_text(node)), int(node.tag[1]))
        elif node.type == "list_item":
            depth, above = 0, node.parent
            while above is not None:
                depth += above.type in ("bullet_list", "ordered_list")
                above = above.parent
            own = [child for child in node.children if child.type in ("paragraph", "blockquote")]
            add(pieces, "items", words(" ".join(map(inline_text, own))), depth)
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
    return {kind: Counter() for kind in (*KINDS, "headings deep", "items deep", "neither")}


def add(pieces: Pieces, kind: str, piece: str, depth: int) -> None:
    if piece:
        pieces[kind][piece] += 1
        pieces[f"{kind} deep"][piece, depth] += 1


def add_rows(pieces: Pieces, rows: list[list[str]]) -> None:
    for row in rows:
        cells = [cell for cell in row if cell]
        pieces["cells"].update(cells)
        if cells:
            pieces["rows"][tuple(cells)] += 1


def add_code(pieces: Pieces, text: str) -> None:
    pieces["code"].update(line.rstrip() for line in text.replace("\xa0", " ").split("\n") if line.strip())


def heading(text: str) -> str:
    return words(text).removesuffix(" edit").removesuffix(" modifier le code")


def words(text: str) -> str:
    return " ".join(WORD.findall(text.lower()))


def read_pages(data: Path) -> Iterator[dict[str, Any]]:
    with gzip.open(data / "web" / "readability-pages.jsonl.gz", "rt", encoding="utf-8") as lines:
        yield from map(json.loads, lines)


if __name__ == "__main__":
    sys.exit(main())
