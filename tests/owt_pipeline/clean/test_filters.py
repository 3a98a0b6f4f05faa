"""Filters: every published rule, and its thresholds."""

from __future__ import annotations

import dataclasses
import random
import time
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.stages.clean.documents import clean_document
from owt_pipeline.stages.clean.filters import FILTERS, c4_lines, first_broken, words_of
from owt_pipeline.stages.clean.options import Options
from schemas import DATASETS, Reason, SettingsError
from schemas.settings import from_table, shaping_options

WORDS = "have that with night river stone walk bright house yellow over small garden window letter summer song".split()
RNG = random.Random(7)
LINES = [" ".join(RNG.sample(WORDS, 12)).capitalize() + "." for _ in range(40)]
PROSE = "\n".join(LINES)
WITHOUT_STOP_WORDS = [word for word in PROSE.split() if word.lower().strip(".") not in ("have", "that", "with")]


def found(name: str, text: str) -> str | None:
    return first_broken(FILTERS[name](text), getattr(Options(), name))


def test_every_filter_has_thresholds_and_a_column_of_its_signals() -> None:
    columns = DATASETS["clean"].schema.field("signals").type
    assert columns.names == list(FILTERS) == [str(Reason.of(name)) for name in FILTERS]
    assert Options.__dataclass_fields__["filters"].metadata["choices"] == tuple(FILTERS)
    for name, measure in FILTERS.items():
        signals = measure(PROSE)
        assert columns.field(name).type.names == list(signals)
        limits = [field.name.partition("_")[2] for field in dataclasses.fields(getattr(Options(), name))]
        assert list(dict.fromkeys(limits)) == list(signals)


def test_a_threshold_of_ones_own_decides() -> None:
    text = "the incomprehensibilities and counterrevolutionaries " * 30
    rules = {"languages": ("all",), "filters": ("gopher_quality",)}
    assert clean_document(text, Options(**rules)).reason == Reason.GOPHER_QUALITY  # type: ignore[arg-type]
    table = {**rules, "gopher_quality": {"max_word_length": 12.25}}
    options = from_table(Options, table, "config.toml [clean]")
    assert clean_document(text, options).reason is None
    assert shaping_options(options)["gopher_quality"]["max_word_length"] == 12.25


def test_a_mistaken_threshold_is_one_clear_error() -> None:
    for table, problem in (
        ({"c4": {"max_sentences": 3}}, r"config.toml \[clean.c4\]: unknown key 'max_sentences'; did you mean"),
        ({"c4": {"min_sentences": "3"}}, r"config.toml \[clean.c4\]: min_sentences: '3' is not a whole number"),
        ({"c4": 3}, r"config.toml \[clean.c4\]: 3 is not a table, such as {max_lorem_ipsum = 1}"),
    ):
        with pytest.raises(SettingsError, match=problem):
            from_table(Options, table, "config.toml [clean]")


