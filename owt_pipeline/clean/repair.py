"""Mojibake and other glitches of text, repaired by ftfy (Speer, 2019): the same result, sooner.

ftfy applies each of its rules to every line, twice. Most lines have nothing for a rule to find, which a regular
expression finds out much sooner; only the others are given to ftfy.

One result differs: `，`, `！` and the like, which are as wide as a Chinese character, stay so in a text with Chinese,
Japanese or Korean characters, whose punctuation they are. ftfy makes them ASCII in any text.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import ftfy
from ftfy.badness import is_bad
from ftfy.chardata import WIDTH_MAP

# ftfy heeds that these are left out only where it explains what it does, which takes longer.
_OF_ENCODING = frozenset({"restore_byte_a0", "replace_lossy_sequences", "decode_inconsistent_utf8", "fix_c1_controls"})

_MAX_SEGMENT = 1_000_000  # ftfy's max_decode_length: a longer line is cut, wherever that is

# Characters that none of ftfy's rules touches but the one for curly quotes, and of which, with ASCII, no sequence
# looks like mojibake to it.
_HARMLESS = "\t\n\x20-\x7e\xa0\xb7\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026"
_ENTITY = "&#?[0-9A-Za-z]{1,24};"
_TO_LOOK_AT = re.compile(f"[^{_HARMLESS}]|{_ENTITY}")

# All that any rule changes but normalization, curly quotes, mojibake and width: control characters and what represents
# a line break, surrogates, Latin ligatures, entities.
_NEEDS_FTFY = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u206a-\u206f\ud800-\udfff\ufeff\ufff9-\ufffc"
    f"\u0132\u0133\u0149\u01c4-\u01cc\u01f1-\u01f3\ufb00-\ufb06]|{_ENTITY}"
)
_WIDTH = "fix_character_width"
_OF_OTHER_WIDTH = re.compile("[\u3000\uff01-\uffee]")
_CJK = re.compile(
    "[\u2e80-\u2fdf\u3041-\u3096\u309d-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
_WIDE_PUNCTUATION = [chr(0xFEE0 + code) for code in range(0x21, 0x7F) if not chr(code).isalnum()]
_TO_USUAL_WIDTH = {code: usual for code, usual in WIDTH_MAP.items() if chr(code) not in _WIDE_PUNCTUATION}
_UNCURL = [(curly, "'") for curly in "\u02bc\u2018\u2019\u201a\u201b"] + [
    (curly, '"') for curly in "\u201c\u201d\u201e\u201f"
]


def fix_text(text: str, form: str = "NFC", without: Collection[str] = ()) -> str:
    """What `ftfy.fix_text(text, normalization=form)` returns, but for wide punctuation of Chinese, Japanese and Korean.

    Args:
      text: to be repaired.
      form: of Unicode, NFC or NFKC; `none` for no normalization.
      without: ftfy's rules to be left out, by its options' names: https://ftfy.readthedocs.io/en/latest/config.html
    """
    rules = _Rules(form, frozenset(without))
    if _TO_LOOK_AT.search(text) is None:
        return _settle(text, rules)
    if _WIDTH in rules.without:
        return _fix_lines(text, rules)
    fixed = _fix_lines(text, _Rules(form, rules.without | {_WIDTH}))
    if _OF_OTHER_WIDTH.search(fixed) is None:
        return fixed
    if _CJK.search(fixed) is None:
        return _fix_lines(text, rules)
    return _settle(fixed.translate(_TO_USUAL_WIDTH), rules)


@dataclass(frozen=True)
class _Rules:
    form: str
    without: frozenset[str]


def _fix_lines(text: str, rules: _Rules) -> str:
    # Of a text with a `<`, which may be HTML on purpose, ftfy leaves the entities alone from that line on.
    markup = text.find("<")
    fixed = []
    position = 0
    while (found := _TO_LOOK_AT.search(text, position)) is not None:
        start = text.rfind("\n", position, found.start()) + 1 or position
        fixed.append(_settle(text[position:start], rules))
        line_end = text.find("\n", found.start()) + 1 or len(text)
        for begin in range(start, line_end, _MAX_SEGMENT):
            end = min(begin + _MAX_SEGMENT, line_end)
            fixed.append(_fix_segment(text[begin:end], rules, 0 <= markup < end))
        position = line_end
    fixed.append(_settle(text[position:], rules))
    return "".join(fixed)


def _fix_segment(segment: str, rules: _Rules, has_markup: bool) -> str:
    if not _may_change(segment, rules):
        settled = _settle(segment, rules)
        if settled == segment or _is_stable(settled, rules):
            return settled
    return ftfy.fix_and_explain(segment, _config(rules, has_markup)).text


def _is_stable(text: str, rules: _Rules) -> bool:
    """Whether a further round of ftfy's would leave `text` as it is, as far as can be known without one."""
    return not _may_change(text, rules) and _settle(text, rules) == text


