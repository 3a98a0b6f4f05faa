"""Bytes of a page to text: which charset, when header, markup and content disagree.

The order is the one browsers follow (WHATWG HTML, "determining the character encoding"), with one step more:

1. a byte order mark, or UTF-16 that is plain to see without one (browsers do not look);
2. UTF-8, where the body is valid UTF-8 and not plain ASCII: text in another charset is that by accident about
   never, whatever a header says (browsers trust the header and show mojibake). Stray bytes change nothing where more
   sequences are valid, as where one byte in a hundred of a text with accents is damaged;
3. the charset of the HTTP header;
4. the charset of a `<meta>` within the first 4,096 bytes (browsers look at 1,024), or of an XML declaration;
5. what the bytes look like, by chardet, among the charsets that the Encoding Standard knows;
6. windows-1252, the browsers' default.

A declared charset (3, 4) holds if at most one character in 50 beyond ASCII does not decode; those that do not
become U+FFFD. Labels mean what the WHATWG Encoding Standard says: `iso-8859-1` and `ascii` are windows-1252.
"""

from __future__ import annotations

import codecs
import re

MAX_DAMAGE = 0.02
"""The share of undecodable bytes among those beyond ASCII above which a declared charset is taken for a lie."""

MAX_STRAY = 1.0
"""The same for UTF-8 that nothing declares: invalid bytes for each valid sequence, of which there must be a few.

Text in other charsets has five or more, but for Japanese in EUC-JP, which has 2.3.
"""
MAX_STRAY_IF_DECLARED = 2.0
_SURELY_UTF8 = 5

_PRESCAN_BYTES = 4096
_SAMPLE_BYTES = 8192  # what detection looks at, from the first byte beyond ASCII on: more makes it slow, not surer
_MARKS = ((codecs.BOM_UTF8, "utf-8"), (codecs.BOM_UTF16_LE, "utf-16-le"), (codecs.BOM_UTF16_BE, "utf-16-be"))
_META = re.compile(rb"""<meta\b[^>]*?\bcharset\s*=\s*["']?\s*([a-z0-9_:.()\-]+)""", re.IGNORECASE)
_XML = re.compile(rb"""^\s*<\?xml\b[^>]*?\bencoding\s*=\s*["']([a-z0-9_:.()\-]+)""", re.IGNORECASE)
_COMMENT = re.compile(rb"<!--.*?-->", re.DOTALL)
_UTF8_SEQUENCE = re.compile(
    rb"[\xc2-\xdf][\x80-\xbf]|\xe0[\xa0-\xbf][\x80-\xbf]|[\xe1-\xef][\x80-\xbf]{2}|[\xf0-\xf4][\x80-\xbf]{3}"
)
_REPLACEMENT = "\ufffd".encode()  # in a body: damage that was done before
_NOT_ASCII = re.compile(rb"[^\x00-\x7f]")

# Where the Encoding Standard means another charset by a label than Python does (the label as codecs.lookup
# normalises it). Those it maps to a superset: what is more is what pages really use.
_WHATWG = {
    "ascii": "cp1252",
    "iso8859-1": "cp1252",
    "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
    "tis-620": "cp874",
    "gb2312": "gb18030",
    "gbk": "gb18030",
    "big5": "big5hkscs",
    "shift_jis": "cp932",
    "euc_kr": "cp949",
    "utf-16": "utf-16-le",
}
# What browsers distinguish where nothing is declared.
_DETECTED = tuple(
    "cp1252 cp1251 koi8-r koi8-u iso8859-5 cp866 cp1253 iso8859-7 cp1255 cp1256 cp874 cp932 euc-jp cp949 gb18030"
    " big5hkscs".split()
)
# Of Latin letters, and how many letters that windows-1252 has not in their place a text has to have to be taken for
# one: a language of Central Europe may have one (č in Slovenian), a Baltic one has more than the ë of Albanian.
_DETECTED_LATIN = {"cp1250": 1, "iso8859-2": 1, "cp1254": 2, "cp1258": 2, "cp1257": 4, "iso8859-13": 4}
_LEAST_OCCURRENCES = 2
_TIMES_AS_SURE = 1.25  # as of windows-1252
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_IN_A_ROW = re.compile(r"[^\x00-\x7f]{2,}")
_STATEFUL = ("iso2022", "hz", "utf-7")  # they write everything in ASCII bytes


