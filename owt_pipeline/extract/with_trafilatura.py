"""Main text and metadata by trafilatura (Barbaresi, ACL 2021)."""

from __future__ import annotations

import logging
import re
from datetime import datetime, timezone
from typing import Any

import trafilatura
from trafilatura.settings import Extractor as TrafilaturaOptions

from owt_pipeline.extract.extractor import Extract, Extracted, Page, Settings

logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # what it finds wrong with a page becomes a reject row
logging.getLogger("htmldate").setLevel(logging.CRITICAL)


# Trafilatura gives a language where it detects one itself, never what the page declares.
_LANGUAGE = re.compile(r"<html\b[^>]*\slang\s*=\s*[\"']?([a-z]{2})(?![a-z])", re.IGNORECASE)
_HEAD = 4096  # characters; the element is among the first


def make(settings: Settings) -> Extract:
    def extract(page: Page) -> Extracted | None:
        return _extract(page, settings)

    return extract


def _extract(page: Page, settings: Settings) -> Extracted | None:
    date_params: dict[str, Any] = {
        "original_date": True,
        "extensive_search": not settings.fast,
        "max_date": datetime.fromtimestamp(page.fetched_at, timezone.utc).strftime("%Y-%m-%d"),
    }
    options = TrafilaturaOptions(
        output_format="python",
        fast=settings.fast,
        precision=settings.favor == "precision",
        recall=settings.favor == "recall",
        comments=settings.include_comments,
        tables=settings.include_tables,
        dedup=False,  # a page's text must not depend on the pages before it
        url=page.url,
        with_metadata=True,
        date_params=date_params,
    )
    document: Any = trafilatura.bare_extraction(page.html, options=options)
    if document is None or not document.text:
        return None
    declared = _LANGUAGE.search(page.html, 0, _HEAD)
    return Extracted(
        text=document.text,
        title=document.title,
        author=document.author,
        date=document.date,
        site_name=document.sitename,
        language=declared[1].lower() if declared else None,
    )
