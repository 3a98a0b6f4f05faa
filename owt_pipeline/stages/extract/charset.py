"""Decodes the bytes of a page, whose header, markup and content may disagree on the charset.

The order is that of browsers (WHATWG HTML, "determining the character encoding") with additions:

1. a byte order mark, or obvious UTF-16 without one (not in browsers);
2. UTF-8, if the body is valid UTF-8 beyond ASCII: text in another charset practically never is, whatever the header
   says (browsers trust the header and show mojibake). Damaged text counts if most of its sequences are valid;
3. the charset of the HTTP header;
4. the charset of a `<meta>` within the first 4,096 bytes (browsers: 1,024), or of an XML declaration;
5. detection by chardet, among the charsets of the Encoding Standard;
6. windows-1252, the browsers' default.

A declared charset (3, 4) is rejected if more than one character in 50 beyond ASCII does not decode; such characters
become U+FFFD. Labels have the meaning of the WHATWG Encoding Standard: `iso-8859-1` and `ascii` are windows-1252.
"""

from __future__ import annotations

import codecs
import re

_MAX_DAMAGE = 0.02  # most undecodable bytes of a declared charset, as a share of the bytes beyond ASCII
# Most invalid bytes per valid sequence in UTF-8. Text in other charsets has 5 or more, except EUC-JP, which has 2.3.
_MAX_STRAY, _MAX_STRAY_IF_DECLARED = 1.0, 2.0
_LEAST_SEQUENCES = 5  # fewest valid sequences in damaged UTF-8 that is not declared

_PRESCAN_BYTES = 4096
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

# Labels, as normalised by codecs.lookup, for which the Encoding Standard has another charset than Python: a superset,
# which pages really use.
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
# Labels of the standard that Python does not know, by a name that it knows; after _SPELLINGS.
_LABELS = {
    label: name
    for name, labels in {
        "utf-8": "unicode-1-1-utf-8 unicode11utf8 unicode20utf8",
        "iso8859-7": "sun_eu_greek",
        "iso8859-8": "visual logical",
        "iso8859-15": "csisolatin9",
        "koi8-r": "koi koi8",
        "koi8-u": "koi8-ru",
        "mac-roman": "mac csmacintosh",
        "mac-cyrillic": "mac-ukrainian",
        "cp874": "dos-874",
        "cp932": "windows-31j",
        "euc-jp": "cseucpkdfmtjapanese",
        "euc-kr": "cseuckr csksc56011987 iso-ir-149 ks_c_5601-1989 ksc_5601",
        "gbk": "csgb2312 gb_2312 gb_2312-80",
        "big5": "cn-big5",
    }.items()
    for label in labels.split()
}
_SPELLINGS = (
    (re.compile(r"^(?:x-)+"), ""),  # x-sjis, x-mac-roman
    (re.compile(r"^windows-(?=\d+$)"), "cp"),
    (re.compile(r"^(?:cs)?iso-?8859-?(\d+)(?:-?[ei])?$"), r"iso8859-\1"),  # iso-8859-8-i, iso88592
)
# The charsets that browsers detect if none is declared.
_DETECTED = tuple(
    "cp1252 cp1251 koi8-r koi8-u iso8859-5 cp866 cp1253 iso8859-7 cp1255 cp1256 cp874 cp932 euc-jp cp949 gb18030"
    " big5hkscs".split()
)
# Charsets for Latin letters, and the fewest distinct letters of such a text that differ from windows-1252: a language
# of Central Europe may have one (č in Slovenian), a Baltic one has more than Albanian (ë).
_DETECTED_LATIN = {"cp1250": 1, "iso8859-2": 1, "cp1254": 2, "cp1258": 2, "cp1257": 4, "iso8859-13": 4}
_LEAST_OCCURRENCES = 2
_TIMES_AS_SURE = 1.25  # least confidence relative to that of windows-1252
_BEYOND_ASCII = re.compile(r"[^\x00-\x7f]")
_IN_A_ROW = re.compile(r"[^\x00-\x7f]{2,}")
_STATEFUL = ("iso2022", "hz", "utf-7")  # all their bytes are ASCII


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
            break  # the others all decode ASCII alike
        text = _decode_damaged(body, name)
        if text is not None:
            return text, name
    if not beyond_ascii:
        return body.decode("ascii"), labels[0] if labels else "utf-8"
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
    if not label:
        return None
    label = label.strip().lower()
    for spelling, usual in _SPELLINGS:
        label = spelling.sub(usual, label)
    try:
        info = codecs.lookup(_LABELS.get(label, label))
        "".encode(info.name)  # fails for codecs that are not charsets (base64, rot13)
    except (LookupError, ValueError, TypeError):
        return None
    if info.name in ("idna", "punycode", "unicode_escape", "raw_unicode_escape", "utf-7", "mbcs", "oem", "undefined"):
        return None  # Python codecs without a label in the standard
    return _WHATWG.get(info.name, info.name)


def _in_markup(body: bytes) -> list[str]:
    """The labels in the page's markup, in order."""
    head = body[:_PRESCAN_BYTES]
    found = [match[1].decode("ascii") for match in (_META.search(_COMMENT.sub(b"", head)), _XML.match(head)) if match]
    # A page whose <meta> is readable as ASCII is not UTF-16; the standard then means UTF-8.
    return ["utf-8" if label.lower().startswith("utf-16") else label for label in found]


def _is_damaged_utf8(text: str, body: bytes) -> bool:
    """Whether most of `body` beyond ASCII is valid UTF-8; `text` is the body decoded as UTF-8."""
    damaged = text.count("\ufffd") - body.count(_REPLACEMENT)
    valid = len(_UTF8_SEQUENCE.findall(body))
    return valid >= _LEAST_SEQUENCES and damaged <= _MAX_STRAY * valid


def _decode_damaged(body: bytes, name: str) -> str | None:
    """The text if nearly all of it decodes; else None."""
    try:
        return body.decode(name)
    except UnicodeDecodeError:
        pass
    text = body.decode(name, "replace")
    damaged = text.count("\ufffd")
    if name == "utf-8":
        damaged -= body.count(_REPLACEMENT)
        if damaged <= _MAX_STRAY_IF_DECLARED * len(_UTF8_SEQUENCE.findall(body)):
            return text  # no text in another charset has so many sequences
    beyond_ascii = len(_NOT_ASCII.findall(body))
    # At least one is allowed, since a page may be cut off within a character.
    return text if damaged <= max(1, _MAX_DAMAGE * beyond_ascii) else None


def _detect(body: bytes) -> str | None:
    """The charset detected from the bytes around the first one beyond ASCII; None if none fits."""
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
            return None  # quotes and signs between Latin letters; words of other scripts are all beyond ASCII
    return name
