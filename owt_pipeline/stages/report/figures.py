"""Computes the content of stats.json: the funnel, a figure for each query, and rows to read."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from typing import Any

from owt_pipeline.engine.generations import key_sources
from owt_pipeline.engine.takedowns import Takedowns
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.report import examples
from owt_pipeline.stages.report.provenance import Provenance
from owt_pipeline.stages.report.tables import Row, Tables, figure_names, read_figure
from schemas import Reason
from schemas.manifest import Counts, Generation, Manifest

STATS_VERSION = 5
"""Raised whenever a key of stats.json changes its name or meaning."""

_IDENTITY = ("stage", "stage_version", "digest", "options")


def figures(
    tables: Tables,
    readers: Mapping[str, DatasetReader],
    generations: Sequence[Generation],
    takedowns: Takedowns,
) -> dict[str, Any]:
    """Return all figures of a run as JSON values.

    Args:
      tables: the run's tables.
      readers: readers of the datasets, by name. A dataset whose files were removed has only its
        counts and rejects.
      generations: the run's generations, which have the sources of its documents.
      takedowns: documents whose text is not shown.
    """
    manifests = {name: reader.manifest for name, reader in readers.items()}
    provenance = Provenance.of(generations, _link_sources(tables))
    rejects = examples.rejected(tables, readers)
    tokens = manifests["tokens"]
    text_bytes = tokens.stats.get("text_bytes", 0)
    num_tokens = tokens.stats.get("tokens_train", 0) + tokens.stats.get("tokens_val", 0)
    return {
        "schema_version": STATS_VERSION,
        "made_by": f"owt-pipeline {version('owt-pipeline')}",
        "made_from": provenance.documents,
        "span": tables.rows("span")[0],
        "totals": {
            "entered": next(iter(manifests.values())).counts.entered,
            "documents": tokens.counts.left,
            "text_bytes": text_bytes,
            "tokens": num_tokens,
            "tokenizer": tokens.properties.get("tokenizer", {}).get("name"),
            "bytes_per_token": share(text_bytes, num_tokens),
        },
        "funnel": funnel(manifests, rejects, tables.parameters["sample_urls"]),
        "figures": _figures_of_queries(tables, provenance),
        "documents": examples.documents(tables, readers),
        "dropped": dropped(tables, readers, rejects, takedowns),
        "removals": examples.removals(tables, readers),
        "settings": {name: _settings(manifest) for name, manifest in manifests.items()},
    }


def _figures_of_queries(tables: Tables, provenance: Provenance) -> dict[str, Any]:
    figures_by_name: dict[str, Any] = {}
    for query in figure_names():
        name = query.partition("_")[2]
        figure = read_figure(query)
        rows: list[Row] = []
        # Only a corpus of Reddit's links claims to be like WebText.
        if name != "webtext" or provenance.is_only_of_reddit:
            rows = tables.rows(query)
        figures_by_name[name] = {**dataclasses.asdict(figure), "rows": rows}
    return figures_by_name


def _settings(manifest: Manifest) -> dict[str, Any]:
    identity = {key: getattr(manifest, key) for key in _IDENTITY}
    return {**identity, "sources": key_sources(manifest.sources)}


def _link_sources(tables: Tables) -> list[str]:
    """Return where the URLs were linked, sorted."""
    return sorted(row["source"] for row in tables.rows("15_links"))


def funnel(
    manifests: Mapping[str, Manifest], rejects: examples.Rejects, sample_urls: int
) -> list[dict[str, Any]]:
    """Return one object per stage, in the order of the stages."""
    return [
        {
            "stage": manifest.stage,
            "dataset": name,
            "entered": manifest.counts.entered,
            "left": manifest.counts.left,
            "share": share(manifest.counts.left, manifest.counts.entered),
            "bytes": manifest.total("data").bytes + manifest.total("warc").bytes,
            "rejected": _rejected(name, manifest.counts, rejects, sample_urls),
        }
        for name, manifest in manifests.items()
    ]


def _rejected(
    dataset: str, counts: Counts, rejects: examples.Rejects, sample_urls: int
) -> list[dict[str, Any]]:
    """Return one object per reason of a dataset's rejects, the most frequent first."""
    reasons = []
    for reason, count in Counter(counts.rejected).most_common():
        sample = []
        for row in rejects.get((dataset, reason), [])[:sample_urls]:
            sample.append({key: row[key] for key in ("url_id", "url", "detail")})
        entry = {
            "reason": reason,
            "meaning": Reason.of(reason).description,
            "count": count,
            "share": share(count, counts.entered),
            "sample": sample,
        }
        reasons.append(entry)
    return reasons


def dropped(
    tables: Tables,
    readers: Mapping[str, DatasetReader],
    rejects: examples.Rejects,
    takedowns: Takedowns,
) -> list[dict[str, Any]]:
    """Return documents that each filter of clean dropped, as they were extracted.

    Documents of `takedowns` and reserved documents are not shown.
    """
    if "clean" not in readers or "documents" not in readers or readers["documents"].gone:
        return []
    reasons = []
    for (dataset, reason), rows in rejects.items():
        if dataset != "clean" or reason == Reason.RESERVED:
            continue
        documents = examples.dropped(tables, rows, readers["documents"], takedowns)
        if documents:
            meaning = Reason.of(reason).description
            reasons.append({"reason": reason, "meaning": meaning, "documents": documents})
    return reasons


def share(part: float, total: float) -> float | None:
    """Return `part / total` with six digits; None if `total` is 0."""
    return round(part / total, 6) if total else None
