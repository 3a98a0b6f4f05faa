"""Copyright lines of a site after the text of a page.

The model keeps one where a short page has little else, since it has sentences like the text.
The rule changes 2 of 1,957 labelled texts, and no score.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import numpy as np

from owt_pipeline.stages.extract.html.blocks import HEADING, PREFORMATTED, ROW, Block, is_prose

_NO_NOTICE_FORMS = frozenset((HEADING, ROW, PREFORMATTED))
# A line without a year may credit a photographer or the author of a quotation.
_COPYRIGHT = re.compile(
    r"\W*(?:©|\(c\)|copyright\b|&copy;)[^.]{0,20}\b(?:19|20)\d\d\b|.{0,120}\ball rights reserved\b",
    re.IGNORECASE | re.DOTALL,
)
_MAX_COPYRIGHT_CHARS = 300
_MAX_COPYRIGHT_LINES = 2


def leave_copyright(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of copyright lines at the end of a page that has prose before them."""
    kept_indexes: list[int] = np.flatnonzero(keep).tolist()
    if not any(is_prose(blocks[index]) for index in kept_indexes[:-1]):
        return
    for index in kept_indexes[: -_MAX_COPYRIGHT_LINES - 1 : -1]:
        block = blocks[index]
        if block.form in _NO_NOTICE_FORMS or block.chars > _MAX_COPYRIGHT_CHARS:
            return
        if _COPYRIGHT.match(block.text) is None:
            return
        keep[index] = False
