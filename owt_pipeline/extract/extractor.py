"""What an extractor is: a function from a decoded page to its main text and metadata.

`--extractor` takes the name of one of ours, or `module:factory` for one's own: `factory(settings)` is called once
in each worker process and returns a function `extract(page) -> Extracted | None`, None where the page has no main
text. It may raise (the page is rejected as `extract_crash`), run forever (`extract_timeout`) or use up memory
(`extract_memory`); it must not remember anything from one page to the next.

    # my_extractors.py
    from owt_pipeline.extract.extractor import Extracted, Page, Settings

    def first_paragraph(settings: Settings):
        def extract(page: Page) -> Extracted | None:
            _, start, rest = page.html.partition("<p>")
            return Extracted(rest.partition("</p>")[0]) if start else None
        return extract

    PYTHONPATH=. owt extract --workdir run --extractor my_extractors:first_paragraph
"""

from __future__ import annotations

import functools
import hashlib
import importlib
import importlib.metadata
import importlib.util
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from owt_pipeline.extract.model import digest

BUILT_IN = {"blocks": "lxml", "trafilatura": "trafilatura", "resiliparse": "resiliparse"}
"""The extractors of `built_in`, and the library whose version decides what they find."""


class ExtractorError(ValueError):
    """`--extractor` names none that can be loaded."""


@dataclass(frozen=True)
class Settings:
    """What a user can ask of an extractor; one that has no use for a setting ignores it.

    Attributes:
      favor: `balanced`, `precision` (rather lose text than keep boilerplate) or `recall` (the reverse).
      fast: skip the second opinions, of which only trafilatura has any.
      include_comments: readers' comments belong to the text.
      include_tables: tables belong to the text.
      text_format: `plain`, or `markdown` that keeps headings, lists, tables, code and formulas.
    """

    favor: str = "balanced"
    fast: bool = False
    include_comments: bool = False
    include_tables: bool = True
    text_format: str = "plain"


@dataclass(frozen=True)
class Page:
    """A page as an extractor sees it.

    Attributes:
      url: the URL that answered.
      html: the decoded body.
      fetched_at: when, in seconds since 1970 in UTC: nothing on the page is younger.
    """

    url: str
    html: str
    fetched_at: int


@dataclass(frozen=True)
class Extracted:
    """What was found on a page.

    Attributes:
      text: the main text, paragraphs separated by newlines.
      title, author, site_name: as the page gives them.
      date: of publication, YYYY-MM-DD.
      language: the ISO 639-1 code the page declares.
      license: the licence it declares, Creative Commons' by their SPDX identifiers.
      blocks_left_out: how many blocks were not judged, since the page has too many; None where all were.
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


@functools.lru_cache(maxsize=1)  # one a process: making one may read stop lists and compile expressions
def load(name: str, settings: Settings) -> Extract:
    """The extractor `name` (one of BUILT_IN, or `module:factory`); raises ExtractorError."""
    extract: Extract = _factory(name)(settings)
    return extract


def describe(name: str) -> dict[str, Any]:
    """Name and version of the extractor `name`, for the manifest; raises ExtractorError.

    `blocks` has the digest of its model, too. One's own has the digest of its module's file in place of a version.
    """
    if library := BUILT_IN.get(name):
        try:
            known = {"name": name, "version": importlib.metadata.version(library)}
        except importlib.metadata.PackageNotFoundError:
            raise ExtractorError(f"extractor: {name} is not installed: pip install {library}") from None
        return known | ({"sha256": digest()} if name == "blocks" else {})
    module = sys.modules[_factory(name).__module__]
    if not getattr(module, "__file__", None):
        return {"name": name}
    with open(str(module.__file__), "rb") as file:
        return {"name": name, "sha256": hashlib.sha256(file.read()).hexdigest()}


def _factory(name: str) -> Callable[[Settings], Extract]:
    target = f"owt_pipeline.extract.built_in:{name}" if name in BUILT_IN else name
    module_name, colon, attribute = target.partition(":")
    if not colon:
        known = ", ".join(sorted(BUILT_IN))
        raise ExtractorError(f"extractor: {name!r} is none of {known}, nor a `module:factory` of your own")
    try:
        factory: Callable[[Settings], Extract] = getattr(importlib.import_module(module_name), attribute)
    except ImportError as error:
        raise ExtractorError(f"extractor: {name} cannot be imported ({error})") from error
    except AttributeError:
        raise ExtractorError(f"extractor: module {module_name} has no {attribute!r}") from None
    return factory
