"""The built-in extractors: our own, `blocks`, and two public ones.

`blocks` parses a page, walks over the tree once and applies a model fitted on labelled pages. Measured on three sets of
labelled pages, on hosts that were left out of the fit, its F1 is higher than that of the public extractors in
`benchmarks/extraction.py`, except on documentation and on Readability's own test pages. Its features are based on
boilerpipe (Kohlschütter et al., WSDM 2010: blocks of text and their link density), readability and trafilatura (names
of elements) and Resiliparse (elements that are not content).

Every extractor uses the metadata of `metadata.py`. trafilatura's own metadata take as long as its text, mostly for the
date.
"""

from __future__ import annotations

import gc
import logging
from functools import partial
from typing import Any

from lxml import etree

from owt_pipeline.stages.extract.blocks import ROW, Block, read_blocks
from owt_pipeline.stages.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.stages.extract.head import embedded_text, read_head
from owt_pipeline.stages.extract.main_content import FAVORS, MOST_BLOCKS, main_content, without_notice
from owt_pipeline.stages.extract.metadata import read_metadata
from owt_pipeline.stages.extract.model import Model, load
from owt_pipeline.stages.extract.rendering import markdown, plain_text
from owt_pipeline.stages.extract.tree import parse

logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # its problems with a page become reject rows

_LITTLE_TEXT = 250  # characters; a page with less text may be filled by a script


def blocks(settings: Settings) -> Extract:
    """Our own extractor; it ignores `settings.fast`."""
    return with_model(load(), settings)


def with_model(model: Model, settings: Settings) -> Extract:
    """Our own extractor with another model than the packaged one."""

    def extract(page: Page) -> Extracted | None:
        collecting = gc.isenabled()
        gc.disable()  # a page is ten thousand objects without a cycle; collecting would take 5% of the time
        try:
            return _extract(page, settings, model)
        finally:
            if collecting:
                gc.enable()

    return extract


def _extract(page: Page, settings: Settings, model: Model) -> Extracted | None:
    root = parse(page.html)
    head = read_head(root)
    metadata = read_metadata(root, head, page.url, page.fetched_at)
    found, containers = read_blocks(root)
    if not settings.include_tables:
        found = [block for block in found if block.form != ROW]
    favor, comments = FAVORS[settings.favor], settings.include_comments
    content = without_notice(main_content(found, containers, head, model, favor, comments=comments))
    text = plain_text(content)
    as_markdown = settings.text_format == "markdown"
    # Decided by the plain text for both formats, so that they have the same content.
    embedded = _embedded(root, head.data, found, as_markdown) if len(text) < _LITTLE_TEXT else ""
    text = embedded or (markdown(content, containers) if as_markdown else text)
    left_out = max(len(found) - MOST_BLOCKS, 0) or None
    return Extracted(text, **metadata, blocks_left_out=left_out) if text else None


def _embedded(root: etree._Element, data: list[Any], found: list[Block], as_markdown: bool) -> str:
    """The page's text from its embedded data if longer than all its blocks together; else ""."""
    text = embedded_text(root, data, partial(_all_text, as_markdown), "\n\n" if as_markdown else "\n")
    return text if len(text) > max(_LITTLE_TEXT, sum(block.chars for block in found)) else ""


def _all_text(as_markdown: bool, html: str) -> str:
    """All the text of a piece of HTML."""
    found, containers = read_blocks(parse(f"<div>{html}</div>"))
    return markdown(found, containers) if as_markdown else plain_text(found)


def trafilatura(settings: Settings) -> Extract:
    """Main text by trafilatura (Barbaresi, ACL 2021)."""
    from trafilatura import bare_extraction
    from trafilatura.settings import Extractor

    def extract(page: Page) -> Extracted | None:
        options = Extractor(
            output_format="python",
            formatting=settings.text_format == "markdown",
            fast=settings.fast,
            precision=settings.favor == "precision",
            recall=settings.favor == "recall",
            comments=settings.include_comments,
            tables=settings.include_tables,
            dedup=False,  # it would make a page's text depend on earlier pages
            url=page.url,
            with_metadata=False,
        )
        document: Any = bare_extraction(page.html, options=options)
        return _with_metadata(page, document.text) if document is not None else None

    return extract


def resiliparse(settings: Settings) -> Extract:
    """Main text by Resiliparse (Bevendorff et al., ECIR 2018): several times as fast, but less accurate."""
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLTree

    def extract(page: Page) -> Extracted | None:
        text = extract_plain_text(
            HTMLTree.parse(page.html),
            main_content=settings.favor != "recall",
            comments=settings.include_comments,
            skip_elements=() if settings.include_tables else ("table",),
            alt_texts=False,
        )
        return _with_metadata(page, text)

    return extract


def _with_metadata(page: Page, text: str | None) -> Extracted | None:
    if not text:
        return None
    root = parse(page.html)
    metadata = read_metadata(root, read_head(root), page.url, page.fetched_at)
    return Extracted(text, **metadata, blocks_left_out=None)
