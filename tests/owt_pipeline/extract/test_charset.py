"""A page whose header, markup and content disagree is decoded by the right charset."""

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

GERMAN = "Größe und Übermut tun selten gut, sagte der Bär. “Naïve” façade, 5 €. "
RUSSIAN = "Съешь же ещё этих мягких французских булок да выпей чаю. " * 5
JAPANESE = "吾輩は猫である。名前はまだ無い。どこで生れたかとんと見当がつかぬ。" * 5
ALMOST_ASCII = "It’s a café. " + "Plain text. " * 3
META = "<meta charset={}>".format


def page(text: str, charset: str, meta: str = "") -> bytes:
    """Return a page in a charset."""
    return f"<html><head>{meta}</head><body><p>{text}</p></body></html>".encode(charset)


@pytest.mark.parametrize(
    ("text", "charset", "meta", "header", "expected"),
    [
        # A byte order mark, then UTF-8, whatever is declared.
        (GERMAN, "utf-8-sig", META("windows-1251"), "iso-8859-1", "utf-8"),
        (GERMAN, "utf-16", META("windows-1251"), "iso-8859-1", "utf-16-le"),
        (GERMAN, "utf-8", META("windows-1252"), "iso-8859-1", "utf-8"),
        # The header decides, unless it has a server's default. Then the markup decides.
        (RUSSIAN, "koi8-r", META("windows-1251"), "koi8-r", "koi8-r"),
        (RUSSIAN, "cp1251", META("windows-1251"), None, "cp1251"),
        (RUSSIAN, "cp1251", "<META CHARSET='windows-1251'/>", None, "cp1251"),
        (RUSSIAN, "cp1251", '<meta content="text/html; charset=windows-1251">', None, "cp1251"),
        (
            RUSSIAN,
            "cp1251",
            "<!-- <meta charset=koi8-r> --><meta charset=windows-1251>",
            None,
            "cp1251",
        ),
        (RUSSIAN, "koi8-r", META("koi8-r"), "iso-8859-1", "koi8-r"),
        (RUSSIAN, "cp1251", META("windows-1251"), "us-ascii", "cp1251"),
        (JAPANESE, "euc-jp", META("euc-jp"), "windows-1252", "euc_jis_2004"),
        (GERMAN, "cp1252", META("utf-8"), "ISO8859-1", "cp1252"),
        (GERMAN, "cp1252", "", "ISO-8859-1", "cp1252"),
        (JAPANESE, "cp932", META("X-SJIS"), "iso-8859-6-i", "cp932"),
        # A declared charset that does not decode does not count.
        (RUSSIAN, "cp1251", "", "utf-8", "cp1251"),
        (JAPANESE, "cp932", "", "utf-8", "cp932"),
        (GERMAN * 20, "cp1252", "", None, "cp1252"),
        # Japanese in ASCII bytes, and a letter or two of windows-1252 in ASCII.
        (JAPANESE, "iso2022_jp", "", "utf-8", "iso2022_jp"),
        (JAPANESE, "iso2022_jp", META("utf-8"), "shift_jis", "iso2022_jp"),
        (JAPANESE, "iso2022_jp", META("iso-2022-jp"), None, "iso2022_jp"),
        (ALMOST_ASCII, "cp1252", META("utf-8"), None, "cp1252"),
        (ALMOST_ASCII, "cp1252", META("utf-8"), "utf-8", "cp1252"),
        ("It’s £5. " * 20, "cp1252", "", None, "cp1252"),
        ("© 2013 Brontë", "cp1252", "", None, "cp1252"),
        ("Zoë’s Škoda and Žižek", "cp1252", "", None, "cp1252"),
    ],
)
def test_page_is_read_by_its_charset(
    text: str, charset: str, meta: str, header: str | None, expected: str
) -> None:
    text_of_page, name = decode(page(text, charset, meta), header)
    assert (name, text in text_of_page) == (expected, True)
    assert text_of_page[0] == "<"


def test_xml_declaration_counts_and_an_unknown_label_does_not() -> None:
    body = b'<?xml version="1.0" encoding="Shift_JIS"?>' + page(JAPANESE, "cp932")
    assert decode(body, None)[1] == "cp932"
    for label in ("utf8mb4-nonsense", "none", "base64", "idna", "\x00", "x" * 1000):
        assert decode(page(RUSSIAN, "cp1251", META("windows-1251")), label)[1] == "cp1251"


