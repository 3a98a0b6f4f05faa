"""Decodes the bytes of a page, whose header, markup and content may disagree on the charset.

1. A byte order mark; without one, UTF-16 if the bytes of markup are every other byte, and the
   header declares it or the page begins so. (`<meta>` cannot declare it.)
2. UTF-8, if most characters beyond ASCII are valid: text in another charset practically never is,
   whatever is declared. (Browsers trust the header and show mojibake.)
3. A declared label, with its meaning in the WHATWG Encoding Standard: that of a `<meta>` or an XML
   declaration if the header has only a server's default (iso-8859-1), else the header's. It is
   ignored if more than one character in 50 beyond ASCII does not decode.
4. Detection by chardet among the charsets of the standard; windows-1252, the browsers' default, if
   it is not surer.

Legacy charsets are decoded by the tables of the standard (legacy_charsets.py).
"""

from __future__ import annotations

import codecs
import re

import webencodings

from owt_pipeline.stages.extract.legacy_charsets import decode_legacy

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
_CONTROL = re.compile("[\x80-\x9f]")
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_NOT_ASCII, _BYTE = re.compile(r"[^\x00-\x7f]"), re.compile(rb"[^\x00-\x7f]")
_JIS = re.compile(rb"\x1b\$[@B][\x21-\x7e\r\n]{2,}?\x1b\([BJ]")  # Japanese in ASCII bytes
_UTF16_LABEL = re.compile(r"\s*utf-?16|\s*(?:iso-10646-)?ucs-?2|\s*unicode", re.IGNORECASE)
_BEGINS_UTF16 = re.compile(rb"(?:\s\x00)*<\x00[!?a-zA-Z]\x00|(?:\x00\s)*\x00<\x00[!?a-zA-Z]")

# A page of UTF-16 has markup in ASCII, so at least this share of its units have a zero byte, at
# the same place in each.
_MIN_ZERO_SHARE = 0.05
_UTF16_SAMPLE_BYTES = 1 << 16

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
    if (utf16 := _utf16_of(body, declared)) is not None:
        return body.decode(utf16, "replace"), utf16
    if body.isascii():
        if _JIS.search(body):
            return decode_legacy(body, "iso2022_jp"), "iso2022_jp"
        return body.decode(), "utf-8"
    text = body.decode("utf-8", "replace")
    damaged = text.count("\ufffd") - body.count("\ufffd".encode())  # others were damaged before
    if not damaged or 2 * damaged <= len(_NOT_ASCII.findall(text)):
        return text, "utf-8"
    for name in _declared(body, declared):
        text = decode_legacy(body, name)
        # At least one is allowed, since a page may be cut off within a character.
        if _num_undefined(text, name) <= max(1, _MAX_DAMAGE * len(_BYTE.findall(body))):
            return text, name
    name = _detect(body) or "cp1252"
    return decode_legacy(body, name), name


def _utf16_of(body: bytes, declared: str | None) -> str | None:
    """Return the codec of a body in UTF-16 without a mark; None if it is not in UTF-16.

    The place of the zero bytes tells the order of bytes, which headers often have wrong.
    """
    if b"\x00" not in body[:_UTF16_SAMPLE_BYTES]:
        return None
    is_declared = _UTF16_LABEL.match(declared or "") is not None
    if not is_declared and not _BEGINS_UTF16.match(body):
        return None
    sample = body[:_UTF16_SAMPLE_BYTES]
    num_zeros = [sample[place::2].count(0) for place in (0, 1)]
    if max(num_zeros) < _MIN_ZERO_SHARE * len(sample) / 2 or min(num_zeros) * 10 > max(num_zeros):
        return None
    return "utf-16-be" if num_zeros[0] > num_zeros[1] else "utf-16-le"


def _num_undefined(text: str, codec: str) -> int:
    """Return how many bytes, or pairs of bytes, of a decoded page are undefined in its charset.

    The standard decodes the undefined bytes of windows-1252 and its like as control characters.
    """
    count = text.count("\ufffd")
    if codec.startswith(("cp125", "cp874")):
        count += len(_CONTROL.findall(text))
    return count


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
