"""Rebuild OpenWebText: from Reddit submissions to token shards, without losing a URL.

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
import importlib.util
import os
from typing import TYPE_CHECKING, Any

from owt_pipeline.version import __version__

if TYPE_CHECKING:
    from owt_pipeline.formats.urls import BadURL as BadURL
    from owt_pipeline.formats.urls import canonical_url as canonical_url
    from owt_pipeline.library import Cleaner as Cleaner
    from owt_pipeline.library import Extractor as Extractor
    from owt_pipeline.library import clean as clean
    from owt_pipeline.library import extract as extract
    from owt_pipeline.library import near_duplicates as near_duplicates
    from owt_pipeline.library import url_id as url_id
    from owt_pipeline.stages.clean.documents import Cleaned as Cleaned
    from owt_pipeline.stages.extract.extractor import Extracted as Extracted
    from owt_pipeline.stages.extract.pages import Rejected as Rejected

_MODULES = {
    "BadURL": "formats.urls",
    "Cleaned": "stages.clean.documents",
    "Cleaner": "library",
    "Extracted": "stages.extract.extractor",
    "Extractor": "library",
    "Rejected": "stages.extract.pages",
    "canonical_url": "formats.urls",
    "clean": "library",
    "extract": "library",
    "near_duplicates": "library",
    "url_id": "library",
}

__all__ = [*_MODULES, "__version__"]


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    check_schemas()
    return getattr(importlib.import_module(f"{__name__}.{_MODULES[name]}"), name)


def check_schemas() -> None:
    """Check that `import schemas` finds this project's package.

    Raises ImportError, naming the file, if a module of the same name hides it, as a program's own
    `schemas.py` does.
    """
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    spec = importlib.util.find_spec("schemas")
    origin = os.path.abspath(spec.origin) if spec is not None and spec.origin else ""
    if origin == os.path.join(folder, "schemas", "__init__.py"):
        return
    file = origin or "no file"
    raise ImportError(
        f"owt_pipeline needs its package `schemas`, but this program imports {file} by that name: "
        "rename the program's module, or move it into a package"
    )


def __dir__() -> list[str]:
    return sorted(__all__)
