"""The alarm: a cluster, or a host, so large that it is rather a mistake than duplicates."""

from __future__ import annotations

from collections.abc import Callable
from urllib.parse import urlsplit

from owt_pipeline.engine.errors import UserError

LEAST_DOCUMENTS = 1000
"""Fewer raise no alarm, whatever their share."""

_SHOWN_CHARACTERS = 100


def check(
    what: str, option: str, documents: int, corpus: int, share: float, sample: Callable[[], list[tuple[str, str]]]
) -> None:
    """Raise UserError where `documents` that repeat others, all of one kind, exceed their share of the corpus.

    Args:
      what: the kind, for the message.
      option: the option that the share is from.
      documents: how many there are.
      corpus: documents of the corpus.
      share: how many may be.
      sample: gives (URL, text) of some of them.
    """
    if documents < LEAST_DOCUMENTS or documents <= share * corpus:
        return
    shown = "".join(f"\n  {url or '(no URL)'}: {_beginning(text)}" for url, text in sample())
    raise UserError(
        f"dedupe: {what} has {documents:,} documents that repeat others, {documents / corpus:.1%} of the corpus, more "
        f"than --{option} {share:g} allows. Often that is one page under many URLs (an error, a consent form) that "
        f"should have been rejected earlier. Some of them:{shown}\n"
        f"If they are to go, give a greater --{option} (1 allows all); the run goes on from here."
    )


def host_of(url: str | None) -> str:
    """The URL's host without `www.`; nothing for none."""
    return (urlsplit(url).hostname or "").removeprefix("www.") if url else ""


def _beginning(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
