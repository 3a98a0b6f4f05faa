"""Filters decide by every published rule, with its thresholds."""

from __future__ import annotations

import json
import random
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.stages.clean.documents import clean_document
from owt_pipeline.stages.clean.filters import FILTERS, c4_lines, first_violation, words_of
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.stage import STAGE
from schemas import DATASETS, Reason, SettingsError
from schemas.filters import BUILT_IN
from schemas.settings import from_table, shaping_options

WORDS = (
    "have that with night river stone walk bright house yellow over small garden window letter "
    "summer song"
).split()
RNG = random.Random(7)
LINES = [" ".join(RNG.sample(WORDS, 12)).capitalize() + "." for _ in range(40)]
PROSE = "\n".join(LINES)
WITHOUT_STOP_WORDS = [
    word for word in PROSE.split() if word.lower().strip(".") not in ("have", "that", "with")
]


def broken_rule(name: str, text: str) -> str | None:
    """Return the rule that a text breaks with default thresholds; None if it breaks none."""
    measure = FILTERS[BUILT_IN[name].measured_by or name]
    return first_violation(measure(text), getattr(Options(), name))


def test_every_filter_has_thresholds_signals_and_a_reason() -> None:
    columns = DATASETS["clean"].schema.field("signals").type
    assert columns.names == list(FILTERS)
    assert set(FILTERS) <= set(BUILT_IN)
    assert Options.__dataclass_fields__["filters"].metadata["choices"] == tuple(BUILT_IN)
    for name, measure in FILTERS.items():
        assert columns.field(name).type.names == list(measure(PROSE))
    for name, thresholds in BUILT_IN.items():
        assert str(Reason.of(name)) == name
        assert getattr(Options(), name) == thresholds
        own_signals = columns.field(thresholds.measured_by or name).type.names
        assert set(thresholds.signals()) <= set(own_signals)
        assert thresholds.measured_by or thresholds.signals() == own_signals


def test_lines_are_fineweb_without_repeated_lines() -> None:
    fineweb = vars(Options().fineweb)
    lines = vars(Options().lines)
    assert {**lines, "max_repeated_line_chars": 0.01} == fineweb


def test_an_unused_filter_without_signals_changes_no_key() -> None:
    default = STAGE.key_options(Options())
    assert "lines" not in default
    assert default["fineweb"]["max_short_lines"] == 0.67
    unused = from_table(Options, {"lines": {"max_short_lines": 0.5}}, "[clean]")
    assert STAGE.key_options(unused) == default
    on = from_table(Options, {"filters": ["lines"], "lines": {"max_short_lines": 0.5}}, "[clean]")
    assert STAGE.key_options(on)["lines"]["max_short_lines"] == 0.5


LONG_WORDS = "the incomprehensibilities and counterrevolutionaries " * 30


def test_a_threshold_of_ones_own_decides() -> None:
    table = {
        "languages": ("all",),
        "filters": ("gopher_quality",),
        "gopher_quality": {"max_word_length": 12.25},
    }
    options = from_table(Options, table, "config.toml [clean]")
    assert clean_document(LONG_WORDS, options).reason is None
    assert shaping_options(options)["gopher_quality"]["max_word_length"] == 12.25


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        (
            {"max_sentences": 3},
            r"config.toml \[clean.c4\]: unknown key 'max_sentences'; did you mean",
        ),
        (
            {"min_sentences": "3"},
            r"config.toml \[clean.c4\]: min_sentences: '3' is not a whole number",
        ),
        (3, r"config.toml \[clean.c4\]: 3 is not a table, such as {max_lorem_ipsum = 1}"),
    ],
)
def test_a_mistaken_threshold_is_one_clear_error(table: object, problem: str) -> None:
    with pytest.raises(SettingsError, match=problem):
        from_table(Options, {"c4": table}, "config.toml [clean]")


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("gopher_quality", "the cat and the dog " * 9, "words is 45, less than 50"),
        ("gopher_quality", "a b of " * 40, "word_length is 1.3333, less than 3"),
        ("gopher_quality", LONG_WORDS, "word_length is 12.2500, more than 10"),
        ("gopher_quality", PROSE + " # #" * 100, "hash_signs is"),
        ("gopher_quality", PROSE + " ..." * 80, "ellipses is"),
        (
            "gopher_quality",
            "\n".join(f"- {line}" for line in LINES),
            "bullet_lines is 1.0000, more than 0.9",
        ),
        (
            "gopher_quality",
            "\n".join(f"{line[:-1]} and so it went on..." for line in LINES[:20]),
            "ellipsis_lines is",
        ),
        ("gopher_quality", PROSE + " 12 34 56" * 200, "alphabetic_words is"),
        ("gopher_quality", " ".join(WITHOUT_STOP_WORDS), "stop_words is"),
        ("gopher_repetition", "\n\n".join([LINES[0], LINES[1]] * 3), "duplicate_paragraphs is"),
        (
            "gopher_repetition",
            "\n\n".join([*LINES[:12], LINES[0] * 8, LINES[0] * 8]),
            "duplicate_paragraph_chars is",
        ),
        ("gopher_repetition", "\n".join([*LINES[:4], "x", "x", "x", "x"]), "duplicate_lines is"),
        (
            "gopher_repetition",
            "\n".join([*LINES[:12], LINES[0] * 8, LINES[0] * 8]),
            "duplicate_line_chars is",
        ),
        (
            "gopher_repetition",
            " ".join(f"very good {word}" for word in PROSE.split()[:99]),
            "top_2_gram_chars is",
        ),
        (
            "gopher_repetition",
            " ".join(f"{line} {LINES[1]}" for line in LINES[:4]),
            "gram_chars is",
        ),
        ("fineweb", PROSE.replace(".", ""), "punctuated_lines is 0.0000, less than 0.12"),
        ("fineweb", "\n".join(["Short line."] * 3 + LINES[:1]), "short_lines is"),
        ("fineweb", "\n".join([*LINES[:20], LINES[3]]), "repeated_line_chars is"),
        (
            "fineweb",
            "\n".join(f"{line[:31]}x." for line in LINES[:20]) + "\n" * 200,
            "new_lines is",
        ),
        ("lines", PROSE.replace(".", ""), "punctuated_lines is 0.0000, less than 0.12"),
        ("lines", "\n".join(["Short line."] * 3 + LINES[:1]), "short_lines is 0.7500, more than"),
        ("lines", "\n".join(f"{line[:31]}x." for line in LINES[:20]) + "\n" * 200, "new_lines is"),
        ("lines", "\n".join([*LINES[:20], *LINES[:20]]), None),
        # C4 judges by lines that it later drops, but not by those that it drops before.
        (
            "c4",
            PROSE + "\nOur privacy policy is { ... } as ever.",
            "curly_brackets is 1, more than 0",
        ),
        ("c4", PROSE + "\nLorem ipsum is dolor in JavaScript.", "lorem_ipsum is 1, more than 0"),
        ("c4", PROSE + "\nif (x) {\nLorem ipsum\n{ short }.", None),
        ("c4", "One sentence is just here. And here is another.", "sentences is 2, less than 3"),
        ("c4", "One sentence is just here. And here is another.\nThis here is the third.", None),
        ("c4", "Home\nNews", "sentences is 0, less than 3"),
        # Footnote marks do not count as words, and stop words may stand in brackets.
        ("gopher_quality", 'Two words — [ * ] "…"', "words is 2, less than 50"),
        ("gopher_quality", "“the mill,” (to) *be* that. Have " * 30, None),
        (
            "gopher_quality",
            "\n".join(f"{line} [ {n} ] — [{n}]" for n, line in enumerate(LINES)),
            None,
        ),
        (
            "gopher_quality",
            "\n".join(f"“{x[:-1]}” — [*] ({x})[^{n}] | … |" for n, x in enumerate(LINES)),
            None,
        ),
        *((name, PROSE, None) for name in BUILT_IN),
    ],
)
def test_each_filter_rejects_by_each_of_its_rules(name: str, text: str, rule: str | None) -> None:
    broken = broken_rule(name, text)
    assert broken is None if rule is None else rule in (broken or "passed")


