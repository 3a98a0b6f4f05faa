"""Options of report: how many documents it shows."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    sample_documents: int = option(
        20,
        "sample documents to show of the corpus, and of the rejects of each filter",
        minimum=0,
        maximum=100,
    )
