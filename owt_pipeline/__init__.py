"""Rebuild OpenWebText: from Reddit submissions to token shards, with a ledger in which no URL is lost.

The parts of the pipeline are functions, too (docs/library.md):

    import owt_pipeline as owt

    owt.extract(html).text                     the main text of a page
    owt.clean(text).reason                     a text repaired, and why it would be rejected
    owt.near_duplicates(texts)                 which texts repeat which, each case verified
    owt.canonical_url(url), owt.url_id(url)

What a function needs is imported when it is first called.
"""

from __future__ import annotations

import importlib
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from owt_pipeline.extract.extractor import Extracted as Extracted
    from owt_pipeline.extract.pages import Rejected as Rejected
    from owt_pipeline.formats.urls import BadURL as BadURL
    from owt_pipeline.library import Cleaned as Cleaned
    from owt_pipeline.library import Cleaner as Cleaner
    from owt_pipeline.library import Extractor as Extractor
    from owt_pipeline.library import canonical_url as canonical_url
    from owt_pipeline.library import clean as clean
    from owt_pipeline.library import extract as extract
    from owt_pipeline.library import near_duplicates as near_duplicates
    from owt_pipeline.library import url_id as url_id

__version__ = "0.1.0"

_MODULES = {
    "BadURL": "formats.urls",
    "Cleaned": "library",
    "Cleaner": "library",
    "Extracted": "extract.extractor",
    "Extractor": "library",
    "Rejected": "extract.pages",
    "canonical_url": "library",
    "clean": "library",
    "extract": "library",
    "near_duplicates": "library",
    "url_id": "library",
}

__all__ = [*_MODULES, "__version__"]


class CallableRoom(ModuleType):
    """A stage's package that can be called like the library's function of the same name: importing any of its modules
    binds `owt_pipeline.extract` to the package, which would replace a function."""

    @property
    def __wrapped__(self) -> Any:  # what inspect.signature shows
        return getattr(importlib.import_module("owt_pipeline.library"), self.__name__.rpartition(".")[2])

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        return self.__wrapped__(*arguments, **options)

    def __reduce__(self) -> Any:
        return importlib.import_module, (self.__name__,)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if name in ("clean", "extract"):
        return importlib.import_module(f"{__name__}.{name}")
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
