"""Every figure of the report, as it is in stats.json: `schemas.stats` says what each key means."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec
import numpy as np

from owt_pipeline.engine.errors import UsageError
from owt_pipeline.engine.submission import Machines, Prices
from owt_pipeline.report.comparisons import Reference, likeness
from owt_pipeline.report.losses import duplicates, fetching, filters
from owt_pipeline.report.sketches import (
    SCORE_EDGES,
    Candidates,
    Details,
    Frequencies,
    LogHistogram,
    Summary,
    distribution,
    share,
)
from schemas import Reason
from schemas.manifest import Manifest
from schemas.stats import STATS_VERSION, Mixture, Shown

_TOP_SUBREDDITS = 100

_SEARCHED, _MOST_PAGES = 5000, 5


def figures(
    manifests: Mapping[str, Manifest],
    summary: Summary,
    candidates: Mapping[str, Candidates],
    details: Details,
    *,
    top_domains: int,
    reference: Reference | None = None,
    training: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """All figures of one run as JSON values; the caller adds `times`, `comparison` and `months`.

    Args:
      manifests: of the datasets that are there, by name.
      summary: of the first pass.
      candidates: what the second pass counted.
      details: of the second pass.
      top_domains: domains to list.
      reference: sites to compare with.
      training: of `comparisons.read_training`.
    """
    return {
        "schema_version": STATS_VERSION,
        "funnel": funnel(manifests, summary),
        "totals": totals(manifests, summary),
        "domains": {**ranked("domain", summary, candidates, details, top_domains), "search": searched(details)},
        "subreddits": ranked("subreddit", summary, candidates, details, _TOP_SUBREDDITS),
        "years": _through(summary, "year", ("urls", "pages", "corpus")),
        "languages": _through(summary, "language", ("documents", "clean", "corpus")),
        "scores": scores(summary),
        "lengths": lengths(summary),
        "tokens": tokens(manifests, summary),
        "duplicates": duplicates(manifests, summary, details),
        "fetch": fetching(manifests, summary, details),
        "filters": filters(manifests, summary),
        "sampler": sampler(summary),
        "likeness": likeness(summary, details, reference),
        "documents": documents(summary, details),
        "training": training,
        "settings": {name: {key: getattr(manifest, key) for key in _IDENTITY} for name, manifest in manifests.items()},
        "times": None,
        "comparison": None,
        "months": None,
    }


def times(log: Sequence[Mapping[str, Any]], manifests: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """When and where the stage that wrote each dataset ran last, by the run's log."""
    last = {(entry["stage"], entry["fingerprint"]): entry for entry in log if "stage" in entry}
    found = []
    for manifest in manifests.values():
        if entry := last.get((manifest.stage, manifest.fingerprint)):
            machines = entry.get("machines")
            workers = f"{machines['workers']} {machines['type']}" if machines else entry.get("workers")
            found.append(
                {
                    "stage": manifest.stage,
                    "started": datetime.fromtimestamp(entry["started"], timezone.utc).isoformat(timespec="seconds"),
                    "seconds": round(entry["seconds"], 1),
                    "host": entry.get("host"),
                    "workers": None if workers is None else str(workers),
                    "dollars": _dollars(machines, entry["seconds"]) if machines else None,
                }
            )
    return found


def _dollars(machines: Mapping[str, Any], seconds: float) -> float | None:
    """What they cost at list prices; None for a type whose name does not say how many cores it has."""
    try:
        return round(Machines(**machines).dollars(seconds, Prices()), 2)
    except UsageError:
        return None


_IDENTITY = ("stage", "stage_version", "fingerprint", "sources", "options", "versions")


def funnel(manifests: Mapping[str, Manifest], summary: Summary) -> list[dict[str, Any]]:
    """One object a stage in order."""
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
                    "sample": summary.rows(f"{name}/{reason}"),
                }
                for reason, count in Counter(manifest.counts.rejected).most_common()
            ],
        }
        for name, manifest in manifests.items()
    ]


