"""An article is separated from the text around it, and its metadata are found.

`articles/NAME.html` becomes `articles/NAME.md`.
"""

from __future__ import annotations

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


LEAD = "The keepers of the northern cape burned a lamp every night, and nobody counted the oil."


def keeps_lead(html: str, lead: str = LEAD, p: float = 0.3) -> bool:
    """Return whether a lead with this probability is kept before paragraphs that are kept."""
    blocks = read_page(f"<html><body>{html}{P * 4}</body></html>").blocks
    is_lead = np.array([block.text == lead for block in blocks])
    keep = np.array([block.chars > 200 for block in blocks])
    _keep_lead(blocks, np.where(is_lead, p, 0.1), CUT, keep)
    assert is_lead.sum() == 1
    return bool(keep[is_lead][0])


@pytest.mark.parametrize(
    "header",
    [
        "<header><h1>The lamp</h1><p class=lead>{}</p></header>",
        "<h1>The lamp</h1><div>Ada Bruun</div><div><div><p>{}</p></div></div>",
        "<section><div><h1>The lamp</h1></div></section><p>2 May 2024</p><div><p>{}</p></div>",
        "<h1>Cape news</h1><h1>The lamp</h1><p>{}</p><ul><li>Share<li>Print</ul>",
    ],
)
@pytest.mark.parametrize(
    "lead",
    [
        LEAD,
        "Wer hat das Öl der Lampe bezahlt, die jede Nacht am nördlichen Kap brannte und nie ausging?",
        "« Les gardiens du cap nord allumaient une lampe chaque nuit, et personne ne comptait l’huile »",
    ],
)
def test_the_lead_below_the_title_is_kept(header: str, lead: str) -> None:
    assert keeps_lead(header.format(lead), lead)


@pytest.mark.parametrize(
    "header",
    [
        "<h1>The lamp</h1><div>{}</div>",
        "<h1>The lamp</h1><ul><li>{}</ul>",
        "<h1>The lamp</h1><img src=a.png><p>{}</p>",
        "<p>{}</p><h1>The lamp</h1>",
        "<h2>The lamp</h2><p>{}</p>",
        "<h1>The lamp</h1><p>{}</p><p>Another teaser says that the ships of the cape were painted "
        "in green and in white.</p>",
    ],
)
def test_other_text_below_the_title_is_no_lead(header: str) -> None:
    assert not keeps_lead(header.format(LEAD))


@pytest.mark.parametrize(
    "line",
    [
        "Photograph of the lamp at the northern cape by the society of the keepers of the lamps 1988",
        "An improbable sentence, in the view of the model, is not the lead of this article.",
    ],
)
def test_a_lead_is_a_probable_sentence(line: str) -> None:
    header = f"<h1>The lamp</h1><p>{line}</p>"
    assert not keeps_lead(header, line, p=0.1 if line.endswith(".") else 0.3)


def test_hidden_text_does_not_decide_on_the_cut() -> None:
    # By the higher cut, less than half of the text is visible, and a script would seem to show it.
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