def plain_n_gram_chars(words: list[str]) -> dict[str, int]:
    """Count the characters of Gopher's n-grams by datatrove's definition, one n-gram at a time."""
    chars = {}
    for n in range(2, 11):
        n_grams = [" ".join(words[start : start + n]) for start in range(len(words) - n + 1)]
        if n < 5:
            top, count = Counter(n_grams).most_common(1)[0] if n_grams else ("", 0)
            chars[f"top_{n}_gram_chars"] = len(top) * count
            continue
        seen: set[str] = set()
        repeated = start = 0
        while start < len(n_grams):
            is_repeated = n_grams[start] in seen
            seen.add(n_grams[start])
            repeated += is_repeated * len("".join(words[start : start + n]))
            start += n if is_repeated else 1
        chars[f"duplicate_{n}_gram_chars"] = repeated
    return chars


@given(st.lists(st.sampled_from([*WORDS, "a", "b"]), min_size=1, max_size=150), st.integers(1, 4))
def test_repeated_n_grams_equal_the_plain_definition(words: list[str], times: int) -> None:
    text = " ".join(words * times)
    measured = FILTERS["gopher_repetition"](text)
    for name, chars in plain_n_gram_chars(words_of(text)).items():
        assert measured[name] == chars / len(text)


MEASURES: dict[str, Callable[[str], object]] = {
    # spaCy splits words in this way.
    "words": words_of,
    # Punkt counts sentences in this way.
    "sentences": lambda text: FILTERS["c4"](text)["sentences"],
    "c4_lines": lambda text: c4_lines(f"{PROSE}\n{text}")[1].removeprefix(PROSE).strip(),
    "masked": lambda text: clean_document(text, Options(mask_addresses=True)).text,
}
TEXTS = [
    line.split("\t")
    for line in Path(__file__).with_name("texts.tsv").read_text("utf-8").split("\n")[1:-1]
]


@pytest.mark.parametrize(("measure", "expected", "text"), TEXTS)
def test_a_text_is_measured_as_by_the_published_code(
    measure: str, expected: str, text: str
) -> None:
    assert MEASURES[measure](json.loads(text)) == json.loads(expected)


@given(st.text(max_size=400))
def test_filters_accept_any_text(text: str) -> None:
    for name in BUILT_IN:
        broken_rule(name, text)


@pytest.mark.parametrize(
    "unit", ["-", "/", ".", "!", " ", "'", "1.", "://", ".. ", '."', "?!) ", "a. ", "é"]
)
def test_long_repetitive_text_is_judged(unit: str) -> None:
    text = f"b{unit * (100_000 // len(unit))}b"
    started = time.process_time()
    clean_document(text, Options(min_tokens=0, languages=("all",), filters=tuple(BUILT_IN)))
    for name in BUILT_IN:
        broken_rule(name, text)
    # It takes half a second. A search that begins at every place of the run takes minutes.
    assert time.process_time() - started < 10
