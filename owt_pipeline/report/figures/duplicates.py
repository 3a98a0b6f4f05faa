"""What was found to repeat what."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.differences import Segment, side_by_side
from owt_pipeline.report.figures.shares import share
from owt_pipeline.report.summaries import SIMILARITY_BINS, Details, Summary
from schemas.manifest import Manifest

_TOP_DOMAINS = 50


def duplicates(manifests: Mapping[str, Manifest], summary: Summary, details: Details) -> dict[str, Any]:
    """The figures of duplicates/; empty where duplicates were not looked for."""
    manifest = manifests.get("duplicates")
    if manifest is None:
        return {}
    properties = manifest.properties
    rules = summary.counters.get("duplicates/rule", Counter())
    # Each document that goes names its cluster's size: a cluster of n has n - 1 of them.
    sizes = summary.counters.get("duplicates/cluster_size", Counter())
    similarity = summary.counters.get("duplicates/similarity", Counter())
    bands = summary.counters.get("duplicates/shared_bands", Counter())
    return {
        "examined": manifest.counts.entered,
        "exact": rules["exact"],
        "near": rules["near"],
        "share": share(rules.total(), manifest.counts.entered),
        "clusters": {
            "count": sum(rows // (size - 1) for size, rows in sizes.items() if size > 1),
            "sizes": {str(size): sizes[size] // (size - 1) for size in sorted(sizes) if size > 1},
            "largest": _largest(summary, details),
        },
        "similarities": [
            {
                "low": round(index / SIMILARITY_BINS, 4),
                "high": round((index + 1) / SIMILARITY_BINS, 4),
                "count": similarity[index],
                "mean_shared_bands": round(bands[index] / similarity[index], 3),
            }
            for index in sorted(similarity)
        ],
        "lsh": {name: properties.get(name) for name in ("threshold", "num_perm", "bands", "rows", "curve")},
        "domains": _domains(details),
        "removals": [_removal(row, details) for row in summary.removals()],
    }


def _largest(summary: Summary, details: Details) -> list[dict[str, Any]]:
    return [
        {
            "size": size,
            "kept": {"url_id": kept, "url": details.urls.get(kept)},
            "removed": [{**member, "url": details.urls.get(member["url_id"])} for member in members],
        }
        for kept, (size, members) in sorted(summary.clusters.items(), key=lambda item: (-item[1][0], item[0]))
    ]


def _domains(details: Details) -> list[dict[str, Any]]:
    """Those that lost most documents; what was examined of one is what stays of it and what went."""
    corpus, removed = (details.counts.get(f"{name}/domain", Counter()) for name in ("corpus", "removed"))
    rows = [
        {
            "domain": host,
            "documents": corpus[host] + count,
            "removed": count,
            "share": share(count, corpus[host] + count),
        }
        for host, count in removed.items()
    ]
    return sorted(rows, key=lambda row: (-row["removed"], row["domain"]))[:_TOP_DOMAINS]


def _removal(row: Mapping[str, Any], details: Details) -> dict[str, Any]:
    removed, kept = (details.texts.get(row[name]) for name in ("url_id", "kept_url_id"))
    segments: list[Segment] = side_by_side(removed, kept) if removed is not None and kept is not None else []
    return {
        "rule": row["rule"],
        "similarity": row["similarity"],
        "shared_bands": row["shared_bands"],
        "removed": {"url_id": row["url_id"], "url": details.urls.get(row["url_id"])},
        "kept": {"url_id": row["kept_url_id"], "url": details.urls.get(row["kept_url_id"])},
        "segments": [list(segment) for segment in segments],
    }
