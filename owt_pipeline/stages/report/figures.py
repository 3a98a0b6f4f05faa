"""All figures of the report, as in stats.json; `schemas.stats` describes each key."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

import msgspec
import numpy as np

from owt_pipeline.formats.takedowns import Takedowns
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.report import shown
from owt_pipeline.stages.report.comparisons import Reference, likeness, share
from owt_pipeline.stages.report.losses import duplicates, fetching, filters
from owt_pipeline.stages.report.tables import Tables
from schemas import DATASETS, Reason
from schemas.manifest import Manifest
from schemas.stats import STATS_VERSION, Mixture, Shown


def figures(
    tables: Tables,
    readers: Mapping[str, DatasetReader],
    *,
    sample_urls: int,
    reference: Reference | None,
    takedowns: Takedowns,
) -> dict[str, Any]:
    """All figures of one run as JSON values; the caller adds `training`, `times`, `comparison` and `months`.

    Args:
      tables: the run's tables.
      readers: readers of the existing datasets, by name.
      sample_urls: number of rejects to show for each reason.
      reference: sites to compare with.
      takedowns: documents whose text is not shown.
    """
    manifests = {name: reader.manifest for name, reader in readers.items()}
    rejects = shown.rejected(tables, readers)
    lengths = {row.pop("name"): row for row in tables.rows("distributions")}
    return {
        "schema_version": STATS_VERSION,
        "funnel": funnel(manifests, rejects, sample_urls),
        "totals": {
            "entered": next(iter(manifests.values())).counts.entered,
            "documents": lengths["bytes"]["count"],
            "text_bytes": lengths["bytes"]["sum"],
            "tokens": lengths["tokens"]["sum"],
        },
        "domains": {
            **ranked("domain", tables, manifests),
            "search": [list(row.values()) for row in tables.rows("search")],
        },
        "subreddits": ranked("subreddit", tables, manifests),
        "years": through("years", tables, manifests),
        "languages": through("languages", tables, manifests),
        "scores": through("scores", tables, manifests),
        "lengths": {name: lengths[name] for name in ("characters", "bytes", "words", "tokens")},
        "tokens": tokens(manifests, tables),
        "duplicates": duplicates(tables, readers) if "duplicates" in manifests else None,
        "fetch": fetching(tables, manifests, lengths),
        "filters": filters(tables, readers, rejects, takedowns),
        "sampler": sampler(tables),
        "likeness": likeness(lengths, tables, manifests, reference),
        "documents": shown.documents(tables, readers),
        "training": None,
        "settings": {name: {key: getattr(manifest, key) for key in _IDENTITY} for name, manifest in manifests.items()},
        "times": None,
        "comparison": None,
        "months": None,
    }


def times(log: Sequence[Mapping[str, Any]], manifests: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """When and where the stage of each dataset last ran, from the run's log."""
    last = {(entry["stage"], entry["fingerprint"]): entry for entry in log if "stage" in entry}
    found = []
    for manifest in manifests.values():
        if entry := last.get((manifest.stage, manifest.fingerprint)):
            workers = entry.get("workers")
            found.append(
                {
                    "stage": manifest.stage,
                    "started": datetime.fromtimestamp(entry["started"], timezone.utc).isoformat(timespec="seconds"),
                    "seconds": round(entry["seconds"], 1),
                    "host": entry.get("host"),
                    "workers": None if workers is None else str(workers),
                }
            )
    return found


_IDENTITY = ("stage", "stage_version", "fingerprint", "sources", "options", "versions")


def funnel(manifests: Mapping[str, Manifest], rejects: shown.Rejects, sample_urls: int) -> list[dict[str, Any]]:
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


