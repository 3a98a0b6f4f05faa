"""Our repair writes the same text as ftfy, except for wide punctuation."""

from __future__ import annotations

import itertools
import json
import time
import unicodedata
from pathlib import Path

import ftfy
import pytest
from ftfy.badness import is_bad
from ftfy.fixes import fix_character_width
from hypothesis import example, given, settings
from hypothesis import strategies as st

from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.repair import _HARMLESS, _QUOTES, fix_text

# ftfy's rules treat these, so hypothesis should meet them often.
NOTABLE = st.sampled_from(
    [
        *"’‘“”‚„ʼ–—…•·\xa0éüñçÃÂâ€™œ®©°«»£¥ﬁŉǆＡ　\x85\x9d\r\n\t<&;\x1b\ufeff\u2028\u0301½²ª",
        "\r\n",
        "&amp;",
        "&#39;",
        "&EACUTE;",
        "â€™",
        "Ã©",
        "\x1b[31m",
        "&lt;b&gt;",
        "\ud83d\udca9",
    ]
)
TEXTS = st.lists(
    st.one_of(st.text(max_size=8), NOTABLE, st.sampled_from(["plain words, ", "\n", " "])),
    max_size=25,
)


def repaired_by_ftfy(text: str, form: str, uncurl_quotes: bool = False) -> str:
    """Return ftfy's result, with wide punctuation kept in text of the scripts of `is_cjk`."""
    config = ftfy.TextFixerConfig(
        normalization=None if form == "none" else form,  # type: ignore[arg-type]
        uncurl_quotes=uncurl_quotes,
    )
    as_wide = ftfy.fix_text(text, config._replace(fix_character_width=False))
    if not any(is_cjk(char) for char in as_wide):
        return ftfy.fix_text(text, config)
    narrowed = ""
    for char in as_wide:
        narrowed += char if char in WIDE_PUNCTUATION else fix_character_width(char)
    if narrowed == as_wide:
        return as_wide
    return ftfy.fix_text(narrowed, config._replace(fix_character_width=False))


WIDE_PUNCTUATION = "！＂＃＄％＆＇（）＊＋，－．／：；＜＝＞？＠［＼］＾＿｀｛｜｝～"


def is_cjk(char: str) -> bool:
    """Return whether a character belongs to a Chinese, Japanese or Korean script."""
    scripts = (
        "CJK UNIFIED", "CJK COMPATIBILITY IDEOGRAPH", "CJK RADICAL", "KANGXI", "HIRAGANA",
        "KATAKANA", "HALFWIDTH KATAKANA", "HANGUL SYLLABLE", "BOPOMOFO",
    )  # fmt: skip
    return unicodedata.name(char, "").startswith(scripts)


FORMS = Options.__dataclass_fields__["normalization"].metadata["choices"]


@settings(max_examples=300)
@given(TEXTS.map("".join), st.sampled_from(FORMS), st.booleans())
@example("&lt;b&gt; here\nand <i> from here on &amp; no more &lt;", "NFC", True)
@example("one &amp;lt; two", "NFC", True)
@example("ª’&#x2019;;", "NFKC", True)
@example("‘café’ ﬁne", "NFC", False)
@example("⺀aÂ\u3000", "NFC", True)
@example("㐀，&lt;b&gt;\r<", "NFC", True)
def test_any_text_is_repaired_as_by_ftfy(text: str, form: str, uncurl_quotes: bool) -> None:
    assert fix_text(text, form, uncurl_quotes) == repaired_by_ftfy(text, form, uncurl_quotes)


@pytest.mark.parametrize("form", FORMS)
def test_every_case_of_ftfys_own_tests_is_repaired_as_by_ftfy(testdata: Path, form: str) -> None:
    files = sorted((testdata / "text" / "ftfy-cases").glob("*.json"))
    cases = [case for file in files for case in json.loads(file.read_text())]
    assert len(cases) > 150
    for case in cases:
        original = case["original"]
        among_lines = f"A line before.\n{original}\nand a line after, with “quotes”."
        for text in (original, among_lines):
            assert fix_text(text, form) == repaired_by_ftfy(text, form)
        if form == "NFC" and case["expect"] == "pass":
            assert fix_text(original, uncurl_quotes=True) == case["fixed"]


def test_wide_punctuation_is_kept_in_chinese_and_japanese_only() -> None:
    chinese = "他说：“你好，世界！”（第１章；ＡＢＣ）？\nＧＤＰ：５％～６％"
    assert fix_text(chinese) == "他说：“你好，世界！”（第1章；ABC）？\nGDP：5％～6％"
    assert fix_text("ﾊﾟｿｺﾝ，ﾃﾞｰﾀ！") == "パソコン，データ！"
    assert fix_text(chinese.encode().decode("latin-1")).startswith("他说：“你好，世界！”")
    assert (
        fix_text("Ｈｅｌｌｏ，　ｗｏｒｌｄ！ It is 5％，sir （yes）")
        == "Hello, world! It is 5%,sir (yes)"
    )


@pytest.mark.slow
def test_a_million_marks_in_a_row_do_not_keep_a_worker_busy() -> None:
    text = "e" + "\u0301\u0316" * 500_000
    started = time.process_time()
    fixed = fix_text(text)
    assert fixed.startswith(unicodedata.normalize("NFC", "e\u0316\u0301"))
    assert sorted(unicodedata.normalize("NFD", fixed)) == sorted(text + "\u034f" * 1000)
    # It takes two seconds. Python's own normalization takes ten minutes.
    assert time.process_time() - started < 60


def test_harmless_characters_never_look_like_mojibake() -> None:
    """The fast path relies on this. ftfy's patterns match at most three of these characters."""
    beyond = list((_HARMLESS + _QUOTES).replace("\x20-\x7e", ""))
    alphabet = [*beyond, *"aZ09 .,'\"-_^~|("]
    for length in (1, 2, 3, 4):
        assert not any(
            is_bad("".join(chars)) for chars in itertools.product(alphabet, repeat=length)
        )
    every = [*beyond, *map(chr, range(0x20, 0x7F))]
    for length in (1, 2):
        assert not any(is_bad("".join(chars)) for chars in itertools.product(every, repeat=length))
