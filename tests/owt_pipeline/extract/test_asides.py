"""Asides within an article do not belong to its text, whatever the model decides about them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np
import pytest

from owt_pipeline.stages.extract.content.asides import (
    leave_asides,
    leave_credits,
    leave_placeholders,
    leave_references,
    leave_repeated_insertions,
)
from owt_pipeline.stages.extract.content.next_articles import leave_next_articles
from owt_pipeline.stages.extract.content.teasers import leave_teasers
from owt_pipeline.stages.extract.html.blocks import Block
from owt_pipeline.stages.extract.html.reader import read_page

TEXTS = [
    f"Lamp number {number} of the northern cape was made in a year when no ship had come for "
    f"{number + 3} months, and its keeper wrote that he had {number + 5} barrels of oil left."
    for number in range(12)
]
PARAGRAPHS = [f"<p>{text}</p>" for text in TEXTS]


def lines_after(rule: Callable[[Sequence[Block], np.ndarray], None], html: str) -> list[str]:
    """Return the lines that a rule leaves of a page of which the model keeps everything."""
    blocks = read_page(f"<html><body>{html}</body></html>").blocks
    keep = np.ones(len(blocks), dtype=bool)
    rule(blocks, keep)
    return [block.text for block, is_kept in zip(blocks, keep, strict=True) if is_kept]


def between_paragraphs(*insertions: str) -> str:
    parts = []
    for paragraph, insertion in zip(PARAGRAPHS, insertions, strict=False):
        parts += [paragraph, insertion]
    return f"<article>{''.join(parts)}{''.join(PARAGRAPHS[len(insertions) : 8])}</article>"


@pytest.mark.parametrize(
    "placeholder",
    [
        "<div class=embed><p>To see this post by {}, please accept its cookies.</p></div>",
        "<figure><div>Für diesen Inhalt von {} brauchen wir Ihre Einwilligung.</div></figure>",
        "<p class=blocked>Ce contenu de {} est bloqué : acceptez les cookies et traceurs.</p>",
        "<div><div><span>Ta treść z {} wymaga zgody na pliki cookie.</span></div></div>",
    ],
)
@pytest.mark.parametrize("services", [("X", "X"), ("YouTube", "Instagram", "TikTok")])
def test_sentences_in_place_of_embeds_are_left_out(
    placeholder: str, services: tuple[str, ...]
) -> None:
    html = between_paragraphs(*map(placeholder.format, services))
    assert lines_after(leave_placeholders, html) == TEXTS[:8]


@pytest.mark.parametrize(
    "sentence",
    [
        # Nothing in it asks for consent: a refrain.
        ("<p class=refrain>And the river runs on, and the river runs on.</p>",) * 3,
        # Once, it may be the article's own.
        ("<p>The council asks for the consent of all owners of boats.</p>",),
        # About different things.
        (
            "<p>The fishermen accept the plan for the new market.</p>",
            "<p>Nobody would accept a road that is closed in winter.</p>",
        ),
        # Paragraphs as all others.
        (
            "<p>Fields of this kind accept a number of further arguments, named below.</p>",
            "<p>Links of this kind accept a number of further arguments, named below.</p>",
        ),
    ],
)
def test_other_sentences_between_paragraphs_stay(sentence: tuple[str, ...]) -> None:
    assert len(lines_after(leave_placeholders, between_paragraphs(*sentence))) == 8 + len(sentence)


@pytest.mark.parametrize(
    "sentence",
    [
        "<div class=v><p>This video cannot be shown since JavaScript is disabled.</p></div>",
        "<figure><div>Για να δείτε το περιεχόμενο, αποδεχτείτε τα αρχεία.</div></figure>",
        "<div><div><b>Advertisement: the story continues below.</b></div></div>",
        "<div><p>The content of {} is hidden by your settings.</p></div>",
    ],
)
def test_a_sentence_that_stands_three_times_alone_is_left_out(sentence: str) -> None:
    html = between_paragraphs(*map(sentence.format, ("Vimeo", "Deezer", "Vimeo")))
    assert lines_after(leave_repeated_insertions, html) == TEXTS[:8]


@pytest.mark.parametrize(
    "sentences",
    [
        # A refrain is a paragraph as all others.
        ("<p class=refrain>And the river runs on, and the river runs on.</p>",) * 3,
        ("<div><p>The board did not answer this question at all.</p></div>",) * 2,
        ("<ul><li>The board did not answer this question at all.</ul>",) * 3,
        tuple(
            f"<div><p>The board {answer} in all of its letters.</p></div>"
            for answer in ("did not answer", "sent a map of the coast", "told us to wait")
        ),
        ("<div><pre>make all install and then start it again</pre></div>",) * 3,
    ],
)
def test_other_sentences_that_repeat_stay(sentences: tuple[str, ...]) -> None:
    lines = lines_after(leave_repeated_insertions, between_paragraphs(*sentences))
    assert len(lines) == 8 + len(sentences)


def test_placeholders_that_are_most_of_a_short_article_are_left_out() -> None:
    placeholder = "<div class=embed><p>To see this post, please accept the cookies.</p></div>"
    figures = "".join(f"<h3>{number}. Lamps</h3>{placeholder}" for number in range(4))
    lines = lines_after(leave_placeholders, f"<article>{PARAGRAPHS[0]}{figures}</article>")
    assert lines == [TEXTS[0], *(f"{number}. Lamps" for number in range(4))]


def test_a_list_of_cookies_in_a_policy_stays() -> None:
    cookies = "".join(
        f"<p>This cookie of {name} counts how often you come to our site.</p>"
        for name in ("Ada", "Bo", "Zoë")
    )
    assert len(lines_after(leave_placeholders, "".join(PARAGRAPHS) + cookies)) == 15


@pytest.mark.parametrize(
    "credits",
    [
        "<p>Photo: Eva Moen / Valley Post</p><p>Photo by Tom Berg</p>",
        "<ul><li>Tom Berg/Getty Images</li><li>Pia Lund/AFP via Getty Images</li></ul>",
        "<div><img src=a><span>Foto: Eva Moen</span><br><br></div><div>© Tom Berg</div>",
        "<p>Courtesy of Eva Moen</p><p>Courtesy of the county museum</p>",
        "<p>(Eva Moen/Valley Post)</p><p>(Tom Berg/Valley Post)</p>",
        "<p>Ảnh: Nguyễn Văn An</p><p>Ảnh: Trần Bình</p>",
        "<p>写真＝佐藤花子</p><p>写真：共同通信</p>",
        "<div><img src=a>提供：山田太郎</div><div><img src=b>提供：川上恵</div>"
        "<div><img src=c>提供：町史編纂室</div>",
        "<p>Eva Moen / EFE</p><p>Tom Berg / ANP</p>",
        "<p>Image 1: Eva Moen, CC BY 2.0</p><p>Image 2: Tom Berg, CC BY 2.0</p>",
        "<p>تصوير: أحمد علي</p><p>تصوير: سارة حسن</p>",
        "<div><img src=a>Myndir: Eva Moen</div><div><img src=b>Myndir: Tom Berg</div>"
        "<div><img src=c>Myndir: Pia Lund</div>",
    ],
)
def test_rows_of_photo_credits_are_left_out(credits: str) -> None:
    html = "".join(PARAGRAPHS[:4]) + credits + "".join(PARAGRAPHS[4:8])
    assert lines_after(leave_credits, html) == TEXTS[:8]


@pytest.mark.parametrize(
    "lines",
    [
        "<p>Director: Eva Moen</p><p>Photography: Tom Berg</p><p>Music: Pia Lund</p>",
        "<p>Winner: Eva Moen</p><p>Winner: Tom Berg</p><p>Winner: Pia Lund</p>",
        "<p>Photo: Eva Moen</p>",
        "<p>Photography began on the islands in 1862.</p><p>Photographs were dear then.</p>",
        "<p>Image processing</p><p>Image recognition</p><p>Picture books</p>",
    ],
)
def test_other_short_lines_in_a_row_stay(lines: str) -> None:
    num_lines = lines.count("<p>")
    assert len(lines_after(leave_credits, "".join(PARAGRAPHS[:8]) + lines)) == 8 + num_lines


@pytest.mark.parametrize(
    "reference",
    [
        "<p>See also: <a href=/1>A road to the northern cape</a></p>",
        "<p><strong><a href=/1>Lesen Sie auch: Ein Weg zum Nordkap</a></strong></p>",
        "<div>LIRE AUSSI &gt; <a href=/1>Une route vers le cap du nord</a></div>",
        "<blockquote>&gt;&gt; Читайте также: <a href=/1>Дорога на северный мыс</a></blockquote>",
        "<p><em>Olvasta már? <a href=/1>Lezárták az északi fokhoz vezető utat</a></em></p>",
        "<p>【関連記事】<a href=/1>北の岬への道路が通行止めに、住民は困惑</a></p>",
        "<div><b>Read also</b> <a href=/1>A road to the northern cape</a></div>",
        "<p>See also:</p><ul><li><a href=/1>A road to the cape</a>"
        "<li><a href=/2>Storm on the lake</a></ul>",
    ],
)
def test_references_to_other_articles_are_left_out(reference: str) -> None:
    assert lines_after(leave_references, between_paragraphs(reference, "", reference)) == TEXTS[:8]


@pytest.mark.parametrize(
    "line",
    [
        "<p>Source: <a href=/1>A road to the northern cape</a></p>",
        "<p>See also the <a href=/1>map of the northern cape</a> in the second chapter.</p>",
        "<p>See also: <a href=/1>open</a></p>",
        "<p>Related: the bridge to the northern cape was never built, say the owners.</p>",
        "<h2>See also</h2>",
    ],
)
def test_other_lines_with_labels_stay(line: str) -> None:
    assert len(lines_after(leave_references, between_paragraphs(line, "", line))) == 10


def lines_without_teasers(item: str, *, is_declared: bool) -> list[str]:
    items = "".join(item.format(number) for number in range(6))
    html = f"<h1>Lamps</h1><div>{''.join(PARAGRAPHS[:8])}<div class=more>{items}</div></div>"

    return lines_after(partial(leave_teasers, is_declared=is_declared, is_article=True), html)


DATED = "<div class=t><a href=/{0}>Two boats in row {0}</a><p>They sail.</p><i>2 May 2024</i></div>"
PICTURED = "<div class=t><img src=a><a href=/{0}>Two boats in row {0}</a><p>They sail.</p></div>"
PLAIN = "<div class=t><a href=/{0}>Two boats in row {0}</a><p>They sail.</p></div>"


@pytest.mark.parametrize("item", [DATED, PICTURED])
def test_teasers_below_the_last_paragraph_are_left_out(item: str) -> None:
    assert lines_without_teasers(item, is_declared=True) == ["Lamps", *TEXTS[:8]]


def test_links_that_may_belong_to_the_text_stay() -> None:
    assert len(lines_without_teasers(PLAIN, is_declared=True)) == 9 + 12
    assert len(lines_without_teasers(DATED, is_declared=False)) == 9 + 18


leave_declared = partial(leave_teasers, is_declared=True, is_article=True)


@pytest.mark.parametrize(
    "insertion",
    [
        "<div class=t><a href=/{0}><img src=a><b>Why row {0} has lost its boats</b></a><p>They"
        " sail.</p></div>",
        "<section class=t><h4><a href=/{0}>Why row {0} has lost its boats</a></h4></section>",
        "<aside><p>More</p><p><a href=/{0}>Why row {0} has lost its boats</a></p></aside>",
    ],
)
def test_teasers_between_paragraphs_are_left_out(insertion: str) -> None:
    insertions = [insertion.format(number) for number in range(3)]
    assert lines_after(leave_declared, between_paragraphs(*insertions)) == TEXTS[:8]


@pytest.mark.parametrize(
    "insertion",
    [
        # The name of a product.
        "<div class=t><h3><a href=/{0}>Lamp {0}</a></h3><p>It burns for a week.</p></div>",
        "<div class=t><a href=/{0}>The lamp for ships in row {0}</a><p>$2{0}</p></div>",
        # A part of the text.
        "<div class=t><p>In row {0} there <a href=/{0}>are boats</a> with lamps.</p></div>",
        "<p><a href=/{0}>Why row {0} has lost its boats</a></p>",
    ],
)
def test_other_links_between_paragraphs_stay(insertion: str) -> None:
    insertions = [insertion.format(number) for number in range(3)]
    assert len(lines_after(leave_declared, between_paragraphs(*insertions))) > 8


TITLE = "<a href=/{0}>Why row {0} has lost its boats</a>"


@pytest.mark.parametrize(
    "items",
    [
        "<dl><dt>" + TITLE + "</dt><dd>They sail.</dd></dl>",
        "<p>" + TITLE + "</p><p>They sail.</p>",
        "<div class=t>" + TITLE + " <span>They sail.</span></div>",
        "<div class=t>" + TITLE + "<small>They sail.</small></div>",
        "<table><tr><td>" + TITLE + "<td>They sail.</table>",
        "<ul><li>" + TITLE + "</ul>",
    ],
)
def test_titles_below_an_article_are_left_out(items: str) -> None:
    parts = "".join(map(items.format, range(6)))
    for pair in ("</dl><dl>", "</ul><ul>", "</table><table>"):
        parts = parts.replace(pair, "")
    html = f"<div>{''.join(PARAGRAPHS[:8])}</div><div>{parts}</div>"
    assert lines_after(leave_declared, html) == TEXTS[:8]


@pytest.mark.parametrize(
    "item",
    [
        # A list of sources.
        "<li>Fox A. Boats and lamps. <a href=/{0}>Journal of lamps number {0}</a>, 1991.",
        "<li>" + TITLE + " for $2{0}",
        "<li>" + TITLE + " " + "The owners were not told. " * 12,
    ],
)
def test_other_lists_below_an_article_stay(item: str) -> None:
    items = "".join(map(item.format, range(6)))
    html = f"<div>{''.join(PARAGRAPHS[:8])}</div><ul>{items}</ul>"
    assert len(lines_after(leave_declared, html)) == 8 + 6


def test_sentences_of_teasers_without_their_titles_are_left_out() -> None:
    items = "".join(
        f"<div class=t><h3><a href=/{number}>Two boats</a></h3><p>They sail.</p></div>"
        for number in range(6)
    )
    page = f"<html><body><div>{''.join(PARAGRAPHS[:8])}</div><div>{items}</div></body></html>"
    blocks = read_page(page).blocks
    keep = np.array([block.text in TEXTS for block in blocks])
    keep[-1] = True
    keep[-3] = True
    leave_declared(blocks, keep)
    assert [block.text for block in np.array(blocks)[keep]] == TEXTS[:8]


def test_cards_that_end_with_the_same_link_are_left_out() -> None:
    card = (
        "<div class=t><h3>Boats of row {0}</h3><p>They sail. <a href=/{0}>Read more</a></p></div>"
    )
    html = f"<div>{''.join(PARAGRAPHS[:8])}</div><div>{{}}</div>"
    same = "".join(map(card.format, range(6)))
    other = "".join(map(card.replace("Read more", "Row {0}").format, range(6)))
    assert lines_after(leave_declared, html.format(same)) == TEXTS[:8]
    assert len(lines_after(leave_declared, html.format(other))) == 8 + 12


@pytest.mark.parametrize(
    "box",
    [
        "<div><h4>Our letter</h4><p>Each Friday, free.</p><form><input><button>Join</button></form>"
        "</div>",
        "<section><form><p>Each Friday, free.</p><div><button>Join</button></div></form></section>",
        "<div><p>Accept cookies of X to see this post.</p><button>Show it</button></div>",
        "<figure><div>Für diesen Inhalt brauchen wir Ihre Zustimmung.</div><button>OK</button>"
        "</figure>",
    ],
)
def test_boxes_with_a_button_are_left_out(box: str) -> None:
    assert lines_after(leave_declared, between_paragraphs("", box)) == TEXTS[:8]


@pytest.mark.parametrize(
    "box",
    [
        "<div><p>Press the glass on the page until it is flat.</p><button>Copy</button></div>",
        "<div><p>"
        + "Each Friday we send a letter. " * 20
        + "</p><form><button>Join</button></form>"
        "</div>",
        "<div><p>The harbour has to accept the new boat.</p></div>",
    ],
)
def test_other_boxes_stay(box: str) -> None:
    assert len(lines_after(leave_declared, between_paragraphs("", box))) > 8


FIRST = "".join(PARAGRAPHS[:3])
SECOND = "".join(PARAGRAPHS[3:9])


@pytest.mark.parametrize(
    "page",
    [
        "<article class=post-1><h1>One</h1>{}</article><article class=post-2><h1>Two</h1>{}"
        "</article>",
        "<main><article><h1>One</h1><div>{}</div></article><hr><article><h2><a href=/2>Two</a></h2>"
        "{}</article></main>",
        "<div class=story><h1>One</h1><p>2 May 2024</p>{}</div><div class=story><h1>Two</h1>"
        "<p>1 May 2024</p>{}</div>",
        "<div class=story><h1>One</h1><p>By Ada Fox</p>{}</div><div class=story><h1>Two</h1>"
        "<p>By Bo Lund</p>{}</div>",
        "<section class=s><header><h1>One</h1><p>2 May 2024</p></header><div>{}</div></section>"
        "<section class=s><header><h1>Two</h1><p>1 May 2024</p></header><div>{}</div></section>",
        "<main class=a><h1>One</h1>{}</main><main class=a><h1>Two</h1>{}</main>",
        "<div class=n><h1>One</h1><div itemprop=articleBody>{}</div></div>"
        "<div class=n><h1>Two</h1><div itemprop=articleBody>{}</div></div>",
        "<div class=a><article><h1>One</h1>{}</article></div><div class=more><div class=a><article>"
        "<h1>Two</h1>{}</article></div></div>",
        "<article class=a><h2>One</h2><p>2 May 2024</p>{}</article><article class=a><h2>Two</h2>"
        "<p>1 May 2024</p>{}</article>",
        "<article class=a><h1>One</h1><p>2 May 2024</p>{}</article><article class=b><h1>Two</h1>"
        "<p>1 May 2024</p>{}</article><article class=c><h2><a href=/3>Three</a></h2></article>",
    ],
)
def test_further_articles_below_the_first_are_left_out(page: str) -> None:
    lines = lines_after(leave_next_articles, page.format(FIRST, SECOND))
    assert [line for line in lines if line in TEXTS] == TEXTS[:3]
    assert "One" in lines
    assert "Two" not in lines


@pytest.mark.parametrize(
    "page",
    [
        # A list of complete articles.
        "<article><h1><a href=/1>One</a></h1>{}</article><article><h1><a href=/2>Two</a></h1>{}"
        "</article>",
        # Sections of one text.
        "<section class=a><h1>One</h1>{}</section><section class=a><h1>Two</h1>{}</section>",
        "<div class=a><h1>One</h1>{}</div><div class=a><h1>Two</h1>{}</div>",
        "<article><h1>One</h1>{}<h2>Two</h2>{}</article>",
        # Elements of two kinds.
        "<article class=a><h1>One</h1>{}</article><article class=b><h1>Two</h1>{}</article>",
        # A banner with the title of the article below it.
        "<article class=a><h1>One</h1><div>2 May 2024</div></article><article class=a>"
        "<h1>The first</h1>{}{}</article>",
        "<div class=a><h1>One</h1><p>2 May 2024</p>{}</div><div class=a><h1>One</h1>"
        "<p>2 May 2024</p>{}</div>",
        "<article class=a><h2>One</h2>{}</article><article class=a><h2>Two</h2>{}</article>",
        # Posts without titles.
        "<h1>One</h1><article>{}</article><article>{}</article>",
    ],
)
def test_parts_of_one_text_and_lists_of_articles_stay(page: str) -> None:
    lines = lines_after(leave_next_articles, page.format(FIRST, SECOND))
    assert [line for line in lines if line in TEXTS] == TEXTS[:9]


def test_a_short_text_keeps_credits_and_references() -> None:
    html = (
        f"{PARAGRAPHS[0]}<p>Photo: Eva Moen</p><p>Photo: Tom Berg</p>"
        "<p>See also: <a href=/1>A road to the northern cape</a></p>"
    )

    def leave(blocks: Sequence[Block], keep: np.ndarray) -> None:
        leave_asides(blocks, keep, is_article=True)

    assert len(lines_after(leave, html)) == 4
