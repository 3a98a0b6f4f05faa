"""The structure of a page in Markdown and in plain text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.stages.extract.reader import read_page
from owt_pipeline.stages.extract.rendering import markdown, plain_text


def rendered(html: str) -> str:
    return markdown(read_page(f"<html><body>{html}</body></html>").blocks)


def plain(html: str) -> str:
    return plain_text(read_page(f"<html><body>{html}</body></html>").blocks)


def test_headings_have_levels_and_paragraphs_are_separated() -> None:
    assert rendered("<h1>A\n<br>b</h1><p>One.</p><h3>C</h3>two<br>lines<br><br>and a third") == (
        "# A b\n\nOne.\n\n### C\n\ntwo\nlines\n\nand a third"
    )


def test_lists_are_nested_and_numbered() -> None:
    html = (
        "<p>Intro</p><ul><li>one<ul><li>deep<ol start=3><li>three<li value=7>seven<li>eight</ol></ul> tail</li>"
        "<li><p>two</p><p>more of it</p></li></ul><ol><li>first</ol>"
    )
    assert rendered(html) == (
        "Intro\n\n- one\n  - deep\n    3. three\n    7. seven\n    8. eight\n\n  tail\n- two\n\n  more of it\n\n"
        "1. first"
    )
    assert plain(html) == "Intro\none\ndeep\nthree\nseven\neight\ntail\ntwo\nmore of it\nfirst"


@pytest.mark.parametrize(("start", "numbers"), [("", [3, 2, 1]), (" start=10", [10, 9, 8]), (" start=1", [1, 0, None])])
def test_reversed_lists_count_down(start: str, numbers: list[int | None]) -> None:
    items = [f"{'-' if number is None else f'{number}.'} x" for number in numbers]
    assert rendered(f"<ol reversed{start}><li>x<li>x<li>x</ol>") == "\n".join(items)  # Markdown has no list from -1 on


def test_item_without_own_text_starts_its_list() -> None:
    assert rendered("<ul><li><ul><li>deep</ul></ul>") == "- - deep"


def test_quotes_keep_their_paragraphs_and_lists() -> None:
    assert rendered("<blockquote><p>A</p><p>B</p><ul><li>c<li>d</ul></blockquote><blockquote>e</blockquote>") == (
        "> A\n>\n> B\n>\n> - c\n> - d\n\n> e"
    )
    assert rendered("<ul><li>x<blockquote>y</blockquote></ul>") == "- x\n\n  > y"


def test_tables_keep_headers_numbers_and_cells_with_paragraphs_or_lists() -> None:
    html = (
        "<table><caption>Sales</caption><thead><tr><th>Year<th>Sold<th>Parts</thead><tr><td>2001<td><p>7</p><p>or 8</p>"
        "<td>5<tr><td>2<td>a|b<td><ul><li>x<li>y</ul></table>"
    )
    assert rendered(html) == (
        "Sales\n\n| Year | Sold | Parts |\n| --- | --- | --- |\n| 2001 | 7<br>or 8 | 5 |\n| 2 | a\\|b | - x<br>- y |"
    )
    assert plain(html) == "Sales\nYear\tSold\tParts\n2001\t7 or 8\t5\n2\ta|b\tx y"


def test_table_without_headers_gets_an_empty_header_and_spans_keep_columns() -> None:
    assert rendered("<table><tr><td rowspan=2>a<td>b<tr><td>c<tr><td colspan=2>d</table>") == (
        "|  |  |\n| --- | --- |\n| a | b |\n|  | c |\n| d |  |"
    )


def test_table_of_links_is_kept_as_a_table() -> None:
    rows = "".join(f"<tr><td><a href=/{n}>Release {n}</a><td><a href=/{n}/n>notes</a>" for n in (3, 4))
    assert rendered(f"<table><tr><th>Name<th>Notes{rows}</table>").endswith(
        "| Release 3 | notes |\n| Release 4 | notes |"
    )


@pytest.mark.parametrize(
    "table",
    [
        "<table role=presentation><tr><td>One.<td>Two.<tr><td>Three.<td>Four.</table>",
        "<table><tr><td><form>One.</form><td>Two.<tr><td>Three.<td>Four.</table>",
        "<table><tr><td>One.</td></tr><tr><td>Two.</td></tr><tr><td>Three.<br>Four.</td></tr></table>",
        "<table><tr><td><p>One.</p><td><p>Two.</p><p>Three.</p><p>Four.</p></table>",
        "<table><tr><td>One.<td><table><tr><td>Two.</table><tr><td>Three.<td>Four.</table>",
        "<table><thead><tr><th>One.<th>Two.</thead><tbody><td>Three.<td>Four.</tbody></table>",
    ],
)
def test_layout_tables_become_text(table: str) -> None:
    assert rendered(table).split() == ["One.", "Two.", "Three.", "Four."]


@pytest.mark.parametrize(
    "html",
    [
        "<pre>def f():\n    return 1\n</pre>",
        "<pre><code><div>def f():</div><div>    return 1</div></code></pre>",
        "<pre><div>def f():</div>\n<div>    return 1</div>\n</pre>",
        "<pre><span class=line>def f():</span><span class=line>    return 1</span></pre>",
        "<pre><span class=lineno>1 </span>def f():\n<span class=lineno>2 </span>    return 1</pre>",
        "<figure class=highlight><table><tr><td class=gutter><pre>1<br>2</pre><td class=code><pre>"
        "<span class=line>def f():</span><br><span class=line>    return 1</span><br></pre></table></figure>",
        "<table class='highlight js-file-line-container'><tr><td class=blob-num data-line-number=1></td>"
        "<td class='blob-code'>def f():</td></tr><tr><td class=blob-num data-line-number=2></td>"
        "<td class='blob-code'>    return 1</td></tr></table>",
        "<div class=chroma><table class=lntable><tr><td class=lntd><pre><code><span class=lnt>1\n</span>"
        "<span class=lnt>2\n</span></code></pre><td class=lntd><pre><code>def f():\n    return 1\n</code></pre></table>"
        "</div>",
        "<div class=code-toolbar><pre class=line-numbers><code>def f():\n    return 1<span class=line-numbers-rows "
        "aria-hidden=true><span></span></span></code></pre><div class=toolbar></div></div>",
        "<code>def f():<br>&nbsp; &nbsp; return 1</code>",
    ],
)
def test_code_keeps_lines_and_indentation_without_line_numbers(html: str) -> None:
    assert rendered(html) == "```\ndef f():\n    return 1\n```"
    assert plain(html) == "def f():\n    return 1"


def test_code_has_its_language_and_a_fence_longer_than_any_in_it() -> None:
    assert rendered('<pre><code class="language-python">x = 1</code></pre>') == "```python\nx = 1\n```"
    assert rendered('<div class="highlight-source-js"><pre>x</pre></div>') == "```js\nx\n```"
    assert rendered("<pre>```\nx\n```</pre>") == "````\n```\nx\n```\n````"
    assert rendered("<p>Call <code>f</code> or <code></code><tt>g</tt>.</p>") == "Call `f` or `g`."


KATEX = (
    '<span class="katex"><span class="katex-mathml"><math><semantics><mrow><mi>x</mi></mrow><annotation '
    'encoding="application/x-tex">x^2</annotation></semantics></math></span><span class="katex-html" '
    'aria-hidden="true"><span>x2</span></span></span>'
)


@pytest.mark.parametrize(
    ("html", "latex"),
    [
        (KATEX, "$x^2$"),
        (f'<span class="katex-display">{KATEX}</span>', "$$x^2$$"),
        ('<span class="MathJax_Preview">x2</span><script type="math/tex">x^2</script>', "$x^2$"),
        (
            '<span class="MathJax_Preview"></span><div class="MathJax_Display"><span class="MathJax">x2</span></div>'
            '<script type="math/tex; mode=display">x^2</script>',
            "$$x^2$$",
        ),
        (
            '<span class="mwe-math-element"><span class="mwe-math-mathml-inline" style="display: none;"><math '
            'alttext="{\\displaystyle x^{2}}"><mi>x</mi></math></span><img class="mwe-math-fallback-image-inline" '
            'aria-hidden="true" alt="{\\displaystyle x^{2}}"></span>',
            "$x^{2}$",
        ),
        ('<math alttext="x^2" display="block"><mi>x</mi></math><img class="tex" alt="$x^2$">', "$$x^2$$"),
        ('<img class="latex" alt="x^2" src="/latex.php?x">', "$x^2$"),
        ('<img class="photo" alt="a fox">', ""),
    ],
)
def test_formulas_are_latex(html: str, latex: str) -> None:
    assert "".join(rendered(f"<p>Be {html}.</p>").split()) == "".join(f"Be {latex}.".split())
    assert plain(f"<p>{html}</p>") == latex.replace("$", "")


def test_hostile_formulas_and_tables_stay_small() -> None:
    assert rendered("<math>" + "<mrow>" * 1500 + "<mi>x</mi>") == "x"
    spans = "<tr><td rowspan=99999 colspan=99999>a<td>b" * 500
    assert len(rendered(f"<table>{spans}</table>")) < 50 * len(spans)


def test_captions_stay_where_they_are() -> None:
    assert rendered("<p>A</p><figure><img><figcaption>A fox</figcaption></figure><p>B</p>") == "A\n\nA fox\n\nB"


PIECES = st.sampled_from(
    ["<ul>", "</ul>", "<ol>", "</ol>", "<li>", "</li>", "<blockquote>", "</blockquote>", "<p>", "</p>", "<pre>",
     "</pre>", "<table>", "<tr>", "<th>", "<td>", "</table>", "<h2>", "</h2>", "<br>", "<code>", "</code>",
     "<div>", "</div>"]
)  # fmt: skip


@example(["<br>", "<code>", "w0 ", "<ul>"])  # code around a block
@given(st.lists(st.one_of(PIECES, st.integers(0, 99).map(lambda n: f"w{n} ")), max_size=60))
def test_plain_and_markdown_have_the_same_words_in_the_same_order(pieces: list[str]) -> None:
    html = "".join(pieces)
    words = [word for word in rendered(html).replace("<br>", " ").replace("`", " ").split() if word.startswith("w")]
    assert words == [word for word in plain(html).split() if word.startswith("w")]
