"""Dataset cards in the format of the Hugging Face Hub, from one template.

`card` makes the card of a run's corpus (`ledger/corpus/README.md`), `published_card` that of a
dataset that `owt publish` sends.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import Any

import pyarrow as pa

from owt_pipeline.formats.provenance import Provenance
from schemas import DATASETS, Reason
from schemas.manifest import Counts, Manifest
from schemas.settings import to_toml

LANGUAGE = "language_"
"""Prefix of the per-language document counts in `stats`."""

_SIZES = (
    (1e3, "n<1K"),
    (1e4, "1K<n<10K"),
    (1e5, "10K<n<100K"),
    (1e6, "100K<n<1M"),
    (1e7, "1M<n<10M"),
)


@dataclass(frozen=True)
class Config:
    """A configuration of a dataset on the Hub: its name, and the files of each split."""

    name: str
    files: Mapping[str, str]


def card(
    upstream: Mapping[str, Manifest],
    counts: Counts,
    stats: Mapping[str, int],
    options: Mapping[str, object],
    data_bytes: int,
    num_shards: int,
) -> str:
    """Return the card of a corpus as Markdown with a YAML header; the same corpus gives the same
    card.

    Args:
      upstream: manifests of the datasets before the corpus, in stage order.
      counts: the corpus' counts.
      stats: `characters`, `words`, `text_bytes`, and `language_CODE` for each language.
      options: options of export.
      data_bytes: bytes of the corpus' files.
      num_shards: shards of the corpus.
    """
    provenance = Provenance.of(upstream)
    stages = list(upstream.values())
    return _rendered(
        published=False,
        name=provenance.title,
        provenance=provenance,
        license="other",
        configs=[Config("default", {"train": "part-*.parquet"})],
        has_texts=True,
        counts=counts,
        stats=stats,
        tokens=None,
        data_bytes=data_bytes,
        num_shards=num_shards,
        columns=DATASETS["corpus"].schema,
        funnel={manifest.stage: manifest.counts for manifest in stages} | {"export": counts},
        sources=[(manifest.stage, source) for manifest in stages for source in manifest.sources],
        settings={manifest.stage: manifest.options for manifest in stages} | {"export": options},
        contact="",
        digest="",
    )


def published_card(
    manifests: Mapping[str, Manifest],
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
      name: `OWNER/NAME` at the Hub.
      configs: the configurations that are published, the default first.
      columns: the columns of the first configuration.
      link_sources: the values of `link_sources` in the run's URLs, if they are known.
      license: the Hub's name of the licence of the selection.
      contact: whom to write to for a takedown; "" for a discussion at the Hub.
    """
    corpus = manifests["corpus"]
    stats = manifests["tokens"].stats
    stages = [m for dataset, m in manifests.items() if dataset not in ("tokens", "report")]
    return _rendered(
        published=True,
        name=name,
        provenance=Provenance.of(manifests, link_sources),
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
        sources=[(manifest.stage, source) for manifest in stages for source in manifest.sources],
        settings={manifest.stage: manifest.options for manifest in manifests.values()},
        contact=contact,
        digest=corpus.digest,
    )


def _rendered(
    *, counts: Counts, stats: Mapping[str, int], settings: Mapping[str, Any], **values: Any
) -> str:
    """Render the template, with what both cards derive from these values in the same way."""
    from jinja2 import Environment, StrictUndefined  # a slow import

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": "{:,}".format,
        "description": _description,
        "type": _type,
        "meaning": lambda reason: Reason.of(reason).description,
        "toml": lambda value: to_toml(_without_folder(value)),
    }
    languages = [
        (name.removeprefix(LANGUAGE), count)
        for name, count in stats.items()
        if name.startswith(LANGUAGE)
    ]
    clean = settings.get("clean", {})
    reasons = {reason for sums in values["funnel"].values() for reason in sums.rejected}
    template = (files("owt_pipeline.stages.export") / "card.md").read_text(encoding="utf-8")
    return environment.from_string(template).render(
        counts=counts,
        stats=stats,
        settings={**settings, **({"clean": _applied(clean)} if clean else {})},
        languages=sorted(languages, key=lambda item: (-item[1], item[0])),
        size=next((name for limit, name in _SIZES if counts.left < limit), "n>10M"),
        reasons=sorted(reasons),
        masks_addresses=bool(clean.get("mask_addresses")),
        **values,
    )


def _applied(clean: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of clean without the thresholds of filters that are not chosen."""
    return {
        name: value
        for name, value in clean.items()
        if not isinstance(value, Mapping) or name in clean.get("filters", ())
    }


def _description(column: pa.Field) -> str:
    return (column.metadata or {}).get(b"description", b"").decode()


def _type(column: pa.Field) -> str:
    """Return a column's type as a card shows it: structs without their fields."""
    if pa.types.is_struct(column.type):
        return "struct"
    return str(column.type).replace("item: ", "").replace(" not null", "").partition("<struct")[0]


def _without_folder(value: object) -> object:
    """Paths reduced to file names, to keep local folders out of the card."""
    if isinstance(value, (list, tuple)):
        return [_without_folder(item) for item in value]
    return value.rpartition("/")[2] if isinstance(value, str) and "://" not in value else value
