"""Built-in filters of clean: thresholds, signals and reject reasons.

Everything that names a filter follows from its class and from its field of `Thresholds`: the
choices of `filters`, the table of thresholds `[clean.NAME]`, the fields of the column `signals`,
the reject reason NAME and the reference. The function of the same name in
`owt_pipeline/stages/clean/filters.py` measures a text.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

from schemas.settings import option


class Filter:
    """The thresholds of a filter by published rules. `max_X` and `min_X` limit the signal X.

    Attributes:
      measured_by: the filter whose signals it limits; "" if it has signals of its own.
    """

    measured_by: ClassVar[str] = ""

    @classmethod
    def signals(cls) -> list[str]:
        """Return the names of the signals that the filter limits, in order."""
        thresholds = [field.name for field in dataclasses.fields(cls)]  # type: ignore[arg-type]
        return list(dict.fromkeys(name.partition("_")[2] for name in thresholds))


@dataclass(frozen=True)
class GopherRepetition(Filter):
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
class GopherQuality(Filter):
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
class C4(Filter):
    """C4's rules on pages: Raffel et al., JMLR 2020, section 2.2.

    C4's rules on lines have no thresholds here.
    """

    max_lorem_ipsum: int = option(0, 'lines with "lorem ipsum"')
    max_curly_brackets: int = option(0, "lines with a curly bracket")
    min_sentences: int = option(
        3, "sentences on the lines that are kept (the paper says 5, the code that made C4 3)"
    )


@dataclass(frozen=True)
class FineWeb(Filter):
    """FineWeb's own rules: Penedo et al., NeurIPS 2024 (arXiv 2406.17557), section 3.6."""

    min_punctuated_lines: float = option(0.12, "share of lines that end a sentence")
    max_short_lines: float = option(0.67, "share of lines of 30 characters or fewer")
    max_repeated_line_chars: float = option(
        0.01, "share of characters in lines that repeat an earlier one"
    )
    max_new_lines: float = option(0.3, "new lines per word")


@dataclass(frozen=True)
class Lines(Filter):
    """FineWeb's rules on lines, section 3.6, without the rule on repeated lines.

    They find lists and shop pages. Of 181 good pages read by eye, they reject 8. All four rules
    reject 24: 16 of these break only the rule on repeated lines (docs/benchmarks/tried.md).
    """

    # The signals are FineWeb's, so a text is measured once for both filters.
    measured_by = "fineweb"

    min_punctuated_lines: float = option(0.12, "share of lines that end a sentence")
    max_short_lines: float = option(0.67, "share of lines of 30 characters or fewer")
    max_new_lines: float = option(0.3, "new lines per word")


@dataclass(frozen=True)
class Thresholds:
    """The thresholds of each built-in filter, by its name, in the order of application.

    The order is FineWeb's. A filter that is measured by another one comes after it. The text of a
    field is what the filter's reject reason means.
    """

    gopher_repetition: GopherRepetition = option(
        GopherRepetition(), "breaks one of Gopher's rules against repetition", is_flag=False
    )
    gopher_quality: GopherQuality = option(
        GopherQuality(), "breaks one of Gopher's rules for quality", is_flag=False
    )
    c4: C4 = option(C4(), "breaks one of C4's rules", is_flag=False)
    fineweb: FineWeb = option(FineWeb(), "breaks one of FineWeb's rules", is_flag=False)
    lines: Lines = option(Lines(), "breaks one of FineWeb's rules on lines", is_flag=False)


BUILT_IN: dict[str, Filter] = vars(Thresholds())
"""The default thresholds of each filter, by its name, in the order of application."""

MEANINGS: dict[str, str] = {
    field.name: field.metadata["help"] for field in dataclasses.fields(Thresholds)
}
"""What the reject reason of each filter means, by the filter's name."""
