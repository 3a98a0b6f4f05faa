"""Repairs mojibake and other glitches of text like ftfy (Speer, 2019), but faster.

ftfy applies each of its rules to every line, twice. Most lines have nothing to repair, which a regular expression
detects much faster; only the others go to ftfy.

One result differs: full-width punctuation such as `，` and `！` is kept in text with Chinese, Japanese or Korean
characters, where it belongs. ftfy makes it ASCII in any text.
"""

from __future__ import annotations

import functools
import ipaddress
import re
import unicodedata
from collections.abc import Collection
from dataclasses import dataclass
from itertools import chain
from typing import Any

import ftfy
from ftfy.badness import is_bad
from ftfy.chardata import WIDTH_MAP

# ftfy honours the omission of these rules only in explaining mode, which is slower.
_OF_ENCODING = frozenset({"restore_byte_a0", "replace_lossy_sequences", "decode_inconsistent_utf8", "fix_c1_controls"})

_MAX_SEGMENT = 1_000_000  # ftfy's max_decode_length: it cuts longer lines at this length

_MANY_MARKS = 10_000  # in a row; Python normalizes these in 0.1 s, and ten times as many in 10 s

# Characters that ftfy changes by the rule for curly quotes only, and that never look like mojibake, with ASCII or not.
_HARMLESS = "\t\n\x20-\x7e\xa0\xb7\u2013\u2014\u2018\u2019\u201c\u201d\u2022\u2026"
_ENTITY = "&#?[0-9A-Za-z]{1,24};"
_TO_LOOK_AT = re.compile(f"[^{_HARMLESS}]|{_ENTITY}")

# What rules change other than those for normalization, curly quotes, mojibake and width: control characters, line
# breaks, surrogates, Latin ligatures, entities.
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
    """`ftfy.fix_text(text, normalization=form)`, except that Chinese, Japanese and Korean keep wide punctuation.

    Args:
      text: the text to repair.
      form: Unicode normalization form, NFC or NFKC; `none` for no normalization.
      without: ftfy rules to disable, by the names of its options: https://ftfy.readthedocs.io/en/latest/config.html
    """
    rules = _Rules(form, frozenset(without))
    if _TO_LOOK_AT.search(text) is None:
        return _settle(text, rules)
    if form != "none" and not _marks().isdisjoint(text[::_MANY_MARKS]):  # a run that long includes one of these
        text = re.sub(f"[{''.join(_marks())}]{{{_MANY_MARKS},}}", _in_order, text)
    if _WIDTH in rules.without:
        return _fix_lines(text, rules)
    as_wide = _Rules(form, rules.without | {_WIDTH})
    fixed = _fix_lines(text, as_wide)
    if _OF_OTHER_WIDTH.search(fixed) is None:
        return fixed
    if _CJK.search(fixed) is None:
        return _fix_lines(text, rules)
    usual = fixed.translate(_TO_USUAL_WIDTH)
    return fixed if usual == fixed else _fix_lines(usual, as_wide)  # again: usual width may complete mojibake


@functools.cache
def _marks() -> frozenset[str]:
    """Combining marks, and characters that consist of some."""
    every = map(chr, range(0x300, 0x1F000))
    return frozenset(char for char in every if unicodedata.combining(_decomposed(char)[0]))


def _in_order(marks: re.Match[str]) -> str:
    """The same by Unicode's canonical equivalence, in the order for which normalization takes linear time."""
    return "".join(sorted(chain.from_iterable(map(_decomposed, marks[0])), key=unicodedata.combining))


_decomposed = functools.partial(unicodedata.normalize, "NFD")


@dataclass(frozen=True)
class _Rules:
    form: str
    without: frozenset[str]


def _fix_lines(text: str, rules: _Rules) -> str:
    # From the first line with a `<` on, ftfy keeps entities, since the text may be HTML on purpose.
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
    """Whether another round of ftfy surely leaves `text` unchanged."""
    return not _may_change(text, rules) and _settle(text, rules) == text


def _may_change(text: str, rules: _Rules) -> bool:
    """Whether an ftfy rule other than those of `_settle` may change `text`."""
    if _NEEDS_FTFY.search(text) is not None or is_bad(text):
        return True
    return _WIDTH not in rules.without and _OF_OTHER_WIDTH.search(text) is not None


def _settle(text: str, rules: _Rules) -> str:
    """Apply the two rules that remain: curly quotes and normalization."""
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
