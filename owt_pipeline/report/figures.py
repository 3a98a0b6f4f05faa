"""Every figure of the report, as it is in stats.json: docs/stats.md says what each key means."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.sketches import Candidates, Frequencies, LogHistogram
from owt_pipeline.report.summaries import SCORE_EDGES, SIMILARITY_BINS, Details, Summary
from schemas import Manifest, Reason

STATS_VERSION = 1
"""Raised whenever a key of stats.json changes its name or meaning."""

PERCENTILES = (1, 5, 10, 25, 50, 75, 90, 95, 99)
_TOP_SUBREDDITS = 100


def figures(
    manifests: Mapping[str, Manifest],
    summary: Summary,
    candidates: Mapping[str, Candidates],
    details: Details,
    top: int,
) -> dict[str, Any]:
    """All figures as JSON values.

    Args:
      manifests: of the datasets that are there, by name.
      summary: of the first pass.
      candidates: what `candidates_of` made of it.
      details: of the second pass.
      top: domains to list.
    """
    return {
        "schema_version": STATS_VERSION,
        "funnel": _funnel(manifests, summary),
        "totals": _totals(manifests, summary),
        "domains": _ranked("domain", summary, candidates, details, top),
        "subreddits": _ranked("subreddit", summary, candidates, details, _TOP_SUBREDDITS),
        "years": _through(summary, "year", ("urls", "pages", "corpus")),
        "languages": _through(summary, "language", ("documents", "clean", "corpus")),
        "scores": _scores(summary),
        "lengths": {name: _distribution(summary, f"corpus/{name}") for name in ("characters", "bytes", "words")}
        | {"tokens": _distribution(summary, "tokens/n_tokens")},
        "tokens": _tokens(manifests, summary),
        "duplicates": _duplicates(manifests, summary, details),
        "fetch": _fetch(manifests, summary),
        "documents": summary.samples["corpus/documents"].rows() if "corpus/documents" in summary.samples else [],
        "settings": {
            name: {"stage": m.stage, "stage_version": m.stage_version, "options": m.options, "versions": m.versions}
            for name, m in manifests.items()
        },
    }


def candidates_of(summary: Summary) -> dict[str, Candidates]:
    """The keys whose exact counts `details` should hold: the frequent ones of any dataset, in all of them."""
    merged: dict[str, Frequencies] = {}
    for name, frequencies in summary.frequencies.items():
        kind = name.partition("/")[2]
        merged.setdefault(kind, Frequencies()).merge(frequencies)
    return {name: merged[name.partition("/")[2]].candidates() for name in summary.frequencies}


def share(part: float, whole: float) -> float | None:
    """`part / whole` to six digits, None of nothing."""
    return round(part / whole, 6) if whole else None


def _funnel(manifests: Mapping[str, Manifest], summary: Summary) -> list[dict[str, Any]]:
    stages = []
    for name, manifest in manifests.items():
        counts = manifest.counts
        rejected = [
            {
                "reason": reason,
                "meaning": Reason.of(reason).description,
                "count": count,
                "share": share(count, counts.entered),
                "sample": summary.samples[f"{name}/{reason}"].rows() if f"{name}/{reason}" in summary.samples else [],
            }
            for reason, count in Counter(counts.rejected).most_common()
        ]
        stages.append(
            {
                "stage": manifest.stage,
                "dataset": name,
                "entered": counts.entered,
                "left": counts.left,
                "share": share(counts.left, counts.entered),
                "bytes": sum(file.bytes for file in manifest.files),
                "rejected": rejected,
            }
        )
    return stages


def _totals(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    entered = next(iter(manifests.values())).counts.entered if manifests else 0
    histogram = summary.histograms.get("corpus/bytes", LogHistogram())
    return {
        "entered": entered,
        "documents": histogram.count,
        "text_bytes": histogram.total,
        "tokens": summary.histograms.get("tokens/n_tokens", LogHistogram()).total,
    }


def _ranked(
    kind: str, summary: Summary, candidates: Mapping[str, Candidates], details: Details, top: int
) -> dict[str, Any]:
    """Keys by their documents in the corpus, with the URLs collected of each."""
    corpus, urls = (details.counts.get(f"{dataset}/{kind}", Counter()) for dataset in ("corpus", "urls"))
    ranked = corpus or urls
    counted = f"corpus/{kind}" if corpus else f"urls/{kind}"
    total = summary.frequencies[counted].total if counted in summary.frequencies else 0
    first = sorted(ranked.items(), key=lambda item: (-item[1], item[0]))[:top]
    bound = candidates[counted].bound if counted in candidates else 0
    return {
        "of": counted.partition("/")[0],
        "distinct": {
            dataset: _distinct(summary.frequencies[name], candidates[name], details.counts.get(name, Counter()))
            for dataset, name in (("urls", f"urls/{kind}"), ("corpus", f"corpus/{kind}"))
            if name in candidates
        },
        "exact": all(count >= bound for _, count in first),
        "top": [
            {
                kind: key,
                "documents": corpus[key],
                "share": share(count, total),
                "urls": urls[key] if urls else None,
                "survival": share(corpus[key], urls[key]) if urls else None,
            }
            for key, count in first
        ],
    }


def _distinct(frequencies: Frequencies, candidates: Candidates, counted: Counter) -> dict[str, Any]:
    if candidates.bound == 0:  # then all were counted
        return {"count": len(counted), "exact": True}
    return {"count": frequencies.distinct(), "exact": False}


def _through(summary: Summary, column: str, datasets: tuple[str, ...]) -> list[dict[str, Any]]:
    """How often each value of a column is in each dataset, in the order of the values."""
    present = [dataset for dataset in datasets if f"{dataset}/{column}" in summary.counters]
    keys = sorted({key for dataset in present for key in summary.counters[f"{dataset}/{column}"]})
    return [
        {column: key, **{dataset: summary.counters[f"{dataset}/{column}"][key] for dataset in present}} for key in keys
    ]


def _scores(summary: Summary) -> list[dict[str, Any]]:
    """Score bins: URLs collected, pages and documents of each, and the share that survived."""
    rows = []
    for row in _through(summary, "score", ("urls", "pages", "corpus")):
        index = row.pop("score")
        high = SCORE_EDGES[index + 1] - 1 if index + 1 < len(SCORE_EDGES) else None
        survival = share(row["corpus"], row["urls"]) if "urls" in row and "corpus" in row else None
        rows.append({"low": SCORE_EDGES[index] if index else None, "high": high, **row, "survival": survival})
    return rows


def _distribution(summary: Summary, name: str) -> dict[str, Any]:
    histogram = summary.histograms.get(name, LogHistogram())
    return {
        "count": histogram.count,
        "sum": histogram.total,
        "mean": round(histogram.total / histogram.count, 2) if histogram.count else None,
        "minimum": histogram.minimum,
        "maximum": histogram.maximum,
        "percentiles": {str(q): histogram.percentile(q) for q in PERCENTILES},
        "histogram": [list(item) for item in histogram.bins()],
    }


def _tokens(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    manifest = manifests.get("tokens")
    if manifest is None:
        return {}
    stats, used = manifest.stats, int((summary.vocabulary > 0).sum())
    tokens = stats.get("tokens_train", 0) + stats.get("tokens_val", 0)
    tokenizer = manifest.properties.get("tokenizer", {})
    return {
        "tokenizer": tokenizer.get("name"),
        "vocabulary": tokenizer.get("vocab_size"),
        "vocabulary_used": used,
        "vocabulary_used_share": share(used, tokenizer.get("vocab_size") or 0),
        "splits": {
            split: {"documents": stats.get(f"documents_{split}", 0), "tokens": stats.get(f"tokens_{split}", 0)}
            for split in ("train", "val")
        },
        "bytes_per_token": share(stats.get("text_bytes", 0), tokens),
    }


def _duplicates(manifests: Mapping[str, Manifest], summary: Summary, details: Details) -> dict[str, Any]:
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
            "largest": [
                {
                    "size": size,
                    "kept": {"url_id": kept, "url": details.urls.get(kept)},
                    "removed": [{**member, "url": details.urls.get(member["url_id"])} for member in members],
                }
                for kept, (size, members) in sorted(summary.clusters.items(), key=lambda item: (-item[1][0], item[0]))
            ],
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
    }


def _fetch(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    manifest = manifests.get("pages")
    if manifest is None:
        return {}
    return {
        "sources": _sorted(summary.counters.get("pages/source", Counter())),
        "statuses": _sorted(summary.counters.get("pages/status", Counter())),
        "failures": dict(Counter(manifest.counts.rejected).most_common()),
        "milliseconds": _distribution(summary, "pages/fetch_ms"),
        "body_bytes": _distribution(summary, "pages/body_bytes"),
    }


def _sorted(counter: Counter) -> dict[str, int]:
    return {str(key): counter[key] for key in sorted(counter)}