def ranked(kind: str, tables: Tables, manifests: Mapping[str, Manifest]) -> dict[str, Any]:
    """The most frequent domains or subreddits, by their documents in the corpus."""
    (counted,) = (row for row in tables.rows("distinct") if row["kind"] == kind)
    return {
        "of": "corpus" if counted["corpus"] else "urls",
        "distinct": {name: counted[name] for name in ("urls", "corpus") if name in manifests},
        "top": tables.rows(f"{kind}s"),
    }


def through(query: str, tables: Tables, manifests: Mapping[str, Manifest]) -> list[dict[str, Any]]:
    """The rows of a query that counts several datasets, without the columns of missing ones."""
    return [
        {key: value for key, value in row.items() if key not in DATASETS or key in manifests}
        for row in tables.rows(query)
    ]


def tokens(manifests: Mapping[str, Manifest], tables: Tables) -> dict[str, Any]:
    """The tokenizer, the splits, and how often token ids occur."""
    manifest, occurrences = manifests["tokens"], tables.rows("occurrences")
    stats, used = manifest.stats, sum(row["ids"] for row in occurrences)
    total = stats.get("tokens_train", 0) + stats.get("tokens_val", 0)
    tokenizer = manifest.properties.get("tokenizer", {})
    return {
        "tokenizer": tokenizer.get("name"),
        "vocabulary": tokenizer.get("vocab_size"),
        "vocabulary_used": used,
        "vocabulary_used_share": share(used, tokenizer.get("vocab_size") or 0),
        "occurrences": [list(row.values()) for row in occurrences],
        "splits": {
            split: {"documents": stats.get(f"documents_{split}", 0), "tokens": stats.get(f"tokens_{split}", 0)}
            for split in ("train", "val")
        },
        "bytes_per_token": share(stats.get("text_bytes", 0), total),
    }


CONTEXT, LONG_MIN_TOKENS, LONG_FRACTION = 1024, 512, 0.7  # the trainer's defaults

_MOST_DOCUMENTS = 1 << 20  # bounds the memory; more documents change the fourth digit


def sampler(tables: Tables) -> dict[str, Any] | None:
    """What `packed` and `longbiased` show, by the documents' lengths; None without documents."""
    found = tables.rows("token_lengths")
    if not found:
        return None
    up_to = np.cumsum([row["documents"] for row in found])
    count = min(int(up_to[-1]), _MOST_DOCUMENTS)
    ranks = (2 * np.arange(count) + 1) * int(up_to[-1]) // (2 * count)
    lengths = np.array([row["length"] for row in found])[np.searchsorted(up_to, ranks, side="right")]
    rows = realised_mixture(lengths, CONTEXT, long_min_tokens=LONG_MIN_TOKENS, long_fraction=LONG_FRACTION)
    return {
        "context": CONTEXT,
        "long_min_tokens": LONG_MIN_TOKENS,
        "long_fraction": LONG_FRACTION,
        "rows": json.loads(msgspec.json.encode(rows), parse_float=lambda digits: round(float(digits), 6)),
    }


LENGTHS = (0, 64, 128, 256, 512, 1024, 2048, 4096, 16384)
"""Lower bounds of the table's rows, in tokens."""


def realised_mixture(
    lengths: np.ndarray,
    context: int = 1024,
    *,
    long_min_tokens: int = 512,
    long_fraction: float = 0.7,
    bounds: Sequence[int] = LENGTHS,
) -> list[Mixture]:
    """The table for one epoch of documents in a random order, as the trainer packs them.

    Args:
      lengths: tokens of each document (n,), without end-of-text.
      context: tokens of a sample.
      long_min_tokens, long_fraction: longbiased draws this share of its samples from documents this long.
      bounds: lower bounds of the rows, ascending from 0.

    Raises:
      ValueError: there are no documents.
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
    # RandomState, because its stream is the same in all versions of numpy.
    ends = np.cumsum(lengths[np.random.RandomState(0).permutation(len(lengths))] + 1)
    spans = np.diff(ends, prepend=0)
    first, last = (ends - spans) // context, (ends - 1) // context  # samples with a part of each document
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
