"""Superscripts and subscripts keep their meaning in plain text."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from owt_pipeline.stages.extract.reader import read_page
from owt_pipeline.stages.extract.rendering import plain_text


def read(html: str) -> str:
    return plain_text(read_page(f"<html><body><p>{html}</p></body></html>").blocks)


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("10<sup>6</sup> people, 3×10<sup>8</sup> m, 10<sup>-6</sup>", "10^6 people, 3×10^8 m, 10^-6"),
        ("E = mc<sup>2</sup>; E=<i>m</i><i>c</i><sup>2</sup>", "E = mc^2; E=mc^2"),
        ("2<sup>n</sup>, 2<sup>10</sup> bytes, 12<sup>2</sup> = 144", "2^n, 2^10 bytes, 12^2 = 144"),
        ("200 km<sup>2</sup>, 12 in<sup>2</sup>, s<sup>−1</sup>", "200 km^2, 12 in^2, s^−1"),
        ("a<sup>2</sup>+b<sup>2</sup>, sin<sup>2</sup> x", "a^2+b^2, sin^2 x"),
        ("(x+1)<sup>2</sup>, x<sup>n+1</sup>, A<sup>T</sup>", "(x+1)^2, x^{n+1}, A^T"),
        ("Ca<sup>2+</sup>, SO<sub>4</sub><sup>2-</sup>", "Ca^{2+}, SO4^{2-}"),
    ],
)
def test_powers_are_written_with_a_caret(html: str, text: str) -> None:
    assert read(html) == text


@pytest.mark.parametrize(
    ("html", "text"),
    [
        ("word<a href='#f1'><sup>1</sup></a>, x<sup><a href='#f2'>2</a></sup>", "word[1], x[2]"),
        ("Foxes.<sup><a href='#c1'><span>[</span>note 1<span>]</span></a></sup>", "Foxes.[note 1]"),
        ("1<sup>st</sup>, 19<sup>e</sup>, M<sup>me</sup>, i<sup>th</sup>", "1st, 19e, Mme, ith"),
        ("Foo<sup>®</sup>, Bar<sup>TM</sup>, free<sup>*</sup>, 5<sup>°</sup>", "Foo®, BarTM, free*, 5°"),
        ("see<sup>[2]</sup> and <sup>(when available)</sup>", "see[2] and (when available)"),
        ("a<sup></sup> b<sup> </sup>c", "a b c"),
    ],
)
def test_notes_are_in_brackets_and_other_superscripts_unchanged(html: str, text: str) -> None:
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


TEXTS = st.text(st.sampled_from("aex 1290+-−,.()[]%$€TM*nπ\u00e9"), max_size=8)


@example([("$5", "99", "")], "sup")
@given(st.lists(st.tuples(TEXTS, TEXTS, TEXTS), max_size=4), st.sampled_from(["sup", "sub"]))
def test_no_character_is_lost(pieces: list[tuple[str, str, str]], tag: str) -> None:
    html = "".join(f"{before}<{tag}>{inner}</{tag}>{after}" for before, inner, after in pieces)
    bare = "".join(before + inner + after for before, inner, after in pieces)
    marks = str.maketrans(dict.fromkeys("^_{}[] "))
    assert read(html).translate(marks) == bare.translate(marks)
