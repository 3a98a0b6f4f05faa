"""Options of export: which decisions of dedupe apply, and which licences to keep."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    rules: tuple[str, ...] = option(
        ("exact", "near"),
        "duplicates to remove: exact copies, near-duplicates, or none",
        choices=("exact", "near", "none"),
    )
    min_similarity: float = option(
        0.0,
        "remove only duplicates with at least this similarity to the kept document",
        minimum=0.0,
        maximum=1.0,
    )
    min_contained: float = option(
        0.0,
        "remove only duplicates with at least this share of their n-grams in the kept document",
        minimum=0.0,
        maximum=1.0,
    )
    licenses: tuple[str, ...] = option(
        (),
        "keep only documents whose page declares one of these licences (SPDX identifiers)",
        metavar="ID",
    )
