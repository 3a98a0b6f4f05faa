"""What the trainer's samplers show of short and of long documents."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, folded, joined, percent, plot, span, table

Stats = Mapping[str, Any]


def sampler(stats: Stats) -> Markup:
    found = stats["sampler"]
    if not found:
        return absent("There are no tokens.")
    said = (
        f"What a model sees in an epoch, in samples of {found['context']:,} tokens. The sampler packed shows the "
        f"documents as they are; longbiased takes {percent(found['long_fraction'])} of its samples from those of at "
        f"least {found['long_min_tokens']} tokens. A sample that holds several documents counts for the length of each."
    )
    rows = [
        (
            span(row["at_least"], None if row["below"] is None else row["below"] - 1),
            percent(row["documents"]),
            *(percent(row[name][key]) if row[name] else None for name in ("packed", "longbiased")
              for key in ("samples", "tokens")),
        )
        for row in found["rows"]
    ]  # fmt: skip
    columns = ["tokens", "documents", "packed: samples", "packed: tokens", "longbiased: samples", "longbiased: tokens"]
    return joined(
        [
            element("p", said),
            plot("sampler", "Documents by length, and the share of the tokens shown that are theirs."),
            folded("As a table", table(columns, rows)),
        ]
    )
