"""Options of clean: how text is repaired, and which documents are rejected."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    fix_text: bool = option(
        True,
        "repair mojibake, entities and odd widths with ftfy, but keep wide punctuation in Chinese, Japanese and Korean",
    )
    normalization: str = option("NFC", "Unicode normalization; ConnorJL used NFKC", choices=("NFC", "NFKC", "none"))
    leave_unfixed: tuple[str, ...] = option(
        (),
        "ftfy rules to disable, by their names in ftfy",
        choices=(
            *("unescape_html", "remove_terminal_escapes", "fix_encoding", "restore_byte_a0", "replace_lossy_sequences"),
            *("decode_inconsistent_utf8", "fix_c1_controls", "fix_latin_ligatures", "fix_character_width"),
            *("fix_line_breaks", "fix_surrogates", "remove_control_chars"),
        ),
        metavar="RULE",
    )
    uncurl_quotes: bool = option(False, "straighten curly quotes, as ftfy does by default; needs fix_text")
    mask_addresses: bool = option(False, "replace e-mail and public IP addresses, in titles and names too")
    min_tokens: int = option(128, "reject documents with fewer GPT-2 tokens", minimum=0)
    max_tokens: int = option(0, "reject documents with more GPT-2 tokens; 0 for no limit", minimum=0)
    languages: tuple[str, ...] = option(("en",), "languages to keep, as ISO 639-1 codes, or `all`", metavar="CODE")
    min_language_score: float = option(
        0.0, "reject documents whose language is detected with less confidence", minimum=0.0, maximum=1.0
    )
    filters: tuple[str, ...] = option(
        (),
        "published filters that reject documents; c4 also drops lines",
        choices=("boilerplate", "gopher_repetition", "gopher_quality", "c4", "fineweb"),
    )
    measured_share: float = option(
        0.2,
        "share of the documents to measure with the other filters as well, for the report",
        minimum=0.0,
        maximum=1.0,
    )
    decontaminate: tuple[str, ...] = option(
        (),
        "evaluation sets as JSON, Parquet or plain text; reject documents that share a run of words with one",
        metavar="FILE",
        shapes_bytes=False,  # the fingerprint includes their content
    )
    decontaminate_words: int = option(13, "words in such a run", minimum=4)
    unaltered: bool = option(False, "keep text byte for byte: no repair, normalization or changes of white space")
