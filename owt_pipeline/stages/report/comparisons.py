"""Comparisons of a run: with WebText's and OpenWebText's published figures, with another run, with earlier runs."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote

import numpy as np

from owt_pipeline.errors import UserError
from owt_pipeline.ledger.bases import Base, place_of, relative_uri
from owt_pipeline.ledger.dataset import read_manifest
from owt_pipeline.stages.report.tables import Row, Tables
from owt_pipeline.storage.folder import Storage, open_source
from schemas.manifest import Manifest
from schemas.stats import STATS_VERSION

# Figures of Gokaslan and Cohen's OpenWebText, tokenized with GPT-2's BPE.
OPENWEBTEXT = {"tokens_per_document": 1128, "bytes_per_token": 4.40}

_LEAST_LIKE = 0.8
"""Figures whose ratio to OpenWebText's is below this, or above its inverse, are flagged."""

_TOP_SITES = 30


@dataclass(frozen=True)
class Reference:
    """The number of documents of each site in another corpus, by the site's name (see `site_of`)."""

    name: str
    counts: Mapping[str, int]


def read_reference(path: str) -> Reference | None:
    """Read a list of sites with lines `COUNT SITE`; None without a path. Raises UserError for any other file."""
    if not path:
        return None
    counts: dict[str, int] = {}
    with open_source(path) as file:
        text = bytes(file.read()).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or (len(parts) == 1 and parts[0].isdecimal()):  # WebText's list has a count of URLs without a site
            continue
        if len(parts) != 2 or not parts[0].isdecimal():
            raise UserError(
                f"--reference_domains {path}, line {number}: {line[:80]!r} is not a count and a site, such as "
                "`1542261 google`"
            )
        site = parts[1].lower()
        counts[site] = counts.get(site, 0) + int(parts[0])
    if len(counts) < 2:
        raise UserError(f"--reference_domains {path} lists {len(counts)} sites: a rank correlation needs more")
    return Reference(path.rpartition("/")[2], counts)


def share(part: float, total: float) -> float | None:
    """`part / total` with six digits; None if `total` is 0."""
    return round(part / total, 6) if total else None


def likeness(
    distributions: Mapping[str, Row], tables: Tables, manifests: Mapping[str, Manifest], reference: Reference | None
) -> dict[str, Any]:
    """Lengths compared with OpenWebText's published ones, and sites with those of `reference`."""
    tokens = distributions["tokens"]
    ours = {
        "tokens_per_document": tokens["mean"],
        "bytes_per_token": share(distributions["bytes"]["sum"], tokens["sum"]),
    }
    rows: list[dict[str, Any]] = [
        {"what": name, "corpus": ours[name], "openwebtext": theirs, "ratio": share(ours[name] or 0, theirs)}
        for name, theirs in OPENWEBTEXT.items()
    ]
    for row in rows:
        row["off"] = bool(row["corpus"]) and not _LEAST_LIKE <= row["ratio"] <= 1 / _LEAST_LIKE
    return {"lengths": rows, "sites": _sites(tables, manifests, reference) if reference else None}


def _sites(tables: Tables, manifests: Mapping[str, Manifest], reference: Reference) -> dict[str, Any]:
    tables.connection.create_function("site_of", lambda host: site_of(host) or "", ["VARCHAR"], "VARCHAR")
    rows = tables.rows("sites", sites=list(reference.counts), counts=list(reference.counts.values()))
    names = [name for name in ("urls", "corpus") if name in manifests]
    return {
        "reference": reference.name,
        "listed": len(rows),
        "datasets": [
            {
                "dataset": name,
                "rows": rows[0][f"all_{name}"],
                "of_listed_sites": share(sum(row[name] for row in rows), rows[0][f"all_{name}"]),
                "sites_present": sum(row[name] > 0 for row in rows),
                "rank_correlation": rank_correlation([(row["reference"], row[name]) for row in rows]),
            }
            for name in names
        ],
        "top": [{key: row[key] for key in ("site", "reference", *names)} for row in rows[:_TOP_SITES]],
    }


