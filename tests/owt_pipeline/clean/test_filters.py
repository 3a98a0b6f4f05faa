"""Filters: every published rule, and pages sent in place of an article."""

from __future__ import annotations

import gzip
import json
import random
import time
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.stages.clean.documents import clean_document
from owt_pipeline.stages.clean.filters import FILTERS
from owt_pipeline.stages.clean.filters import REPETITION_LIMITS as REPETITION
from owt_pipeline.stages.clean.judgement import TextView
from owt_pipeline.stages.clean.options import Options
from schemas import Reason

WORDS = "have that with night river stone walk bright house yellow over small garden window letter summer song".split()
RNG = random.Random(7)
LINES = [" ".join(RNG.sample(WORDS, 12)).capitalize() + "." for _ in range(40)]
PROSE = "\n".join(LINES)
WITHOUT_STOP_WORDS = [word for word in PROSE.split() if word.lower().strip(".") not in ("have", "that", "with")]


def found(name: str, text: str) -> str | None:
    return FILTERS[name].judge(TextView(text)).broken


def test_prose_passes_every_filter() -> None:
    assert [found(name, PROSE) for name in FILTERS] == [None] * len(FILTERS)
    assert [rule.reason for rule in FILTERS.values()] == [Reason.of(name) for name in FILTERS]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("the cat and the dog " * 9, "words is 45, less than 50"),
        ("a b of " * 40, "mean_word_length is 1.3333, less than 3"),
        ("the incomprehensibilities and counterrevolutionaries " * 30, "mean_word_length is 12.2500, more than 10"),
        (PROSE + " # #" * 100, "hash_signs is"),
        (PROSE + " ..." * 80, "ellipses is"),
        ("\n".join(f"- {line}" for line in LINES), "bullet_lines is 1.0000, more than 0.9"),
        ("\n".join(line[:-1] + " and so it went on to the river..." for line in LINES[:20]), "ellipsis_lines is"),
        (PROSE + " 12 34 56" * 200, "alphabetic_words is"),
        (" ".join(WITHOUT_STOP_WORDS), "stop_words is"),
    ],
)  # fmt: skip
def test_gopher_quality_rejects_by_each_of_its_rules(text: str, rule: str) -> None:
    assert rule in (found("gopher_quality", text) or "passed")


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("\n\n".join([LINES[0], LINES[1]] * 3), "duplicate_paragraphs is"),
        ("\n\n".join([*LINES[:12], LINES[0] * 8, LINES[0] * 8]), "duplicate_paragraph_chars is"),
        ("\n".join([*LINES[:4], "x", "x", "x", "x"]), "duplicate_lines is"),
        ("\n".join([*LINES[:12], LINES[0] * 8, LINES[0] * 8]), "duplicate_line_chars is"),
        (" ".join(f"very good {word}" for line in LINES for word in line.split()[:3]), "top_2_gram_chars is"),
        (" ".join(f"{line} {LINES[1]}" for line in LINES[:4]), "gram_chars is"),
    ],
)
def test_gopher_repetition_rejects_by_each_of_its_rules(text: str, rule: str) -> None:
    assert rule in (found("gopher_repetition", text) or "passed")


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
    view = TextView(text)
    measured = FILTERS["gopher_repetition"].judge(view).signals
    for name, chars in plain_n_gram_chars(view.words).items():
        assert measured[name] == chars / len(text)
        assert name in REPETITION


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
    assert TextView(text).words == words


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
    judgement = FILTERS["c4"].judge(TextView(f"{PROSE}\n{lines}"))
    assert (judgement.broken, judgement.kept) == (None, f"{PROSE}\n{kept}".strip())


def test_c4_rejects_pages_by_lines_that_it_later_drops() -> None:
    assert found("c4", PROSE + "\nOur privacy policy is { ... } as ever.") == "curly_brackets is 1, more than 0"
    assert found("c4", PROSE + "\nLorem ipsum in our privacy policy.") == "lorem_ipsum is 1, more than 0"
    assert found("c4", PROSE + "\nLorem ipsum is dolor in JavaScript.") == "lorem_ipsum is 1, more than 0"
    assert found("c4", PROSE + "\nif (x) {\nLorem ipsum\n{ short }.") is None  # lines that it drops before


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
    assert FILTERS["c4"].judge(TextView(text)).signals["sentences"] == sentences


def test_c4_rejects_pages_of_fewer_than_three_sentences() -> None:
    assert found("c4", "One sentence is just here. And here is another.") == "sentences is 2, less than 3"
    assert found("c4", "One sentence is just here. And here is another.\nThis here is the third.") is None
    assert found("c4", "Home\nNews") == found("c4", "") == "sentences is 0, less than 3"


