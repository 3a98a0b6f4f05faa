"""The built-in extractors, and the settings that all extractors are made from.

An entry in BUILT_IN is all that an extractor needs. From it follow the value of `--extractor`, its
line in `--help` and in the reference, the recorded library, the modules loaded before workers are
forked, and the function that reads a page. A library is imported only by a run that uses it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from owt_pipeline.errors import UserError
from schemas import option

TextFunction = Callable[[str, str], "str | None"]
"""A function from a page's HTML and its URL to its main text; None if it has none."""


@dataclass(frozen=True)
class BuiltIn:
    """A built-in extractor.

    Attributes:
      description: a few words for `--help` and the reference.
      make_text_function: makes its function from the settings, once in each worker process. Title,
        author, date and licence are read as for `blocks`. None for `blocks` itself, whose function
        is in `block_extractor`.
      library: the distribution whose version shapes its texts; None if it needs no other one.
      preload: modules and `module:function`s to load once for all workers.
    """

    description: str
    make_text_function: Callable[[Settings], TextFunction] | None = None
    library: str | None = None
    preload: tuple[str, ...] = ()


def _trafilatura(settings: Settings) -> TextFunction:
    """Return trafilatura's function (Barbaresi, ACL 2021)."""
    import logging

    try:
        from trafilatura import extract
    except ImportError as error:
        raise UserError(
            f"extractor trafilatura: its package cannot be imported ({error}): "
            "pip install 'owt-pipeline[pipeline]'"
        ) from error

    # Its problems with a page become reject rows.
    logging.getLogger("trafilatura").setLevel(logging.CRITICAL)
    return lambda html, url: extract(
        html,
        url=url,
        output_format="markdown" if settings.text_format == "markdown" else "txt",
        favor_precision=settings.favor == "precision",
        favor_recall=settings.favor == "recall",
        include_comments=settings.include_comments,
        include_tables=settings.include_tables,
    )


BUILT_IN = {
    "blocks": BuiltIn(
        "of this project", preload=("owt_pipeline.stages.extract.content.model:load",)
    ),
    "trafilatura": BuiltIn(
        "Barbaresi, ACL 2021",
        make_text_function=_trafilatura,
        library="trafilatura",
        preload=("trafilatura",),
    ),
}
LIBRARIES = tuple(built_in.library for built_in in BUILT_IN.values() if built_in.library)


def _describe_choices() -> str:
    """Return the help of `--extractor`."""
    names = [f"{name} ({built_in.description})" for name, built_in in BUILT_IN.items()]
    return f"{', '.join(names)}, or `module:factory` of an extractor of yours"


@dataclass(frozen=True)
class Settings:
    """The settings of an extractor, which ignores those that it does not support.

    Attributes:
      extractor: its name.
      favor: `balanced`, `precision` (prefer losing text to keeping boilerplate) or `recall` (the
        reverse).
      include_comments, include_tables: whether readers' comments and tables belong to the text.
      text_format: `plain`, or `markdown`, which keeps headings, lists, tables, code and formulas.
    """

    extractor: str = option("blocks", _describe_choices(), metavar="NAME")
    favor: str = option(
        "balanced",
        "precision prefers losing text to keeping boilerplate; recall does the reverse",
        choices=("balanced", "precision", "recall"),
    )
    include_comments: bool = option(False, "keep readers' comments as part of the text")
    include_tables: bool = option(True, "keep tables as part of the text")
    text_format: str = option(
        "plain",
        "plain text, or Markdown, which marks headings, lists, tables, code and formulas",
        choices=("plain", "markdown"),
    )
