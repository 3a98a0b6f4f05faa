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
        ("<p>{0}</p><aside><h3>Two boats</h3><p>Nine litres.</p></aside><p>{0}</p>", False),
        ("<p>{0}</p><div class=box role=alert>Nine litres.</div><p>{0}</p>", True),
        ("<p>{0}</p><div role=alert>Nine litres.</div>", False),
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


@pytest.mark.parametrize("empty", ["&zwj;", "&#8203;<br>&#8203;", "\ufeff", "&zwnj; &shy;"])
def test_paragraphs_without_visible_characters_are_left_out(empty: str) -> None:
    body = f"<h1>Foxes</h1>{P}<p>{empty}</p>{P}<p>👩‍🚀</p><p>می‌خواهم</p>"
    text = (SENTENCE * 3).strip()
    assert kept_lines(body) == ["Foxes", text, text, "👩‍🚀", "می‌خواهم"]


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
        ("<article><h1>Foxes</h1>{}</article><div class=comments>{}</div>", 3, False),
        ("<div><h1>Foxes</h1>{}</div><ul class=kommentarer>{}</ul>", 3, False),
        ("<h1>Foxes</h1>{}<div id=disqus>{}</div>", 3, False),
        # A thread.
        ("<article><h1>Foxes</h1>{}</article><div class=comments>{}</div>", 12, True),
    ],
)
def test_few_comments_below_an_article_need_no_metadata(
    page: str, num_comments: int, is_kept: bool
) -> None:
    comments = "".join(
        f'<div class="comment"><p>Bo agrees {number} times: {SENTENCE}</p></div>'
        for number in range(num_comments)
    )
    lines = kept_lines(page.format(P * 4, comments))
    assert any("Bo agrees" in line for line in lines) == is_kept
    assert sum(line.count("brown fox") for line in lines) >= 3


def kept_lines(body: str, url: str = "https://news.example/foxes") -> list[str]:
    """Return the lines that are kept of a page of which the model is certain."""
    read = read_page(f"<html><body>{body}</body></html>")
    kind = read_page_kind(url, read.metas, read_head(read))
    kept_blocks = main_content(read.blocks, kind, Certain(), FAVORS["balanced"], comments=False)
    return [block.text for block in kept_blocks]


FIRST = "".join(f"<p>Fox {number}: {SENTENCE * 2}</p>" for number in range(3))
SECOND = "".join(f"<p>Cat {number}: {SENTENCE * 2}</p>" for number in range(6))


@pytest.mark.parametrize(
    "page",
    [
        "<article class=a><h1>One</h1>{}</article><article class=b><h1>Two</h1>{}</article>",
        "<main class=a><h1>One</h1>{}</main><main class=a><h1>Two</h1>{}</main>",
        "<div><article><h1>One</h1>{}</article></div><article><header><h1>Two</h1></header>{}"
        "</article>",
    ],
)
def test_further_articles_below_the_first_are_left_out(page: str) -> None:
    lines = kept_lines(page.format(FIRST, SECOND))
    assert [line[:5] for line in lines] == ["One", "Fox 0", "Fox 1", "Fox 2"]


@pytest.mark.parametrize(
    "page",
    [
        # A list of complete articles.
        "<article><h1><a href=/1>One</a></h1>{}</article><article><h1><a href=/2>Two</a></h1>{}"
        "</article>",
        # Parts of one text.
        "<section class=a><h1>One</h1>{}</section><section class=a><h1>Two</h1>{}</section>",
        "<article><h1>One</h1>{}<h1>Two</h1>{}</article>",
        "<article><h1>One</h1>{}</article><article><h2>Two</h2>{}</article>",
        # A banner with the title of the article below it.
        "<article><h1>One</h1></article><article><h1>The first</h1>{}{}</article>",
        # The name of the site above a list of articles.
        "<h1>News</h1><article><h1>One</h1>{}</article><article><h1>Two</h1>{}</article>",
    ],
)
def test_parts_of_one_text_and_lists_of_articles_stay(page: str) -> None:
    assert sum(SENTENCE[:30] in line for line in kept_lines(page.format(FIRST, SECOND))) == 9


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
