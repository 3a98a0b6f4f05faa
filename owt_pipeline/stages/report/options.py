"""Options of report: how many documents it shows."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    sample_documents: int = option(
        20,
        "documents to show, from the corpus and from those that each filter dropped",
        minimum=0,
        maximum=100,
    )
