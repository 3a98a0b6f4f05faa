"""Decodes the bytes of a page, whose header, markup and content may disagree on the charset.

1. A byte order mark.
2. UTF-8, if most characters beyond ASCII are valid: text in another charset practically never is,
   whatever is declared. (Browsers trust the header and show mojibake.)
3. A declared label, with its meaning in the WHATWG Encoding Standard: that of a `<meta>` or an XML
   declaration if the header has only a server's default (iso-8859-1), else the header's. It is
   ignored if more than one character in 50 beyond ASCII does not decode.
4. Detection by chardet among the charsets of the standard; windows-1252, the browsers' default, if
   it is not surer.
"""

from __future__ import annotations

import codecs
import re

import webencodings

_MAX_DAMAGE = (
    0.02  # most undecodable bytes of a declared charset, as a share of the bytes beyond ASCII
)
_PRESCAN_BYTES = 4096  # browsers: 1,024
_SAMPLE_BYTES = 8192  # size of the sample for detection; more makes it slower, but not better
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
_LABEL = re.compile(
    rb"""<(?:meta\b[^>]*?\bcharset|\?xml\b[^>]*?\bencoding)\s*=\s*["']?\s*([a-z0-9_:.()\-]+)""",
    re.IGNORECASE,
)
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_NOT_ASCII, _BYTE = re.compile(r"[^\x00-\x7f]"), re.compile(rb"[^\x00-\x7f]")
_JIS = re.compile(rb"\x1b\$[@B][\x21-\x7e\r\n]{2,}?\x1b\([BJ]")  # Japanese in ASCII bytes

_DETECTED = tuple(
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8-r koi8-u iso8859-2 "
    "iso8859-5 iso8859-7"
    " iso8859-13 cp866 cp874 cp932 euc-jp cp949 gb18030 big5hkscs".split()
)
_TIMES_AS_SURE = 1.5  # least confidence relative to that of windows-1252
_LEAST_LETTERS = 3  # fewest distinct letters beyond ASCII in a text that is not windows-1252


def decode(body: bytes, declared: str | None) -> tuple[str, str]:
    """(text of a page, charset used to decode it).

    Args:
      body: the page.
      declared: the charset of the HTTP header as written; None if there is none.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace"), name
    if body.isascii():
        name = "iso2022_jp" if _JIS.search(body) else "utf-8"
        return body.decode(name, "replace"), name
    text = body.decode("utf-8", "replace")
    damaged = text.count("\ufffd") - body.count("\ufffd".encode())  # others were damaged before
    if not damaged or 2 * damaged <= len(_NOT_ASCII.findall(text)):
        return text, "utf-8"
    for name in _declared(body, declared):
        text = body.decode(name, "replace")
        # At least one is allowed, since a page may be cut off within a character.
        if text.count("\ufffd") <= max(1, _MAX_DAMAGE * len(_BYTE.findall(body))):
            return text, name
    name = _detect(body) or "cp1252"
    return body.decode(name, "replace"), name


def lookup(label: str | None) -> str | None:
    """Python's name of the charset that `label` has in the Encoding Standard; None for an
    unknown label."""
    found = webencodings.lookup(label) if label and label.isascii() else None
    if found is None or found.name in ("replacement", "x-user-defined"):
        return None
    return (
        "gb18030" if found.name == "gbk" else found.codec_info.name
    )  # a superset, as in the standard


def _declared(body: bytes, header: str | None) -> list[str]:
    """The declared charsets other than Unicode's, the most trustworthy first."""
    match = _LABEL.search(_COMMENT.sub(b"", body[:_PRESCAN_BYTES]))
    names = [lookup(header), lookup(match[1].decode("ascii")) if match else None]
    if names[0] == "cp1252":
        names.reverse()
    return [name for name in names if name is not None and not name.startswith("utf")]


def _detect(body: bytes) -> str | None:
    """The charset detected from the bytes around the first one beyond ASCII; None if none fits."""
    import chardet

    first = _BYTE.search(body)
    start = max(0, (first.start() if first else 0) - _SAMPLE_BYTES // 4)
    sample = body[start : start + _SAMPLE_BYTES]
    found = chardet.detect_all(sample, include_encodings=_DETECTED, ignore_threshold=True)
    usual = next(
        (guess["confidence"] for guess in found if guess["encoding"] == "Windows-1252"), 0.0
    )
    if not found or not found[0]["encoding"] or found[0]["confidence"] < _TIMES_AS_SURE * usual:
        return None
    name = codecs.lookup(found[0]["encoding"]).name
    letters = {
        letter
        for letter in sample.decode(name, "replace")
        if letter.isalpha() and not letter.isascii()
    }
    return name if len(letters) >= _LEAST_LETTERS else None
