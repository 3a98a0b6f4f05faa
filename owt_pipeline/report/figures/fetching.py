"""What became of the URLs that were asked for: by answer, by domain, by the link's age."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.figures.shares import by_count, by_key, distribution, share
from owt_pipeline.report.summaries import Details, Summary
from schemas.manifest import Manifest

_TOP_DOMAINS = 50


def fetching(manifests: Mapping[str, Manifest], summary: Summary, details: Details) -> dict[str, Any]:
    """The figures of pages/; empty where nothing was fetched."""
    manifest = manifests.get("pages")
    if manifest is None:
        return {}
    return {
        "sources": by_key(summary.counters.get("pages/source", Counter())),
        "statuses": by_key(summary.counters.get("pages/status", Counter())),
        "failures": by_count(Counter(manifest.counts.rejected)),
        "milliseconds": distribution(summary, "pages/fetch_ms"),
        "body_bytes": distribution(summary, "pages/body_bytes"),
        "domains": _domains(details),
        "captured": _month(summary.latest.get("pages/captured")),
        "ages": _ages(summary, manifest),
    }


def _domains(details: Details) -> list[dict[str, Any]]:
    """Those of most URLs."""
    pages, live, size, time = (
        details.counts.get(f"{name}/domain", Counter()) for name in ("pages", "live", "bytes", "milliseconds")
    )
    failures: dict[str, Counter] = {}
    for (host, reason), count in details.counts.get("failed/domain", Counter()).items():
        failures.setdefault(host, Counter())[reason] += count
    rows: list[dict[str, Any]] = [
        {
            "domain": host,
            "urls": pages[host] + failures.get(host, Counter()).total(),
            "pages": pages[host],
            "failures": by_count(failures.get(host, Counter())),
            "mean_milliseconds": _mean(time[host], live[host]),
            "mean_body_bytes": _mean(size[host], pages[host]),
        }
        for host in pages.keys() | failures.keys()
    ]
    rows = sorted(rows, key=lambda row: (-row["urls"], row["domain"]))[:_TOP_DOMAINS]
    return [{**row, "share": share(row["pages"], row["urls"])} for row in rows]


def _ages(summary: Summary, manifest: Manifest) -> list[dict[str, Any]]:
    """By whole years from the month of the first submission to that of the last capture of the run."""
    captured = summary.latest.get("pages/captured")
    if captured is None:
        return []

    def years(name: str) -> Counter[int]:
        found: Counter[int] = Counter()
        for month, count in summary.counters.get(name, Counter()).items():
            found[max(captured - month, 0) // 12] += count
        return found

    pages, live, size, time = (
        years(f"pages/{name}month") for name in ("", "live/", "bytes/", "milliseconds/")
    )  # fmt: skip
    failures = {reason: years(f"pages/{reason}/month") for reason in manifest.counts.rejected}
    rows = []
    for age in sorted(pages.keys() | {age for counter in failures.values() for age in counter}):
        failed = Counter({reason: counter[age] for reason, counter in failures.items()})
        urls = pages[age] + failed.total()
        rows.append(
            {
                "years": age,
                "urls": urls,
                "pages": pages[age],
                "failures": by_count(failed),
                "mean_milliseconds": _mean(time[age], live[age]),
                "mean_body_bytes": _mean(size[age], pages[age]),
                "share": share(pages[age], urls),
            }
        )
    return rows


def _mean(total: int, count: int) -> float | None:
    return round(total / count, 1) if count else None


def _month(months: int | None) -> str | None:
    return None if months is None else f"{months // 12:04d}-{months % 12 + 1:02d}"
