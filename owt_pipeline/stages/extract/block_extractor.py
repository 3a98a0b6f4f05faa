"""Our own extractor, `blocks`: one pass over a page, and a model fitted on labelled pages.

The features of the model are based on boilerpipe (Kohlschütter et al., WSDM 2010: blocks of text
and their link density), readability and trafilatura (names of elements) and Resiliparse (elements
that are not content).
"""

from __future__ import annotations

import gc
import re

from owt_pipeline.stages.extract.content.main_content import FAVORS, MAX_BLOCKS, main_content
from owt_pipeline.stages.extract.content.metadata import read_head, read_metadata
from owt_pipeline.stages.extract.content.model import Model, load
from owt_pipeline.stages.extract.content.page_kind import read_page_kind
from owt_pipeline.stages.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.stages.extract.html.blocks import ROW
from owt_pipeline.stages.extract.html.rendering import markdown, plain_text

# What a page shows until a script has run: one word of any language with dots, or a notice.
_NO_TEXT = re.compile(
    r"\W*(?:false|true|null|undefined|(?:please wait\W*)?loading(?:\W+please wait)?|please wait)\W*"
    r"|\W*\w+\s*(?:\.{3}|…)\W*"
    r"|(?=[^\n]*(?:enable|disabled|activ|aktiv|requires?\b))[^\n]{0,80}\bjavascript\b[^\n]{0,120}"
    r"|checking your browser\b[^\n]{0,120}",
    re.IGNORECASE,
)
_MAX_NO_TEXT_CHARS = 200


def blocks(settings: Settings) -> Extract:
    """Return our own extractor."""
    return with_model(load(), settings)


def with_model(model: Model, settings: Settings) -> Extract:
    """Return our own extractor with another model than the packaged one."""

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
    head = read_head(page.parsed)
    metadata = read_metadata(page.parsed, head, page.url, page.fetched_at)
    blocks = page.parsed.blocks
    if not settings.include_tables:
        blocks = [block for block in blocks if block.form != ROW]
    kind = read_page_kind(page.url, page.parsed.metas, head)
    favor = FAVORS[settings.favor]
    content = main_content(blocks, kind, model, favor, comments=settings.include_comments)
    text = markdown(content) if settings.text_format == "markdown" else plain_text(content)
    if not text or (len(text) <= _MAX_NO_TEXT_CHARS and _NO_TEXT.fullmatch(text)):
        return None
    num_left_out = max(len(blocks) - MAX_BLOCKS, 0) or None
    return Extracted(text, **metadata, blocks_left_out=num_left_out)
