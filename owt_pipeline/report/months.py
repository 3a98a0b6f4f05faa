"""A run next to those that it builds on: what each month added, what it repeated, whose domains came and went."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline.engine.bases import Base, open_chain, place_of
from owt_pipeline.engine.dataset import read_manifest
from owt_pipeline.engine.storage import Storage
from schemas.manifest import Manifest
from schemas.settings import shaping_options
from schemas.stats import STATS_VERSION

_DOMAINS = 20
_STATS = "report/stats.json"

Stats = Mapping[str, Any]


def months(workdir: Storage, manifests: Mapping[str, Manifest], stats: Stats, bases: Sequence[Base]) -> Any:
    """One object a run of the chain, the oldest first, this run last; None for a run without bases.

    Args:
      workdir: of this run.
      manifests: of this run.
      stats: the figures of this run.
      bases: the runs that it builds on. Their domains come from their reports, where they have one.
    """
    if not bases:
        return None
    runs = [_month(base.name, base.manifests, base_stats(base)) for base in bases]
    runs.append(_month(place_of(workdir).rpartition("/")[2], manifests, stats))
    known: set[str] = set()
    before: dict[str, int] | None = None
    for run in runs:
        listed = run.pop("listed")
        run["gained"] = run["lost"] = None
        if listed is not None:
            if before is not None:
                run["gained"] = _first({name: n for name, n in listed.items() if name not in known})
                run["lost"] = _first({name: n for name, n in before.items() if name not in listed})
            known |= listed.keys()
        before = listed
    return runs


def with_base_reports(options: Any, workdir: Storage) -> dict[str, Any]:
    """The options that shape the report; and of a run with bases, the digest of each one's report ("" for none)."""
    reports = {base.name: _digest(base) for base in open_chain(workdir)}
    return shaping_options(options) | ({"_base_reports": reports} if reports else {})


def base_stats(base: Base) -> Stats | None:
    """The figures of a base's report; None where it has none, or one of another version."""
    if read_manifest(base.workdir, "report") is None:
        return None
    found: Stats = json.loads(base.workdir.read(_STATS))
    return found if found["schema_version"] == STATS_VERSION else None


def _digest(base: Base) -> str:
    has_report = read_manifest(base.workdir, "report") is not None
    return hashlib.sha256(base.workdir.read(_STATS)).hexdigest() if has_report else ""


def _month(name: str, manifests: Mapping[str, Manifest], stats: Stats | None) -> dict[str, Any]:
    urls, decisions, tokens = (manifests.get(dataset) for dataset in ("urls", "duplicates", "tokens"))
    removed = sum(decisions.counts.rejected.values()) if decisions else 0
    past = sum(decisions.stats.get(f"past_{rule}", 0) for rule in ("exact", "near")) if decisions else 0
    domains = stats["domains"] if stats else None
    return {
        "run": name,
        "urls": urls.counts.left if urls else None,
        "seen_before": urls.counts.rejected.get("seen_before", 0) if urls else None,
        "documents": manifests["corpus"].counts.left if "corpus" in manifests else None,
        "tokens": sum(tokens.stats.get(f"tokens_{split}", 0) for split in ("train", "val")) if tokens else None,
        "examined": decisions.counts.entered if decisions else None,
        "repeat_month": removed - past,
        "repeat_past": past,
        "domains": domains["distinct"].get("corpus", {}).get("count") if domains else None,
        "listed": {name: n for name, n, _ in domains["search"] if n} if domains else None,
    }


def _first(domains: Mapping[str, int]) -> dict[str, Any]:
    """How many domains, and those of most documents."""
    most = sorted(domains.items(), key=lambda item: (-item[1], item[0]))[:_DOMAINS]
    return {"count": len(domains), "top": [list(row) for row in most]}
