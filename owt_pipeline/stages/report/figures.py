"""All that stats.json has: the funnel, a figure for each query, and rows to read."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any

from owt_pipeline.engine.generations import key_sources
from owt_pipeline.formats.provenance import Provenance
from owt_pipeline.formats.takedowns import Takedowns
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.report import examples
from owt_pipeline.stages.report.tables import Tables, figure_names, read_figure
from schemas import Reason
from schemas.manifest import Manifest

STATS_VERSION = 5
"""Raised whenever a key of stats.json changes its name or meaning."""

_IDENTITY = ("stage", "stage_version", "digest", "options")


def figures(
    tables: Tables, readers: Mapping[str, DatasetReader], takedowns: Takedowns
) -> dict[str, Any]:
    """All figures of one run as JSON values.

    Args:
      tables: the run's tables.
      readers: readers of the existing datasets, by name; of gone ones there are the counts and the
        rejects.
      takedowns: documents whose text is not shown.
    """
    manifests = {name: reader.manifest for name, reader in readers.items()}
    provenance = Provenance.of(manifests, _link_sources(tables))
    rejects = examples.rejected(tables, readers)
    found = {}
    for file in figure_names():
        figure, name = read_figure(file), file.partition("_")[2]
        about = {"heading": figure.heading, "sentence": figure.sentence, "chart": figure.chart}
        # Only a corpus of Reddit's links claims to be like WebText.
        is_shown = name != "webtext" or provenance.is_only_of_reddit
        found[name] = {**about, "rows": tables.rows(file) if is_shown else []}
    tokens = manifests["tokens"]
    total = sum(tokens.stats.get(f"tokens_{split}", 0) for split in ("train", "val"))
    return {
        "schema_version": STATS_VERSION,
        "made_by": f"owt-pipeline {version('owt-pipeline')}",
        "made_from": provenance.documents,
        "span": tables.rows("span")[0],
        "totals": {
            "entered": next(iter(manifests.values())).counts.entered,
            "documents": tokens.counts.left,
            "text_bytes": tokens.stats.get("text_bytes", 0),
            "tokens": total,
            "tokenizer": tokens.properties.get("tokenizer", {}).get("name"),
            "bytes_per_token": share(tokens.stats.get("text_bytes", 0), total),
        },
        "funnel": funnel(manifests, rejects, tables.parameters["sample_urls"]),
        "figures": found,
        "documents": examples.documents(tables, readers),
        "dropped": dropped(tables, readers, rejects, takedowns),
        "removals": examples.removals(tables, readers),
        "settings": {
            name: {key: getattr(manifest, key) for key in _IDENTITY}
            | {"sources": key_sources(manifest.sources)}
            for name, manifest in manifests.items()
        },
    }


def _link_sources(tables: Tables) -> list[str]:
    """Return where the URLs were linked, sorted."""
    return sorted(row["source"] for row in tables.rows("15_links"))


def funnel(
    manifests: Mapping[str, Manifest], rejects: examples.Rejects, sample_urls: int
) -> list[dict[str, Any]]:
    """One object per stage, in order."""
    return [
        {
            "stage": manifest.stage,
            "dataset": name,
            "entered": manifest.counts.entered,
            "left": manifest.counts.left,
            "share": share(manifest.counts.left, manifest.counts.entered),
            "bytes": manifest.total("data").bytes + manifest.total("warc").bytes,
            "rejected": [
                {
                    "reason": reason,
                    "meaning": Reason.of(reason).description,
                    "count": count,
                    "share": share(count, manifest.counts.entered),
                    "sample": [
                        {key: row[key] for key in ("url_id", "url", "detail")}
                        for row in rejects.get((name, reason), [])[:sample_urls]
                    ],
                }
                for reason, count in Counter(manifest.counts.rejected).most_common()
            ],
        }
        for name, manifest in manifests.items()
    ]


def dropped(
    tables: Tables,
    readers: Mapping[str, DatasetReader],
    rejects: examples.Rejects,
    takedowns: Takedowns,
) -> list[dict[str, Any]]:
    """Documents that each filter of clean dropped, as extracted, without those of `takedowns`
    and reserved ones."""
    if "clean" not in readers or "documents" not in readers or readers["documents"].gone:
        return []
    found = [
        {
            "reason": reason,
            "meaning": Reason.of(reason).description,
            "documents": examples.dropped(
                tables, rejects[name, reason], readers["documents"], takedowns
            ),
        }
        for name, reason in rejects
        if name == "clean" and reason != Reason.RESERVED
    ]
    return [row for row in found if row["documents"]]


def share(part: float, total: float) -> float | None:
    """`part / total` with six digits; None if `total` is 0."""
    return round(part / total, 6) if total else None
