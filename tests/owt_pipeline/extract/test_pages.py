"""A page is read as blocks and written as Markdown: `pages/NAME.html` becomes `pages/NAME.md`."""

from __future__ import annotations

import gc
from pathlib import Path

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from benchmarks.extraction_model import structure
from owt_pipeline.stages.extract.html.blocks import Block
from owt_pipeline.stages.extract.html.names import CHROME, COMMENT, UNSHOWN
from owt_pipeline.stages.extract.html.reader import read_page
from owt_pipeline.stages.extract.html.rendering import markdown, plain_text

PAGES = Path(__file__).with_name("pages")


@pytest.mark.parametrize("name", sorted(path.stem for path in PAGES.glob("*.html")))
def test_page_is_read_as_its_markdown(name: str) -> None:
    blocks = read_page((PAGES / f"{name}.html").read_text(encoding="utf-8")).blocks
    assert markdown(blocks) == (PAGES / f"{name}.md").read_text(encoding="utf-8").removesuffix("\n")


@pytest.mark.parametrize("tag", ["pre", "listing"])
def test_a_name_of_chrome_does_not_hold_for_code(tag: str) -> None:
    page = f"<{tag} class=signature>int main(void);</{tag}><div class=signature>Fox fan</div>"
    code, signature = read_page(f"<html><body>{page}</body></html>").blocks
    assert not code.container.kind & CHROME
    assert signature.container.kind & CHROME


def test_markdown_keeps_the_structure_of_real_pages(testdata: Path) -> None:
    """html2text keeps .981 of the headings, .975 of the items, .467 of the cells, and all code."""
    min_shares = {"headings": 0.985, "items": 0.975, "cells": 0.99, "rows": 0.98, "code": 0.99}
    num_kept = dict.fromkeys(min_shares, 0)
    num_expected = dict.fromkeys(min_shares, 0)
    for page in structure.readability_pages(testdata / "web"):
        truth = structure.pieces_of_html(page["expected_html"])
        text = structure.ours_without_choice(structure.main_part(page))
        pieces = structure.pieces_of_markdown(text)
        for kind in min_shares:
            num_kept[kind] += (truth[kind] & pieces[kind]).total()
            num_expected[kind] += truth[kind].total()
    for kind, min_share in min_shares.items():
        assert num_kept[kind] >= min_share * num_expected[kind], kind


def plain(html: str) -> str:
    """Return the plain text of a page with this body."""
    return plain_text(read_page(f"<html><body>{html}</body></html>").blocks)


def test_plain_text_has_a_row_per_line_and_no_empty_column() -> None:
    rows = "<tr><th>Year<th>Sold<tr><td>2001<td><p>7</p><p>or 8</p>"
    assert plain(f"<p>Sales</p><table>{rows}</table>") == "Sales\nYear\tSold\n2001\t7 or 8"
    assert plain("<table><tr><td><td>a<td>b<tr><td><td><td>c</table>") == "a\tb\n\tc"


def test_a_page_is_freed_without_a_collection_of_garbage() -> None:
    gc.disable()
    try:
        num_before = count_blocks()
        read_page("<p>One<table><tr><td>2<td>3</table><p>Four <a href=/>five")
        assert count_blocks() == num_before
    finally:
        gc.enable()


def count_blocks() -> int:
    """Return the number of blocks in memory."""
    return sum(isinstance(value, Block) for value in gc.get_objects())


def test_characters_in_links_are_counted() -> None:
    html = (
        "See <a href=/x>this one</a> and <a name=y>that</a>.<div><a "
        "href=/><h3>Card</h3><img><p>text</p></a></div>"
    )
    blocks = [(block.text, block.link_chars) for block in read_page(html).blocks]
    assert blocks == [("See this one and that.", 8), ("Card", 4), ("text", 4)]


def test_elements_nested_without_end_keep_their_text() -> None:
    words = [f"word{index}" for index in range(1500)]
    nested = "".join(f"<font size={index}>{word} " for index, word in enumerate(words))
    assert plain(nested).split() == words
    for tag in ("sup", "sub", "table"):
        assert " ".join(plain(f"<{tag}>one " * 300 + "The end.").split()).endswith("one The end.")
    assert plain("<math>" + "<mrow>" * 1500 + "<mi>x</mi>") == "x"


def test_hostile_tables_stay_small() -> None:
    spans = "<tr><td rowspan=99999 colspan=99999>a<td>b" * 500
    assert len(markdown(read_page(f"<table>{spans}</table>").blocks)) < 50 * len(spans)


@pytest.mark.parametrize(
    "html",
    [
        "<button data-toggle=collapse data-target='#a'>More</button><div id=a hidden>Two.</div>",
        "<span data-bs-target='.b'>More</span><div class='x b' hidden>Two.</div>",
        "<a onclick=\"document.getElementById('c').hidden = 0\">More</a><p id=c hidden>Two.</p>",
        "<div onclick='toggle(`d`)'>More</div><div><p id=d style='display:none'>Two.</p></div>",
        "<h3 onclick='this.nextElementSibling.hidden = 0'>More</h3><div hidden>Two.</div>",
        "<div><b onclick='$(this).parent().next().show()'>More</b></div><div hidden>Two.</div>",
        "<a href=\"javascript:toggle('e')\">More</a><div id=e hidden>Two.</div>",
        "<a data-toggle='#f'>More</a><div id=f hidden>Two.</div>",
        "<button uk-toggle='target: #g'>More</button><div id=g hidden>Two.</div>",
        "<b data-tab=h>More</b><div id=h hidden>Two.</div>",
        "<button class=accordion>More</button><div hidden>Two.</div>",
        "<div class=faq><p>More</p><div><div hidden>Two.</div></div></div>",
        "<table class=mw-collapsible><tr><td>More<tr style='display:none'><td>Two.</table>",
        "<p>More</p><div x-show=open style='display:none'>Two.</div>",
        "<p>More</p><div v-show=open style='display:none'>Two.</div>",
        "<input type=checkbox id=i><label for=i>More</label><div style='display:none'>Two.</div>",
    ],
)
def test_text_that_a_control_opens_is_not_hidden(html: str) -> None:
    assert is_unshown_text(html) == [False, False]