def _may_change(text: str, rules: _Rules) -> bool:
    """Whether a rule of ftfy's may change `text`, other than those of `_settle`."""
    if _NEEDS_FTFY.search(text) is not None or is_bad(text):
        return True
    return _WIDTH not in rules.without and _OF_OTHER_WIDTH.search(text) is not None


def _settle(text: str, rules: _Rules) -> str:
    """The two rules that remain where no other applies: curly quotes, and normalization."""
    if text.isascii():
        return text
    if "uncurl_quotes" not in rules.without:
        for curly, straight in _UNCURL:  # several times as fast as str.translate
            text = text.replace(curly, straight)
    return text if rules.form == "none" else unicodedata.normalize(rules.form, text)  # type: ignore[arg-type]


@functools.cache
def _config(rules: _Rules, has_markup: bool) -> ftfy.TextFixerConfig:
    normalization: Any = None if rules.form == "none" else rules.form
    switches: dict[str, Any] = dict.fromkeys(rules.without, False)
    if has_markup:
        switches["unescape_html"] = False
    explain = not _OF_ENCODING.isdisjoint(rules.without)
    return ftfy.TextFixerConfig(explain=explain, normalization=normalization, **switches)


# Spaces of other widths (Unicode category Zs); a tab stays, it may be code or a table.
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# What has no width and joins nothing: zero-width space, soft hyphen, word joiner, byte order mark.
_INVISIBLE = re.compile("[\u200b\xad\u2060\ufeff]")
_LINE_END = re.compile(r"(?<![ \t\f])[ \t\f]+$", re.MULTILINE)
_EMPTY_LINES = re.compile(r"\n{3,}")


def tidy(text: str) -> str:
    """`text` with its white space as a reader sees it; a tidy text stays as it is.

    That is one kind of space, no space at a line's end, at most one empty line in a row.
    """
    if not text.isascii():
        text = _INVISIBLE.sub("", _SPACES.sub(" ", text))
    if "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if any(blank in text for blank in (" \n", "\t\n", "\f\n")):  # the expression looks at every space
        text = _LINE_END.sub("", text)
    return _EMPTY_LINES.sub("\n\n", text).strip()


EMAIL = "email@example.com"
IPV4 = "192.0.2.1"
IPV6 = "2001:db8::1"

_EMAIL = re.compile(r"(?<![\w.+%-])[\w.+%-]{1,64}@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}(?![\w-])", re.ASCII)
_IP = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
    r"|(?<![\w.:])[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])",  # the internet's, 2000::/3
    re.ASCII,
)


def mask(text: str) -> tuple[str, int]:
    """`text` with its e-mail and IP addresses replaced, and how many there were; IP addresses only if they are public.

    What replaces them is nobody's: RFC 2606, RFC 5737, RFC 3849.
    """
    count = 0
    if "@" in text:
        text, count = _EMAIL.subn(lambda match: EMAIL, text)

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

    return _IP.sub(replaced, text), count