def site_of(host: str) -> str | None:
    """A host's label before its public suffix, `bbc` for news.bbc.co.uk; None for an address or a single label.

    OpenAI's list of WebText's domains names sites in this way. The suffixes are those of the Public Suffix List in the
    package tld; for unknown ones, the last label counts as the suffix, by the list's rules.
    """
    from tld import get_tld

    found = get_tld(f"https://{host}", as_object=True, fail_silently=True, search_private=False)
    if found is not None:
        return getattr(found, "domain", None) or None
    labels = host.split(".")
    return labels[-2] if len(labels) > 1 and not labels[-1].isdigit() else None


def rank_correlation(pairs: Sequence[tuple[int, int]]) -> float | None:
    """Spearman's rho; None if all first or all second numbers are equal."""
    ranks = []
    for values in np.array(pairs).T:
        ordered = np.sort(values)  # equal values share their mean rank; doubled, as are all ranks
        ranks.append(np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right"))
    return round(float(np.corrcoef(ranks)[0, 1]), 4) if all(map(np.ptp, ranks)) else None


Stats = Mapping[str, Any]

_TOP_DOMAINS = 30

TRAINING_METRICS = "metrics.jsonl"


def read_stats(workdir: str) -> tuple[bytes, dict[str, Any]]:
    """report/stats.json of another run, as bytes and parsed; raises UserError if there is none of this version."""
    content = report_of(Storage(workdir))
    if not content:
        raise UserError(f"--compare {workdir}: no report is there: run `owt report --workdir {workdir}` first")
    stats = json.loads(content)
    if stats["schema_version"] != STATS_VERSION:
        raise UserError(
            f"--compare {workdir}: its report/stats.json is of version {stats['schema_version']}, not {STATS_VERSION}: "
            f"run `owt report --workdir {workdir}` again"
        )
    return content, stats


_MOST_STEPS = 300


def read_training(folder: str) -> dict[str, Any]:
    """The losses in the metrics.jsonl of a training run, at most 300 steps; raises UserError for any other file."""
    path = f"{folder.rstrip('/')}/{TRAINING_METRICS}"
    try:
        with open_source(path) as file:
            records = [json.loads(line) for line in bytes(file.read()).splitlines()]
        steps = [[record["step"], record["loss"], record.get("val_loss")] for record in records]
    except (ValueError, KeyError, TypeError) as error:
        raise UserError(f"--training {folder}: {TRAINING_METRICS} is not a training run's ({error})") from error
    every = -(-len(steps) // _MOST_STEPS) or 1
    kept = [step for k, step in enumerate(steps, start=1) if k % every == 0 or step[2] is not None or k == len(steps)]
    return {"name": folder.rstrip("/").rpartition("/")[2], "last_step": steps[-1][0] if steps else 0, "steps": kept}


def comparison(ours: Stats, theirs: Stats, name: str) -> dict[str, Any]:
    """Figures of two runs in pairs: this run's first, then that of `name`."""
    both = (ours, theirs)
    stages = [{row["dataset"]: row for row in stats["funnel"]} for stats in both]
    reasons = [
        {(stage["stage"], row["reason"]): row for stage in stats["funnel"] for row in stage["rejected"]}
        for stats in both
    ]
    return {
        "other": name,
        "totals": {key: [stats["totals"][key] for stats in both] for key in ours["totals"]},
        "bytes_per_token": [(stats["tokens"] or {}).get("bytes_per_token") for stats in both],
        "duplicates": [(stats["duplicates"] or {}).get("share") for stats in both],
        "stages": [{"dataset": key, **pairs} for key, pairs in _pairs(stages, ("entered", "left", "share"), None)],
        "rejected": [
            {"stage": stage, "reason": reason, **pairs}
            for (stage, reason), pairs in _pairs(reasons, ("count", "share"), 0)
        ],
        "lengths": {
            name: {
                "mean": [stats["lengths"][name]["mean"] for stats in both],
                "percentiles": {
                    q: [stats["lengths"][name]["percentiles"][q] for stats in both]
                    for q in ours["lengths"][name]["percentiles"]
                },
            }
            for name in ours["lengths"]
        },
        "token_histograms": [_shares(stats["lengths"]["tokens"]) for stats in both],
        "domains": _domains(ours, theirs),
        "settings": _settings(ours, theirs),
    }


def _pairs(found: Sequence[Mapping[Any, Stats]], fields: Sequence[str], missing: Any) -> Iterator[tuple[Any, Stats]]:
    """For each key in either run, the key and the pairs of values of some fields."""
    for key in {**found[0], **found[1]}:
        yield key, {field: [rows[key][field] if key in rows else missing for rows in found] for field in fields}


def _shares(distribution: Mapping[str, Any]) -> list[list[float]]:
    total = distribution["count"] or 1
    return [[low, high, round(count / total, 6)] for low, high, count in distribution["histogram"]]


def _domains(ours: Stats, theirs: Stats) -> list[dict[str, Any]]:
    """The most frequent domains of both, by the larger of the two shares; None if a run does not list the domain."""
    found = [{row["domain"]: row["share"] for row in stats["domains"]["top"]} for stats in (ours, theirs)]
    rows = [{"domain": name, "share": [shares.get(name) for shares in found]} for name in found[0].keys() | found[1]]
    return sorted(rows, key=lambda row: (-max(share or 0 for share in row["share"]), row["domain"]))[:_TOP_DOMAINS]


def _settings(ours: Stats, theirs: Stats) -> list[dict[str, Any]]:
    rows = []
    for name in {**ours["settings"], **theirs["settings"]}:
        options = [stats["settings"].get(name, {}).get("options", {}) for stats in (ours, theirs)]
        stage = (ours["settings"].get(name) or theirs["settings"][name])["stage"]
        for key in {**options[0], **options[1]}:
            values = [found.get(key) for found in options]
            if values[0] != values[1]:
                rows.append({"stage": stage, "option": key, "values": values})
    return rows


_DOMAINS = 20


def months(workdir: Storage, manifests: Mapping[str, Manifest], stats: Stats, bases: Sequence[Base]) -> Any:
    """One object per run of the chain, the oldest first and this run last; None for a run without bases.

    Args:
      workdir: this run's working directory.
      manifests: this run's manifests.
      stats: this run's figures.
      bases: the runs that it builds on. Their domains come from their reports, if they have one.
    """
    if not bases:
        return None
    runs = []
    for base in bases:
        of_base = json.loads(report_of(base.workdir) or "{}")
        is_ours = of_base.get("schema_version") == STATS_VERSION
        folder = relative_uri(workdir, base.workdir)
        report = f"../{quote(folder)}/report/index.html" if of_base and folder.startswith("../") else None
        runs.append(_month(base.name, base.manifests, of_base if is_ours else None) | {"report": report})
    runs.append(_month(place_of(workdir).rpartition("/")[2], manifests, stats) | {"report": None})
    known: set[str] = set()
    before: Any = None
    for run in runs:
        listed = run.pop("listed")
        compared = listed is not None and before is not None
        run["gained"] = _first({name: n for name, n in listed.items() if name not in known}) if compared else None
        run["lost"] = _first({name: n for name, n in before.items() if name not in listed}) if compared else None
        known |= (listed or {}).keys()
        before = listed
    return runs


def report_of(workdir: Storage) -> bytes:
    """stats.json of a run; empty if it has no report."""
    return workdir.read("report/stats.json") if read_manifest(workdir, "report") is not None else b""


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
        "domains": domains["distinct"].get("corpus") if domains else None,
        "listed": {name: n for name, n, _ in domains["search"] if n} if domains else None,
    }


def _first(domains: Mapping[str, int]) -> dict[str, Any]:
    most = sorted(domains.items(), key=lambda item: (-item[1], item[0]))[:_DOMAINS]
    return {"count": len(domains), "top": [list(row) for row in most]}
