"""Options of extract: the extractor, what belongs to the text, and the limits of a page."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Settings:
    """What an extractor is asked for; it ignores settings that it does not support.

    Attributes:
      extractor: its name.
      favor: `balanced`, `precision` (prefer losing text to keeping boilerplate) or `recall` (the
        reverse).
      include_comments, include_tables: whether readers' comments and tables belong to the text.
      text_format: `plain`, or `markdown`, which keeps headings, lists, tables, code and formulas.
    """

    extractor: str = option(
        "blocks", "blocks, our own; trafilatura; or `module:factory` of yours", metavar="NAME"
    )
    favor: str = option(
        "balanced",
        "precision rather loses text than keeps boilerplate; recall the reverse",
        choices=("balanced", "precision", "recall"),
    )
    include_comments: bool = option(False, "readers' comments belong to the text")
    include_tables: bool = option(True, "tables belong to the text")
    text_format: str = option(
        "plain",
        "plain text, or markdown, which keeps headings, lists, tables, code and formulas",
        choices=("plain", "markdown"),
    )


@dataclass(frozen=True)
class Options(Settings):
    """Options of the stage."""

    reject_walls: bool = option(
        True,
        "reject missing pages and parked domains that come with status 200 (soft_404), and logins, "
        "requests to consent "
        "and checks for robots in place of the page (wall)",
    )
    page_cpu_seconds: float = option(20.0, "CPU time a page may use", minimum=0.1)
    page_memory_mb: int = option(1024, "memory a page may use, in MiB", minimum=64)
