"""Our own extractor: one parse, one walk over the tree, and a model that was fitted on labelled pages.

On three sets of labelled pages it finds more of the main text with less around it than any public extractor
(`benchmarks/extraction.py`). Its features take their clues from boilerpipe (Kohlschütter et al., WSDM 2010: blocks
of text and their link density), readability and trafilatura (names of elements) and Resiliparse (what is no content).
"""

from __future__ import annotations

import gc
from collections.abc import Callable
from functools import partial
from typing import Any

from lxml import etree

from owt_pipeline.extract.blocks import ROW, Block, read_blocks
from owt_pipeline.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.extract.head import embedded_text, read_head
from owt_pipeline.extract.main_content import BALANCED, PRECISION, RECALL, main_content, without_notice
from owt_pipeline.extract.metadata import read_metadata
from owt_pipeline.extract.model import Model, load
from owt_pipeline.extract.rendering import markdown, plain_text
from owt_pipeline.extract.tree import body_of, parse

_LITTLE_TEXT = 250  # characters; with fewer, the page may be one that its script fills
_MUCH_SHOWN = 3000  # characters in all blocks, from which on nobody finds a longer text elsewhere
_CUTS = {"balanced": BALANCED, "precision": PRECISION, "recall": RECALL}


def make(settings: Settings) -> Extract:
    """The extractor; `settings.fast` changes nothing."""
    return with_model(load(), settings)


def with_model(model: Model, settings: Settings) -> Extract:
    """The extractor with another model than the one it comes with."""

    def extract(page: Page) -> Extracted | None:
        collecting = gc.isenabled()
        gc.disable()  # a page is ten thousand objects and no cycle: to look for one would take a twentieth of the time
        try:
            return _extract(page, settings, model)
        finally:
            if collecting:
                gc.enable()

    return extract


def _extract(page: Page, settings: Settings, model: Model) -> Extracted | None:
    root = parse(page.html)
    if root is None:
        return None
    head = read_head(root)
    metadata = read_metadata(root, head, page.url, page.fetched_at)
    blocks, containers = read_blocks(body_of(root))
    if not settings.include_tables:
        blocks = [block for block in blocks if block.form != ROW]
    content = main_content(
        blocks,
        containers,
        head,
        model,
        _CUTS[settings.favor],
        comments=settings.include_comments,
    )
    content = without_notice(content)
    text, elsewhere = plain_text(content), ""
    if len(text) < _LITTLE_TEXT:  # of the plain text, whichever is written: both have the same content
        elsewhere = _from_elsewhere(page, root, head.data, blocks, settings.text_format)
    if settings.text_format == "markdown":
        text = markdown(content, containers)
    if not text and not elsewhere:
        return None
    return Extracted(elsewhere or text, **vars(metadata))


def _from_elsewhere(page: Page, root: etree._Element, data: list[Any], blocks: list[Block], text_format: str) -> str:
    """The text that a page has as data, or that trafilatura finds, where that is more than all its blocks have."""
    shown = sum(block.chars for block in blocks)
    if shown > _MUCH_SHOWN:
        return ""
    least = max(_LITTLE_TEXT, shown)
    others: tuple[Callable[[], str], ...] = (
        lambda: embedded_text(
            root, data, partial(_written, text_format), "\n\n" if text_format == "markdown" else "\n"
        ),
        lambda: _by_trafilatura(page, text_format),
    )
    return next((text for text in (other() for other in others) if len(text) > least), "")


def _by_trafilatura(page: Page, text_format: str) -> str:
    from trafilatura import extract  # takes as long to import as a hundred pages, and few need it

    output_format = "markdown" if text_format == "markdown" else "txt"
    return extract(page.html, output_format=output_format, fast=True, include_comments=False) or ""


def _written(text_format: str, html: str) -> str:
    """All the text of a piece of HTML."""
    root = parse(f"<div>{html}</div>")
    if root is None:
        return ""
    blocks, containers = read_blocks(body_of(root))
    return markdown(blocks, containers) if text_format == "markdown" else plain_text(blocks)
