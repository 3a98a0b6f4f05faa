"""Options of dedupe: the definition of a near-duplicate, shared with the library, and the stage's own options."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Comparison:
    """What counts as a near-duplicate and how near-duplicates are found."""

    threshold: float = option(0.8, "least exact similarity of a near-duplicate", minimum=0.05, maximum=1.0, metavar="S")
    similarity: str = option(
        "jaccard",
        "jaccard, |A & B| / |A | B|; or containment, the share of the removed document found in the kept one, measured "
        "for pairs that MinHash finds: those of similar length (half as long: about one in four)",
        choices=("jaccard", "containment"),
    )
    shingles: str = option("words", "unit of the n-grams", choices=("words", "characters"))
    ngram: int = option(5, "words or characters in an n-gram", minimum=1, maximum=1000)
    num_perm: int = option(128, "most MinHash permutations to use", minimum=1, maximum=4096)
    bands: int | None = option(None, "LSH bands; with --rows, overrides the optimiser's choice", minimum=1)
    rows: int | None = option(None, "MinHash values in a band", minimum=1)
    false_negative_weight: float = option(
        0.999,
        "weight of missed pairs when bands and rows are chosen; the rest is the weight of false candidates, which "
        "only cost a verification",
        minimum=0.0,
        maximum=1.0,
    )
    max_comparisons: int = option(
        64, "most documents to compare each one with, those sharing most rare n-grams first", minimum=1
    )


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
        "working directories of other corpora, such as evaluation sets: duplicates of their documents are removed",
        shapes_bytes=False,  # their content does, and is among the sources
        metavar="DIR",
    )
    oversized_bucket: int = option(1000, "count buckets of more documents as oversized", minimum=2)
    max_cluster_share: float = option(
        0.05, "most of the corpus that may repeat one document", minimum=0.0, maximum=1.0, shapes_bytes=False
    )
    max_host_share: float = option(
        0.1, "most of the corpus that may be duplicates from one host", minimum=0.0, maximum=1.0, shapes_bytes=False
    )