@pytest.mark.parametrize(
    "meta",
    [
        '<meta name="description" content="about charset=koi8-r">',
        "<meta data-charset=koi8-r>",
        "<meta content='charset=koi8-r'>",
        "<metadata charset=koi8-r></metadata>",
        "<meta charset=nonsense>",
        "<meta charset>",
        '<meta title="charset=koi8-r>">',
        "<!-- <meta charset=koi8-r> -->",
    ],
)
def test_only_a_declaration_of_a_known_charset_counts(meta: str) -> None:
    declared = page(RUSSIAN, "cp1251", f"{meta}<META content='a>b' CHARSET = windows-1251 >")
    assert decode(declared, None)[1] == "cp1251"
    assert decode(page(RUSSIAN, "cp1251", meta), None)[1] == "cp1251"


def test_a_comment_without_end_declares_nothing() -> None:
    assert decode(page(RUSSIAN, "cp1251", "<!-- <meta charset=koi8-r>"), None)[1] == "cp1251"


@pytest.mark.parametrize(
    "meta",
    [
        '<meta http-equiv="Content-Type" content="charset=windows-1251">',
        "<meta content='text/html; charset=\"windows-1251\"' http-equiv=content-type>",
        '<meta http-equiv="Content-Type content="text/html; charset=windows-1251">',
        "<meta charset=windows-1251><meta charset=koi8-r>",
        "<meta charset=' windows-1251 '>",
        "<meta\ncharset=windows-1251\n/>",
    ],
)
def test_a_declaration_may_be_written_in_any_way(meta: str) -> None:
    assert decode(page(RUSSIAN, "cp1251", meta), "iso-8859-1")[1] == "cp1251"


def test_labels_of_the_encoding_standard_are_known() -> None:
    labels = (
        "us-ascii gb2312 x-sjis windows-949 windows-874 x-mac-cyrillic koi8-ru iso-8859-8-i "
        "iso885915 big5"
    )
    names = "cp1252 gb18030 cp932 cp949 cp874 mac-cyrillic koi8-u iso8859-8 iso8859-15 big5hkscs"
    assert list(map(lookup, labels.split())) == names.split()


LEGACY = {
    "iso8859-2": "pl cs sk hu sl hr",
    "cp1250": "pl cs sk hu sl hr bs",
    "cp1251": "ru uk bg sr mk be",
    "koi8-r": "ru",
    "koi8-u": "uk",
    "iso8859-5": "ru",
    "cp866": "ru",
    "iso8859-7": "el",
    "cp1253": "el",
    "cp1254": "tr az",
    "cp1255": "he",
    "cp1256": "ar fa ur",
    "cp1257": "lt lv",
    "cp874": "th",
    "cp932": "ja",
    "euc-jp": "ja",
    "gb18030": "zh",
    "big5": "zh",
    "cp949": "ko",
    "cp1258": "vi",
    "cp1252": "de fr es it pt nl sv da nb nn fi is ca eu ga af tl sw la cy sq",
}


@pytest.fixture(scope="module")
def sentences(testdata: Path) -> dict[str, list[str]]:
    """Sentences by language. A sentence with U+FFFD is damaged in the data."""
    sentences_by_language = defaultdict(list)
    path = testdata / "text" / "sentences-by-language.jsonl.gz"
    with gzip.open(path, "rt", encoding="utf-8") as lines:
        for row in map(json.loads, lines):
            sentences_by_language[row["lang"]].append(row["text"])
    return sentences_by_language


@pytest.mark.parametrize("charset", LEGACY)
def test_undeclared_charsets_are_recognised_in_many_languages(
    sentences: dict[str, list[str]], charset: str
) -> None:
    wrong = []
    num_pages = 0
    for language in LEGACY[charset].split():
        for start in range(0, 100, 10):
            paragraphs = "</p><p>".join(sentences[language][start : start + 10])
            content = paragraphs.encode(charset, "ignore")
            if content.isascii():
                continue
            num_pages += 1
            expected = content.decode(charset)
            text, _ = decode(b"<html><body><p>" + content + b"</p>", None)
            if expected not in text:
                wrong.append((language, start))
    assert num_pages
    assert len(wrong) <= 0.1 * num_pages, wrong


