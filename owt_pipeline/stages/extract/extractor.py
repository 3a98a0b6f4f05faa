"""The interface of an extractor: a function from a decoded page to its main text and metadata.

`--extractor` takes the name of a built-in extractor, or `module:factory` for your own. `factory(settings)` is called
once in each worker process and returns a function `extract(page) -> Extracted | None`; None means that the page has no
main text. It may raise (the page is rejected as `extract_crash`), run forever (`extract_timeout`) or run out of memory
(`extract_memory`). It must not keep state from one page to the next.

    # my_extractors.py
    from owt_pipeline.stages.extract.extractor import Extracted, Page, Settings

    def first_paragraph(settings: Settings):
        def extract(page: Page) -> Extracted | None:
            _, start, rest = page.html.partition("<p>")
            return Extracted(rest.partition("</p>")[0]) if start else None
        return extract

    PYTHONPATH=. owt run run --until extract --extractor my_extractors:first_paragraph
"""

from __future__ import annotations

import functools
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from owt_pipeline.engine.own_code import describe_own, load_own
from owt_pipeline.errors import UserError
from owt_pipeline.stages.extract.model import digest
from owt_pipeline.stages.extract.options import Settings as Settings

BUILT_IN = {"blocks": "lxml", "trafilatura": "trafilatura"}
"""The extractors of `built_in`, each with the library whose version affects its results."""


@dataclass(frozen=True)
class Page:
    """The input of an extractor.

    Attributes:
      url: the URL that answered.
      html: the decoded body.
      fetched_at: time of the fetch, in seconds since 1970 in UTC; no date on the page can be later.
    """

    url: str
    html: str
    fetched_at: int


@dataclass(frozen=True)
class Extracted:
    """The main text and metadata of a page.

    Attributes:
      text: the main text, paragraphs separated by newlines.
      title, author, site_name: as stated on the page.
      date: date of publication, YYYY-MM-DD.
      language: the ISO 639-1 code that the page declares.
      license: the licence that the page declares; Creative Commons licences by SPDX identifier.
      blocks_left_out: number of blocks ignored because the page has too many; None if there are none.
    """

    text: str
    title: str | None = None
    author: str | None = None
    date: str | None = None
    site_name: str | None = None
    language: str | None = None
    license: str | None = None
    blocks_left_out: int | None = None


Extract = Callable[[Page], Extracted | None]


@functools.lru_cache(maxsize=1)  # creating an extractor may read stop lists and compile expressions
def load(settings: Settings) -> Extract:
    """The extractor `settings.extractor` (one of BUILT_IN, or `module:factory`); raises UserError."""
    return _factory(settings.extractor)(settings)


def describe(name: str) -> dict[str, Any]:
    """Name and version of the extractor `name`, for the manifest; raises UserError.

    `blocks` also has the digest of its model; your own has the digest of its module's file instead of a version.
    """
    if library := BUILT_IN.get(name):
        try:
            known = {"name": name, "version": importlib.metadata.version(library)}
        except importlib.metadata.PackageNotFoundError:
            raise UserError(f"extractor: {name} is not installed: pip install {library}") from None
        return known | ({"sha256": digest()} if name == "blocks" else {})
    _factory(name)
    return describe_own(name, "extractor")


def _factory(name: str) -> Callable[[Settings], Extract]:
    target = f"owt_pipeline.stages.extract.built_in:{name}" if name in BUILT_IN else name
    if ":" not in target:
        known = ", ".join(sorted(BUILT_IN))
        raise UserError(f"extractor: {name!r} is none of {known}, nor a `module:factory` of your own")
    return load_own(target, "extractor")
