"""The sources of a run's documents, in words for its cards and its report."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from schemas.manifest import Generation

# The kinds of sources that a manifest records, in the order in which a sentence names them.
_REDDIT = ("dump", "subreddit")
_LINKS = "links"
_WARC = "warc"
_FILE = "file"


@dataclass(frozen=True)
class Provenance:
    """The kinds of sources of a run.

    Attributes:
      kinds: the kinds of its generations' sources: `dump`, `subreddit`, `links`, `warc`, and `file`
        for imported text.
      link_sources: where tables of links found their links, as far as it is known.
    """

    kinds: frozenset[str]
    link_sources: tuple[str, ...] = ()

    @classmethod
    def of(cls, generations: Iterable[Generation], link_sources: Iterable[str] = ()) -> Provenance:
        """Return the provenance of the documents of a run's generations.

        A manifest also lists what a stage judges by, for example blocked domains, so the kinds do
        not come from there.
        """
        kinds: set[str] = set()
        for generation in generations:
            kinds.update(source["kind"] for source in generation.links)
        return cls(frozenset(kinds), tuple(sorted(link_sources)))

    @property
    def is_of_reddit(self) -> bool:
        """Whether Reddit's submissions are among the sources."""
        return bool(self.kinds.intersection(_REDDIT))

    @property
    def is_only_of_reddit(self) -> bool:
        """Whether every document was linked on Reddit, as WebText's were."""
        return bool(self.kinds) and self.kinds <= set(_REDDIT)

    @property
    def is_of_the_web(self) -> bool:
        """Whether documents are pages of the web, rather than imported texts only."""
        return bool(self.kinds - {_FILE})

    @property
    def is_imported(self) -> bool:
        """Whether texts of the user's own files are among the documents."""
        return _FILE in self.kinds

    @property
    def documents(self) -> str:
        """Return a noun phrase for the documents: `web pages that were linked on Reddit`."""
        pages = []
        if self.is_of_reddit:
            pages.append("linked on Reddit")
        if _LINKS in self.kinds:
            named = [name for name in self.link_sources if name not in ("links", "reddit", "warc")]
            tables = "listed in tables of links"
            pages.append(f"{tables} ({', '.join(named)})" if named else tables)
        if _WARC in self.kinds:
            pages.append("captured in WARC files")
        texts = []
        if pages:
            texts.append(f"web pages that were {_joined(pages, 'or')}")
        if self.is_imported:
            texts.append("texts imported from files")
        return _joined(texts, "and") or "documents"

    @property
    def title(self) -> str:
        """Return a heading for a corpus of these documents."""
        if self.is_only_of_reddit:
            return "OpenWebText, rebuilt"
        return "Web text" if self.is_of_the_web else "Imported text"

    @property
    def tags(self) -> list[str]:
        """Return tags for the Hugging Face Hub."""
        tags = ["owt-pipeline"]
        if self.is_of_the_web:
            tags.append("web")
        if self.is_of_reddit:
            tags.append("reddit")
        if self.is_only_of_reddit:
            tags += ["openwebtext", "webtext"]
        return tags


def _joined(parts: Sequence[str], word: str) -> str:
    """Join parts of a sentence: `a, b or c`."""
    if len(parts) < 2:
        return "".join(parts)
    return f"{', '.join(parts[:-1])} {word} {parts[-1]}"
