"""URLs are requested and redirects resolved as by the test suite of the WHATWG's URL Standard.

`whatwg_urls.json` has its cases with an http base or none: base, input and the parsed URL (null for
a failure). `NOTICE` names its authors.
"""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from owt_pipeline.formats.urls import BadURL, redirected, requested

Case = tuple[str | None, str, str | None]

CASES: list[Case] = [
    tuple(case) for case in json.loads(Path(__file__).with_name("whatwg_urls.json").read_bytes())
]

# The parts of a parsed http URL.
_PARTS = re.compile(r"(https?://)(?:[^/?#]*@)?([^/?#]*)([^#]*)(#.*)?", re.DOTALL)

# The cases that ours reads otherwise on purpose. A pattern matches the input, or the base and the
# input.
DIVERGENCES = {
    # Such a host stays as it is written, and whatever it resolves to is checked before connecting.
    "numbers for an address": (
        r"https?://(?:[^/]*\.)?(?:\d+|0[xX][0-9A-Fa-f]*)\.*(?:/.*)?"
        r"|http://(?:%30%78.*|０Ｘ.*)|http://192\.0x00A80001"
    ),
    # A posted URL without them is rather a mistake, and a reject. As a redirect, it is read.
    "no two slashes after the scheme": r"None https?:/?[^/\\].*",
    # The resolver finds nothing there.
    "a name that is not valid Punycode": r"https?://.*[xX][nN]--(?:pokxncvks)?/?",
    "a name without letters and digits": r"http://(?:\.\.?|!.*)/",
    # No server can be reached at such a port.
    "the port 0, and ports with more than ten digits": r"http://f:0+(?:80)?/c",
}


def expected(parsed: str | None) -> str | None:
    """Return the URL that is requested.

    It has no user, no empty query, and no fragment that only names a place in the page.
    """
    parts = _PARTS.fullmatch(parsed) if parsed else None
    if parts is None:
        return None
    scheme, host, path, fragment = parts.groups()
    is_route = fragment is not None and re.match(r"#[!/].*[^/]", fragment) is not None
    return f"{scheme}{host}{path.removesuffix('?')}{fragment if is_route else ''}"


def ours(base: str | None, text: str) -> str | None:
    """Return the URL that is requested; None for a reject, or for another scheme than http."""
    try:
        if base is None:
            return requested(text)
        # A header is read as Latin-1, whatever was sent.
        url = redirected(base, text.encode("utf-8", "surrogatepass").decode("latin-1"))
    except BadURL:
        return None
    return url if url.startswith(("http://", "https://")) else None


def divergence_of(case: Case) -> str | None:
    """Return the name of the divergence that a case belongs to; None if ours has to agree."""
    base, text, _ = case
    for name, pattern in DIVERGENCES.items():
        if re.fullmatch(pattern, text) or re.fullmatch(pattern, f"{base} {text}"):
            return name
    return None


AGREED = [case for case in CASES if divergence_of(case) is None]


@pytest.mark.parametrize("case", AGREED, ids=lambda case: ascii(case[1])[:60])
def test_urls_are_requested_as_in_the_standards_suite(case: Case) -> None:
    base, text, parsed = case
    assert ours(base, text) == expected(parsed)


@pytest.mark.parametrize("name", DIVERGENCES)
def test_each_divergence_from_the_standard_is_real(name: str) -> None:
    cases = [case for case in CASES if divergence_of(case) == name]
    differing = [case for case in cases if ours(case[0], case[1]) != expected(case[2])]
    assert differing


def test_most_of_the_suite_is_compared() -> None:
    assert len(AGREED) > 0.85 * len(CASES) > 500
