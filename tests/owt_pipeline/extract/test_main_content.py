"""An article is separated from the text around it, and its metadata are found.

`articles/NAME.html` becomes `articles/NAME.md`.
"""

from __future__ import annotations

from html import escape
from pathlib import Path

import numpy as np
import pytest

from benchmarks.extraction_model.labelled_pages import read_labelled
from owt_pipeline.stages.extract.content.features import PageView, view
from owt_pipeline.stages.extract.content.main_content import (
    FAVORS,
    Cut,
    _choose,
    _keep_headings,
    _keep_lead,
    _keep_terms,
    main_content,
)
from owt_pipeline.stages.extract.content.metadata import read_head, read_metadata
from owt_pipeline.stages.extract.content.model import Model
from owt_pipeline.stages.extract.content.page_kind import read_page_kind
from owt_pipeline.stages.extract.extractor import Page, Settings, load
from owt_pipeline.stages.extract.html.reader import read_page

ARTICLES = Path(__file__).with_name("articles")
PASSAGES = Path(__file__).with_name("passages")
SENTENCE = (
    "The quick brown fox jumps over the lazy dog, and then it rests beneath a tree for a while. "
)
P = f"<p>{SENTENCE * 3}</p>"
MENU_ITEMS = [f'<li><a href="/{name}">{name}</a>' for name in ("Home", "News", "Sport", "Opinion")]
NAV = f"<ul>{''.join(MENU_ITEMS)}</ul>"


def extract(html: str, **settings: object) -> str:
    """Return the main text of a page."""
    extraction = load(Settings(**settings))(Page("http://h/", html, 1_767_225_600))  # type: ignore[arg-type]
    return extraction.text if extraction else ""


def read_article(name: str) -> str:
    """Read a page of ARTICLES or its text, in which `{{mill}}` stands for a passage."""
    content = (ARTICLES / name).read_text(encoding="utf-8")
    for path in PASSAGES.iterdir():
        paragraphs = path.read_text(encoding="utf-8").splitlines()
        passage = "\n\n".join(paragraphs)
        if name.endswith(".html"):
            passage = "\n".join(f"<p>{paragraph}</p>" for paragraph in paragraphs)
        content = content.replace(f"{{{{{path.stem}}}}}", passage)
    assert "{{" not in content
    return content


@pytest.mark.parametrize("name", sorted(path.stem for path in ARTICLES.glob("*.html")))
def test_article_is_separated(name: str) -> None:
    text = extract(read_article(f"{name}.html"), text_format="markdown")
    assert text == read_article(f"{name}.md").removesuffix("\n")


@pytest.mark.parametrize(
    "notice",
    [
        "Loading. . .",
        "Chargement…",
        "読み込み中...",
        "Please wait",
        "You need to enable JavaScript to run this app.",
        "This page requires JavaScript.",
        "Checking your browser before accessing the site",
    ],
)
def test_what_is_shown_until_a_script_runs_is_no_text(notice: str) -> None:
    assert extract(f"<div id=root><p>{notice}</p></div>") == ""


@pytest.mark.parametrize(
    "text", ["The ship waits…", "JavaScript is the language of browsers.", "Enable the lamp."]
)
def test_a_short_text_is_a_text(text: str) -> None:
    assert extract(f"<div id=root><p>{text}</p></div>") == text


def test_comments_are_kept_on_request() -> None:
    html = read_article("comments-on-an-article-are-left-out.html")
    assert "cat" in extract(html, include_comments=True)


@pytest.mark.parametrize(
    "wrapper",
    ['<div '
    'class="sidebar-right">', '<div class="widget">', "<nav>", "<aside>", '<div class="hide">',
     '<form id="aspnetForm">', '<div style="visibility:hidden">', '<div class="content '
     'no-sidebar">'],
)  # fmt: skip
def test_misleading_name_does_not_remove_the_page(wrapper: str) -> None:
    assert SENTENCE.strip() in extract(f"{wrapper}<h1>Foxes</h1>{P}{P}")


def page_of(body: str) -> PageView:
    """Return the view of a page with this body."""
    read = read_page(f"<html><body>{body}</body></html>")
    return view(read.blocks, read_page_kind("", read.metas, read_head(read)))


CUT = Cut(lower=0.4, higher=0.6)


@pytest.mark.parametrize(("article", "num_kept"), [(0.0, 4), (0.4, 3), (1.0, 3)])
def test_the_cut_rises_with_the_probability_of_an_article(article: float, num_kept: int) -> None:
    page = page_of(P * 4)
    assert _choose(page, np.array([0.9, 0.9, 0.9, 0.45]), CUT, article).sum() == num_kept


