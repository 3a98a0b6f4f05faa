"""The charset of a page whose header, markup and content disagree."""

from __future__ import annotations

import codecs
import gzip
import json
import random
from collections import defaultdict
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.stages.extract.charset import decode, lookup

GERMAN = "Größe und Übermut tun selten gut, sagte der Bär. "
RUSSIAN = "Съешь же ещё этих мягких французских булок да выпей чаю. " * 5
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 5


def page(text: str, charset: str, meta: str = "") -> bytes:
    return f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(charset)


def test_byte_order_mark_overrides_all_declarations() -> None:
    meta = '<meta charset="windows-1251">'
    for charset, name in (("utf-8-sig", "utf-8"), ("utf-16", "utf-16-le")):
        text, found = decode(page(GERMAN, charset, meta), "iso-8859-1")
        assert found == name
        assert GERMAN in text
        assert text[0] == "<"
    body = "\ufeff" + page(GERMAN, "utf-8").decode()
    assert decode(body.encode("utf-16-be"), None) == (body[1:], "utf-16-be")


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be"])
def test_utf16_is_recognised_without_a_byte_order_mark(charset: str) -> None:
    text = page(GERMAN, "utf-8").decode()
    assert decode(text.encode(charset), "utf-8") == (text, charset)


def test_valid_utf8_is_utf8_whatever_is_declared() -> None:
    text, found = decode(page(GERMAN, "utf-8", "<meta charset=windows-1252>"), "iso-8859-1")
    assert (found, GERMAN in text) == ("utf-8", True)


def test_header_takes_precedence_over_markup() -> None:
    text, found = decode(page(RUSSIAN, "koi8-r", '<meta charset="windows-1251">'), "koi8-r")
    assert (found, RUSSIAN in text) == ("koi8-r", True)


@pytest.mark.parametrize(
    "meta",
    [
        '<meta charset="windows-1251">',
        "<META CHARSET=windows-1251>",
        '<meta http-equiv="Content-Type" content="text/html; charset=windows-1251">',
        "<!-- <meta charset=\"koi8-r\"> --><meta charset='windows-1251'/>",
    ],
)
def test_markup_decides_if_the_header_does_not(meta: str) -> None:
    text, found = decode(page(RUSSIAN, "cp1251", meta), None)
    assert (found, RUSSIAN in text) == ("cp1251", True)


def test_xml_declaration_counts() -> None:
    body = b'<?xml version="1.0" encoding="Shift_JIS"?>' + page(JAPANESE, "cp932")
    text, found = decode(body, None)
    assert (found, JAPANESE in text) == ("cp932", True)


def test_unknown_label_is_ignored() -> None:
    for label in ("utf8mb4-nonsense", "none", "base64", "idna", "\x00", "x" * 1000):
        assert decode(page(RUSSIAN, "cp1251", "<meta charset=windows-1251>"), label)[1] == "cp1251"


def test_declared_charset_that_does_not_decode_is_ignored() -> None:
    text, found = decode(page(RUSSIAN, "cp1251"), "utf-8")
    assert RUSSIAN in text
    assert found == "cp1251"
    text, _ = decode(page(JAPANESE, "shift_jis"), "utf-8")
    assert JAPANESE in text


def test_latin_letters_without_a_declaration_are_windows_1252() -> None:
    text, found = decode(page("déjà vu, “naïve” façade: l'été où le garçon " * 20, "cp1252"), None)
    assert found == "cp1252"
    assert "déjà vu, “naïve” façade" in text


LEGACY = {
    "iso8859-2": "pl cs sk hu sl hr", "cp1250": "pl cs sk hu sl hr bs", "cp1251": "ru uk bg sr mk be", "koi8-r": "ru",
    "koi8-u": "uk", "iso8859-5": "ru", "cp866": "ru", "iso8859-7": "el", "cp1253": "el", "cp1254": "tr az",
    "cp1255": "he", "cp1256": "ar fa ur", "cp1257": "lt lv", "cp874": "th", "cp932": "ja", "euc-jp": "ja",
    "gb18030": "zh", "big5": "zh", "cp949": "ko", "cp1258": "vi",
    "cp1252": "de fr es it pt nl sv da nb nn fi is ca eu ga af tl sw la cy sq",
}  # fmt: skip


