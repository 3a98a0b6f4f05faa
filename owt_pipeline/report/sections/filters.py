"""What the filters took away, and by which signal."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, joined, percent, plot, table

Stats = Mapping[str, Any]


def filters(stats: Stats) -> Markup:
    lost = stats["filters"]["lost"]
    if not lost:
        return absent("No filter dropped a document.")
    listed = table(
        ["stage", "reason", "documents", "characters", "tokens", "share"],
        [
            (r["stage"], r["reason"], r["documents"], r["characters"], r["tokens"], percent(r["share"]))
            for r in lost
        ],
    )  # fmt: skip
    said = (
        "What went with the documents that each filter dropped, in the tokens they would have been; the share is of "
        "all tokens that were lost so or are in the corpus."
    )
    return joined([element("p", said), plot("lost", "Tokens lost to each filter."), listed])
