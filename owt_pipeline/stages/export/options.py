"""Options of export: which decisions of dedupe apply, and which licences to keep."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    rules: tuple[str, ...] = option(
        ("exact", "near"), "rules whose decisions apply", choices=("exact", "near", "none")
    )
    min_similarity: float = option(
        0.0, "apply decisions of at least this similarity", minimum=0.0, maximum=1.0
    )
    min_contained: float = option(
        0.0,
        "apply decisions whose kept document has at least this share of the removed one's shingles",
        minimum=0.0,
        maximum=1.0,
    )
    licenses: tuple[str, ...] = option(
        (),
        "keep only documents whose page declares one of these licences, as SPDX identifiers",
        metavar="ID",
    )
