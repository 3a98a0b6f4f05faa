"""The interface of an extractor: a function from a decoded page to its main text and metadata.

`--extractor` takes the name of a built-in extractor, `module:factory` for your own, or a name that
an installed package adds for its factory.
`factory(settings)` is called once in each worker process and returns a function `extract(page) ->
Extracted | None`; None means that the page has no main text. It may raise (the page is rejected as
`extract_crash`), run forever (`extract_timeout`) or run out of memory (`extract_memory`). It must
not keep state from one page to the next. docs/how-to/new-extractor.md has an example.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

from owt_pipeline.additions import EXTRACTORS, additions_to
from owt_pipeline.errors import UserError
from owt_pipeline.formats.own_code import describe_own, load_own, try_own
from owt_pipeline.stages.extract.built_in import BUILT_IN, TextFunction
from owt_pipeline.stages.extract.built_in import Settings as Settings
from owt_pipeline.stages.extract.content.metadata import read_head, read_metadata
from owt_pipeline.stages.extract.content.model import digest

if TYPE_CHECKING:
    from owt_pipeline.stages.extract.html.marks import ParsedPage

# A name, since it is made of what this module defines.
_BLOCKS = "owt_pipeline.stages.extract.block_extractor:blocks"


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

    @cached_property
    def parsed(self) -> ParsedPage:
        """The page as the built-in extractors read it. It is parsed when it is first needed."""
        from owt_pipeline.stages.extract.html.reader import read_page

        parsed = read_page(self.html)
        self.__dict__["_metas"] = parsed.metas
        return parsed

    @property
    def metas(self) -> dict[str, str] | None:
        """The `<meta>` elements; None if nothing has parsed the page so far."""
        return self.__dict__.get("_metas")

    def free_parsed(self) -> None:
        """Free the memory of `parsed`, but keep `metas`."""
        self.__dict__.pop("parsed", None)

    @cached_property
    def lower_html(self) -> bytes:
        """The body in UTF-8 with ASCII letters in lower case, to be searched for ASCII words.

        Lowering bytes takes a third of the time of lowering text.
        """
        return self.html.encode("utf-8", "replace").lower()


@dataclass(frozen=True)
class Extracted:
    """The main text and metadata of a page.

    Attributes:
      text: the main text, paragraphs separated by newlines.
      title, author, site_name: as stated on the page.
      date: date of publication, YYYY-MM-DD.
      language: the ISO 639-1 code that the page declares.
      license: the licence that the page declares; Creative Commons licences by SPDX identifier.
      blocks_left_out: number of blocks ignored because the page has too many; None if there are
        none.
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


# Creating an extractor may read stop lists and compile expressions.
@functools.lru_cache(maxsize=1)
def load(settings: Settings) -> Extract:
    """Return the extractor `settings.extractor`, one of BUILT_IN or `module:factory`.

    Raises UserError for an unknown name.
    """
    name = settings.extractor
    built_in = BUILT_IN.get(name)
    if built_in is not None and built_in.make_text_function is not None:
        return _with_metadata(built_in.make_text_function(settings))
    factory = load_own(_BLOCKS if built_in is not None else _own(name), "extractor")
    extract: Extract = factory(settings)
    return extract


def _with_metadata(text_of: TextFunction) -> Extract:
    """Return an extractor of the text of one function and the metadata of ours."""

    def extract(page: Page) -> Extracted | None:
        text = text_of(page.html, page.url)
        if not text:
            return None
        head = read_head(page.parsed)
        metadata = read_metadata(page.parsed, head, page.url, page.fetched_at)
        return Extracted(text, **metadata, blocks_left_out=None)

    return extract


_ORDINARY_PAGE = """<!DOCTYPE html>
<html lang="en"><head><title>The river has frozen</title><meta name="author" content="Maria Lind">
<meta property="article:published_time" content="2024-01-09T08:00:00Z"></head>
<body><nav><a href="/">Home</a></nav><article><h1>The river has frozen</h1>
<p>On Tuesday morning 40 people walked across it, from the old mill to the harbour; by noon there
were hundreds. The city asks everybody to stay off the ice after dark.</p>
<p>It is 12 cm thick at the bridge, for the first time in eleven years.</p></article></body></html>
"""


@functools.lru_cache(maxsize=1)
def try_extractor(settings: Settings) -> None:
    """Raise UserError for an extractor of the user's that fails with an ordinary page."""
    if settings.extractor in BUILT_IN:
        return
    name = settings.extractor
    factory = load_own(_own(name), "extractor")
    extract = try_own(factory, settings, name, "extractor")
    page = Page("https://example.org/news/river", _ORDINARY_PAGE, fetched_at=1_704_800_000)
    found = try_own(extract, page, name, "extractor")
    if found is not None and not isinstance(getattr(found, "text", None), str):
        raise UserError(
            f"extractor: {name} returns {type(found).__name__} for an ordinary page, and has to "
            f"return owt_pipeline.Extracted with a text, or None"
        )


def sources(name: str) -> list[dict[str, Any]]:
    """Return what the results of an extractor depend on, except our code and libraries.

    That is the model of `blocks`, and your own module. Raises UserError for an unknown name.
    """
    if name not in BUILT_IN:
        return [describe_own(_own(name), "extractor")]
    if BUILT_IN[name].make_text_function is None:
        return [{"name": "the model of blocks", "sha256": digest()}]
    return []


def _own(name: str) -> str:
    if ":" not in name and name not in additions_to(EXTRACTORS):
        names = ", ".join([*BUILT_IN, *additions_to(EXTRACTORS)])
        raise UserError(
            f"extractor: {name!r} is not one of {names}, and not a `module:factory` of your own"
        )
    return name
