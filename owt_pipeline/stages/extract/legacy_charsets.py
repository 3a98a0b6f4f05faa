"""The legacy charsets of pages, decoded by the tables of the WHATWG Encoding Standard.

Python's codecs lack some characters of these tables, have others in their place, and for an
undefined pair of bytes they replace its first byte only, which shifts all that follows. So each
body is decoded by the codec with the nearest table, and

1. where the codec stops, `_replace` returns what the standard has there: a character that the codec
   lacks, or one U+FFFD for the complete pair (an ASCII byte at its end is kept);
2. characters that the codec decodes otherwise are translated afterwards.

One character of gb18030 differs. The standard decodes 81 35 F4 37 to U+E7C7, for private use. This
module decodes it to U+1E3F, which pages mean by it.
"""

from __future__ import annotations

import codecs
import re
from functools import cache

_ERRORS = "owt_whatwg"
"""The name of `_replace` among Python's error handlers."""

# By codec, characters that it decodes to, and the standard's characters for the same bytes. Each
# has one pair of bytes in the codec, so a translation of the decoded text is exact.
_TRANSLATED = {
    "euc_jp": ("〜‖−¢£¬", "～∥－￠￡￢"),
    "cp932": ("\uf8f0\uf8f1\uf8f2\uf8f3", "\ufffd\ufffd\ufffd\ufffd"),
    "big5hkscs": ("•､‾∼♁☉¥¢£", "‧﹑¯～⊕⊙￥￠￡"),
    "gb18030": (
        "\ue5e5\ue78d\ue78e\ue78f\ue790\ue791\ue792\ue793\ue794\ue795\ue796\ue7c7\ue81e\ue826"
        "\ue82b\ue82c\ue832\ue843\ue854\ue864",
        "\u3000︐︒︑︓︔︕︖︗︘︙ḿ龴龵龶龷龸龹龺龻",
    ),
    "koi8-u": ("╝╬", "ўЎ"),
}

# A point of Hebrew that Python's cp1255 lacks.
_HOLAM_HASER = b"\xca", "\u05ba"

# Pairs of the standard's Big5 that Python's lacks: the first pair of each run, and the characters.
_BIG5_RUNS = """
877A㡵𡵓𣚞𦀡㻬
87A1𥣞㫵竼龗𤅡𨤍𣇪𠪊𣉞䌊蒄龖鐯䤰蘓墖靊鈘秐稲晠権袝瑌篅枂稬剏遆㓦珄𥶹瓆鿇垳䤯
87C5呌䄱𣚎堘穲𧭥讏䚮𦺈䆁𥶙箮𢒼鿈𢓁𢓉𢓌鿉蔄𣖻䂴鿊䓡𪷿拁灮鿋 8E69箸 8E6F簆 8E7E糎 8EAB緒
8EB4縝 8ECD者 8ED0耨 8F57菁 8F69蒨 8F6E萏 8FCB覦覩 8FFE起 906D都 907A銹 90DC靜 90F1響
91BF鼖 9244蔃 92AF兙兛兝兞 92C8鍮 92D1瑹 9447浧 94CA禛 95D9邗 9644靝 96ED瀞 96FC嬨
9B76爁 9B78矗 9B7B纇 9BC6駖 9BDE釔 9BEC惞 9BF6澶 9C42輶 9C53侻 9C62營 9C68鄄 9C6B鷰
9C77菏 9CBC尐秣 9CD0婧 9D57輋 9D5A筑 9DC4拐 9EA9恢 9EEF痹 9EFD汊 9F60鬮 9F66鼗 9FCB僭
9FD8弌 A063蠏 A077拎 A0D5瑨 A0DF煢 A0E4牐 C6CF廴 C6D3无 C6D5癶 C6D7隶 C6DE〃仝 FA5F倩
FA66偽 FABD包 FAC5卄 FAD5卿 FB48嘅 FBB8婷 FBF3幵 FBF9廐 FC4F彘 FC6C悤 FCB9撐 FCE2晴
FCF1杞 FDB7沜渝 FDBB港 FDF1煮 FE52猪 FE6F瑜 FEAA瓩 FEDD砉"""

# In the standard, control pictures and the euro sign.
_BIG5_PICTURES = 0xA3C0, "␀␁␂␃␄␅␆␇␈␉␊␋␌␍␎␏␐␑␒␓␔␕␖␗␘␙␚␛␜␝␞␟␡€"

# Python decodes these as it decodes A1 FE and A2 40, so no translation can separate the two.
_BIG5_SLASHES = {b"\xa2A": "∕", b"\xa2B": "﹨"}
_BIG5_PIECE = re.compile(rb"[\x81-\xfe][\x40-\x7e\x80-\xff]|[\x00-\x7f]+|.", re.DOTALL)

_JIS_ESCAPE = re.compile(rb"\x1b(\([BJI]|\$[@B])")
_JIS_PAIR = re.compile(rb"[\x21-\x7e]{2}|[\x21-\xff]")
_HIGH_BITS = bytes(range(0x80, 0x100)) * 2
_ROMAN = str.maketrans("\\~", "¥‾")