@pytest.mark.parametrize(
    ("heading", "p", "is_kept"),
    [
        ("<h2>Conclusion</h2>", 0.3, True),
        ("<h4>Abschließende Gedanken</h4>", 0.3, True),
        ("<h3>Read <a href=/a>on</a> in the next chapter</h3>", 0.3, True),
        ("<h2>Conclusion</h2>", 0.1, False),
        ("<h2><a href=/more>More articles</a></h2>", 0.3, False),
        ("<p>Share this</p>", 0.3, False),
    ],
)
def test_a_heading_between_kept_paragraphs_is_kept(heading: str, p: float, is_kept: bool) -> None:
    page = page_of(P + heading + P)
    keep = np.array([True, False, True])
    _keep_headings(page, np.array([0.9, p, 0.9]), CUT, keep)
    assert keep[1] == is_kept


@pytest.mark.parametrize("neighbours", [(True, False), (False, True), (False, False)])
def test_a_heading_of_a_part_that_is_left_out_stays_out(neighbours: tuple[bool, bool]) -> None:
    page = page_of(f"{P}<h2>More articles</h2>{P}")
    keep = np.array([neighbours[0], False, neighbours[1]])
    _keep_headings(page, np.full(3, 0.3), CUT, keep)
    assert not keep[1]


@pytest.mark.parametrize(
    ("html", "keep", "kept"),
    [
        ("<dl><dt>tie<dd>{}</dl>", [False, True], [True, True]),
        ("<dl><dt>tie<dd><p>{}</dl>", [False, True], [True, True]),
        ("<dl><dt>tie<dd>{}</dl>", [False, False], [False, False]),
        # A table of contents before the text.
        ("<dl><dt>tie</dl><p>{}", [False, True], [False, True]),
        ("<ul><li>tie</ul><dl><dd>{}</dl>", [False, True], [False, True]),
    ],
)
def test_a_term_of_a_kept_definition_is_kept(html: str, keep: list[bool], kept: list[bool]) -> None:
    blocks = read_page(f"<html><body>{html.format(SENTENCE)}</body></html>").blocks
    mask = np.array(keep)
    _keep_terms(blocks, mask)
    assert mask.tolist() == kept


@pytest.mark.parametrize(
    ("html", "is_note"),
    [
        ("<p>{0}</p><aside class=note><p>Nine litres, not ten.</p></aside><p>{0}</p>", True),
        ("<p>{0}</p><aside><b>Note</b> Nine litres.</aside><p>{0}</p>", True),
        ("<p>{0}</p><aside class=related><p>Nine litres.</p></aside><p>{0}</p>", True),
        ("<p>{0}</p><aside><p>Nine litres, not ten.</p></aside>", False),
        ("<p>{0}</p><aside><p>Nine litres, not ten.</p></aside><div>{0}</div>", False),
        ("<aside><p>Nine litres, not ten.</p></aside><p>{0}</p>", False),
        ("<div><p>{0}</p></div><aside><p>Nine litres.</p></aside><p>{0}</p>", False),
        ("<p>{0}</p><aside><p><a href=/>Two boats</a></p></aside><p>{0}</p>", False),
    ],
)
def test_an_aside_between_two_paragraphs_is_a_note(html: str, is_note: bool) -> None:
    blocks = read_page(f"<html><body>{html.format(SENTENCE)}</body></html>").blocks
    tags = {container.tag for block in blocks for container in block.container.ancestors()}
    assert ("aside" not in tags) == is_note


LEAD = "The keepers of the northern cape burned a lamp every night, and nobody counted the oil."


def keeps_lead(html: str, description: str, lead: str = LEAD, p: float = 0.15) -> bool:
    """Return whether a lead with this probability is kept on a page with this description."""
    meta = f'<meta name="og:description" content="{escape(description)}">'
    read = read_page(f"<html><head>{meta}</head><body>{html}{P * 4}</body></html>")
    kind = read_page_kind("", read.metas, read_head(read))
    is_lead = np.array([block.text == lead for block in read.blocks])
    keep = np.array([block.chars > 200 for block in read.blocks])
    _keep_lead(view(read.blocks, kind), read.blocks, kind, np.where(is_lead, p, 0.5), keep)
    assert is_lead.any()
    return bool(keep[is_lead].any())


