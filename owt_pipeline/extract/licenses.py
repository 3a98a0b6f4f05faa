"""The licence that a page declares for itself.

By `rel="license"`, in its linked data or its `<meta>` elements, or by a link to Creative Commons next to words that
say what it is for. A link alone does not count: most are credits of a picture. Licences of Creative Commons are given
by their SPDX identifier (`CC-BY-SA-4.0`), others as the page names them: by URL, or in words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from lxml import etree

from owt_pipeline.extract.tree import text_of

_CREATIVE_COMMONS = re.compile(
    r"creativecommons\.org/(?:licenses/([a-z-]+?)(?:/(\d\.\d))?(?:/([a-z]{2}))?|publicdomain/(zero|mark)/(\d\.\d))(?=[/?#]|$)",
    re.IGNORECASE,
)
_META_NAMES = ("dcterms.license", "dc.license", "dc.rights.license", "license", "dcterms.rights", "dc.rights")
_DECLARES = re.compile(
    r"licen[cs]|lizen[zs]|licenci|licença|ライセンス|лиценз|except where|unless otherwise|some rights reserved",
    re.IGNORECASE,
)
_LONGEST = 200
_LINKS = 20  # to Creative Commons that are looked at: a page of pictures has one for each
_AROUND = 300  # characters of the paragraph that says what a link to a licence is for


def read_license(root: etree._Element, metas: dict[str, str], nodes: list[dict[str, Any]]) -> str | None:
    """The licence of the page `root`; None where it declares none, or several that differ.

    Args:
      metas: content of its `<meta>` elements by name.
      nodes: the things that its linked data describes.
    """
    related, linked = [], []
    for element in root.iter("link", "a", "area"):
        relation, target = element.get("rel"), element.get("href")
        if target is not None and relation is not None and "licen" in relation:
            if {"license", "licence"} & set(relation.lower().split()):
                related.append(element)
        elif target is not None and "creativecommons.org/" in target:
            linked.append(element)
    for candidates in (
        (_named(element.get("href")) for element in related if element.tag == "link"),
        (_of_data(node.get("license")) for node in nodes),
        (_named(element.get("href")) for element in related if not _is_credit(element)),
        (_named(metas.get(name)) for name in _META_NAMES),
        _of_statements(linked),
    ):
        found = list(dict.fromkeys(filter(None, candidates)))
        if found:
            return found[0] if len(found) == 1 else None
    return None


def _of_statements(links: list[etree._Element]) -> Iterator[str | None]:
    for link in links[:_LINKS]:
        above = link.getparent()
        if above is None or _is_credit(link) or not _CREATIVE_COMMONS.search(link.get("href")):
            continue
        said = text_of(above)
        if len(said) < 40 and above.getparent() is not None:
            said = text_of(above.getparent())
        if len(said) <= _AROUND and _DECLARES.search(said):
            yield _named(link.get("href"))


def _is_credit(link: etree._Element) -> bool:
    """Whether a link is below a picture, or in somebody's comment: it is about that."""
    return any(above.tag in ("figure", "figcaption", "blockquote", "li") for above in link.iterancestors())


def _of_data(value: Any) -> str | None:
    if isinstance(value, dict):
        value = value.get("url") or value.get("@id") or value.get("name")
    return _named(value) if isinstance(value, str) else None


def _named(text: str | None) -> str | None:
    """The licence at a URL or of a name."""
    text = " ".join((text or "").split())
    if match := _CREATIVE_COMMONS.search(text):
        kind, version, country, public, public_version = match.groups()
        if public:
            return f"{'CC0' if public.lower() == 'zero' else 'CC-PDM'}-{public_version}"
        parts = ["CC", kind.upper(), version, country and country.upper()]
        return "-".join(part for part in parts if part)
    if "://" not in text and not _DECLARES.search(text) and not re.match(r"(?:CC|MIT|Apache|GPL|GFDL|BSD)\b", text):
        return None  # "All rights reserved", or a publisher's name
    return text if 0 < len(text) <= _LONGEST else None
