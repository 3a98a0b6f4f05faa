"""Separating an article from the text around it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from benchmarks.extraction_model.labelled_pages import read_labelled
from owt_pipeline.stages.extract.extractor import Extracted, Page, Settings, load

SENTENCE = "The quick brown fox jumps over the lazy dog, and then it rests beneath a tree for a while. "
P = f"<p>{SENTENCE * 3}</p>"
NAV = "<ul>" + "".join(f'<li><a href="/{name}">{name}</a>' for name in ("Home", "News", "Sport", "Opinion")) + "</ul>"


WRAPPERS = (
    '<div class="sidebar-right">', '<div class="widget">', "<nav>", "<aside>", '<div class="hide">',
    '<form id="aspnetForm">', '<div style="visibility:hidden">', '<div class="content no-sidebar">',
)  # fmt: skip


def extract(html: str, **settings: object) -> str:
    found = load(Settings(**settings))(Page("http://h/", html, 1_767_225_600))  # type: ignore[arg-type]
    return found.text if found else ""


def page(body: str, head: str = "") -> str:
    return f"<html><head>{head}</head><body>{body}</body></html>"


def test_hidden_text_is_left_out_unless_it_is_nearly_all_there_is() -> None:
    hidden = f'<div style="display: none">{P.replace("fox", "cat")}</div>'
    assert "cat" not in extract(page(f"<h1>Foxes</h1>{P}{hidden}{P}"))
    assert "cat" in extract(page(f"<h1>Cats</h1><p>{SENTENCE}</p>{hidden * 3}"))


def test_navigation_sidebars_footers_and_comments_are_left_out() -> None:
    text = extract(
        page(
            f"<header>{NAV}</header><nav>{NAV}</nav><div id=content><h1>Foxes</h1>{P}{P}"
            f'<div class="share-buttons">Share on Facebook</div><figure><img><figcaption>A fox</figcaption></figure>{P}'
            f"<div id=comments><p>First! {SENTENCE}</p></div></div>"
            f"<div class=sidebar><p>Subscribe to our letters today.</p></div><aside>{P.replace('fox', 'cat')}</aside>"
            f"<footer>© 2020 Foxes Ltd.</footer>"
        )
    )
    assert text.removeprefix("Foxes\n") == "\n".join([(SENTENCE * 3).strip()] * 3)


def test_misleading_name_does_not_remove_the_page() -> None:
    for wrapper in WRAPPERS:
        assert SENTENCE.strip() in extract(page(f"{wrapper}<h1>Foxes</h1>{P}{P}")), wrapper
    many = "".join(f'<div class="widget">{P}</div>' for _ in range(8))
    assert extract(page(many)).count("quick brown") == 24


def test_parts_streamed_by_react_are_read() -> None:
    assert SENTENCE.strip() in extract(page(f'<div>Loading</div><div hidden id="S:0"><article>{P}{P}</article></div>'))


def test_comments_are_kept_if_there_is_little_other_text() -> None:
    thread = (
        f'<div class="post"><p>What do foxes do?</p></div><div class="comment">{P}</div><div class="comment">{P}</div>'
    )
    assert extract(page(thread)).count("quick brown") == 6
    article = f'<article>{P * 6}</article><div class="comment"><p>{SENTENCE.replace("fox", "cat")}</p></div>'
    assert "cat" not in extract(page(article))
    assert "cat" in extract(page(article), include_comments=True)


def test_runs_of_links_are_left_out_but_not_a_page_of_links() -> None:
    links = "".join(f'<li><a href="/{n}">Another story, number {n}</a></li>' for n in range(6))
    related = f'<div class="related-posts"><h3>Related posts</h3><ul>{links}</ul></div>'
    assert "Another story" not in extract(page(f"<article>{P * 4}{related}</article>"))
    listing = "".join(f'<li><a href="/{n}">A story with a longer title, number {n}</a></li>' for n in range(30))
    assert extract(page(f"<ul>{listing}</ul>")).count("longer title") == 30


def test_parts_after_an_article_are_left_out_and_its_own_parts_are_kept() -> None:
    cards = "".join(f'<li class="card"><a href="/{n}">Cats, part {n}</a></li>' for n in range(4))
    body = f"<h2>Background</h2>{P}<h2>Sources</h2>{P}"
    related = f'<section class="related"><h2>Related stories</h2><ul>{cards}</ul></section>'
    text = extract(page(f"<nav>{NAV}</nav><article><h1>Foxes</h1>{P * 4}{body}</article>{related}"))
    assert "Cats" not in text
    assert "Background" in text
    assert text.count("quick brown") == 18


def test_layout_tables_of_old_pages_are_read() -> None:
    text = extract(
        page(
            f"<table width=100%><tr><td width=150>{NAV}</td><td><font size=2><b>Foxes</b><br><br>{SENTENCE * 2}<br><br>"
            f"{SENTENCE * 2}<br><br></font><p><center>{NAV}</center></td></tr></table>"
        )
    )
    assert text == "\n".join(["Foxes", *[(SENTENCE * 2).strip()] * 2])


def test_recall_keeps_more_and_precision_less(testdata: Path) -> None:
    pages = read_labelled(testdata / "web", ("readability",))[:20]
    words = []
    for favor in ("precision", "balanced", "recall"):
        extractor = load(Settings(favor=favor))
        found = [extractor(Page(labelled.url, labelled.html, 1_767_225_600)) for labelled in pages]
        words.append([len(document.text.split()) if document else 0 for document in found])
    assert all(less <= balanced <= more for less, balanced, more in zip(*words, strict=True))
    assert sum(words[0]) < sum(words[1]) < sum(words[2])


def test_lists_are_kept_complete_and_code_between_kept_paragraphs() -> None:
    items = "".join(f"<li>{name}</li>" for name in ("One fox that rests", "a", "Another fox that jumps", "42"))
    code = "<pre>x = 1\n\nprint(x)</pre>"
    text = extract(page(f"<article><h1>Foxes</h1>{P}<ul>{items}</ul>{P}{code}{P}</article>"))
    assert "One fox that rests\na\nAnother fox that jumps\n42" in text
    assert "\nx = 1\n\nprint(x)\n" in text


def test_a_page_with_little_text_costs_no_import_of_another_extractor() -> None:
    code = "import sys\nfrom owt_pipeline import extract\nextract(sys.argv[1])\nassert 'trafilatura' not in sys.modules"
    subprocess.run([sys.executable, "-c", code, page("<p>A short text.</p>")], check=True)


def test_text_of_a_page_does_not_depend_on_earlier_pages() -> None:
    pages = [page(f'<div class="c{n % 7} post">{P * (n % 4)}<div id="nav{n}">{NAV}</div></div>') for n in range(40)]
    forwards = [extract(html) for html in pages]
    backwards = [extract(html) for html in reversed(pages)]
    assert forwards == backwards[::-1]


def test_metadata_comes_with_the_text() -> None:
    head = (
        "<title>Foxes at rest | The Daily Fox</title><meta property='og:site_name' content='The Daily Fox'>"
        "<meta name=author content='By A. Fox'><meta property='article:published_time' content='2019-05-03T10:00:00Z'>"
    )
    found = load(Settings())(
        Page("http://h/", f"<html lang=en-GB><head>{head}</head><body><h1>The Daily Fox</h1>{P * 3}", 1_767_225_600)
    )
    assert found == Extracted(
        "The Daily Fox\n" + "\n".join([(SENTENCE * 3).strip()] * 3), "Foxes at rest", "A. Fox", "2019-05-03",
        "The Daily Fox", "en",
    )  # fmt: skip


def test_text_in_two_places_is_kept_once() -> None:
    narrow = "<div class='narrow'><div>{}</div></div>"
    wide = "<div class='wide'><div>{}</div></div>"
    body = "".join(f"<p>{number}. {SENTENCE * 2}</p>" for number in range(4))
    text = extract(page(f"<h1>Foxes</h1>{wide.format(body)}{narrow.format(body)}"))
    assert [text.count(f"{number}. The quick") for number in range(4)] == [1, 1, 1, 1]


def test_lines_that_repeat_within_a_text_are_kept() -> None:
    refrain = "<p>And the fox jumped over the lazy dog, again and again.</p>"
    verses = "".join(f"<p>{number}. {SENTENCE * 2}</p>{refrain}" for number in range(4))
    assert extract(page(f"<article><h1>A song</h1>{verses}</article>")).count("again and again") == 4


def test_article_repeated_as_one_piece_is_kept_once() -> None:
    paragraphs = [f"Part {n}. {SENTENCE * 2}".strip() for n in range(5)]
    body = "".join(f"<p>{text}</p>" for text in paragraphs)
    parts = f"<div itemprop=articleBody>{body}</div><div itemprop=articleBody>{' '.join(paragraphs)}</div>"
    assert extract(page(f"<article>{parts}</article>")) == "\n".join(paragraphs)
    twice = f"<div itemprop=articleBody>{body}</div><div itemprop=articleBody>{body}</div>"
    assert extract(page(f"<article>{twice}</article>")) == "\n".join(paragraphs)


def test_terms_and_questions_are_kept_with_their_answers() -> None:
    terms = "".join(f"<dt>Term {n}</dt><dd>{n}. {SENTENCE * 2}</dd>" for n in range(4))
    text = extract(page(f"<article><h1>Foxes</h1>{P}<dl>{terms}</dl>{P}</article>"))
    assert [f"Term {n}" in text for n in range(4)] == [True] * 4
    answers = "".join(f"<details><summary>Why {n}?</summary><p>{n}. {SENTENCE * 2}</p></details>" for n in range(4))
    text = extract(page(f"<article><h1>Foxes</h1>{P}{answers}{P}</article>"))
    assert [f"Why {n}?" in text for n in range(4)] == [True] * 4


def test_code_with_a_button_to_copy_it_is_kept_without_the_button() -> None:
    code = "<div class=code><pre>pip install owt</pre><button>Copy</button></div>"
    text = extract(page(f"<article><h1>Foxes</h1>{P}{code}{P}{code.replace('install', 'remove')}{P}</article>"))
    assert "\npip install owt\n" in text
    assert "\npip remove owt\n" in text
    assert "Copy" not in text


def test_action_buttons_are_left_out() -> None:
    buttons = "<button>Share</button><button>Print</button><button>Subscribe</button>"
    text = extract(page(f"<article>{buttons}{P * 4}{buttons}</article>"))
    assert text == "\n".join([(SENTENCE * 3).strip()] * 4)