@pytest.mark.parametrize(
    "header",
    [
        "<header><h1>The lamp</h1><p class=lead>{}</p></header>",
        "<h1>The lamp</h1><div>Ada Bruun</div><div><div>{}</div></div>",
        "<section><div><h1>The lamp</h1></div></section><h2>{}</h2>",
        "<h1>Cape news</h1><h1>The lamp</h1><ul><li>{}<li>Share<li>Print</ul>",
    ],
)
@pytest.mark.parametrize(
    ("lead", "description"),
    [
        (LEAD, LEAD),
        (LEAD, f"{LEAD[:60]}…"),
        (LEAD, f"{LEAD} Until the day on which the lamp went out."),
        (
            "« Les gardiens du cap nord allumaient une lampe chaque nuit, et personne ne comptait »",
            "Les gardiens du cap nord\xa0allumaient une lampe chaque nuit…",
        ),
        (
            "北の岬の灯台守は毎晩ランプを灯したが、油の量を数える者は誰もいなかったし、誰も尋ねなかったという。",
            "北の岬の灯台守は毎晩ランプを灯したが、油の量を数える者は誰もいなかったし、誰も尋ねなかったという",
        ),
    ],
)
def test_a_lead_that_begins_like_the_description_is_kept(
    header: str, lead: str, description: str
) -> None:
    assert keeps_lead(header.format(lead), description, lead)


@pytest.mark.parametrize(
    ("header", "description"),
    [
        # Above the title, and without one.
        ("<p>{}</p><h1>The lamp</h1>", LEAD),
        ("<h2>The lamp</h2><p>{}</p>", LEAD),
        # A text that the page hides.
        ('<h1>The lamp</h1><div style="display:none">{}</div>', LEAD),
        # Another description, one that is too short to tell, and none.
        ("<h1>The lamp</h1><p>{}</p>", f"Also: {LEAD}"),
        ("<h1>The lamp</h1><p>{}</p>", LEAD[:30]),
        ("<h1>The lamp</h1><p>{}</p>", ""),
    ],
)
def test_other_text_is_no_lead(header: str, description: str) -> None:
    assert not keeps_lead(header.format(LEAD), description)


def test_a_very_improbable_lead_stays_out() -> None:
    assert not keeps_lead(f"<h1>The lamp</h1><p>{LEAD}</p>", LEAD, p=0.05)


def test_a_described_text_is_kept_once() -> None:
    assert not keeps_lead(f"<h1>The lamp</h1><p>{LEAD} Then it went out.</p><p>{LEAD}</p>", LEAD)


def test_hidden_text_does_not_decide_on_the_cut() -> None:
    # By the higher cut, one visible text and two hidden ones of the same length are kept. With so
    # little visible text, a script would seem to show the hidden texts.
    page = page_of(f'{P}{P}<div style="display:none">{P}{P}</div>')
    keep = _choose(page, np.array([0.9, 0.45, 0.9, 0.9]), Cut(lower=0.4, higher=0.6), 1.0)
    assert keep.tolist() == [True, False, False, False]


@pytest.mark.parametrize("empty", ["&zwj;", "&#8203;<br>&#8203;", "\ufeff", "&zwnj; &shy;"])
def test_paragraphs_without_visible_characters_are_left_out(empty: str) -> None:
    body = f"<h1>Foxes</h1>{P}<p>{empty}</p>{P}<p>👩‍🚀</p><p>می‌خواهم</p>"
    page = read_page(f"<html><body>{body}</body></html>")
    kind = read_page_kind("", page.metas, read_head(page))
    kept_blocks = main_content(page.blocks, kind, Certain(), FAVORS["balanced"], comments=False)
    text = (SENTENCE * 3).strip()
    assert [block.text for block in kept_blocks] == ["Foxes", text, text, "👩‍🚀", "می‌خواهم"]


COMMENTS = '<div class="comments">' + "".join(
    f'<div class="comment"><p>{name} agrees: {SENTENCE * 2}</p></div>' for name in ("Ada", "Bo")
)


@pytest.mark.parametrize(
    ("url", "is_kept"),
    [
        ("https://news.example/2024/05/foxes-and-dogs", False),
        ("https://news.example/community-forum-on-foxes-opens", False),
        ("", False),
        ("https://forum.example/t/foxes-and-dogs/12", True),
        ("https://example.org/community/foxes-and-dogs", True),
        ("https://example.org/showthread.php?t=12", True),
    ],
)
def test_comments_stay_on_a_forum_that_calls_itself_an_article(url: str, is_kept: bool) -> None:
    body = f"<article><h1>Foxes</h1>{P * 4}</article>{COMMENTS}</div>"
    page = read_page(f'<meta property="og:type" content="article"><body>{body}</body>')
    kind = read_page_kind(url, page.metas, read_head(page))
    kept_blocks = main_content(page.blocks, kind, Certain(), FAVORS["balanced"], comments=False)
    assert any("Ada agrees" in block.text for block in kept_blocks) == is_kept
    assert any("Foxes" in block.text for block in kept_blocks)