def totals(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    """What went in, and what came of it."""
    size = summary.histogram("corpus/bytes")
    return {
        "entered": next(iter(manifests.values())).counts.entered if manifests else 0,
        "documents": size.count,
        "text_bytes": size.total,
        "tokens": summary.histogram("tokens/n_tokens").total,
    }


def ranked(
    kind: str, summary: Summary, candidates: Mapping[str, Candidates], details: Details, top: int
) -> dict[str, Any]:
    """Keys by their documents in the corpus, with the URLs collected of each."""
    corpus, urls = (details.counter(f"{dataset}/{kind}") for dataset in ("corpus", "urls"))
    of = corpus or urls
    counted = f"corpus/{kind}" if corpus else f"urls/{kind}"
    total = summary.frequencies[counted].total if counted in summary.frequencies else 0
    first = sorted(of.items(), key=lambda item: (-item[1], item[0]))[:top]
    bound = candidates[counted].bound if counted in candidates else 0
    return {
        "of": counted.partition("/")[0],
        "distinct": {
            dataset: _distinct(summary.frequencies[name], candidates[name], details.counter(name))
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


def searched(details: Details) -> list[list[Any]]:
    """[domain, documents, URLs] of the domains that were counted, those of most documents first."""
    corpus, urls = (details.counter(f"{dataset}/domain") for dataset in ("corpus", "urls"))
    names = sorted(
        (name for name in corpus.keys() | urls.keys() if corpus[name] or urls[name]),
        key=lambda name: (-corpus[name], -urls[name], name),
    )
    return [[name, corpus[name], urls[name] if urls else None] for name in names[:_SEARCHED]]


def documents(summary: Summary, details: Details) -> list[dict[str, Any]]:
    """The sampled documents; the first few whose page is short, with the page."""
    rows: list[dict[str, Any]] = summary.rows("corpus/documents")
    shown = [row["url_id"] for row in rows if row["url_id"] in details.pages][:_MOST_PAGES]
    return [{**row, "page": details.pages[row["url_id"]] if row["url_id"] in shown else None} for row in rows]


def _distinct(frequencies: Frequencies, candidates: Candidates, counted: Counter) -> dict[str, Any]:
    if candidates.bound == 0:  # then all were counted
        return {"count": sum(count > 0 for count in counted.values()), "exact": True}
    return {"count": frequencies.distinct(), "exact": False}


def scores(summary: Summary) -> list[dict[str, Any]]:
    """Score bins: URLs collected, pages and documents of each, and the share that survived."""
    rows = []
    for row in _through(summary, "score", ("urls", "pages", "corpus")):
        index = row.pop("score")
        high = SCORE_EDGES[index + 1] - 1 if index + 1 < len(SCORE_EDGES) else None
        survival = share(row["corpus"], row["urls"]) if "urls" in row and "corpus" in row else None
        rows.append({"low": SCORE_EDGES[index] if index else None, "high": high, **row, "survival": survival})
    return rows


def _through(summary: Summary, column: str, datasets: tuple[str, ...]) -> list[dict[str, Any]]:
    """How often each value of a column is in each dataset, in the order of the values."""
    present = [dataset for dataset in datasets if f"{dataset}/{column}" in summary.counters]
    keys = sorted({key for dataset in present for key in summary.counters[f"{dataset}/{column}"]})
    return [
        {column: key, **{dataset: summary.counters[f"{dataset}/{column}"][key] for dataset in present}} for key in keys
    ]


def lengths(summary: Summary) -> dict[str, Any]:
    """Distributions of the documents' lengths."""
    return {name: distribution(summary, f"corpus/{name}") for name in ("characters", "bytes", "words")} | {
        "tokens": distribution(summary, "tokens/n_tokens")
    }


def tokens(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any] | None:
    """The tokenizer, the splits, and how often the ids of the vocabulary occur."""
    manifest = manifests.get("tokens")
    if manifest is None:
        return None
    stats, used = manifest.stats, int((summary.vocabulary > 0).sum())
    total = stats.get("tokens_train", 0) + stats.get("tokens_val", 0)
    tokenizer = manifest.properties.get("tokenizer", {})
    occurrences = LogHistogram()
    occurrences.add(summary.vocabulary[summary.vocabulary > 0])
    return {
        "tokenizer": tokenizer.get("name"),
        "vocabulary": tokenizer.get("vocab_size"),
        "vocabulary_used": used,
        "vocabulary_used_share": share(used, tokenizer.get("vocab_size") or 0),
        "occurrences": [list(item) for item in occurrences.bins(per_octave=1)],
        "splits": {
            split: {"documents": stats.get(f"documents_{split}", 0), "tokens": stats.get(f"tokens_{split}", 0)}
            for split in ("train", "val")
        },
        "bytes_per_token": share(stats.get("text_bytes", 0), total),
    }


CONTEXT, LONG_MIN_TOKENS, LONG_FRACTION = 1024, 512, 0.7  # the trainer's defaults

_MOST_DOCUMENTS = 1 << 20  # a few arrays of 8 bytes each: what a larger corpus shows differs in the fourth digit


def sampler(summary: Summary) -> dict[str, Any] | None:
    """The mixture that `packed` and `longbiased` realise, by the documents' lengths; None without documents."""
    lengths = summary.histogram("tokens/n_tokens").values(_MOST_DOCUMENTS)
    if not len(lengths):
        return None
    rows = realised_mixture(lengths, CONTEXT, long_min_tokens=LONG_MIN_TOKENS, long_fraction=LONG_FRACTION)
    return {
        "context": CONTEXT,
        "long_min_tokens": LONG_MIN_TOKENS,
        "long_fraction": LONG_FRACTION,
        "rows": json.loads(msgspec.json.encode(rows), parse_float=lambda digits: round(float(digits), 6)),
    }


LENGTHS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
"""Where the rows of the table begin, in tokens."""


def realised_mixture(
    lengths: np.ndarray,
    context: int = 1024,
    *,
    long_min_tokens: int = 512,
    long_fraction: float = 0.7,
    bounds: Sequence[int] = LENGTHS,
) -> list[Mixture]:
    """The table over one epoch of documents of these lengths (n,) in a random order, as the trainer packs them.

    Args:
      lengths: tokens of each document, without end-of-text.
      context: tokens of a sample.
      long_min_tokens, long_fraction: longbiased draws this share of its samples from documents this long.
      bounds: the rows' first lengths, ascending, the first one 0.

    Raises:
      ValueError: there is no document.
    """
    lengths = np.asarray(lengths, np.int64)
    if not len(lengths):
        raise ValueError("no document, so no mixture")
    packed = _packed(lengths, context, bounds)
    long = lengths[lengths >= long_min_tokens]
    biased = long_fraction * _packed(long, context, bounds) + (1 - long_fraction) * packed if len(long) else None
    documents = np.bincount(_rows(lengths, bounds), minlength=len(bounds)) / len(lengths)
    return [
        Mixture(
            at_least=low,
            below=bounds[row + 1] if row + 1 < len(bounds) else None,
            documents=float(documents[row]),
            packed=Shown(*map(float, packed[row])),
            longbiased=Shown(*map(float, biased[row])) if biased is not None else None,
        )
        for row, low in enumerate(bounds)
    ]


def _packed(lengths: np.ndarray, context: int, bounds: Sequence[int]) -> np.ndarray:
    """(share of samples, share of tokens) for each row: (rows, 2)."""
    # RandomState, for its stream never changes: the same documents give the same table with any numpy.
    ends = np.cumsum(lengths[np.random.RandomState(0).permutation(len(lengths))] + 1)
    spans = np.diff(ends, prepend=0)
    first, last = (ends - spans) // context, (ends - 1) // context  # the samples that a document reaches into
    samples = int(last[-1]) + 1
    rows = _rows(spans - 1, bounds)
    shown = np.empty((len(bounds), 2))
    for row in range(len(bounds)):
        own = rows == row
        opened = np.bincount(first[own], minlength=samples + 1) - np.bincount(last[own] + 1, minlength=samples + 1)
        shown[row] = (np.cumsum(opened)[:samples] > 0).mean(), spans[own].sum() / ends[-1]
    return shown


def _rows(lengths: np.ndarray, bounds: Sequence[int]) -> np.ndarray:
    return np.searchsorted(bounds, lengths, side="right") - 1
