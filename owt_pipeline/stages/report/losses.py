"""Figures of losses between URLs and the corpus: on the web, to filters, as duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from owt_pipeline.formats.takedowns import Takedowns
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.report import shown
from owt_pipeline.stages.report.comparisons import share
from owt_pipeline.stages.report.side_by_side import side_by_side
from owt_pipeline.stages.report.tables import Row, Tables
from schemas import Reason
from schemas.manifest import Manifest

_TEXT_CHARACTERS = 20_000


def fetching(tables: Tables, manifests: Mapping[str, Manifest], distributions: Mapping[str, Row]) -> Row | None:
    """The figures of pages/; None without pages/."""
    if "pages" not in manifests:
        return None
    sources, failures = tables.rows("sources"), manifests["pages"].counts.rejected
    return {
        "sources": {row["source"]: row["pages"] for row in sources},
        "distances": [{**row, "days": distributions[f"days/{row['source']}"]} for row in sources],
        "statuses": {str(row["status"]): row["pages"] for row in tables.rows("statuses")},
        "failures": dict(sorted(failures.items(), key=lambda item: (-item[1], item[0]))),
        "milliseconds": distributions["milliseconds"],
        "body_bytes": distributions["body_bytes"],
        "domains": tables.rows("fetched_domains"),
        "captured": tables.rows("captured")[0]["month"],
        "ages": tables.rows("fetched_ages"),
    }


def filters(
    tables: Tables, readers: Mapping[str, DatasetReader], rejects: shown.Rejects, takedowns: Takedowns
) -> dict[str, Any]:
    """The figures of documents that clean and export rejected; the texts are those that are not in `takedowns`."""
    lost = {(row["stage"], row["reason"]): row for row in tables.rows("lost")}
    reasons = [
        (name, readers[name].manifest.stage, reason)
        for name in ("clean", "corpus")
        if name in readers
        for reason, _ in Counter(readers[name].manifest.counts.rejected).most_common()
    ]
    dropped = [
        {
            "stage": stage,
            "reason": reason,
            "meaning": Reason.of(reason).description,
            "documents": shown.dropped(tables, rejects[name, reason], readers["documents"], takedowns),
        }
        for name, stage, reason in reasons
        if name == "clean" and "documents" in readers and (name, reason) in rejects
    ]
    return {
        "lost": [lost[stage, reason] for _, stage, reason in reasons if (stage, reason) in lost],
        "dropped": [row for row in dropped if row["documents"]],
    }


def duplicates(tables: Tables, readers: Mapping[str, DatasetReader]) -> dict[str, Any]:
    """The figures of duplicates/."""
    manifest = readers["duplicates"].manifest
    rules = {row["rule"]: row["documents"] for row in tables.rows("rules")}
    sizes = {str(row["size"]): row["clusters"] for row in tables.rows("cluster_sizes")}
    clusters, removals = tables.rows("largest_clusters"), tables.rows("removals")
    compared = {row[name] for row in removals for name in ("url_id", "kept_url_id")}
    texts = shown.of_clean(tables, readers, "text", compared)
    texts = {url_id: text[:_TEXT_CHARACTERS] for url_id, text in texts.items()}
    members = {row["url_id"] for cluster in clusters for row in cluster["removed"]}
    urls = shown.of_clean(tables, readers, "url", compared | members | {row["kept_url_id"] for row in clusters})

    def document(url_id: int) -> Row:
        return {"url_id": url_id, "url": urls.get(url_id)}

    return {
        "examined": manifest.counts.entered,
        "exact": rules.get("exact", 0),
        "near": rules.get("near", 0),
        "share": share(sum(rules.values()), manifest.counts.entered),
        "clusters": {
            "count": sum(sizes.values()),
            "sizes": sizes,
            "largest": [
                {
                    "size": row["size"],
                    "kept": document(row["kept_url_id"]),
                    "removed": [{**member, **document(member["url_id"])} for member in row["removed"]],
                }
                for row in clusters
            ],
        },
        "similarities": tables.rows("similarities"),
        "lsh": {name: manifest.properties.get(name) for name in ("threshold", "num_perm", "bands", "rows", "curve")},
        "domains": tables.rows("removed_domains"),
        "removals": [
            {
                **{name: row[name] for name in ("rule", "similarity", "shared_bands")},
                "removed": document(row["url_id"]),
                "kept": document(row["kept_url_id"]),
                "segments": side_by_side(texts[row["url_id"]], texts[row["kept_url_id"]])
                if {row["url_id"], row["kept_url_id"]} <= texts.keys()
                else [],  # one is in another corpus
            }
            for row in removals
        ],
    }
