"""Decodes the bytes of a page, whose header, markup and content may disagree on the charset.

1. A byte order mark, or obvious UTF-16 without one.
2. UTF-8, if the bytes beyond ASCII are valid UTF-8, or mostly: text in another charset practically never is, whatever
   is declared. (Browsers trust the header and show mojibake.)
3. A declared label, with its meaning in the WHATWG Encoding Standard: that of a `<meta>` or an XML declaration if the
   header has only a server's default (iso-8859-1), else the header's. It is ignored if more than one character in 50
   beyond ASCII does not decode.
4. Detection by chardet among the charsets of the standard; windows-1252, the browsers' default, if it is not surer.
"""

from __future__ import annotations

import codecs
import re

import webencodings

_MAX_DAMAGE = 0.02  # most undecodable bytes of a declared charset, as a share of the bytes beyond ASCII
# Most invalid bytes per valid sequence in UTF-8. Text in other charsets has 5 or more, except EUC-JP, which has 2.3.
_MAX_STRAY, _MAX_STRAY_IF_DECLARED = 1.0, 2.0
_LEAST_SEQUENCES = 5  # fewest valid sequences in damaged UTF-8 that is not declared

_PRESCAN_BYTES = 4096  # browsers: 1,024
_SAMPLE_BYTES = 8192  # size of the sample for detection; more makes it slower, but not better
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"""<meta\b[^>]*?\bcharset\s*=\s*["']?\s*([a-z0-9_:.()\-]+)""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml\b[^>]*?\bencoding\s*=\s*["']([a-z0-9_:.()\-]+)""", re.IGNORECASE)
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_UTF8_SEQUENCE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_REPLACEMENT = "\ufffd".encode()  # in a body: earlier damage
_NOT_ASCII = re.compile(rb"[^\x00-\x7f]")
_JIS = re.compile(rb"\x1b\$[@B][\x21-\x7e\r\n]{2,}?\x1b\([BJ]")  # Japanese in ASCII bytes

_DETECTED = tuple(
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8-r koi8-u iso8859-2 iso8859-5 iso8859-7"
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
    if (utf16 := _plain_utf16(body[:256])) is not None:
        return body.decode(utf16, "replace"), utf16
    if body.isascii():
        name = "iso2022_jp" if _JIS.search(body) else "utf-8"
        return body.decode(name, "replace"), name
    try:
        return body.decode("utf-8"), "utf-8"
    except UnicodeDecodeError as error:
        invalid = error.start
    as_utf8 = body.decode("utf-8", "replace")
    damaged = as_utf8.count("\ufffd") - body.count(_REPLACEMENT)
    valid = len(_UTF8_SEQUENCE.findall(body))
    if valid >= _LEAST_SEQUENCES and damaged <= _MAX_STRAY * valid:
        return as_utf8, "utf-8"
    for name in _declared(body, declared):
        if name == "utf-8":
            # Without any valid sequence, it is another charset, unless the page was cut within its only one.
            if damaged <= _MAX_STRAY_IF_DECLARED * valid or (damaged == 1 and invalid >= len(body) - 3):
                return as_utf8, name
        elif (text := _decode_damaged(body, name)) is not None:
            return text, name
    name = _detect(body) or "cp1252"
    return body.decode(name, "replace"), name


def _plain_utf16(head: bytes) -> str | None:
    """The kind of UTF-16; in Latin text, nearly every second byte is zero, and no other byte is."""
    for name, zeros, others in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if zeros.count(0) > 0.9 * len(zeros) and 0 not in others:
            return name
    return None


def lookup(label: str | None) -> str | None:
    """Python's name of the charset that `label` has in the Encoding Standard; None for an unknown label."""
    found = webencodings.lookup(label) if label and label.isascii() else None
    if found is None or found.name in ("replacement", "x-user-defined"):
        return None
    return "gb18030" if found.name == "gbk" else found.codec_info.name  # a superset, as in the standard


def _declared(body: bytes, header: str | None) -> list[str]:
    """The declared charsets, the most trustworthy first."""
    head = body[:_PRESCAN_BYTES]
    labels = [match[1].decode("ascii") for match in (_META.search(_COMMENT.sub(b"", head)), _XML.match(head)) if match]
    # A page whose <meta> is readable as ASCII is not UTF-16; the standard then means UTF-8.
    labels = ["utf-8" if label.lower().startswith("utf-16") else label for label in labels]
    in_header = lookup(header)
    labels.insert(len(labels) if in_header == "cp1252" else 0, header or "")
    return list(dict.fromkeys(filter(None, map(lookup, labels))))


def _decode_damaged(body: bytes, name: str) -> str | None:
    """The text if nearly all of it decodes; else None."""
    text = body.decode(name, "replace")
    # At least one is allowed, since a page may be cut off within a character.
    return text if text.count("\ufffd") <= max(1, _MAX_DAMAGE * len(_NOT_ASCII.findall(body))) else None


def _detect(body: bytes) -> str | None:
    """The charset detected from the bytes around the first one beyond ASCII; None if none fits."""
    import chardet

    first = _NOT_ASCII.search(body)
    start = max(0, (first.start() if first else 0) - _SAMPLE_BYTES // 4)
    sample = body[start : start + _SAMPLE_BYTES]
    found = chardet.detect_all(sample, include_encodings=_DETECTED, ignore_threshold=True)
    usual = next((guess["confidence"] for guess in found if guess["encoding"] == "Windows-1252"), 0.0)
    if not found or not found[0]["encoding"] or found[0]["confidence"] < _TIMES_AS_SURE * usual:
        return None
    name = codecs.lookup(found[0]["encoding"]).name
    letters = {letter for letter in sample.decode(name, "replace") if letter.isalpha() and not letter.isascii()}
    return name if len(letters) >= _LEAST_LETTERS else None
