"""Which charset a page is in, when header, markup and content disagree."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.extract.charset import decode, lookup

GERMAN = "Größe und Übermut tun selten gut, sagte der Bär. "
RUSSIAN = "Съешь же ещё этих мягких французских булок да выпей чаю. " * 5
JAPANESE = "いろはにほへとちりぬるをわかよたれそつねならむ。" * 5


def page(text: str, charset: str, meta: str = "") -> bytes:
    return f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(charset)


def test_a_byte_order_mark_overrules_all_else() -> None:
    meta = '<meta charset="windows-1251">'
    for charset, name in (("utf-8-sig", "utf-8"), ("utf-16", "utf-16-le")):
        text, found = decode(page(GERMAN, charset, meta), "iso-8859-1")
        assert found == name
        assert GERMAN in text
        assert text[0] == "<"
    body = "\ufeff" + page(GERMAN, "utf-8").decode()
    assert decode(body.encode("utf-16-be"), None) == (body[1:], "utf-16-be")


@pytest.mark.parametrize("charset", ["utf-16-le", "utf-16-be"])
def test_utf16_is_recognised_without_a_mark(charset: str) -> None:
    text = page(GERMAN, "utf-8").decode()
    assert decode(text.encode(charset), "utf-8") == (text, charset)


def test_valid_utf8_is_utf8_whatever_is_declared() -> None:
    text, found = decode(page(GERMAN, "utf-8", "<meta charset=windows-1252>"), "iso-8859-1")
    assert (found, GERMAN in text) == ("utf-8", True)


def test_the_header_comes_before_the_markup() -> None:
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
def test_the_markup_decides_where_the_header_does_not(meta: str) -> None:
    text, found = decode(page(RUSSIAN, "cp1251", meta), None)
    assert (found, RUSSIAN in text) == ("cp1251", True)


def test_an_xml_declaration_counts_too() -> None:
    body = b'<?xml version="1.0" encoding="Shift_JIS"?>' + page(JAPANESE, "cp932")
    text, found = decode(body, None)
    assert (found, JAPANESE in text) == ("cp932", True)


def test_a_label_that_names_no_charset_is_ignored() -> None:
    for label in ("utf8mb4-nonsense", "none", "base64", "idna", "\x00", "x" * 1000):
        assert decode(page(RUSSIAN, "cp1251", "<meta charset=windows-1251>"), label)[1] == "cp1251"


def test_a_declared_charset_that_the_bytes_contradict_is_a_lie() -> None:
    text, found = decode(page(RUSSIAN, "cp1251"), "utf-8")
    assert RUSSIAN in text
    assert found == "cp1251"
    text, _ = decode(page(JAPANESE, "shift_jis"), "utf-8")
    assert JAPANESE in text


def test_latin_letters_without_a_declaration_are_windows_1252() -> None:
    text, found = decode(page("déjà vu, “naïve” façade: l'été où le garçon " * 20, "cp1252"), None)
    assert found == "cp1252"
    assert "déjà vu, “naïve” façade" in text


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


def test_charsets_that_write_all_in_ascii_are_heeded() -> None:
    text, found = decode(page(JAPANESE, "iso2022_jp", "<meta charset=iso-2022-jp>"), None)
    assert (found, JAPANESE in text) == ("iso2022_jp", True)


@given(st.binary(max_size=300), st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["utf-16", "utf-7", "hz"])))
def test_any_bytes_decode(body: bytes, declared: str | None) -> None:
    text, found = decode(body, declared)
    assert isinstance(text, str)
    assert lookup(found) is not None


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_utf8_decodes_to_itself(text: str) -> None:
    if text.startswith("\ufeff") or text.isascii():
        return
    assert decode(text.encode(), "windows-1252") == (text, "utf-8")
