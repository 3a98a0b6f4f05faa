"""What should become of every link of the demo: the truth that a run is held against."""

from __future__ import annotations

from dataclasses import dataclass

from owt_pipeline.demo.prose import Article
from schemas import Reason


@dataclass(frozen=True)
class Fate:
    """What should become of one URL.

    Attributes:
      url: the URL in the form a browser shows; the dump may link to variants of it.
      reasons: the reasons it may be rejected for; empty for a document of the corpus.
      cluster: name of a cluster of duplicates: one of its URLs is kept, the others leave for one of `reasons`.
      article: the text its page holds, as extraction and repair should give it; None where it holds none.
      author: the author its page names in its metadata, else None.
      date: the date of publication that its metadata name, YYYY-MM-DD, else None.
      site_name: the name the site gives itself in its metadata, else None.
    """

    url: str
    reasons: tuple[Reason, ...] = ()
    cluster: str = ""
    article: Article | None = None
    author: str | None = None
    date: str | None = None
    site_name: str | None = None

    @property
    def kept(self) -> bool:
        """Whether the URL is a document of the corpus whatever dedupe's choices are."""
        return not self.reasons
