"""Main text by trafilatura (Barbaresi, ACL 2021).

The metadata are read by `metadata.py`: trafilatura's own take as long as its text, most of it looking for a date.
"""

from __future__ import annotations

import logging
from typing import Any

import trafilatura
from trafilatura.settings import Extractor as TrafilaturaOptions

from owt_pipeline.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.extract.head import read_head
from owt_pipeline.extract.metadata import read_metadata
from owt_pipeline.extract.tree import parse

logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # what it finds wrong with a page becomes a reject row


def make(settings: Settings) -> Extract:
    def extract(page: Page) -> Extracted | None:
        return _extract(page, settings)

    return extract


def _extract(page: Page, settings: Settings) -> Extracted | None:
    options = TrafilaturaOptions(
        output_format="python",
        formatting=settings.text_format == "markdown",
        fast=settings.fast,
        precision=settings.favor == "precision",
        recall=settings.favor == "recall",
        comments=settings.include_comments,
        tables=settings.include_tables,
        dedup=False,  # a page's text must not depend on the pages before it
        url=page.url,
        with_metadata=False,
    )
    document: Any = trafilatura.bare_extraction(page.html, options=options)
    root = parse(page.html)
    if document is None or not document.text or root is None:
        return None
    metadata = read_metadata(root, read_head(root), page.url, page.fetched_at)
    return Extracted(document.text, **vars(metadata))
