"""Legacy charsets are decoded by the tables of the WHATWG Encoding Standard, also damaged text.

The digests are of what a decoder written from the standard's algorithms and its published indexes
(github.com/whatwg/encoding at a985b62) makes of the same bytes, so the indexes need not be here.
"""

from __future__ import annotations

import hashlib

import pytest

from owt_pipeline.stages.extract.charset import decode, lookup
from owt_pipeline.stages.extract.legacy_charsets import decode_legacy

ALL_PAIRS = b"\n".join(bytes([a, b]) for a in range(0x80, 0x100) for b in range(256))
JIS_X_0212 = b"\n".join(bytes([0x8F, a, b]) for a in range(0x80, 0x100) for b in range(256))
FOUR_BYTES = b"\n".join(
    bytes([a, b, c, 0x35])
    for a in range(0x81, 0xFF)
    for b in range(0x30, 0x3A)
    for c in range(0x81, 0xFF)
)

OF_PAIRS = [
    ("shift_jis", ALL_PAIRS, "dc41c920ca79b540"),
    ("euc-jp", ALL_PAIRS, "284328afc1c27205"),
    ("euc-jp", JIS_X_0212, "ada1813099ceef9b"),
    ("euc-kr", ALL_PAIRS, "a70cb0db6c6f738b"),
    ("big5", ALL_PAIRS, "708b047dd842085a"),
    ("gb18030", ALL_PAIRS, "573e34f30d68fff4"),
    ("gb18030", FOUR_BYTES, "cfec300592a451b2"),
]

OF_ONE_BYTE = {
    "ibm866": "3c8cc5cb485f93d2",
    "iso-8859-2": "a5871b0f978b840b",
    "iso-8859-3": "e83895f2b7d7b82b",
    "iso-8859-4": "449076e20ebf45eb",
    "iso-8859-5": "9f31ddc0f7444afa",
    "iso-8859-6": "beba4e6cf97dce83",
    "iso-8859-7": "71069977a6798ab7",
    "iso-8859-8": "b43535e7aaeb7bcf",
    "iso-8859-8-i": "b43535e7aaeb7bcf",
    "iso-8859-10": "282514fbd01219c4",
    "iso-8859-13": "4426f6d2f1b025cd",
    "iso-8859-14": "f03afb7e01e66cac",
    "iso-8859-15": "9b58b26dbd8fbff2",
    "iso-8859-16": "2de1faef4dc524c9",
    "koi8-r": "fb0243455e64ef70",
    "koi8-u": "896c218aaf12ca1b",
    "macintosh": "54112bce885d7b1a",
    "windows-874": "6a2c7940c3d68216",
    "windows-1250": "03772ed2e875bd12",
    "windows-1251": "b16600cf4e6d1a2d",
    "windows-1252": "cc916e51644a12e8",
    "windows-1253": "e4570135cbc6e3d5",
    "windows-1254": "4a8e99647c3e28e6",
    "windows-1255": "870c5c5e687fabcd",
    "windows-1256": "6f6e8626197b1b6b",
    "windows-1257": "d19a4e888879e36a",
    "windows-1258": "e79b48db126bc71d",
    "x-mac-cyrillic": "784db55e1c90195e",
}


def digest_of_decoded(body: bytes, label: str) -> str:
    text = decode_legacy(body, lookup(label) or "")
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:16]


@pytest.mark.parametrize(("label", "body", "digest"), OF_PAIRS)
def test_every_pair_of_bytes_decodes_as_in_the_standard(
    label: str, body: bytes, digest: str
) -> None:
    assert digest_of_decoded(body, label) == digest


@pytest.mark.parametrize("label", OF_ONE_BYTE)
def test_every_byte_decodes_as_in_the_standard(label: str) -> None:
    assert digest_of_decoded(bytes(range(256)), label) == OF_ONE_BYTE[label]


