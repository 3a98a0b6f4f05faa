"""Decodes the bytes of a page, whose header, markup and content may disagree on the charset.

1. A byte order mark; without one, UTF-16 if the bytes of markup are every other byte, and the
   header declares it or the page begins so. (`<meta>` cannot declare it.)
2. ISO-2022-JP, if all bytes are ASCII and some stand between its escape sequences.
3. UTF-8, if most characters beyond ASCII are valid: text in another charset practically never is,
   whatever is declared. (Browsers trust the header and show mojibake.)
4. A declared label, with its meaning in the WHATWG Encoding Standard. The header's label comes
   first, unless it is only a server's default (iso-8859-1, or another label of windows-1252). Then
   the label of a `<meta>` or an XML declaration comes first. If the undefined characters are over
   2% of the bytes beyond ASCII, the other label is tried.
5. The charset that chardet detects among the charsets of the standard, if it is confident enough.
   Otherwise windows-1252, the browsers' default.

Legacy charsets are decoded by Python's codecs. A character that Python's table lacks, such as some
of vendors in Big5, is U+FFFD.
"""

from __future__ import annotations

import codecs
import re

import webencodings

# If a larger share of the bytes beyond ASCII is undecodable, the page is in another charset than
# the declared one.
_MAX_DAMAGED_SHARE = 0.02
# Bytes that are searched for a declaration. Browsers search 1,024.
_PRESCAN_BYTES = 4096
# Bytes that the detector reads. A larger sample takes longer and is not better.
_SAMPLE_BYTES = 8192
_MARKS = (
    (codecs.BOM_UTF8, "utf-8"),
    (codecs.BOM_UTF16_LE, "utf-16-le"),
    (codecs.BOM_UTF16_BE, "utf-16-be"),
)
# The attributes of a <meta>, or of an XML declaration.
_DECLARATION = re.compile(
    rb"""<(?:meta(?=[\s/])|\?xml(?=\s))((?:[^>"']|"[^"]*"|'[^']*')*)""", re.IGNORECASE
)
_ATTRIBUTE = re.compile(
    rb"""([^\s"'>/=]+)\s*=\s*(?:"([^"]*)"|'([^']*)'|([^\s"'>]+))""", re.IGNORECASE
)
_CONTENT_TYPE = re.compile(rb"\s*[a-z]+/[a-z+.-]+\s*;", re.IGNORECASE)
_LABEL_OF_TYPE = re.compile(rb"""charset\s*=\s*["']?\s*([a-z0-9_:.()\-]+)""", re.IGNORECASE)
_COMMENT = re.compile(rb"<!--.*?(?:-->|\Z)", re.DOTALL)
_NOT_ASCII = re.compile(r"[^\x00-\x7f]")
_NOT_ASCII_BYTE = re.compile(rb"[^\x00-\x7f]")
# Japanese in ASCII bytes.
_JIS = re.compile(rb"\x1b\$[@B][\x21-\x7e\r\n]{2,}?\x1b\([BJ]")
_UTF16_LABEL = re.compile(r"\s*utf-?16|\s*(?:iso-10646-)?ucs-?2|\s*unicode", re.IGNORECASE)
_BEGINS_UTF16 = re.compile(rb"(?:\s\x00)*<\x00[!?a-zA-Z]\x00|(?:\x00\s)*\x00<\x00[!?a-zA-Z]")

# A page of UTF-16 has markup in ASCII, so at least this share of its units have a zero byte, at
# the same place in each.
_MIN_ZERO_SHARE = 0.05
_UTF16_SAMPLE_BYTES = 1 << 16

# The standard decodes gbk by its superset. The euc_jp of Python lacks the numbers in circles that
# Windows writes, and reads the pairs after them one byte off.
_SUPERSETS = {"gbk": "gb18030", "euc_jp": "euc_jis_2004"}

# For detection only: other charsets of the standard can be declared, too (`lookup`).
_DETECTED = tuple(
    "cp1252 cp1250 cp1251 cp1253 cp1254 cp1255 cp1256 cp1257 cp1258 koi8-r koi8-u iso8859-2 "
    "iso8859-5 iso8859-7"
    " iso8859-13 cp866 cp874 cp932 euc-jp cp949 gb18030 big5hkscs".split()
)
# The detector must be this many times as confident of a charset as of windows-1252.
_MIN_TIMES_AS_SURE = 1.5
# Distinct letters beyond ASCII that the detected text must have.
_MIN_LETTERS = 3


