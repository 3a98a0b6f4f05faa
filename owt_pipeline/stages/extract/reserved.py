"""The uses that a page reserves: for AI, or for text and data mining.

`noai` and `noimageai` are values of `<meta name="robots">` and of the header `X-Robots-Tag`, as
DeviantArt introduced them; `tdm-reservation` is a `<meta>` and a header of the W3C group's protocol
(TDMRep), where 1 reserves the rights and the page overrides its header.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from owt_pipeline.formats.messages import Headers, header
from owt_pipeline.stages.extract.extractor import Page

TDM = "tdm-reservation"
_FOR_ROBOTS = frozenset(("noai", "noimageai"))
_WITH_VALUE = ("unavailable_after", "max-snippet", "max-image-preview", "max-video-preview")
_ROBOT = re.compile(r"\s*([^\s,:]+)\s*:")


def reserved(headers: Headers, page: Page) -> str | None:
    """Return which of `noai`, `noimageai` and `tdm-reservation` a response declares.

    They are separated by commas. Return None if it declares none of them.

    A header for one robot by its name (`otherbot: noai`) does not count. Comments, scripts and
    texts about the words do not count either, since only the elements of the parsed page do.
    """
    metas = page.metas
    if metas is None:
        # Another extractor has parsed the page in its own way. Few pages have the words at all.
        # Searching a copy in lower case is four times as fast as an expression that ignores case.
        has_words = any(word.encode() in page.lower_html for word in (*_FOR_ROBOTS, TDM))
        metas = page.parsed.metas if has_words else {}
    rules = [
        metas.get("robots", ""),
        *(value for name, value in headers if name.lower() == "x-robots-tag"),
    ]
    words = {word for value in rules for word in _words(value)}
    declared = sorted(words & _FOR_ROBOTS)
    if (metas.get(TDM) or header(headers, TDM) or "").strip() == "1":
        declared.append(TDM)
    return ", ".join(declared) or None


def _words(value: str) -> Iterator[str]:
    """Yield the rules in a value, in lower case; none if the value is for one robot."""
    robot = _ROBOT.match(value)
    if robot is None or robot[1].lower() in _WITH_VALUE:
        yield from (word.strip().lower() for word in value.split(","))
