"""Options of clean: how text is repaired, which documents are rejected, and the thresholds of
the published filters."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option
from schemas.filters import BUILT_IN, Thresholds


@dataclass(frozen=True)
class _Rules:
    """The options of the stage without the thresholds of its filters."""

    reserved: str = option(
        "reject",
        "reject or keep pages whose owner reserves their use for AI or data mining (noai, "
        "noimageai, tdm-reservation); the column `reserved` marks pages that are kept",
        choices=("reject", "keep"),
    )
    fix_text: bool = option(
        True,
        "repair mojibake, entities and full-width characters with ftfy, and tidy white space; "
        "--no_fix_text keeps every byte",
    )
    normalization: str = option(
        "NFC", "Unicode normalization; ConnorJL used NFKC", choices=("NFC", "NFKC", "none")
    )
    uncurl_quotes: bool = option(False, "straighten curly quotes, as ftfy does by default")
    mask_addresses: bool = option(
        False, "replace e-mail and public IP addresses, in titles and names too"
    )
    min_tokens: int = option(128, "reject documents with fewer tokens of GPT-2", minimum=0)
    languages: tuple[str, ...] = option(
        ("en",), "languages to keep, as ISO 639-1 codes, or `all`", metavar="CODE"
    )
    min_language_score: float = option(
        0.0,
        "reject documents whose language is detected with less confidence",
        minimum=0.0,
        maximum=1.0,
    )
    filters: tuple[str, ...] = option(
        (),
        "published filters that reject documents; c4 also drops lines",
        choices=BUILT_IN,
    )
    signals: tuple[str, ...] = option(
        (),
        "functions of yours that return a number for a text, for the column `own_signals`; with "
        ">=X or <=X, documents with other numbers are rejected",
        metavar="MODULE:FUNCTION",
    )
    decontaminate: tuple[str, ...] = option(
        (),
        "reject documents that share 13 consecutive words with one of these evaluation sets (JSON "
        "Lines, Parquet or plain text)",
        metavar="FILE",
        is_path=True,
        shapes_bytes=False,  # the key includes their content
    )


@dataclass(frozen=True)
class Options(Thresholds, _Rules):
    """The options of the stage: its rules, then a table of thresholds `[clean.NAME]` a filter."""
