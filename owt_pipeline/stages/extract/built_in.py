"""The built-in extractors: our own, `blocks`, and trafilatura.

`blocks` reads a page in one pass and applies a model fitted on labelled pages. Measured on three sets of
labelled pages, on hosts that were left out of the fit, its F1 is higher than that of the public extractors in
`benchmarks/extraction.py`, except on documentation and on Readability's own test pages. Its features are based on
boilerpipe (Kohlschütter et al., WSDM 2010: blocks of text and their link density), readability and trafilatura (names
of elements) and Resiliparse (elements that are not content).

Both use the metadata of `metadata.py`. trafilatura's own metadata take as long as its text, mostly for the
date.
"""

from __future__ import annotations

import gc
import logging
import re
from typing import Any

from owt_pipeline.stages.extract.blocks import ROW
from owt_pipeline.stages.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.stages.extract.head import read_head
from owt_pipeline.stages.extract.main_content import FAVORS, MOST_BLOCKS, main_content
from owt_pipeline.stages.extract.metadata import read_metadata
from owt_pipeline.stages.extract.model import Model, load
from owt_pipeline.stages.extract.reader import read_page
from owt_pipeline.stages.extract.rendering import markdown, plain_text

logging.getLogger("trafilatura").setLevel(logging.CRITICAL)  # its problems with a page become reject rows

_NO_TEXT = re.compile(
    r"\W*(?:false|true|null|undefined|(?:please wait\W*)?loading(?:\W+please wait)?|please wait)\W*", re.I
)


def blocks(settings: Settings) -> Extract:
    """Our own extractor."""
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
    read = read_page(page.html)
    head = read_head(read)
    metadata = read_metadata(read, head, page.url, page.fetched_at)
    found = read.blocks if settings.include_tables else [block for block in read.blocks if block.form != ROW]
    cut, comments = FAVORS[settings.favor], settings.include_comments
    content = main_content(found, head, model, cut, comments=comments)
    text = markdown(content) if settings.text_format == "markdown" else plain_text(content)
    left_out = max(len(found) - MOST_BLOCKS, 0) or None
    return Extracted(text, **metadata, blocks_left_out=left_out) if text and not _NO_TEXT.fullmatch(text) else None


def trafilatura(settings: Settings) -> Extract:
    """Main text by trafilatura (Barbaresi, ACL 2021)."""
    from trafilatura import bare_extraction
    from trafilatura.settings import Extractor

    def extract(page: Page) -> Extracted | None:
        options = Extractor(
            output_format="python",
            formatting=settings.text_format == "markdown",
            precision=settings.favor == "precision",
            recall=settings.favor == "recall",
            comments=settings.include_comments,
            tables=settings.include_tables,
            dedup=False,  # it would make a page's text depend on earlier pages
            url=page.url,
            with_metadata=False,
        )
        document: Any = bare_extraction(page.html, options=options)
        if document is None or not document.text:
            return None
        read = read_page(page.html)
        metadata = read_metadata(read, read_head(read), page.url, page.fetched_at)
        return Extracted(document.text, **metadata, blocks_left_out=None)

    return extract
