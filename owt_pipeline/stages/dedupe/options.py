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
        "minimum similarity of a near-duplicate: the exact Jaccard similarity of the texts' "
        "n-grams; of the pairs exactly at the threshold, 99.8% are found at 0.8, and at least 98% "
        "from 0.25 on",
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
        "document to keep of a group of duplicates; ties are broken by url_id",
        choices=("longest", "highest_score", "earliest"),
    )
    against: tuple[str, ...] = option(
        (),
        "remove documents that repeat a text of these Parquet or JSON Lines files (field `text`), "
        "such as evaluation sets",
        metavar="FILE",
        is_path=True,
        shapes_bytes=False,  # their content does, and is among the sources
    )