@pytest.mark.parametrize(
    ("page", "num_comments", "is_kept"),
    [
        ("<article><h1>Foxes</h1>{}</article><div class=comments>{}</div>", 12, False),
        ("<div><h1>Foxes</h1>{}</div><ul class=kommentarer>{}</ul>", 8, False),
        ("<h1>Foxes</h1><main>{}</main><section id=replies>{}</section>", 4, False),
        ("<article><h1>Foxes</h1>{}<section class=comments>{}</section></article>", 12, False),
        ("<h1>Foxes</h1>{}<div id=disqus>{}</div>", 12, False),
        # Before the paragraphs, as in a digest of a debate.
        ("<article><h1>Foxes</h1><div class=comments>{1}</div>{0}</article>", 12, True),
        # In the element of the article, as the posts of a thread.
        ("<div class=comments><h1>Foxes</h1>{}{}</div>", 4, True),
        ("<article><h1>Foxes</h1>{}</article><div class=comments>{}</div>", 60, True),
    ],
)
def test_comments_below_an_article_need_no_metadata(
    page: str, num_comments: int, is_kept: bool
) -> None:
    comments = "".join(
        f'<div class="comment"><p>Bo agrees {number} times: {SENTENCE}</p></div>'
        for number in range(num_comments)
    )
    read = read_page(f"<html><body>{page.format(P * 4, comments)}</body></html>")
    kind = read_page_kind("https://news.example/foxes", read.metas, read_head(read))
    kept_blocks = main_content(read.blocks, kind, Certain(), FAVORS["balanced"], comments=False)
    assert any("Bo agrees" in block.text for block in kept_blocks) == is_kept
    assert sum(block.text.count("brown fox") for block in kept_blocks) >= 3


class Certain(Model):
    """A model that is certain that every block is the main text of an article."""

    def __init__(self) -> None:
        pass

    def judge(self, page: PageView) -> tuple[np.ndarray, float]:
        """Return a probability of 1 for each block, and for the article."""
        return np.ones(len(page.texts)), 1.0


def test_recall_keeps_more_and_precision_less(testdata: Path) -> None:
    pages = read_labelled(testdata / "web", ("readability",))[:20]
    words = []
    for favor in ("precision", "balanced", "recall"):
        extractor = load(Settings(favor=favor))
        num_words = []
        for labelled in pages:
            document = extractor(Page(labelled.url, labelled.html, 1_767_225_600))
            num_words.append(len(document.text.split()) if document else 0)
        words.append(num_words)
    for precision, balanced, recall in zip(*words, strict=True):
        assert precision <= balanced <= recall
    assert sum(words[0]) < sum(words[1]) < sum(words[2])


def test_text_of_a_page_does_not_depend_on_earlier_pages() -> None:
    pages = [
        f'<div class="c{n % 7} post">{P * (n % 4)}<div id="nav{n}">{NAV}</div></div>'
        for n in range(40)
    ]
    forwards = [extract(html) for html in pages]
    backwards = [extract(html) for html in reversed(pages)]
    assert forwards == backwards[::-1]


# This is 2020-01-01.
FETCHED_AT = 1_577_836_800
# The first line of a case has a field, its value (nothing for None), and the page's URL if it
# matters. Below it is the page.
CASES_FILE = Path(__file__).with_name("metadata.txt")
CASES = CASES_FILE.read_text(encoding="utf-8").strip("\n").split("\n\n")


def read(html: str, url: str = "http://h/") -> dict[str, str | None]:
    """Return the metadata of a page."""
    page = read_page(html)
    return read_metadata(page, read_head(page), url, FETCHED_AT)


@pytest.mark.parametrize("case", CASES)
def test_field_of_a_page(case: str) -> None:
    first, _, html = case.partition("\n")
    field, _, expected = first.partition(":")
    value, _, url = expected.partition("    ")
    assert read(html, url or "http://h/")[field] == (value.strip() or None)


def test_a_text_of_a_thousand_letters_is_not_a_title() -> None:
    assert read(f"<title>{'x' * 1000}</title>")["title"] is None