def decode_legacy(body: bytes, codec: str) -> str:
    """Return the text of `body` in the charset of the Python codec `codec`, as browsers read it.

    An undefined pair of bytes becomes one U+FFFD.
    """
    if codec == "iso2022_jp":
        return _decode_iso_2022_jp(body)
    if codec == "big5hkscs" and any(pair in body for pair in _BIG5_SLASHES):
        pieces = _BIG5_PIECE.findall(body)
        text = "".join(_BIG5_SLASHES.get(piece) or piece.decode(codec, _ERRORS) for piece in pieces)
    elif codec == "euc_jp":
        # A full-width tilde of JIS X 0212, which Python decodes as `~`. No pair ends with 8F.
        text = body.replace(b"\x8f\xa2\xb7", b"\xa1\xc1").decode(codec, _ERRORS)
    elif codec == "cp1255":
        byte, character = _HOLAM_HASER
        text = character.join(part.decode(codec, _ERRORS) for part in body.split(byte))
    else:
        text = body.decode(codec, _ERRORS)
    translated = _translation(codec)
    if translated is None or not translated[0].search(text):
        return text
    return text.translate(translated[1])


@cache
def _translation(codec: str) -> tuple[re.Pattern[str], dict[int, str]] | None:
    """Return the pattern of the characters to translate, and their translation; None for none."""
    if codec not in _TRANSLATED:
        return None
    decoded, standard = _TRANSLATED[codec]
    pattern = re.compile(f"[{decoded}]")
    return pattern, {ord(a): b for a, b in zip(decoded, standard, strict=True)}


def _replace(error: UnicodeError) -> tuple[str, int]:
    """Return what the standard has where a codec stopped, and where decoding goes on."""
    if not isinstance(error, UnicodeDecodeError):
        raise error
    body, start, codec = error.object, error.start, error.encoding
    lead = body[start]
    if codec.startswith("charmap") or codec not in _LEADS:
        # Browsers decode the undefined bytes of windows-1252 and its like as control characters.
        is_control = 0x80 <= lead <= 0x9F
        return chr(lead) if is_control else "\ufffd", start + 1
    if lead == 0x80 and codec == "gb18030":
        return "€", start + 1
    pair = body[start : start + 2]
    if len(pair) < 2 or not _LEADS[codec](lead):
        return "\ufffd", start + 1
    character = _character_of(codec, pair)
    if character is not None:
        return character, start + 2
    length = 2
    if codec == "euc_jp" and lead == 0x8F and 0xA1 <= pair[1] <= 0xFE:
        length = 3  # JIS X 0212
    elif codec == "gb18030" and 0x30 <= pair[1] <= 0x39:
        rest = body[start + 2 : start + 4]
        is_third = 0x81 <= rest[0] <= 0xFE if rest else True
        is_fourth = 0x30 <= rest[1] <= 0x39 if len(rest) == 2 else True
        # Four bytes that are undefined, or as many as are left of them at the end.
        return "\ufffd", start + (2 + len(rest) if is_third and is_fourth else 1)
    sequence = body[start : start + length]
    is_ascii_kept = sequence[-1] < 0x80
    return "\ufffd", start + len(sequence) - is_ascii_kept


def _is_lead(byte: int) -> bool:
    return 0x81 <= byte <= 0xFE


# By codec, whether a byte begins a pair.
_LEADS = {
    "cp932": lambda byte: 0x81 <= byte <= 0x9F or 0xE0 <= byte <= 0xFC,
    "euc_jp": lambda byte: byte in (0x8E, 0x8F) or 0xA1 <= byte <= 0xFE,
    "cp949": _is_lead,
    "big5hkscs": _is_lead,
    "gb18030": _is_lead,
}


def _character_of(codec: str, pair: bytes) -> str | None:
    """Return the character of a pair that the standard has and the codec lacks; None for none."""
    if codec == "big5hkscs":
        return _big5_characters().get(pair)
    if codec == "euc_jp" and pair[0] >= 0xA1 and 0xA1 <= pair[1] <= 0xFE:
        # NEC's row 13 and IBM's extensions are in Windows' Shift_JIS, in the same rows and cells.
        lead, trail = divmod((pair[0] - 0xA1) * 94 + pair[1] - 0xA1, 188)
        lead += 0x81 if lead < 0x1F else 0xC1
        trail += 0x40 if trail < 0x3F else 0x41
        try:
            return bytes([lead, trail]).decode("cp932")
        except UnicodeDecodeError:
            return None
    return None


@cache
def _big5_characters() -> dict[bytes, str]:
    runs = [(int(run[:4], 16), run[4:]) for run in _BIG5_RUNS.split()]
    characters = {}
    for first, run in (*runs, _BIG5_PICTURES):
        for code, character in enumerate(run, first):
            characters[code.to_bytes(2, "big")] = character
    return characters


def _decode_iso_2022_jp(body: bytes) -> str:
    """Decode a body of ISO-2022-JP; line ends and other control bytes stay in every mode."""
    ascii_text, *modes = _JIS_ESCAPE.split(body)
    texts = [ascii_text.decode("ascii", "replace")]
    for mode, part in zip(modes[::2], modes[1::2], strict=True):
        if mode[:1] == b"$":
            texts.append(decode_legacy(_JIS_PAIR.sub(_as_euc_jp, part), "euc_jp"))
        elif mode == b"(I":
            katakana = bytes(byte | 0x80 if 0x21 <= byte <= 0x5F else byte for byte in part)
            texts.append(katakana.decode("cp932", "replace"))
        else:
            text = part.decode("ascii", "replace")
            texts.append(text.translate(_ROMAN) if mode == b"(J" else text)
    return "".join(texts)


def _as_euc_jp(match: re.Match[bytes]) -> bytes:
    """Return a pair of ISO-2022-JP in EUC-JP; half a pair, which is undefined, as a lone lead."""
    pair = match[0]
    return pair.translate(_HIGH_BITS) if len(pair) == 2 else b"\xff"


codecs.register_error(_ERRORS, _replace)
