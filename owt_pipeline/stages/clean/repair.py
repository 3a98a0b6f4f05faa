"""Repair of text: mojibake and other glitches by ftfy (Speer, 2019), white space, and masks for addresses."""

from __future__ import annotations

import functools
import ipaddress
import re
import unicodedata
from itertools import chain
from typing import Any

import ftfy
from ftfy.chardata import WIDTH_MAP

# Characters that no rule of ftfy changes but the one for curly quotes, and that never look like mojibake.
_HARMLESS = "\t\n\x20-\x7e\xa0\xb7\u2013\u2014\u2022\u2026"
_QUOTES = "\u2018\u2019\u201c\u201d"
_MAY_CHANGE = {
    uncurl: re.compile(f"[^{_HARMLESS}{'' if uncurl else _QUOTES}]|&#?[0-9A-Za-z]{{1,24}};") for uncurl in (False, True)
}

_MANY_MARKS = 10_000  # in a row; Python normalizes these in 0.1 s, and ten times as many in 10 s

_OF_OTHER_WIDTH = re.compile("[\u3000\uff01-\uffee]")
_CJK = re.compile(
    "[\u2e80-\u2fdf\u3041-\u3096\u309d-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
_WIDE_PUNCTUATION = [chr(0xFEE0 + code) for code in range(0x21, 0x7F) if not chr(code).isalnum()]
_TO_USUAL_WIDTH = {code: usual for code, usual in WIDTH_MAP.items() if chr(code) not in _WIDE_PUNCTUATION}


def fix_text(text: str, form: str = "NFC", uncurl_quotes: bool = False) -> str:
    """`ftfy.fix_text(text, normalization=form, uncurl_quotes=uncurl_quotes)`, faster, with one difference.

    The difference: full-width punctuation such as `，` and `！` is kept in text with Chinese, Japanese or Korean
    characters, where it belongs. ftfy makes it ASCII in any text.

    Args:
      text: the text to repair.
      form: Unicode normalization form, NFC or NFKC; `none` for no normalization.
      uncurl_quotes: whether to make curly quotes straight.
    """
    normalization: Any = None if form == "none" else form
    config = ftfy.TextFixerConfig(normalization=normalization, uncurl_quotes=uncurl_quotes, explain=False)
    if normalization and not _marks().isdisjoint(text[::_MANY_MARKS]):  # a run that long includes one of these
        text = re.sub(f"[{''.join(_marks())}]{{{_MANY_MARKS},}}", _in_order, text)
    as_wide = config._replace(fix_character_width=False)
    fixed = _fix_lines(text, as_wide)
    if _OF_OTHER_WIDTH.search(fixed) is None:
        return fixed
    if _CJK.search(fixed) is None:
        return _fix_lines(text, config)
    usual = fixed.translate(_TO_USUAL_WIDTH)
    return fixed if usual == fixed else _fix_lines(usual, as_wide)  # again: usual width may complete mojibake


def _fix_lines(text: str, config: ftfy.TextFixerConfig) -> str:
    """`ftfy.fix_text(text, config)`, which repairs each line by itself; most lines have nothing to repair."""
    may_change = _MAY_CHANGE[config.uncurl_quotes]
    if may_change.search(text) is None:
        return _normalized(text, config)
    lines = re.findall(r".*\n|.+$", text)
    for number, line in enumerate(lines):
        fix = may_change.search(line) is not None
        lines[number] = ftfy.fix_text(line, config) if fix else _normalized(line, config)
        if config.unescape_html and "<" in line:  # from here on, as in ftfy: the text may be HTML on purpose
            config = config._replace(unescape_html=False)
    return "".join(lines)


def _normalized(text: str, config: ftfy.TextFixerConfig) -> str:
    return unicodedata.normalize(config.normalization, text) if config.normalization else text


@functools.cache
def _marks() -> frozenset[str]:
    """Combining marks, and characters that consist of some."""
    every = map(chr, range(0x300, 0x1F000))
    return frozenset(char for char in every if unicodedata.combining(_decomposed(char)[0]))


def _in_order(marks: re.Match[str]) -> str:
    """The same by Unicode's canonical equivalence, in the order for which normalization takes linear time."""
    return "".join(sorted(chain.from_iterable(map(_decomposed, marks[0])), key=unicodedata.combining))


_decomposed = functools.partial(unicodedata.normalize, "NFD")


# Spaces of other widths (Unicode category Zs); tabs are kept, as they may be code or a table.
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# Characters without width or joining effect: zero-width space, soft hyphen, word joiner, byte order mark.
_INVISIBLE = re.compile("[\u200b\xad\u2060\ufeff]")
_LINE_END = re.compile(r"(?<![ \t\f])[ \t\f]+$", re.MULTILINE)
_EMPTY_LINES = re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """`text` with normalised white space: one kind of space, none at line ends, at most one empty line in a row.

    Idempotent.
    """
    if not text.isascii():
        text = _INVISIBLE.sub("", _SPACES.sub(" ", text))
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if any(blank in text for blank in (" \n", "\t\n", "\f\n")):  # saves the slow expression
        text = _LINE_END.sub("", text)
    return _EMPTY_LINES.sub("\n\n", text).strip()


EMAIL = "email@example.com"
IPV4 = "192.0.2.1"
IPV6 = "2001:db8::1"

# Letters of Latin, Greek and Cyrillic. Not those of scripts without spaces: there, an address ends within a line.
_LETTER = "A-Za-z\u00c0-\u024f\u0370-\u052f"
_EMAIL = re.compile(
    f"(?<![{_LETTER}0-9_.+%-])[{_LETTER}0-9_.+%-][{_LETTER}0-9_.+%'-]{{0,63}}"
    f"@(?:[{_LETTER}0-9-]{{1,63}}\\.){{1,8}}(?:xn--[a-z0-9-]{{1,59}}|[{_LETTER}]{{2,24}})(?!-?[{_LETTER}0-9_])"
)
_IP = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
    r"|(?<![\w.:])[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])",  # public IPv6 addresses, 2000::/3
    re.ASCII,
)


def mask(text: str) -> tuple[str, int]:
    """(`text` with e-mail addresses and public IP addresses replaced, number of replacements).

    The replacements are reserved for documentation: RFC 2606, RFC 5737, RFC 3849.
    """
    count = 0

    def replaced(match: re.Match[str]) -> str:
        nonlocal count
        try:
            address = ipaddress.ip_address(match[0])
        except ValueError:
            return match[0]
        if not address.is_global:
            return match[0]
        count += 1
        return IPV4 if address.version == 4 else IPV6

    text = _IP.sub(replaced, text)
    if "@" not in text:
        return text, count
    text, emails = _EMAIL.subn(lambda match: EMAIL, text)  # last, since an address ends within what follows it
    return text, count + emails
