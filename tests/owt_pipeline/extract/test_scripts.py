"""Superscripts and subscripts keep their meaning in plain text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.stages.extract.blocks import read_blocks
from owt_pipeline.stages.extract.rendering import markdown, plain_text
from owt_pipeline.stages.extract.tree import parse


def read(html: str) -> str:
    return plain_text(read_blocks(parse(f"<html><body><p>{html}</p></body></html>"))[0])


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("10<sup>6</sup> people, 3×10<sup>8</sup> m, 10<sup>-6</sup>", "10^6 people, 3×10^8 m, 10^-6"),
        ("E = mc<sup>2</sup>; E=<i>m</i><i>c</i><sup>2</sup>", "E = mc^2; E=mc^2"),
        ("2<sup>n</sup>, 2<sup>10</sup> bytes, 12<sup>2</sup> = 144", "2^n, 2^10 bytes, 12^2 = 144"),
        ("200 km<sup>2</sup>, 12 in<sup>2</sup>, µg/m<sup>3</sup>, s<sup>−1</sup>", "200 km^2, 12 in^2, µg/m^3, s^−1"),
        ("a<sup>2</sup>+b<sup>2</sup>, πr<sup>2</sup>, sin<sup>2</sup> x", "a^2+b^2, πr^2, sin^2 x"),
        ("(x+1)<sup>2</sup>, x<sup>n+1</sup>, A<sup>T</sup>, e<sup>ix</sup>", "(x+1)^2, x^{n+1}, A^T, e^{ix}"),
        ("e<sup>x<sup>2</sup></sup>, 2<sup>2<sup>n</sup></sup>, 10<sup>6</sup>5", "e^{x^2}, 2^{2^n}, 10^{6}5"),
        ("Ca<sup>2+</sup>, SO<sub>4</sub><sup>2-</sup>, <sup>14</sup>C", "Ca^2+, SO4^2-, ^14C"),
    ],
)
def test_powers_are_written_with_a_caret(html: str, text: str) -> None:
    assert read(html) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("in 1999<sup>1</sup>, in 2025<sup>8</sup>", "in 1999[1], in 2025[8]"),
        ("45%<sup>4</sup>, 1,000<sup>6</sup>, $500<sup>2</sup>", "45%[4], 1,000[6], $500[2]"),
        ("Word<sup>2</sup> here. “There.”<sup>3</sup> (AAP)<sup>4</sup>", "Word[2] here. “There.”[3] (AAP)[4]"),
        ("in<sup>2</sup> the US<sup>2</sup> (2019)<sup>2</sup>", "in[2] the US[2] (2019)[2]"),
        ("tests<sup>1,2</sup> and<sup>11–13</sup>, tax <sup>3</sup>", "tests[1,2] and[11–13], tax [3]"),
        ("<sup>1</sup> See there.", "[1] See there."),
        ("text<br><sup>16</sup>For God", "text\n[16]For God"),
        ("word<a href='#f1'><sup>1</sup></a>, x<a href='/f'><sup>2</sup></a>", "word[1], x[2]"),
    ],
)
def test_references_to_notes_are_in_brackets(html: str, text: str) -> None:
    assert read(html) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("1<sup>st</sup>, 19<sup>e</sup>, M<sup>me</sup>, i<sup>th</sup>", "1st, 19e, Mme, ith"),
        ("Foo<sup>®</sup>, Bar<sup>TM</sup>, free<sup>*</sup>, 5<sup>°</sup>", "Foo®, Bar™, free*, 5°"),
        ("<sup>$</sup>169<sup>99</sup>, $698<sup>.00</sup>", "$169.99, $698.00"),
        ("see<sup>[2]</sup> and <sup>(when available)</sup>", "see[2] and (when available)"),
        ("a<sup></sup> b<sup> </sup>c", "a b c"),
    ],
)
def test_other_superscripts_are_unchanged(html: str, text: str) -> None:
    assert read(html) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("H<sub>2</sub>O, C<sub>6</sub>H<sub>12</sub>O<sub>6</sub>, B<sub>12</sub>", "H2O, C6H12O6, B12"),
        ("C<sub>n</sub>H<sub>2n+2</sub>, Ca(OH)<sub>2</sub>", "C_nH_{2n+2}, Ca(OH)2"),
        ("x<sub>1</sub>, x<sub>n</sub>, a<sub>ij</sub>, x<sub>i</sub><sup>2</sup>", "x_1, x_n, a_ij, x_i^2"),
        ("log<sub>2</sub> 8, 1010<sub>2</sub>, V<sub>max</sub>", "log_2 8, 1010_2, V_max"),
        ("Fox. <sub>Photo by Somebody</sub>", "Fox. Photo by Somebody"),
    ],
)
def test_subscripts_are_marked_or_joined(html: str, text: str) -> None:
    assert read(html) == text


def test_a_link_around_a_superscript_refers_to_its_note() -> None:
    html = '<p>Word<a href="#f1"><sup>1</sup></a></p><p id="f1">The source.</p>'
    assert markdown(*read_blocks(parse(f"<body>{html}</body>"))) == "Word[^1]\n\n[^1]: The source."


TEXTS = st.text(st.sampled_from("aex 1290+-−,.()[]%$€TM*nπ\u00e9"), max_size=8)


@example([("$5", "99", "")], "sup")
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), st.sampled_from(["sup", "sub"]))
def test_no_character_is_lost(pieces: list[tuple[str, str, str]], tag: str) -> None:
    html = "".join(f"{before}<{tag}>{inner}</{tag}>{after}" for before, inner, after in pieces)
    bare = "".join(before + inner + after for before, inner, after in pieces)
    marks = str.maketrans(dict.fromkeys("^_{}[] .") | {"™": "TM"})
    assert read(html).translate(marks) == bare.translate(marks)