def decode(body: bytes, declared: str | None) -> tuple[str, str]:
    """Return the text of a page, and the charset that decoded it.

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
            return body.decode("iso2022_jp", "replace"), "iso2022_jp"
        return body.decode(), "utf-8"
    text = body.decode("utf-8", "replace")
    # A page may have had U+FFFD before.
    num_damaged = text.count("\ufffd") - body.count("\ufffd".encode())
    if not num_damaged or 2 * num_damaged <= len(_NOT_ASCII.findall(text)):
        return text, "utf-8"
    num_bytes = len(_NOT_ASCII_BYTE.findall(body))
    # At least one is allowed, since a page may be cut off within a character.
    max_undefined = max(1, _MAX_DAMAGED_SHARE * num_bytes)
    for name in _declared(body, declared):
        text = body.decode(name, "replace")
        if text.count("\ufffd") <= max_undefined:
            return text, name
    name = _detect(body) or "cp1252"
    return body.decode(name, "replace"), name


def _utf16_of(body: bytes, declared: str | None) -> str | None:
    """Return the codec of a body in UTF-16 without a mark; None if it is not in UTF-16.

    The place of the zero bytes shows the order of bytes, which headers often declare wrongly.
    """
    if b"\x00" not in body[:_UTF16_SAMPLE_BYTES]:
        return None
    is_declared = _UTF16_LABEL.match(declared or "") is not None
    has_markup_first = _BEGINS_UTF16.match(body) is not None
    if not is_declared and not has_markup_first:
        return None
    sample = body[:_UTF16_SAMPLE_BYTES]
    num_at_even = sample[0::2].count(0)
    num_at_odd = sample[1::2].count(0)
    num_most = max(num_at_even, num_at_odd)
    num_fewest = min(num_at_even, num_at_odd)
    has_markup = has_markup_first or num_most >= _MIN_ZERO_SHARE * len(sample) / 2
    if not has_markup or num_fewest * 10 > num_most:
        return None
    return "utf-16-be" if num_at_even > num_at_odd else "utf-16-le"


def lookup(label: str | None) -> str | None:
    """Return Python's name of the charset that a label has in the Encoding Standard.

    Return None for an unknown label.
    """
    if not label or not label.isascii():
        return None
    encoding = webencodings.lookup(label)
    if encoding is None or encoding.name in ("replacement", "x-user-defined"):
        return None
    name: str = encoding.codec_info.name
    return _SUPERSETS.get(name, name)


def _declared(body: bytes, header: str | None) -> list[str]:
    """Return the declared charsets other than Unicode's, the most trustworthy first."""
    names = [lookup(header), _declared_in_page(body)]
    # A server's default is iso-8859-1, which the standard decodes as windows-1252.
    if names[0] == "cp1252":
        names.reverse()
    # UTF-8 and UTF-16 were tried before.
    return [name for name in names if name is not None and not name.startswith("utf")]


def _declared_in_page(body: bytes) -> str | None:
    """Return the charset of the first declaration in a page whose label is known."""
    start = _COMMENT.sub(b"", body[:_PRESCAN_BYTES])
    for declaration in _DECLARATION.finditer(start):
        value_by_name = {
            name.lower(): double or single or unquoted
            for name, double, single, unquoted in _ATTRIBUTE.findall(declaration[1])
        }
        label = value_by_name.get(b"charset") or value_by_name.get(b"encoding", b"")
        content = value_by_name.get(b"content", b"")
        is_type = value_by_name.get(b"http-equiv", b"").strip().lower() == b"content-type"
        if not label and (is_type or _CONTENT_TYPE.match(content)):
            of_type = _LABEL_OF_TYPE.search(content)
            label = of_type[1] if of_type else b""
        name = lookup(label.strip().decode("latin-1"))
        if name is not None:
            return name
    return None


def _detect(body: bytes) -> str | None:
    """Return the charset detected from the bytes around the first one beyond ASCII.

    Return None if none fits.
    """
    import chardet

    first = _NOT_ASCII_BYTE.search(body)
    position = first.start() if first else 0
    start = max(0, position - _SAMPLE_BYTES // 4)
    sample = body[start : start + _SAMPLE_BYTES]
    guesses = chardet.detect_all(sample, include_encodings=_DETECTED, ignore_threshold=True)
    if not guesses or not guesses[0]["encoding"]:
        return None
    confidences = [guess["confidence"] for guess in guesses if guess["encoding"] == "Windows-1252"]
    confidence_of_default = confidences[0] if confidences else 0.0
    if guesses[0]["confidence"] < _MIN_TIMES_AS_SURE * confidence_of_default:
        return None
    name = codecs.lookup(guesses[0]["encoding"]).name
    name = _SUPERSETS.get(name, name)
    letters = set()
    for letter in sample.decode(name, "replace"):
        if letter.isalpha() and not letter.isascii():
            letters.add(letter)
    if len(letters) < _MIN_LETTERS:
        return None
    return name
