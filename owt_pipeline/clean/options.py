"""Options of clean: how text is repaired, and which documents are rejected."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    fix_text: bool = option(
        True,
        "repair mojibake, entities and odd widths with ftfy; Chinese, Japanese and Korean keep their wide punctuation",
    )
    normalization: str = option("NFC", "Unicode normalization; ConnorJL's is NFKC", choices=("NFC", "NFKC", "none"))
    leave_unfixed: tuple[str, ...] = option(
        (),
        "rules of ftfy's to leave out, by its names for them",
        choices=(
            *("unescape_html", "remove_terminal_escapes", "fix_encoding", "restore_byte_a0", "replace_lossy_sequences"),
            *("decode_inconsistent_utf8", "fix_c1_controls", "fix_latin_ligatures", "fix_character_width"),
            *("fix_line_breaks", "fix_surrogates", "remove_control_chars"),
        ),
        metavar="RULE",
    )
    uncurl_quotes: bool = option(False, "make curly quotes straight, as ftfy does by default; needs fix_text")
    mask_addresses: bool = option(False, "replace e-mail addresses and public IP addresses")
    min_tokens: int = option(128, "documents with fewer tokens of GPT-2 are rejected", minimum=0)
    max_tokens: int = option(0, "documents with more tokens of GPT-2 are rejected; 0 for no limit", minimum=0)
    languages: tuple[str, ...] = option(
        ("en",), "languages to keep, as ISO 639-1 codes; `all` keeps all", metavar="CODE"
    )
    min_language_score: float = option(
        0.0, "documents whose language is less sure are rejected", minimum=0.0, maximum=1.0
    )
    filters: tuple[str, ...] = option(
        (),
        "published rules to reject documents by; c4 drops lines, too",
        choices=("boilerplate", "gopher_repetition", "gopher_quality", "c4", "fineweb"),
    )
    measured_share: float = option(
        0.2,
        "share of the documents that filters which are not on measure, too, for the report",
        minimum=0.0,
        maximum=1.0,
    )
    decontaminate: tuple[str, ...] = option(
        (),
        "evaluation sets, as JSON or plain text: documents that share a run of words with one are rejected",
        metavar="FILE",
        shapes_bytes=False,  # their content does, and is in the fingerprint
    )
    decontaminate_words: int = option(13, "how long such a run is", minimum=4)
    unaltered: bool = option(False, "pass text on byte for byte: no repair, no normalization, white space as it is")
