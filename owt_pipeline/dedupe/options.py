"""Options of dedupe: what makes a near-duplicate, which the library takes too, and what the stage does about it."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Comparison:
    """What makes a near-duplicate, and how it is looked for."""

    threshold: float = option(
        0.8, "exact similarity from which a document is removed", minimum=0.05, maximum=1.0, metavar="S"
    )
    similarity: str = option(
        "jaccard",
        "jaccard, |A & B| / |A | B|; or containment, the share of the removed document that the kept one holds",
        choices=("jaccard", "containment"),
    )
    shingles: str = option("words", "what n-grams are made of", choices=("words", "characters"))
    ngram: int = option(5, "words, or characters, in an n-gram", minimum=1, maximum=1000)
    num_perm: int = option(128, "MinHash permutations to spend", minimum=1, maximum=4096)
    bands: int | None = option(None, "LSH bands; with --rows, in place of the optimiser's choice", minimum=1)
    rows: int | None = option(None, "MinHash values in a band", minimum=1)
    false_negative_weight: float = option(
        0.999,
        "what a missed pair weighs when bands and rows are chosen; a candidate in vain, which costs only its "
        "verification, weighs the rest",
        minimum=0.0,
        maximum=1.0,
    )
    max_comparisons: int = option(
        64, "documents each one is compared with, at most; those that share most rare n-grams first", minimum=1
    )


@dataclass(frozen=True)
class Options(Comparison):
    """Options of the stage."""

    survivor: str = option(
        "longest", "which of several duplicates stays; ties by url_id", choices=("longest", "highest_score", "earliest")
    )
    against: tuple[str, ...] = option(
        (),
        "working directories of other corpora, such as an evaluation set: what repeats a document of theirs goes too",
        shapes_bytes=False,  # what is in them does, and is among the sources
        metavar="DIR",
    )
    supersede: bool = option(
        False, "write also which documents of the bases would go for one of this run, for the next full export"
    )
    oversized_bucket: int = option(1000, "buckets of more documents are counted as oversized", minimum=2)
    max_cluster_share: float = option(
        0.05, "share of the corpus that may repeat one document", minimum=0.0, maximum=1.0, shapes_bytes=False
    )
    max_host_share: float = option(
        0.1, "share of the corpus that may be duplicates of one host", minimum=0.0, maximum=1.0, shapes_bytes=False
    )
