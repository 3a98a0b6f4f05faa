"""Boxes with a button, in an article or around it: their sentences belong to what the button does.

    <p>The first paragraph.</p>
    <div> <h4>Our letter</h4> <p>Each Friday.</p> <form> … <button>Subscribe</button> </form> </div>

There are two kinds: a short element around a form, such as for a newsletter, and an element that
asks for consent to show embedded content. The second one has no form.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

import numpy as np

from owt_pipeline.stages.extract.content.article import holds
from owt_pipeline.stages.extract.content.asides import asks_for_consent
from owt_pipeline.stages.extract.html.blocks import Block, Container, num_words

# Longer elements may be a part of the article that ends with a form.
_MAX_BLOCKS = 12
_MAX_WORDS = 100
# A hostile page has thousands of containers around a button.
_MAX_DEPTH = 8


def leave_boxes(blocks: Sequence[Block], keep: np.ndarray, article: Container) -> None:
    """Clear `keep` of short boxes with a form, and of requests for consent that have a button."""
    for index, block in enumerate(blocks):
        if block.container.tag != "button":
            continue
        ancestors = list(islice(block.container.ancestors(), _MAX_DEPTH))
        form = next((ancestor for ancestor in ancestors if ancestor.tag == "form"), None)
        if form is not None:
            box = form.parent
        else:
            box = next((ancestor for ancestor in ancestors if ancestor.parent is article), None)
        if box is None or holds(box, article):
            continue
        first, last = _ends_of(box, blocks, index)
        in_box = blocks[first : last + 1]
        if len(in_box) > _MAX_BLOCKS or sum(map(num_words, in_box)) > _MAX_WORDS:
            continue
        if form is not None or any(map(asks_for_consent, in_box)):
            keep[first : last + 1] = False


def _ends_of(box: Container, blocks: Sequence[Block], index: int) -> tuple[int, int]:
    """Return the indexes of the first and the last block of a box that has the block at `index`.

    Of a box with too many blocks, return those of a part that has too many, too.
    """
    first = index
    while first > 0 and index - first <= _MAX_BLOCKS and holds(box, blocks[first - 1].container):
        first -= 1
    last = index
    end = min(len(blocks), index + _MAX_BLOCKS + 1)
    while last + 1 < end and holds(box, blocks[last + 1].container):
        last += 1
    return first, last