@pytest.fixture(scope="module")
def sentences(testdata: Path) -> dict[str, list[str]]:
    """Sentences by language; those with U+FFFD are damaged in the data."""
    found = defaultdict(list)
    with gzip.open(testdata / "text" / "sentences-by-language.jsonl.gz", "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            found[row["lang"]].append(row["text"])
    return found


@pytest.mark.parametrize("charset", LEGACY)
def test_undeclared_charsets_are_recognised_in_many_languages(sentences: dict[str, list[str]], charset: str) -> None:
    wrong, pages = [], 0
    for language in LEGACY[charset].split():
        for start in range(0, 100, 10):
            content = "</p><p>".join(sentences[language][start : start + 10]).encode(charset, "ignore")
            if not content.isascii():
                pages += 1
                if content.decode(charset) not in decode(b"<html><body><p>" + content + b"</p>", None)[0]:
                    wrong.append((language, start))
    assert pages
    assert len(wrong) <= 0.1 * pages, wrong


def test_undeclared_polish_is_recognised(sentences: dict[str, list[str]]) -> None:
    for start in range(0, 100, 5):
        for charset in ("iso8859-2", "cp1250"):
            text = " ".join(sentences["pl"][start : start + 5]).encode(charset, "ignore").decode(charset)
            assert text in decode(page(text, charset), None)[0]


def test_english_with_a_few_accents_keeps_its_charset() -> None:
    english = "A café’s “naïve” résumé © 2013, 20 °C, £5 – it’s Ångström® and Brontë’s señor. " * 3
    for text in (english, "It’s £5. " * 20, "© 2013 Brontë", "Zoë’s Škoda and Žižek"):
        assert text in decode(page(text, "cp1252"), None)[0]


def test_one_stray_byte_in_a_hundred_does_not_change_the_charset_of_utf8(sentences: dict[str, list[str]]) -> None:
    rng = random.Random(1)
    for language in "pl cs hu sk tr de fr pt sv ru uk el ar he hi ja zh ko th vi".split():
        body = bytearray(page("</p><p>".join(sentences[language]), "utf-8"))
        for position in rng.sample(range(len(body)), len(body) // 100):
            body[position] = rng.randrange(0x80, 0x100)
        for declared in (None, "utf-8", "iso-8859-1"):
            assert decode(bytes(body), declared)[1] == "utf-8", language


def test_a_little_damage_does_not_change_the_charset() -> None:
    body = page(RUSSIAN * 10, "utf-8")
    cut = body.replace("чаю".encode(), "чаю".encode()[:-1], 1)
    text, found = decode(cut, "utf-8")
    assert found == "utf-8"
    assert text.count("\ufffd") == 1


@pytest.mark.parametrize("stray", [b"\xe9", b"\xff\xfe", b"\xa0", b"\xc3", b"\x80\x81\x82"])
@pytest.mark.parametrize("meta", ["", "<meta charset=utf-8>"])
@pytest.mark.parametrize("declared", [None, "utf-8", "iso-8859-1"])
def test_stray_bytes_do_not_change_the_charset_of_utf8(stray: bytes, meta: str, declared: str | None) -> None:
    text = "Ein Café – “naïve” façade, 5 € für déjà vu. " * 5
    body = page(text, "utf-8", meta).replace(b"</p>", stray + b" tail</p>")
    found, charset = decode(body, declared)
    assert charset == "utf-8"
    assert text in found


def test_declared_utf8_with_few_letters_beyond_ascii_survives_stray_bytes() -> None:
    body = page("A page of ASCII with one café and one – dash. ", "utf-8").replace(b"</p>", b"\xa0\xe9</p>")
    assert decode(body, "utf-8")[1] == "utf-8"
    assert "one café and one – dash" in decode(body, "utf-8")[0]


def test_latin1_means_windows_1252_as_in_browsers() -> None:
    text, found = decode(page("“quoted” – 5 €", "cp1252"), "ISO-8859-1")
    assert found == "cp1252"
    assert "“quoted” – 5 €" in text
    assert lookup("us-ascii") == "cp1252"
    assert lookup("gb2312") == "gb18030"


def test_labels_of_the_encoding_standard_are_known() -> None:
    labels = "x-sjis windows-31j windows-949 windows-874 x-cp1251 x-mac-cyrillic koi8-ru iso-8859-8-i iso885915 big5"
    assert [lookup(label) for label in labels.split()] == [
        "cp932", "cp932", "cp949", "cp874", "cp1251", "mac-cyrillic", "koi8-u", "iso8859-8", "iso8859-15", "big5hkscs",
    ]  # fmt: skip
    text, found = decode(page(JAPANESE, "cp932", "<meta charset=X-SJIS>"), "iso-8859-6-i")
    assert (found, JAPANESE in text) == ("cp932", True)


@pytest.mark.parametrize("declared", [None, "utf-8", "iso-8859-1", "shift_jis"])
@pytest.mark.parametrize("meta", ["", "<meta charset=iso-2022-jp>", "<meta charset=utf-8>"])
def test_japanese_in_ascii_bytes_is_read_whatever_is_declared(declared: str | None, meta: str) -> None:
    text, found = decode(page(JAPANESE, "iso2022_jp", meta), declared)
    assert (found, JAPANESE in text) == ("iso2022_jp", True)
    assert (
        decode(b"an escape: \x1b$B or \x1b(B, and no more", declared)[0] == "an escape: \x1b$B or \x1b(B, and no more"
    )


@pytest.mark.parametrize("text", ["It’s true", "a café", "5 € and © 2013"])
@pytest.mark.parametrize("declared", [None, "utf-8"])
def test_a_stray_letter_of_windows_1252_in_ascii_declared_utf8_is_read(text: str, declared: str | None) -> None:
    body = page(f"Plain. {text}. More plain text.", "cp1252", "<meta charset=utf-8>")
    assert text in decode(body, declared)[0]
    cut = page("Plain text and then", "utf-8", "<meta charset=utf-8>")[:-18] + "é".encode()[:1]
    assert decode(cut, declared)[1] == "utf-8"


@pytest.mark.parametrize("header", ["iso-8859-1", "ISO8859-1", "windows-1252", "us-ascii"])
@pytest.mark.parametrize(("charset", "text"), [("koi8-r", RUSSIAN), ("cp1251", RUSSIAN), ("euc-jp", JAPANESE)])
def test_meta_is_right_where_the_header_has_a_default(header: str, charset: str, text: str) -> None:
    label = charset.replace("cp", "windows-")
    assert text in decode(page(text, charset, f"<meta charset={label}>"), header)[0]
    assert GERMAN in decode(page(GERMAN, "cp1252", "<meta charset=utf-8>"), header)[0]


@given(st.binary(max_size=300), st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["utf-16", "utf-7", "hz"])))
def test_any_bytes_decode(body: bytes, declared: str | None) -> None:
    text, found = decode(body, declared)
    assert isinstance(text, str)
    assert codecs.lookup(found)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_utf8_decodes_to_itself(text: str) -> None:
    if text.startswith("\ufeff") or text.isascii():
        return
    assert decode(text.encode(), "windows-1252") == (text, "utf-8")
