"""What the filters took away, and by which signal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline.report.markup import Markup, absent, element, joined, percent, plot, table

Stats = Mapping[str, Any]


def filters(stats: Stats) -> Markup:
    return joined([_lost(stats["filters"]["lost"]), element("h3", "Signals"), _signals(stats["filters"]["signals"])])


def _lost(lost: Sequence[Stats]) -> Markup:
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


def _signals(signals: Sequence[Stats]) -> Markup:
    if not signals:
        return absent("Nothing was measured: clean/ was written without signals.")
    said = (
        "What the documents measure, whether they were kept or dropped for whatever reason. A dotted line is a limit. "
        "A filter that is off measures a share of the documents, to show what it would drop; what is too short, too "
        "long or in another language is not measured further."
    )
    plots = (plot(f"signal-{k}", _caption(row)) for k, row in enumerate(signals))
    return joined([element("p", said), element("div", *plots, class_="grid")])


def _caption(row: Stats) -> str:
    limits = [f"{said} {row[key]:g}" for key, said in (("minimum", "at least"), ("maximum", "at most"))
              if row[key] is not None]  # fmt: skip
    allowed = f": {', '.join(limits)}" if limits else ""
    measured = "" if row["measured_share"] == 1 else f" (off; measured of {percent(row['measured_share'])})"
    return f"{row['signal']}{allowed}{measured}"
