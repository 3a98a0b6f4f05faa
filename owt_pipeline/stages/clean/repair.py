"""Repair of text: mojibake and other glitches by ftfy (Speer, 2019), white space, and masks for
addresses."""

from __future__ import annotations

import contextlib
import functools
import ipaddress
import re
from typing import Any

import ftfy
from ftfy.chardata import WIDTH_MAP

from owt_pipeline.formats.characters import apply_to_known, ranges_by_class
from owt_pipeline.formats.public_addresses import is_public
from owt_pipeline.stages.clean.options import Options

# No rule of ftfy and no normalization changes these characters, and they never look like mojibake.
# A line that has only these is not given to ftfy. Quotes are among them unless they are uncurled.
_HARMLESS = "\t\n\x20-\x7e\xb7\u2013\u2014\u2022"
_QUOTES = "\u2018\u2019\u201c\u201d"
_ENTITY = "&#?[0-9A-Za-z]{1,24};"
_MAY_CHANGE = {
    False: re.compile(f"[^{_HARMLESS}{_QUOTES}]|{_ENTITY}").search,
    True: re.compile(f"[^{_HARMLESS}]|{_ENTITY}").search,
}
"""Searches a line for characters that a repair may change, by `uncurl_quotes`."""

# Combining marks in a row. Python's normalization takes quadratic time: a second for 30,000.
_MANY_MARKS = 1_000

_OF_OTHER_WIDTH = re.compile("[\u3000\uff01-\uffee]")
_CJK = re.compile(
    "[\u2e80-\u2fdf\u3041-\u3096\u309d-\u30ff\u3105-\u312f\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\uac00-\ud7a3\uf900-\ufaff"
    "\uff66-\uff9f\U00020000-\U0003ffff]"
)
_WIDE_PUNCTUATION = [chr(0xFEE0 + code) for code in range(0x21, 0x7F) if not chr(code).isalnum()]
_TO_USUAL_WIDTH = {
    code: usual for code, usual in WIDTH_MAP.items() if chr(code) not in _WIDE_PUNCTUATION
}


def repair(text: str, options: Options) -> tuple[str, int]:
    """Return the repaired text, and the number of addresses in it that were masked."""
    if options.fix_text:
        # White space first, as an invisible character may be within an address.
        fix = functools.partial(
            fix_text, form=options.normalization, uncurl_quotes=options.uncurl_quotes
        )
        text = tidy(apply_to_known(fix, text))
    if not options.mask_addresses:
        return text, 0
    return mask(text)


def fix_text(text: str, form: str = "NFC", uncurl_quotes: bool = False) -> str:
    """Return `ftfy.fix_text(text, normalization=form, uncurl_quotes=uncurl_quotes)`, but faster.

    There are two differences.
    Full-width punctuation such as `，` and `！` is kept in text with Chinese, Japanese or Korean
    characters, where it belongs; ftfy makes it ASCII in any text. Thousands of combining marks in a
    row are separated by U+034F.

    Args:
      text: the text to repair.
      form: Unicode normalization form, NFC or NFKC; `none` for no normalization.
      uncurl_quotes: whether to make curly quotes straight.
    """
    normalization: Any = None if form == "none" else form
    config = ftfy.TextFixerConfig(
        normalization=normalization,
        uncurl_quotes=uncurl_quotes,
        fix_character_width=False,
        explain=False,
    )
    if not _marks().isdisjoint(text[::_MANY_MARKS]):  # a run that long includes one of these
        text = re.sub(f"[{''.join(_marks())}]{{{_MANY_MARKS}}}", "\\g<0>\u034f", text)
    fixed = _fix_lines(text, config)
    if _OF_OTHER_WIDTH.search(fixed) is None:
        return fixed
    widths = _TO_USUAL_WIDTH if _CJK.search(fixed) else WIDTH_MAP
    usual = fixed.translate(widths)
    if usual == fixed:
        return fixed
    # Usual width may complete mojibake.
    return _fix_lines(usual, config)


def _fix_lines(text: str, config: ftfy.TextFixerConfig) -> str:
    """Return `ftfy.fix_text(text, config)`, which repairs each line by itself.

    Most lines have nothing to repair, and are not given to ftfy.
    """
    may_change = _MAY_CHANGE[config.uncurl_quotes]
    lines = re.findall(r".*\n|.+$", text)
    for number, line in enumerate(lines):
        if may_change(line):
            lines[number] = ftfy.fix_text(line, config)
        if config.unescape_html and "<" in line:
            # Entities are kept from here on, as ftfy does: the text may be HTML on purpose.
            config = config._replace(unescape_html=False)
    return "".join(lines)


@functools.cache
def _marks() -> frozenset[str]:
    """Return the combining marks, and the characters that decompose into combining marks."""
    marks: set[str] = set()
    for first, last in ranges_by_class()["combining"]:
        marks.update(map(chr, range(first, last + 1)))
    return frozenset(marks)


# Spaces of other widths (Unicode category Zs); tabs are kept, as they may be code or a table.
_SPACES = re.compile("[\xa0\u1680\u2000-\u200a\u202f\u205f\u3000]")
# Characters without width or joining effect: zero-width space, soft hyphen, word joiner, byte order
# mark.
_INVISIBLE = re.compile("[\u200b\xad\u2060\ufeff]")


def tidy(text: str) -> str:
    """Return `text` with one kind of space, none at line ends, and no two empty lines in a row.

    A text that was tidied stays as it is.
    """
    if not text.isascii():
        text = _INVISIBLE.sub("", _SPACES.sub(" ", text))
    lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    stripped = "\n".join(line.rstrip(" \t\f") for line in lines)
    return re.sub(r"\n{3,}", "\n\n", stripped).strip()


# Letters of Latin, Greek and Cyrillic. Scripts without spaces are left out, since a letter may
# follow an address there without being part of it.
_LETTER = "A-Za-z\u00c0-\u024f\u0370-\u052f"
_EMAIL = re.compile(
    f"(?<![{_LETTER}0-9_.+%-])[{_LETTER}0-9_.+%-][{_LETTER}0-9_.+%'-]{{0,63}}"
    f"@(?:[{_LETTER}0-9-]{{1,63}}\\.){{1,8}}(?:xn--[a-z0-9-]{{1,59}}|[{_LETTER}]{{2,24}})(?!-?[{_LETTER}0-9_])"
)
_IP = re.compile(
    r"(?<![\w.])(?:\d{1,3}\.){3}\d{1,3}(?!\w|\.\d)"
    # public IPv6 addresses, 2000::/3
    r"|(?<![\w.:])[23][0-9A-Fa-f]{3}(?::[0-9A-Fa-f]{0,4}){2,7}(?![\w:])",
    re.ASCII,
)


def mask(text: str) -> tuple[str, int]:
    """Return `text` with e-mail and public IP addresses replaced, and the number replaced.

    The replacements are reserved for documentation: RFC 2606, RFC 5737, RFC 3849.
    """
    count = sum(_substitute(address) != address for address in _IP.findall(text))
    if count:
        text = _IP.sub(lambda match: _substitute(match[0]), text)
    if "@" not in text:
        return text, count
    text, num_emails = _EMAIL.subn("email@example.com", text)
    return text, count + num_emails


def _substitute(address: str) -> str:
    """Return the replacement of an IP address; the address itself if it is not public."""
    with contextlib.suppress(ValueError):  # it only looks like an address
        if is_public(ipaddress.ip_address(address)):
            return "2001:db8::1" if ":" in address else "192.0.2.1"
    return address