@pytest.mark.parametrize(
    "html",
    [
        "<button data-toggle=modal data-target='#a'>Join</button><div id=a hidden>Two.</div>",
        "<button data-target='#a-modal'>Join</button><div id=a-modal hidden>Two.</div>",
        "<a onclick=\"openDialog('a')\">Join</a><div id=a hidden>Two.</div>",
        "<p onclick='this.nextElementSibling.play()'>Play</p><video></video><p>1</p><i></i>"
        "<section><div hidden>Two.</div></section>",
        "<a onclick='count()'>More</a><div id=count2 hidden>Two.</div>",
        "<a href=\"javascript:openPopup('a')\">Join</a><div id=a hidden>Two.</div>",
        "<a href='#a' rel='modal:open'>Join</a><div id=a hidden>Two.</div>",
        "<nav class=nav-accordion><p>1</p><div hidden>Two.</div></nav>",
        "<div class=accordion><p>1</p><div class=login hidden>Two.</div></div>",
        "<p>1</p><div x-show=menuOpen style='display:none'>Two.</div>",
        "<p>1</p><div v-show=open class=cookie-bar style='display:none'>Two.</div>",
        "<input type=checkbox id=a><label for=a>1</label><div class=modal hidden>Two.</div>",
        "<input type=checkbox><p>1</p><div hidden>Two.</div>",
    ],
)
def test_text_that_no_control_opens_stays_hidden(html: str) -> None:
    assert is_unshown_text(html)[-1]


def is_unshown_text(html: str) -> list[bool]:
    """Return for each block whether it is in a container that is not shown."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    return [is_within(block, UNSHOWN) for block in blocks]


def is_within(block: Block, kind: int) -> bool:
    """Return whether a container around a block is of a kind."""
    return any(container.kind & kind for container in block.container.ancestors())


def comments_in(html: str) -> list[str]:
    """Return the texts of the blocks in readers' comments."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    return [block.text for block in blocks if is_within(block, COMMENT)]


SENTENCE = "The harbour of the islands is older than the town, as a map of the coast shows. "
ARTICLE = f"<main><article><p>{SENTENCE * 12}</p></article>"
REPLY = "We have waited for the new boat for years."


@pytest.mark.parametrize(
    "item",
    [
        "<div class=comment><p>{}</p></div>",
        "<div id=kommentar-2><p>{}</p></div>",
        "<article typeof='schema:Comment'><p>{}</p></article>",
        "<div itemscope itemtype='https://schema.org/Comment'><p>{}</p></div>",
        "<div property='schema:comment'><p>{}</p></div>",
        "<div role=comment><p>{}</p></div>",
    ],
)
def test_readers_comments_are_known_by_names_and_attributes(item: str) -> None:
    items = "".join(item.replace("{}", REPLY) for _ in range(4))
    found = comments_in(f"{ARTICLE}<section>{items}</section></main>")
    assert len([text for text in found if text.endswith(REPLY)]) == 4


PIECES = st.sampled_from(
    [
        "<div>",
        "</div>",
        "<p>",
        "</p>",
        "<li>",
        "<ul>",
        "</ul>",
        "<ol>",
        "</ol>",
        "<table>",
        "<tr>",
        "<td>",
        "<th>",
        "</table>",
        "<b>",
        "</b>",
        "<br>",
        "<a href=/>",
        "</a>",
        "<h1>",
        "</h1>",
        "<pre>",
        "</pre>",
        "<code>",
        "</code>",
        "<blockquote>",
        "</blockquote>",
        "<x-y>",
        "</x-y>",
        "<button>",
        "</button>",
        "&nbsp;",
    ]
)


# The example has code around a block.
@example(["<br>", "<code>", "w0 ", "<ul>"])
@given(st.lists(st.one_of(PIECES, st.integers(0, 99).map(lambda n: f"w{n} ")), max_size=60))
def test_every_word_is_in_one_block_and_in_order(pieces: list[str]) -> None:
    html = "".join(pieces)
    plain_words = plain(html).split()
    rendered = markdown(read_page(f"<html><body>{html}</body></html>").blocks)
    rendered_words = rendered.replace("<br>", " ").replace("`", " ").split()
    assert plain_words == [word for word in rendered_words if word[:1] == "w"]
    words = [piece.strip() for piece in pieces if piece.startswith("w")]
    # Text of a table outside of its cells is lost here. Only HTML 5's parser moves it before the
    # table. A button in code is lost, too.
    may_lose_words = "<t" in html or "<pre>" in html
    remaining = iter(words)
    are_in_order = all(word in remaining for word in plain_words)
    assert plain_words == words or (may_lose_words and are_in_order)


TEXTS = st.text(st.sampled_from("aex 1290+-−,.()[]%$€TM*nπ\u00e9"), max_size=8)


@example([("$5", "99", "")], "sup")
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), st.sampled_from(["sup", "sub"]))
def test_superscripts_lose_no_character(pieces: list[tuple[str, str, str]], tag: str) -> None:
    html = "".join(f"{left}<{tag}>{inner}</{tag}>{right}" for left, inner, right in pieces)
    bare = "".join(left + inner + right for left, inner, right in pieces)
    marks = str.maketrans(dict.fromkeys("^{}[] "))
    assert plain(f"<p>{html}</p>").translate(marks) == bare.translate(marks)