def decode(body: bytes, declared: str | None) -> tuple[str, str]:
    """The text of a page and the charset it was decoded by.

    Args:
      body: the page.
      declared: the charset of the HTTP header, as written there; None without one.
    """
    for mark, name in _MARKS:
        if body.startswith(mark):
            return body[len(mark) :].decode(name, "replace"), name
    if (utf16 := _plain_utf16(body[:256])) is not None:
        return body.decode(utf16, "replace"), utf16
    beyond_ascii = not body.isascii()
    if beyond_ascii:
        try:
            return body.decode("utf-8"), "utf-8"
        except UnicodeDecodeError:
            pass
        as_utf8 = body.decode("utf-8", "replace")
        if _is_damaged_utf8(as_utf8, body):
            return as_utf8, "utf-8"
    labels = [known for known in (lookup(declared), *map(lookup, _in_markup(body))) if known is not None]
    for name in labels:
        if not beyond_ascii and not name.startswith((*_STATEFUL, "utf-16")):
            break  # they all decode ASCII to the same
        text = _decode_damaged(body, name)
        if text is not None:
            return text, name
    if not beyond_ascii:
        return body.decode("ascii"), labels[0] if labels else "utf-8"
    name = _detect(body) or "cp1252"
    return body.decode(name, "replace"), name


def _plain_utf16(head: bytes) -> str | None:
    """UTF-16 of Latin letters has a zero in nearly every second byte, and none in the others."""
    for name, zeros, others in (("utf-16-le", head[1::2], head[::2]), ("utf-16-be", head[::2], head[1::2])):
        if zeros.count(0) > 0.9 * len(zeros) and 0 not in others:
            return name
    return None


def lookup(label: str | None) -> str | None:
    """Python's name of the charset that the Encoding Standard means by `label`; None for an unknown one."""
    if not label:
        return None
    try:
        info = codecs.lookup(label.strip())
        "".encode(info.name)  # some of Python's codecs are no charsets (base64, rot13): they refuse
    except (LookupError, ValueError, TypeError):
        return None
    if info.name in ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "mbcs", "oem", "undefined"):
        return None  # codecs of Python's that the standard knows no label for
    return _WHATWG.get(info.name, info.name)


def _in_markup(body: bytes) -> list[str]:
    """The labels the page's own markup gives, in order."""
    head = body[:_PRESCAN_BYTES]
    found = [match[1].decode("ascii") for match in (_META.search(_COMMENT.sub(b"", head)), _XML.match(head)) if match]
    # A page whose <meta> could be read as ASCII is not UTF-16, so the standard takes it for UTF-8.
    return ["utf-8" if label.lower().startswith("utf-16") else label for label in found]


def _is_damaged_utf8(text: str, body: bytes) -> bool:
    """Whether nearly all of `body` beyond ASCII is sequences of UTF-8: `text` is what it decodes to."""
    damaged = text.count("\ufffd") - body.count(_REPLACEMENT)
    valid = len(_UTF8_SEQUENCE.findall(body))
    return valid >= _SURELY_UTF8 and damaged <= MAX_STRAY * valid


def _decode_damaged(body: bytes, name: str) -> str | None:
    """The text, if nearly all of it decodes."""
    try:
        return body.decode(name)
    except UnicodeDecodeError:
        pass
    text = body.decode(name, "replace")
    damaged = text.count("\ufffd")
    if name == "utf-8":
        damaged -= body.count(_REPLACEMENT)
        if damaged <= MAX_STRAY_IF_DECLARED * len(_UTF8_SEQUENCE.findall(body)):
            return text  # what no other charset's text looks like, and what is declared
    beyond_ascii = len(_NOT_ASCII.findall(body))
    # At least one: a page cut off in the middle of a character has no other damage.
    return text if damaged <= max(1, MAX_DAMAGE * beyond_ascii) else None


def _detect(body: bytes) -> str | None:
    """What the bytes look like, going by those around the first beyond ASCII; None where they do not look like any."""
    import chardet

    first = _NOT_ASCII.search(body)
    start = max(0, (first.start() if first else 0) - _SAMPLE_BYTES // 4)
    sample = body[start : start + _SAMPLE_BYTES]
    found = chardet.detect_all(sample, include_encodings=(*_DETECTED, *_DETECTED_LATIN), ignore_threshold=True)
    usual = next((guess["confidence"] for guess in found if guess["encoding"] == "Windows-1252"), 0.0)
    if not found or found[0]["confidence"] < _TIMES_AS_SURE * usual:
        return None
    name = lookup(found[0]["encoding"])
    if name in _DETECTED_LATIN:
        pairs = zip(sample.decode(name, "replace"), sample.decode("cp1252", "replace"), strict=True)
        letters = [char for char, other in pairs if char != other and char.isalpha()]
        if len(letters) < _LEAST_OCCURRENCES or len(set(letters)) < _DETECTED_LATIN[name]:
            return None
    elif name is not None:
        text = sample.decode(name, "replace")
        if sum(map(len, _IN_A_ROW.findall(text))) < len(_BEYOND_ASCII.findall(text)) / 2:
            return None  # quotes and signs between Latin letters: other scripts have words of their own
    return name