@pytest.mark.parametrize(
    ("name", "text", "rule"),
    [
        ("gopher_quality", "the cat and the dog " * 9, "words is 45, less than 50"),
        ("gopher_quality", "a b of " * 40, "word_length is 1.3333, less than 3"),
        (
            "gopher_quality",
            "the incomprehensibilities and counterrevolutionaries " * 30,
            "word_length is 12.2500, more than 10",
        ),
        ("gopher_quality", PROSE + " # #" * 100, "hash_signs is"),
        ("gopher_quality", PROSE + " ..." * 80, "ellipses is"),
        ("gopher_quality", "\n".join(f"- {line}" for line in LINES), "bullet_lines is 1.0000, more than 0.9"),
        (
            "gopher_quality",
            "\n".join(line[:-1] + " and so it went on to the river..." for line in LINES[:20]),
            "ellipsis_lines is",
        ),
        ("gopher_quality", PROSE + " 12 34 56" * 200, "alphabetic_words is"),
        ("gopher_quality", " ".join(WITHOUT_STOP_WORDS), "stop_words is"),
        ("gopher_repetition", "\n\n".join([LINES[0], LINES[1]] * 3), "duplicate_paragraphs is"),
        ("gopher_repetition", "\n\n".join([*LINES[:12], LINES[0] * 8, LINES[0] * 8]), "duplicate_paragraph_chars is"),
        ("gopher_repetition", "\n".join([*LINES[:4], "x", "x", "x", "x"]), "duplicate_lines is"),
        ("gopher_repetition", "\n".join([*LINES[:12], LINES[0] * 8, LINES[0] * 8]), "duplicate_line_chars is"),
        (
            "gopher_repetition",
            " ".join(f"very good {word}" for line in LINES for word in line.split()[:3]),
            "top_2_gram_chars is",
        ),
        ("gopher_repetition", " ".join(f"{line} {LINES[1]}" for line in LINES[:4]), "gram_chars is"),
        ("fineweb", PROSE.replace(".", ""), "punctuated_lines is 0.0000, less than 0.12"),
        ("fineweb", "\n".join(["Short line."] * 3 + LINES[:1]), "short_lines is"),
        ("fineweb", "\n".join([*LINES[:20], LINES[3]]), "repeated_line_chars is"),
        ("fineweb", "\n".join(f"{line[:31]}x." for line in LINES[:20]) + "\n" * 200, "new_lines is"),
        # C4 judges by lines that it later drops, but not by those that it drops before.
        ("c4", PROSE + "\nOur privacy policy is { ... } as ever.", "curly_brackets is 1, more than 0"),
        ("c4", PROSE + "\nLorem ipsum in our privacy policy.", "lorem_ipsum is 1, more than 0"),
        ("c4", PROSE + "\nLorem ipsum is dolor in JavaScript.", "lorem_ipsum is 1, more than 0"),
        ("c4", PROSE + "\nif (x) {\nLorem ipsum\n{ short }.", None),
        ("c4", "One sentence is just here. And here is another.", "sentences is 2, less than 3"),
        ("c4", "One sentence is just here. And here is another.\nThis here is the third.", None),
        ("c4", "Home\nNews", "sentences is 0, less than 3"),
        ("c4", "", "sentences is 0, less than 3"),
        # Footnote marks are no words.
        ("gopher_quality", "\n".join(f"{line} [ {n} ] — [{n}]" for n, line in enumerate(LINES)), None),
        ("gopher_quality", "\n".join(f"“{x[:-1]}” — [*] ({x})[^{n}] | … |" for n, x in enumerate(LINES)), None),
        *((name, PROSE, None) for name in FILTERS),
    ],
)
def test_each_filter_rejects_by_each_of_its_rules(name: str, text: str, rule: str | None) -> None:
    broken = found(name, text)
    assert broken is None if rule is None else rule in (broken or "passed")


def test_gophers_words_have_a_letter_or_a_digit() -> None:
    assert FILTERS["gopher_quality"]('Two words — [ * ] "…"')["words"] == 2
    assert FILTERS["gopher_quality"]("“the mill,” (to) *be* that. Have")["stop_words"] == 4


def plain_n_gram_chars(words: list[str]) -> dict[str, int]:
    """The characters of Gopher's n-grams by datatrove's definition, one n-gram at a time."""
    chars = {}
    for n in (2, 3, 4):
        n_grams = [" ".join(words[start : start + n]) for start in range(len(words) - n + 1)]
        top, count = Counter(n_grams).most_common(1)[0] if n_grams else ("", 0)
        chars[f"top_{n}_gram_chars"] = len(top) * count
    for n in range(5, 11):
        seen: set[str] = set()
        repeated = start = 0
        while start + n <= len(words):
            n_gram = " ".join(words[start : start + n])
            repeated += len("".join(words[start : start + n])) if n_gram in seen else 0
            start += n if n_gram in seen else 1
            seen.add(n_gram)
        chars[f"duplicate_{n}_gram_chars"] = repeated
    return chars


