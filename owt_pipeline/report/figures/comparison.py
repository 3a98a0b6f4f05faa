"""Two runs side by side, each by the figures of its own report."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from owt_pipeline.engine.dataset import read_manifest
from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.storage import Storage
from schemas.stats import STATS_VERSION

Stats = Mapping[str, Any]

_TOP_DOMAINS = 30


def read_stats(workdir: str) -> tuple[bytes, dict[str, Any]]:
    """report/stats.json of another run, as bytes and parsed; raises UserError where there is none of this version."""
    run = Storage(workdir)
    if read_manifest(run, "report") is None:
        raise UserError(f"--compare {workdir}: no report is there: run `owt report --workdir {workdir}` first")
    content = run.read("report/stats.json")
    stats = json.loads(content)
    if stats["schema_version"] != STATS_VERSION:
        raise UserError(
            f"--compare {workdir}: its report/stats.json is of version {stats['schema_version']}, not {STATS_VERSION}: "
            f"run `owt report --workdir {workdir}` again"
        )
    return content, stats


def comparison(ours: Stats, theirs: Stats, name: str) -> dict[str, Any]:
    """What differs between two runs; of each pair of figures the first is this run's, the second that of `name`."""
    both = (ours, theirs)
    return {
        "other": name,
        "totals": {key: [stats["totals"][key] for stats in both] for key in ours["totals"]},
        "bytes_per_token": [stats["tokens"].get("bytes_per_token") for stats in both],
        "duplicates": [stats["duplicates"].get("share") for stats in both],
        "stages": _stages(ours, theirs),
        "rejected": _rejected(ours, theirs),
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


def _stages(ours: Stats, theirs: Stats) -> list[dict[str, Any]]:
    found = [{row["dataset"]: row for row in stats["funnel"]} for stats in (ours, theirs)]
    names = [*found[0], *(name for name in found[1] if name not in found[0])]
    return [
        {
            "dataset": name,
            **{
                key: [rows[name][key] if name in rows else None for rows in found]
                for key in ("entered", "left", "share")
            },
        }
        for name in names
    ]


def _rejected(ours: Stats, theirs: Stats) -> list[dict[str, Any]]:
    found = [
        {(stage["stage"], row["reason"]): row for stage in stats["funnel"] for row in stage["rejected"]}
        for stats in (ours, theirs)
    ]
    names = [*found[0], *(name for name in found[1] if name not in found[0])]
    return [
        {
            "stage": stage,
            "reason": reason,
            "count": [rows[stage, reason]["count"] if (stage, reason) in rows else 0 for rows in found],
            "share": [rows[stage, reason]["share"] if (stage, reason) in rows else 0 for rows in found],
        }
        for stage, reason in names
    ]


def _shares(distribution: Mapping[str, Any]) -> list[list[float]]:
    """The bins of a histogram with the share of all that each holds."""
    whole = distribution["count"] or 1
    return [[low, high, round(count / whole, 6)] for low, high, count in distribution["histogram"]]


def _domains(ours: Stats, theirs: Stats) -> list[dict[str, Any]]:
    """The most frequent domains of both, by the greater of the two shares; null where it is not in a run's list."""
    found = [{row["domain"]: row["share"] for row in stats["domains"]["top"]} for stats in (ours, theirs)]
    rows = [{"domain": name, "share": [shares.get(name) for shares in found]} for name in found[0].keys() | found[1]]
    return sorted(rows, key=lambda row: (-max(share or 0 for share in row["share"]), row["domain"]))[:_TOP_DOMAINS]


def _settings(ours: Stats, theirs: Stats) -> list[dict[str, Any]]:
    """The options in which the two differ."""
    rows = []
    for name in {**ours["settings"], **theirs["settings"]}:
        options = [stats["settings"].get(name, {}).get("options", {}) for stats in (ours, theirs)]
        stage = (ours["settings"].get(name) or theirs["settings"][name])["stage"]
        for key in {**options[0], **options[1]}:
            values = [found.get(key) for found in options]
            if values[0] != values[1]:
                rows.append({"stage": stage, "option": key, "values": values})
    return rows