@pytest.mark.parametrize(
    ("label", "body", "expected"),
    [
        # One U+FFFD for a pair, whose last byte stays if it is of ASCII; what follows is not moved.
        ("euc-jp", b"\xa4\xa2\xa9\xa1\xa4\xa4", "あ\ufffdい"),
        ("euc-jp", b"\xa4\xa2\x8f\xa1\xa1\xa4\xa4", "あ\ufffdい"),
        ("euc-jp", b"\xa4\xa2\xa4<b>", "あ\ufffd<b>"),
        ("shift_jis", b"\x82\xa0\x85\xfc\x82\xa2", "あ\ufffdい"),
        ("shift_jis", b"\x82\xa0\x85@\x82\xa2", "あ\ufffd@い"),
        ("euc-kr", b"\xb0\xa1\xc9\xa1\xb0\xa2", "가\ufffd각"),
        ("euc-kr", b"\xb0\xa1\xff\xb0\xa2", "가\ufffd각"),
        ("big5", b"\xa4@\x81\xa1\xa4A", "一\ufffd乙"),
        ("big5", b"\xa4@\x80\xa4A", "一\ufffd乙"),
        ("gb18030", b"\xb0\xa1\xb0\xff\xb0\xa2", "啊\ufffd阿"),
        ("gb18030", b"\xb0\xa1\x84\x39\xff\xb0\xa2", "啊\ufffd9\ufffd阿"),
        ("gb18030", b"\x80 and \xa8\xbc", "€ and ḿ"),
        ("gbk", b"\xfeY\xfe\xa0", "龴龻"),
        # Characters of vendors, and those that Python has otherwise.
        ("big5", b"\xa1E\xa1\xe3\xa1\xfe\xa2A\xa2B\xa2@\xa3\xe1", "‧～／∕﹨＼€"),
        ("koi8-u", b"\xae\xbe\xa4", "ўЎє"),
        ("windows-1252", b"a\x81b", "a\x81b"),
        ("windows-1255", b"\xca", "\u05ba"),
        # A page may end within a pair.
        ("euc-jp", b"\xa4\xa2\xa4", "あ\ufffd"),
        ("big5", b"\xa4@\xa4", "一\ufffd"),
        ("gb18030", b"\xb0\xa1\x84\x30", "啊\ufffd"),
    ],
)
def test_damaged_and_unusual_text_is_read_as_in_browsers(
    label: str, body: bytes, expected: str
) -> None:
    assert decode_legacy(body, lookup(label) or "") == expected


def test_euc_jp_has_the_characters_of_windows() -> None:
    text = "第①章㈱Ⅱ№～－纊"
    assert decode_legacy(_in_euc_jp(text), "euc_jp") == text


def _in_euc_jp(text: str) -> bytes:
    """Encode in Windows' EUC-JP, for which Python has no codec, by rows and cells."""
    encoded = b""
    for character in text:
        lead, trail = character.encode("cp932")
        pointer = (lead - (0x81 if lead < 0xA0 else 0xC1)) * 188
        pointer += trail - (0x40 if trail < 0x7F else 0x41)
        encoded += bytes([0xA1 + pointer // 94, 0xA1 + pointer % 94])
    return encoded


def test_iso_2022_jp_has_vendors_characters_and_stays_aligned() -> None:
    circled = b"\x1b$B-!-j\x1b(B ok \x1b(I1\x1b(J\\~\x1b(B"
    assert decode_legacy(circled, "iso2022_jp") == "①㈱ ok ｱ¥‾"
    assert decode_legacy(b'\x1b$B$")!$$\x1b(B.', "iso2022_jp") == "あ\ufffdい."
    assert decode_legacy(b'\x1b$B$"\n$$$\x1b(B.', "iso2022_jp") == "あ\nい\ufffd."
    body = b"<p>\x1b$B" + b'-!$"' * 5 + b"\x1b(B</p>"
    assert decode(body, None) == ("<p>" + "①あ" * 5 + "</p>", "iso2022_jp")


PAGE = "<html><body><p>The harbour authority plans to dredge the channel. Hafenbehörde.</p></body>"


@pytest.mark.parametrize("declared", ["utf-16", "UTF-16LE", "utf-16be", "unicode", None])
@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16_is_read_without_a_mark_in_either_order(declared: str | None, codec: str) -> None:
    assert decode(PAGE.encode(codec), declared) == (PAGE, codec)


def test_a_page_that_only_declares_utf16_is_read_as_another() -> None:
    for declared in ("utf-16", "utf-16le", "utf-16be"):
        assert decode(PAGE.encode(), declared) == (PAGE, "utf-8")
        assert decode(PAGE.encode() + b"\x00", declared)[1] == "utf-8"
    chinese = f"<html><p>{'疏浚航道的计划' * 40}</p></html>"
    assert decode(chinese.encode("utf-16-le"), "utf-16")[0] == chinese


@pytest.mark.parametrize("codec", ["utf-16-le", "utf-16-be"])
def test_utf16_with_little_markup_is_read(codec: str) -> None:
    japanese = f"<p>{'の文章です' * 90}</p>"
    for declared in ("utf-16", None):
        assert decode(japanese.encode(codec), declared) == (japanese, codec)


def test_undefined_bytes_show_that_a_charset_is_wrong() -> None:
    text = "Съешь же ещё этих мягких французских булок да выпей чаю. " * 5
    assert decode(text.encode("cp1251"), "windows-1253")[1] == "cp1251"