def test_gopher_does_not_count_footnote_marks_as_words() -> None:
    noted = "\n".join(f"{line} [ {n} ] — [{n}]" for n, line in enumerate(LINES))
    marks = "\n".join(f"“{line[:-1]}” — [*] ({line})[^{n}] | … |" for n, line in enumerate(LINES))
    assert found("gopher_quality", noted) is found("gopher_quality", marks) is None
    assert TextView('Two words — [ * ] "…"').spaced_words == {"Two": 1, "words": 1}
    assert FILTERS["gopher_quality"].judge(TextView("“the mill,” (to) *be* that. Have")).signals["stop_words"] == 4


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (PROSE.replace(".", ""), "punctuated_lines is 0.0000, less than 0.12"),
        ("\n".join(["Short line."] * 3 + LINES[:1]), "short_lines is"),
        ("\n".join([*LINES[:20], LINES[3]]), "repeated_line_chars is"),
        ("\n".join(f"{line[:31]}x." for line in LINES[:20]) + "\n" * 200, "new_lines is"),
    ],
)
def test_fineweb_rejects_by_each_of_its_rules(text: str, rule: str) -> None:
    assert rule in (found("fineweb", text) or "passed")


NOT_THE_ARTICLE = {
    "JavaScript": (
        f"You need to enable JavaScript to run this app. {LINES[0]}",
        "Just a moment...\nEnable JavaScript and cookies to continue",
        "JavaScript is not available.\nWe've detected that JavaScript is disabled in this browser.",
    ),
    "robots": (
        "Just a moment...\nVerifying you are human. This may take a few seconds.\nexample.com needs to review the "
        "security of your connection before proceeding.",
        "Pardon Our Interruption...\nAs you were browsing, something about your browser made us think you were a bot.",
        "To continue, please click the box below to let us know you're not a robot.\nWhy did this happen?",
        "Our systems have detected unusual traffic from your computer network.\nThis page checks to see if it's really "
        "you sending the requests.",
    ),
    "blocked": (
        "Sorry, you have been blocked\nYou are unable to access example.com\nWhy have I been blocked?\nThis website is "
        "using a security service to protect itself from online attacks.",
        'Access Denied\nYou don\'t have permission to access "http://example.com/" on this server.\nReference #18.2d3a',
        "451: Unavailable due to legal reasons\nWe recognize you are attempting to access this website from a country "
        "belonging to the European Economic Area.",
        "Your browser is out of date. Please update your browser to view this site.",
    ),
    "cookies": (
        "Before you continue\nWe use cookies and data to deliver and maintain services.\nAccept all cookies\nManage "
        "your privacy settings",
        "We value your privacy\nWe and our partners store and/or access information on a device, such as cookies.",
    ),
    "log in or pay": (
        "The river at night\nSubscribe to continue reading.\nAlready a subscriber? Log in",
        "You’ve reached your limit of free articles.\nSubscribe now for unlimited access.",
        "You must be logged in to view this page.\nUsername\nPassword\nForgot your password?",
    ),
    "missing": (
        "Oops! That page can't be found.\nIt looks like nothing was found at this location. Maybe try a search?",
        "404\nThe page you requested does not exist.",
        "404 - File or directory not found.\nThe resource you are looking for might have been removed.",
        "Not Found\nThe requested URL /a.html was not found on this server.\nApache Server at example.com Port 80",
        "This account has been suspended.\nContact your hosting provider for more information.",
        "502 Bad Gateway\nnginx",
        "Service Unavailable\nThe server is temporarily unable to service your request.",
    ),
}


@pytest.mark.parametrize(("what", "text"), [(what, text) for what, texts in NOT_THE_ARTICLE.items() for text in texts])
def test_pages_in_place_of_an_article_are_recognized(what: str, text: str) -> None:
    assert what in (found("boilerplate", text) or "passed")


def test_articles_that_mention_such_phrases_pass() -> None:
    for texts in NOT_THE_ARTICLE.values():
        assert found("boilerplate", "\n".join([PROSE, *texts])) is None  # at the end of a long article
    assert found("boilerplate", "\n".join([*LINES[:8], "We use cookies in the kitchen, too.", *LINES[8:12]])) is None
    assert found("boilerplate", "Sorry, I can't find a good recipe for it.\n" + LINES[0]) is None
    assert found("boilerplate", f"Roll 1: 404.\n{LINES[0]}") is None


def test_no_real_page_is_mistaken_for_boilerplate(testdata: Path) -> None:
    with gzip.open(testdata / "web" / "wcxb-dev.truth.jsonl.gz", "rt", encoding="utf-8") as lines:
        texts = [json.loads(line)["main_content"] for line in lines]
    assert len(texts) == 1308
    assert [text[:80] for text in texts if found("boilerplate", text)] == []


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
