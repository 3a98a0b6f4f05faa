"""Options of extract: the settings of an extractor, and the limits of a page."""

from __future__ import annotations

from dataclasses import dataclass

from owt_pipeline.stages.extract.built_in import Settings
from schemas import option


@dataclass(frozen=True)
class Options(Settings):
    """Options of the stage."""

    reject_walls: bool = option(
        True,
        "reject missing pages and parked domains with status 200 (soft_404), and pages that show "
        "only a login, a consent form or a check for robots (wall)",
    )
    page_cpu_seconds: float = option(20.0, "maximum CPU time of a page", minimum=0.1)
    page_memory_mb: int = option(1024, "maximum memory of a page, in MiB", minimum=64)