@given(st.lists(st.sampled_from([*WORDS, "a", "b"]), min_size=1, max_size=150), st.integers(1, 4))
def test_repeated_n_grams_are_those_of_the_plain_definition(words: list[str], times: int) -> None:
    text = " ".join(words * times)
    measured = FILTERS["gopher_repetition"](text)
    for name, chars in plain_n_gram_chars(words_of(text)).items():
        assert measured[name] == chars / len(text)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("It's the U.S., isn't it?", ["It", "'s", "the", "U.S.", ",", "isn", "'t", "it", "?"]),
        ("See https://a.org/b?c=d. (Well-known: 03/04/2020)", ["See", "https://a.org/b?c=d", ".", "(", "Well", "-",
         "known", ":", "03/04/2020", ")"]),
        ("‘It’s’", ["‘", "It", "’s", "’"]),
        ("_a snake_case_ __", ["_", "a", "snake_case", "_", "_", "_"]),
        ("ls -l /etc/hosts --help 16GB GLP-1...", ["ls", "-l", "/etc", "/", "hosts", "--help", "16", "GB", "GLP-1",
         "..."]),
    ],
)  # fmt: skip
def test_words_are_split_as_in_the_published_filters(text: str, words: list[str]) -> None:
    assert words_of(text) == words


@pytest.mark.parametrize(
    ("lines", "kept"),
    [
        ("Home\nA line without an end", ""),
        ("Four words are few.\nFive words are just enough.", "Five words are just enough."),
        ("It ends in 'single quotes, here'\nIt ends in \"double quotes here\"", 'It ends in "double quotes here"'),
        ("And so it goes on...\nDoes it go on now?\nYes, it does go on!", "Does it go on now?\nYes, it does go on!"),
        ("Rivers flow down [1] very slowly.[23]\nRivers flow [1] down now.\nRivers flow down very slowly. [2]",
         "Rivers flow down  very slowly."),
        ("This page needs JavaScript to { work }.\nPlease see our privacy policy here.", ""),
        (f"A word of {'x' * 1001} is no word.\nA word of {'x' * 1000} is one.", f"A word of {'x' * 1000} is one."),
    ],
)  # fmt: skip
def test_c4_keeps_the_lines_that_the_published_code_keeps(lines: str, kept: str) -> None:
    signals, left = c4_lines(f"{PROSE}\n{lines}")
    assert (first_broken(signals, Options().c4), left) == (None, f"{PROSE}\n{kept}".strip())


@pytest.mark.parametrize(
    ("text", "sentences"),
    [
        ("One sentence is just here.\nAnd here is another one.", 2),
        ("One is here. Two are here! Are three here?", 3),
        ("Mr. J. Smith of the U.S. left at 5 p.m. on Oct. 3.", 1),
        ('He said "That is all of it." (Or so we heard.) Then he left.', 3),
        ("Well... not so fast, he said... But she was.", 2),
        ("See example.com or version 2.0 of it.", 1),
        ("It was [so good](http://h/). Was it really so??", 3),
    ],
)
def test_c4_counts_sentences_as_punkt_does(text: str, sentences: int) -> None:
    assert FILTERS["c4"](text)["sentences"] == sentences


@given(st.text(max_size=400))
def test_filters_accept_any_text(text: str) -> None:
    for name in FILTERS:
        found(name, text)


@pytest.mark.parametrize("unit", ["-", "/", ".", "!", " ", "'", "1.", "://", ".. ", '."', "?!) ", "a. ", "é"])
def test_long_repetitive_text_is_judged(unit: str) -> None:
    text = f"b{unit * (100_000 // len(unit))}b"
    started = time.process_time()
    clean_document(text, Options(min_tokens=0, languages=("all",), filters=tuple(FILTERS)))
    for name in FILTERS:
        found(name, text)
    assert time.process_time() - started < 10  # half a second; what tries every place of the run takes minutes
