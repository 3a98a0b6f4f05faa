"""A part of a page that repeats is kept once, and a single line that repeats stays."""

from __future__ import annotations

import pytest

from owt_pipeline.stages.extract.content.repeats import without_repeats
from owt_pipeline.stages.extract.html.reader import read_page

SENTENCES = [
    f"Boat number {number} sailed around the northern cape in {number + 3} days and {number} nights."
    for number in range(12)
]


def lines_of(html: str) -> list[str]:
    """Return the lines that stay of a page of which the model keeps everything."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    return [block.text for block in without_repeats(blocks)]


def paragraphs(*numbers: int) -> str:
    return "".join(f"<p>{SENTENCES[number]}</p>" for number in numbers)


@pytest.mark.parametrize("second", ["div class=narrow", "section", "div hidden"])
def test_a_part_for_narrow_screens_is_kept_once(second: str) -> None:
    tag = second.split()[0]
    wide = f"<div class=wide><div>{paragraphs(0, 1, 2)}</div></div>"
    narrow = f"<{second}><div>{paragraphs(0, 1, 2)}</div></{tag}>"
    assert lines_of(wide + narrow) == SENTENCES[:3]


def test_a_part_with_one_new_line_is_still_repeated() -> None:
    wide = f"<div class=wide><div>{paragraphs(0, 1, 2)}</div></div>"
    narrow = f"<div class=narrow><div>{paragraphs(0, 1, 3, 2)}</div></div>"
    assert lines_of(wide + narrow) == [*SENTENCES[:3], SENTENCES[3]]


@pytest.mark.parametrize(
    "entry",
    [
        "<div class=entry><h3>Port {0}</h3>{1}<ul><li>{2}</li><li>{3} berths</li></ul></div>",
        "<section><div><h3>Port {0}</h3>{1}<p>{2}</p><p>{3} berths</p></div></section>",
        "<article><h2>Port {0}</h2>{1}<div>{2}</div><div>{3} berths</div></article>",
    ],
)
@pytest.mark.parametrize(
    "line",
    [
        "Location: Boston, Massachusetts",
        "Pet safety: not toxic to cats and dogs.",
        "Hafen mit Strom und Wasser am Steg",
    ],
)
def test_a_line_of_several_entries_stays_in_each(entry: str, line: str) -> None:
    page = ""
    for number in range(4):
        text = paragraphs(2 * number, 2 * number + 1)
        page += entry.format(number, text, line, f"Room for boats, in all {number + 20}, and")
    assert lines_of(f"<main>{page}</main>").count(line) == 4


@pytest.mark.parametrize("definition", ["<dd>{}</dd>", "<dd><p>{}</p></dd>"])
def test_a_definition_stays_with_each_term(definition: str) -> None:
    text = definition.format(SENTENCES[0])
    page = ""
    for name in ("aes", "des"):
        page += f"<h3>{name}</h3><p>{name} is a cipher.</p><dl><dt>{name}_encrypt</dt>{text}</dl>"
    assert lines_of(page).count(SENTENCES[0]) == 2


@pytest.mark.parametrize("entry", ["<li><a href=/boats#{0}>{1}</a></li>", "<li>{1}</li>"])
def test_headings_stay_below_a_table_of_contents(entry: str) -> None:
    titles = [f"How we chose the boat for day number {number}" for number in range(3)]
    contents = "".join(entry.format(number, title) for number, title in enumerate(titles))
    text = ""
    for number, title in enumerate(titles):
        text += f"<h2>{title}</h2>{paragraphs(3 * number, 3 * number + 1, 3 * number + 2)}"
    lines = lines_of(f"<div><ul>{contents}</ul></div><article><div>{text}</div></article>")
    assert lines[3:] == [
        *(titles[0], *SENTENCES[:3]),
        *(titles[1], *SENTENCES[3:6]),
        *(titles[2], *SENTENCES[6:9]),
    ]


@pytest.mark.parametrize("quote", ["blockquote", "div class=pull"])
def test_a_sentence_that_is_shown_again_is_left_out(quote: str) -> None:
    tag = quote.split()[0]
    repeated = f"<{quote}>{SENTENCES[1]}</{tag}>"
    html = f"<article>{paragraphs(0, 1, 2)}<aside><div>{repeated}</div></aside>{paragraphs(3, 4)}"
    assert lines_of(f"{html}</article>") == SENTENCES[:5]


def test_the_subject_of_a_thread_is_kept_once() -> None:
    subject = "Re: Which boats are good for beginners?"
    posts = ""
    for number in range(4):
        text = paragraphs(2 * number, 2 * number + 1)
        posts += f"<div class=post><div><h3>{subject}</h3></div><div>{text}</div></div>"
    assert lines_of(posts).count(subject) == 1


def test_captions_of_the_same_image_are_kept_once() -> None:
    slide = "<div><div><div>The lamp of the northern cape at night</div></div></div>"
    lines = lines_of(f"<main><div>{paragraphs(0, 1, 2)}</div>{slide * 5}</main>")
    assert lines == [*SENTENCES[:3], "The lamp of the northern cape at night"]


def test_a_paragraph_that_repeats_is_kept_once() -> None:
    long_text = " ".join(SENTENCES[:4])
    entry = "<section><div><h3>Port {0}</h3>{1}<p>{2}</p></div></section>"
    page = "".join(entry.format(n, paragraphs(n + 4, n + 7), long_text) for n in range(3))
    assert lines_of(page).count(long_text) == 1
