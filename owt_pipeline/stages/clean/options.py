"""Options of clean: how text is repaired, which documents are rejected, and the thresholds of
the published filters."""

from __future__ import annotations

from dataclasses import dataclass

from schemas import option


@dataclass(frozen=True)
class GopherRepetition:
    """Gopher's repetition rules: Rae et al., "Scaling Language Models", 2021 (arXiv 2112.11446),
    table A1."""

    max_duplicate_paragraphs: float = option(0.3, "share of paragraphs that repeat an earlier one")
    max_duplicate_paragraph_chars: float = option(0.2, "share of characters in such paragraphs")
    max_duplicate_lines: float = option(0.3, "share of lines that repeat an earlier one")
    max_duplicate_line_chars: float = option(0.2, "share of characters in such lines")
    max_top_2_gram_chars: float = option(0.20, "share of characters in the most frequent 2-gram")
    max_top_3_gram_chars: float = option(0.18, "share of characters in the most frequent 3-gram")
    max_top_4_gram_chars: float = option(0.16, "share of characters in the most frequent 4-gram")
    max_duplicate_5_gram_chars: float = option(0.15, "share of characters in repeated 5-grams")
    max_duplicate_6_gram_chars: float = option(0.14, "share of characters in repeated 6-grams")
    max_duplicate_7_gram_chars: float = option(0.13, "share of characters in repeated 7-grams")
    max_duplicate_8_gram_chars: float = option(0.12, "share of characters in repeated 8-grams")
    max_duplicate_9_gram_chars: float = option(0.11, "share of characters in repeated 9-grams")
    max_duplicate_10_gram_chars: float = option(0.10, "share of characters in repeated 10-grams")


@dataclass(frozen=True)
class GopherQuality:
    """Gopher's quality rules: Rae et al., 2021, appendix A.1.1."""

    min_words: int = option(50, "words that contain a letter or a digit")
    max_words: int = option(100_000, "words that contain a letter or a digit")
    min_word_length: float = option(3.0, "mean characters of a word")
    max_word_length: float = option(10.0, "mean characters of a word")
    max_hash_signs: float = option(0.1, "hash signs per word")
    max_ellipses: float = option(0.1, "ellipses per word")
    max_bullet_lines: float = option(0.9, "share of lines that start with a bullet")
    max_ellipsis_lines: float = option(0.3, "share of lines that end with an ellipsis")
    min_alphabetic_words: float = option(0.8, "share of words that contain a letter")
    min_stop_words: int = option(
        2, "how many of these occur: the, be, to, of, and, that, have, with"
    )


@dataclass(frozen=True)
class C4:
    """C4's rules on pages: Raffel et al., JMLR 2020, section 2.2. Those on lines have no
    thresholds here."""

    max_lorem_ipsum: int = option(0, 'lines with "lorem ipsum"')
    max_curly_brackets: int = option(0, "lines with a curly bracket")
    min_sentences: int = option(
        3, "sentences on the lines that are kept (the paper says 5, the code that made C4 3)"
    )


@dataclass(frozen=True)
class FineWeb:
    """FineWeb's own rules: Penedo et al., NeurIPS 2024 (arXiv 2406.17557), section 3.6."""

    min_punctuated_lines: float = option(0.12, "share of lines that end a sentence")
    max_short_lines: float = option(0.67, "share of lines of 30 characters or fewer")
    max_repeated_line_chars: float = option(
        0.01, "share of characters in lines that repeat an earlier one"
    )
    max_new_lines: float = option(0.3, "new lines per word")


@dataclass(frozen=True)
class Options:
    """Options of the stage."""

    reserved: str = option(
        "reject",
        "pages that reserve their use (noai, noimageai, tdm-reservation); `keep` leaves them in, "
        "with the column "
        "`reserved`",
        choices=("reject", "keep"),
    )
    fix_text: bool = option(
        True,
        "repair mojibake, entities and odd widths with ftfy, and tidy white space; `no_fix_text` "
        "keeps every byte",
    )
    normalization: str = option(
        "NFC", "Unicode normalization; ConnorJL used NFKC", choices=("NFC", "NFKC", "none")
    )
    uncurl_quotes: bool = option(False, "straighten curly quotes, as ftfy does by default")
    mask_addresses: bool = option(
        False, "replace e-mail and public IP addresses, in titles and names too"
    )
    min_tokens: int = option(128, "reject documents with fewer GPT-2 tokens", minimum=0)
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
        choices=("gopher_repetition", "gopher_quality", "c4", "fineweb"),
    )
    signals: tuple[str, ...] = option(
        (),
        "functions of your own from a text to a number, a column `own_signals`; with >=X or <=X, "
        "the numbers to keep",
        metavar="MODULE:FUNCTION",
    )
    decontaminate: tuple[str, ...] = option(
        (),
        "evaluation sets as JSON, Parquet or plain text; reject documents that share 13 words in a "
        "row with one",
        metavar="FILE",
        shapes_bytes=False,  # the key includes their content
    )
    gopher_repetition: GopherRepetition = option(
        GopherRepetition(), "thresholds of the filter gopher_repetition", is_flag=False
    )
    gopher_quality: GopherQuality = option(
        GopherQuality(), "thresholds of the filter gopher_quality", is_flag=False
    )
    c4: C4 = option(C4(), "thresholds of the filter c4", is_flag=False)
    fineweb: FineWeb = option(FineWeb(), "thresholds of the filter fineweb", is_flag=False)
