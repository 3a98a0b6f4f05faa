"""The card of a dataset that `owt publish` sends, in the format of the Hugging Face Hub."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pyarrow as pa

from owt_pipeline.engine.generations import pages_of
from owt_pipeline.stages.export.corpus import LANGUAGE
from owt_pipeline.stages.report.provenance import Provenance
from schemas import Reason
from schemas.manifest import Counts, Generation, Manifest
from schemas.settings import to_toml
from schemas.values import nearest_words

# The Hub's size categories: a dataset has fewer documents than the number.
_SIZES = (
    (1e3, "n<1K"),
    (1e4, "1K<n<10K"),
    (1e5, "10K<n<100K"),
    (1e6, "100K<n<1M"),
    (1e7, "1M<n<10M"),
)


def licence_id(text: str) -> str:
    """Return a licence as the Hub spells it; raise ArgumentTypeError if its list lacks it."""
    name = text.lower()
    known = (files("owt_pipeline.commands") / "licences.txt").read_text().split()
    if name not in known:
        # Most licences have versions: "cc-by" is the beginning of four.
        similar = [entry for entry in known if entry.startswith(name)] or nearest_words(name, known)
        hint = f"; it has {', '.join(similar)}" if similar else ""
        raise argparse.ArgumentTypeError(
            f"{text!r} is not in the Hub's list of licences{hint}; use other for a licence that "
            "the list lacks"
        )
    return name


@dataclass(frozen=True)
class Config:
    """A configuration of a dataset on the Hub, with the pattern of the files of each split."""

    name: str
    files: Mapping[str, str]


def published_card(
    manifests: Mapping[str, Manifest],
    generations: Sequence[Generation],
    name: str,
    configs: Sequence[Config],
    columns: Sequence[pa.Field],
    link_sources: Sequence[str],
    *,
    license: str,
    contact: str,
) -> str:
    """Return README.md of a published dataset.

    Args:
      manifests: manifests of the run's datasets, in stage order, with `corpus` and `tokens`.
      generations: the run's generations, which have the sources of its texts.
      name: `OWNER/NAME` at the Hub.
      configs: the configurations that are published, the default first.
      columns: the columns of the first configuration.
      link_sources: the values of `link_sources` in the run's URLs, if they are known.
      license: the Hub's name of the licence of the selection.
      contact: whom to write to for a takedown; "" for a discussion at the Hub.
    """
    corpus = manifests["corpus"]
    stats = manifests["tokens"].stats
    # Dedupe decides what export leaves out, so its rejects are those of export.
    stages = [
        manifest
        for dataset, manifest in manifests.items()
        if dataset not in ("duplicates", "tokens", "report")
    ]
    evaluation_sets = [
        source["name"]
        for source in manifests["clean"].sources
        if source.get("kind") == "evaluation"
    ]
    return _render(
        name=name,
        provenance=Provenance.of(generations, link_sources),
        license=license,
        configs=configs,
        has_texts=any(config.name == "corpus" for config in configs),
        counts=corpus.counts,
        stats=corpus.stats,
        tokens={
            "total": stats["tokens_train"] + stats["tokens_val"],
            "tokenizer": manifests["tokens"].properties["tokenizer"]["name"],
            "train": stats["documents_train"],
            "validation": stats["documents_val"],
        },
        columns=columns,
        funnel={manifest.stage: manifest.counts for manifest in stages},
        sources=_text_sources(generations),
        evaluation_sets=evaluation_sets,
        settings={manifest.stage: manifest.options for manifest in manifests.values()},
        contact=contact,
        digest=corpus.digest,
    )


def _text_sources(generations: Iterable[Generation]) -> list[tuple[str, Mapping[str, Any]]]:
    """Return each source of links, pages or texts, with the name of the stage that read it.

    A manifest also lists what a stage judges by, for example blocked domains, evaluation sets and
    the model of the extraction. No text of the corpus comes from these.
    """
    sources: list[tuple[str, Mapping[str, Any]]] = []
    for generation in generations:
        read = [(generation.stage, source) for source in generation.links]
        read += [("fetch", source) for source in pages_of([generation])]
        # A file can have pages of several generations.
        sources += [entry for entry in read if entry not in sources]
    return sources


def _render(
    *, counts: Counts, stats: Mapping[str, int], settings: Mapping[str, Any], **values: Any
) -> str:
    """Render the template, with values that are derived from these."""
    # Slow to import.
    from jinja2 import Environment, StrictUndefined

    # StrictUndefined makes a misspelt name an error. By default, Jinja renders it as nothing.
    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": "{:,}".format,
        "description": _description,
        "type": _type,
        "meaning": lambda reason: Reason.of(reason).description,
        "toml": lambda value: to_toml(_without_folder(value)),
    }
    languages: list[tuple[str, int]] = []
    for name, count in stats.items():
        if name.startswith(LANGUAGE):
            languages.append((name.removeprefix(LANGUAGE), count))
    reasons: set[str] = set()
    for stage_counts in values["funnel"].values():
        reasons.update(stage_counts.rejected)
    clean = settings.get("clean", {})
    if clean:
        settings = {**settings, "clean": _applied(clean)}
    template = (files("owt_pipeline.commands") / "card.md").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        counts=counts,
        stats=stats,
        settings=settings,
        # Ties are broken by code, so that the same corpus gives the same card.
        languages=sorted(languages, key=lambda item: (-item[1], item[0])),
        size=next((name for limit, name in _SIZES if counts.left < limit), "n>10M"),
        reasons=sorted(reasons),
        masks_addresses=bool(clean.get("mask_addresses")),
        **values,
    )


def _applied(clean: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of clean without the thresholds of filters that are not chosen."""
    chosen = clean.get("filters", ())
    applied: dict[str, Any] = {}
    for name, value in clean.items():
        # A filter's thresholds are a table with the filter's name.
        if not isinstance(value, Mapping) or name in chosen:
            applied[name] = value
    return applied


def _description(column: pa.Field) -> str:
    return (column.metadata or {}).get(b"description", b"").decode()


def _type(column: pa.Field) -> str:
    """Return a column's type as a card shows it: structs without their fields."""
    if pa.types.is_struct(column.type):
        return "struct"
    name = str(column.type).replace("item: ", "").replace(" not null", "")
    return name.partition("<struct")[0]


def _without_folder(value: object) -> object:
    """Return paths as file names, to keep local folders out of the card. URIs stay as they are."""
    if isinstance(value, (list, tuple)):
        return [_without_folder(item) for item in value]
    if isinstance(value, str) and "://" not in value:
        return value.rpartition("/")[2]
    return value
