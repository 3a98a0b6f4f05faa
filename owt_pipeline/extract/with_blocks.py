"""Our own extractor: one parse, one walk over the tree, and judgements on what was found.

On WCXB's pages it finds more of the main text with less around it than trafilatura at its best, at several times
its speed: `benchmarks/extract.py`. It takes its clues from boilerpipe (Kohlschütter et al., WSDM 2010: blocks of
text and their link density), readability and trafilatura (names of elements) and Resiliparse (what is no content).
"""

from __future__ import annotations

from owt_pipeline.extract.blocks import ROW, read_blocks
from owt_pipeline.extract.embedded import embedded_text, linked_data
from owt_pipeline.extract.extractor import Extract, Extracted, Page, Settings
from owt_pipeline.extract.main_content import BALANCED, PRECISION, RECALL, main_content
from owt_pipeline.extract.metadata import read_metadata
from owt_pipeline.extract.notices import without_notice
from owt_pipeline.extract.rendering import markdown, plain_text
from owt_pipeline.extract.tree import body_of, parse

_LITTLE_TEXT = 300  # characters; with fewer, the page may be one that its script fills
_THRESHOLDS = {"balanced": BALANCED, "precision": PRECISION, "recall": RECALL}


def make(settings: Settings) -> Extract:
    """The extractor; `settings.fast` changes nothing."""

    def extract(page: Page) -> Extracted | None:
        return _extract(page, settings)

    return extract


def _extract(page: Page, settings: Settings) -> Extracted | None:
    root = parse(page.html)
    if root is None:
        return None
    data = linked_data(root)
    metadata = read_metadata(root, data, page.url, page.fetched_at)
    blocks, containers = read_blocks(body_of(root))
    if not settings.include_tables:
        blocks = [block for block in blocks if block.form != ROW]
    content = main_content(blocks, containers, _THRESHOLDS[settings.favor], comments=settings.include_comments)
    content = without_notice(content)
    text = markdown(content, containers) if settings.text_format == "markdown" else plain_text(content)
    if len(text) < _LITTLE_TEXT:
        text = max(text, embedded_text(root, data, _plain), key=len)
    if not text:
        return None
    return Extracted(text, **vars(metadata))


def _plain(html: str) -> str:
    """All the text of a piece of HTML."""
    root = parse(f"<div>{html}</div>")
    return plain_text(read_blocks(body_of(root))[0]) if root is not None else ""
