"""The built-in extractors: our own, `blocks`, and trafilatura; both use the metadata of
`metadata.py`.

`blocks` reads a page in one pass and applies a model fitted on labelled pages. Its features are
based on boilerpipe (Kohlschütter et al., WSDM 2010: blocks of text and their link density),
readability and trafilatura (names of elements) and Resiliparse (elements that are not content).
"""

from __future__ import annotations

import gc
import logging
import re

from owt_pipeline.errors import UserError
from owt_pipeline.stages.extract.content.main_content import FAVORS, MOST_BLOCKS, main_content
from owt_pipeline.stages.extract.content.metadata import Head, read_head, read_metadata
from owt_pipeline.stages.extract.content.model import Model, load
from owt_pipeline.stages.extract.content.page_kind import read_page_kind
from owt_pipeline.stages.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.stages.extract.html.blocks import ROW
from owt_pipeline.stages.extract.html.marks import PageRead
from owt_pipeline.stages.extract.html.rendering import markdown, plain_text

logging.getLogger("trafilatura").setLevel(
    logging.CRITICAL
)  # its problems with a page become reject rows

_NO_TEXT = re.compile(
    r"\W*(?:false|true|null|undefined|(?:please wait\W*)?loading(?:\W+please wait)?|please "
    r"wait)\W*",
    re.I,
)


def blocks(settings: Settings) -> Extract:
    """Our own extractor."""
    return with_model(load(), settings)


def with_model(model: Model, settings: Settings) -> Extract:
    """Our own extractor with another model than the packaged one."""

    def extract(page: Page) -> Extracted | None:
        is_collecting = gc.isenabled()
        # A page is ten thousand objects without a cycle. Collecting while they are made takes 5%
        # of the time, and once more, before they are freed, 2%.
        gc.disable()
        try:
            return _extract_blocks(page, model, settings)
        finally:
            page.free_parsed()
            if is_collecting:
                gc.enable()

    return extract


def _extract_blocks(page: Page, model: Model, settings: Settings) -> Extracted | None:
    read, head, metadata = _read(page)
    blocks = read.blocks
    if not settings.include_tables:
        blocks = [block for block in blocks if block.form != ROW]
    kind = read_page_kind(page.url, read.metas, head)
    favor = FAVORS[settings.favor]
    content = main_content(blocks, kind, model, favor, comments=settings.include_comments)
    text = markdown(content) if settings.text_format == "markdown" else plain_text(content)
    if not text or _NO_TEXT.fullmatch(text):
        return None
    num_left_out = max(len(blocks) - MOST_BLOCKS, 0) or None
    return Extracted(text, **metadata, blocks_left_out=num_left_out)


def _read(page: Page) -> tuple[PageRead, Head, dict[str, str | None]]:
    head = read_head(page.parsed)
    return page.parsed, head, read_metadata(page.parsed, head, page.url, page.fetched_at)


def trafilatura(settings: Settings) -> Extract:
    """Main text by trafilatura (Barbaresi, ACL 2021)."""
    try:
        from trafilatura import extract as main_text
    except ImportError as error:
        raise UserError(
            f"extractor trafilatura: its package cannot be imported ({error}): "
            "pip install 'owt-pipeline[pipeline]'"
        ) from error

    def extract(page: Page) -> Extracted | None:
        text = main_text(
            page.html,
            url=page.url,
            output_format="markdown" if settings.text_format == "markdown" else "txt",
            favor_precision=settings.favor == "precision",
            favor_recall=settings.favor == "recall",
            include_comments=settings.include_comments,
            include_tables=settings.include_tables,
        )
        return Extracted(text, **_read(page)[2], blocks_left_out=None) if text else None

    return extract
