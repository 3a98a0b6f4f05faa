"""Options of dedupe: the definition of a near-duplicate, shared with the library, and the
stage's own options."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Comparison:
    """What counts as a near-duplicate."""

    threshold: float = option(
        0.8,
        "least exact similarity (Jaccard's) of a near-duplicate; from 0.25 on, at least 98 of 100 "
        "pairs exactly at it are compared, 998 of 1,000 at 0.8",
        minimum=0.05,
        maximum=1.0,
        metavar="S",
    )
    ngram: int = option(5, "words in an n-gram", minimum=1, maximum=1000)


@dataclass(frozen=True)
class Options(Comparison):
    """Options of the stage."""

    survivor: str = option(
        "longest",
        "which of several duplicates to keep; ties by url_id",
        choices=("longest", "highest_score", "earliest"),
    )
    against: tuple[str, ...] = option(
        (),
        "Parquet or JSON Lines files with texts (field `text`), such as evaluation sets: documents "
        "that repeat one of "
        "these are removed",
        metavar="FILE",
        shapes_bytes=False,  # their content does, and is among the sources
    )
