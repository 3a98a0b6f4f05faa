"""Numbers for a person: counts with their noun, sizes, durations and shares."""

from __future__ import annotations

_MINUTE = 60
_HOUR = 60 * _MINUTE
_DAY = 24 * _HOUR

# Nouns with these endings take -es: boxes, batches.
_SIBILANTS = ("s", "x", "z", "ch", "sh")


def pluralize(count: int, noun: str) -> str:
    """Return the count with its noun: `1 window`, `2 windows`, `1,000 copies`, `0 batches`."""
    if count == 1:
        return f"1 {noun}"
    return f"{count:,} {plural(noun)}"


def plural(noun: str) -> str:
    """Return the regular plural of a noun, or of a phrase that ends in one."""
    if noun.endswith(_SIBILANTS):
        return f"{noun}es"
    if noun.endswith("y") and noun[-2:-1] not in tuple("aeiou"):
        return f"{noun[:-1]}ies"
    return f"{noun}s"


def format_bytes(num_bytes: float) -> str:
    """Return a size in powers of 1,000, with one decimal: `0.8 kB`, `17.0 kB`, `40.0 GB`."""
    for power, unit in ((12, "TB"), (9, "GB"), (6, "MB")):
        if num_bytes >= 10**power:
            return f"{num_bytes / 10**power:,.1f} {unit}"
    return f"{num_bytes / 1000:,.1f} kB"


def format_duration(seconds: float) -> str:
    """Return a duration in its largest suitable unit: `40 s`, `12 min`, `3.5 h`, `4.2 days`."""
    if seconds < 1.5 * _MINUTE:
        return f"{seconds:.0f} s"
    if seconds < 1.5 * _HOUR:
        return f"{seconds / _MINUTE:.0f} min"
    if seconds < 2 * _DAY:
        return f"{seconds / _HOUR:.1f} h"
    return f"{seconds / _DAY:.1f} days"


def format_percent(share: float | None) -> str:
    """Return a share in percent, such as `12.3 %` or `<0.1 %`; a dash for None."""
    if share is None:
        return "–"
    # A small share is not nothing.
    if 0 < share < 0.001:
        return "<0.1 %"
    return f"{100 * share:.1f} %"