def test_one_stray_byte_in_a_hundred_keeps_utf8(sentences: dict[str, list[str]]) -> None:
    rng = random.Random(1)
    for language in "pl cs hu sk tr de fr pt sv ru uk el ar he hi ja zh ko th vi".split():
        body = bytearray(page("</p><p>".join(sentences[language]), "utf-8"))
        for position in rng.sample(range(len(body)), len(body) // 100):
            body[position] = rng.randrange(0x80, 0x100)
        for declared in (None, "utf-8", "iso-8859-1"):
            assert decode(bytes(body), declared)[1] == "utf-8", language


@pytest.mark.parametrize("declared", [None, "utf-8", "iso-8859-1"])
def test_stray_bytes_do_not_change_the_charset_of_utf8(declared: str | None) -> None:
    for meta in ("", "<meta charset=utf-8>"):
        for stray in (b"\xe9", b"\xff\xfe", b"\xa0", b"\xc3", b"\x80\x81\x82"):
            body = page(GERMAN * 3, "utf-8", meta).replace(b"</p>", stray + b" tail</p>")
            text, charset = decode(body, declared)
            assert (charset, GERMAN in text) == ("utf-8", True)


def test_stray_bytes_do_not_change_declared_utf8() -> None:
    body = page("A page of ASCII with one café and one – dash. ", "utf-8").replace(
        b"</p>", b"\xa0\xe9</p>"
    )
    assert decode(body, "utf-8")[1] == "utf-8"
    escapes = "an escape: \x1b$B or \x1b(B, and no more"
    assert decode(escapes.encode(), None)[0] == escapes


@pytest.mark.parametrize(
    ("label", "body", "expected"),
    [
        ("x-sjis", b"\x82\xa0\x87@", "あ①"),
        ("euc-jp", b"\xad\xa1\xbe\xcf\xa4\xa2", "①章あ"),
        ("big5", b"\xa4@\xf9\xd8", "一裏"),
        # Refused: what only the tables of the standard have becomes U+FFFD.
        ("gb18030", b"\x80\xb0\xa1", "\ufffd啊"),
        ("big5", b"\x87\xa1\xa4@", "\ufffd"),
        ("windows-1252", b"a\x81b", "a\ufffdb"),
    ],
)
def test_characters_of_vendors_are_read_where_python_has_them(
    label: str, body: bytes, expected: str
) -> None:
    text = body.decode(lookup(label) or "", "replace")
    assert text.startswith(expected)


PAGE = "<html><body><p>The harbour authority plans to dredge the channel. Hafenbehörde.</p></body>"


@pytest.mark.parametrize("declared", ["utf-16", "UTF-16LE", "utf-16be", "unicode", None])
@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16_is_read_without_a_mark_in_either_order(declared: str | None, codec: str) -> None:
    assert decode(PAGE.encode(codec), declared) == (PAGE, codec)
    japanese = f"<p>{'の文章です' * 90}</p>"
    if declared in ("utf-16", None):
        assert decode(japanese.encode(codec), declared) == (japanese, codec)


def test_a_page_that_only_declares_utf16_is_read_as_another() -> None:
    for declared in ("utf-16", "utf-16le", "utf-16be"):
        assert decode(PAGE.encode(), declared) == (PAGE, "utf-8")
        assert decode(PAGE.encode() + b"\x00", declared)[1] == "utf-8"


def test_undefined_bytes_show_that_a_charset_is_wrong() -> None:
    assert decode(RUSSIAN.encode("cp1251"), "windows-1253")[1] == "cp1251"


@given(
    st.binary(max_size=300),
    st.one_of(st.none(), st.text(max_size=12), st.sampled_from(["utf-16", "utf-7", "hz"])),
)
def test_any_bytes_decode(body: bytes, declared: str | None) -> None:
    text, charset = decode(body, declared)
    assert isinstance(text, str)
    assert codecs.lookup(charset)


@given(st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=200))
def test_utf8_decodes_to_itself(text: str) -> None:
    if text.startswith("\ufeff") or text.isascii():
        return
    assert decode(text.encode(), "windows-1252") == (text, "utf-8")
