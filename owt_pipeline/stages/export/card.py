"""Dataset cards in the format of the Hugging Face Hub: for the corpus
(`ledger/corpus/README.md`) and for a published dataset."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.resources import files
from typing import Any

import pyarrow as pa

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


def card(
    upstream: Mapping[str, Manifest],
    counts: Counts,
    stats: Mapping[str, int],
    options: Mapping[str, object],
    data_bytes: int,
    num_shards: int,
) -> str:
    """The card as Markdown with a YAML header; the same corpus gives the same card.

    Args:
      upstream: manifests of the datasets before the corpus, in stage order.
      counts: the corpus' counts.
      stats: `characters`, `words`, `text_bytes`, and `language_CODE` for each language.
      options: options of export.
      data_bytes: bytes of the corpus' files.
      num_shards: shards of the corpus.
    """
    languages = [
        (name[len(LANGUAGE) :], count) for name, count in stats.items() if name.startswith(LANGUAGE)
    ]
    imported = any(manifest.stage == "import" for manifest in upstream.values())
    stages = list(upstream.values())
    return rendered(
        "card.md",
        name="Imported text" if imported else "OpenWebText, rebuilt",
        imported=imported,
        languages=sorted(languages, key=lambda item: (-item[1], item[0])),
        size=next((name for limit, name in _SIZES if counts.left < limit), "n>10M"),
        counts=counts,
        stats=stats,
        data_bytes=data_bytes,
        num_shards=num_shards,
        columns=DATASETS["corpus"].schema,
        funnel={manifest.stage: manifest.counts for manifest in stages} | {"export": counts},
        sources=[(manifest.stage, source) for manifest in stages for source in manifest.sources],
        settings={manifest.stage: manifest.options for manifest in stages} | {"export": options},
    )


def rendered(template: str, **values: Any) -> str:
    """Render a template of this folder."""
    from jinja2 import Environment, StrictUndefined  # a slow import

    environment = Environment(undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters |= {
        "number": "{:,}".format,
        "description": _description,
        "meaning": lambda reason: Reason.of(reason).description,
        "toml": lambda value: to_toml(_without_folder(value)),
    }
    text = (files("owt_pipeline.stages.export") / template).read_text(encoding="utf-8")
    return environment.from_string(text).render(values)


def _description(column: pa.Field) -> str:
    return (column.metadata or {}).get(b"description", b"").decode()


def _without_folder(value: object) -> object:
    """Paths reduced to file names, to keep local folders out of the card."""
    if isinstance(value, (list, tuple)):
        return [_without_folder(item) for item in value]
    return value.rpartition("/")[2] if isinstance(value, str) and "://" not in value else value
