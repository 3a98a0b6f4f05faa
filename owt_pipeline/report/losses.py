"""Figures of what was lost on the way from URLs to the corpus: by the web, by filters, as duplicates."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from owt_pipeline.report.sketches import (
    SIMILARITY_BINS,
    Details,
    Summary,
    by_count,
    by_key,
    distribution,
    share,
)
from schemas import Reason
from schemas.manifest import Manifest

_TOP_DOMAINS = 50


def fetching(manifests: Mapping[str, Manifest], summary: Summary, details: Details) -> dict[str, Any] | None:
    """The figures of pages/; None where nothing was fetched."""
    manifest = manifests.get("pages")
    if manifest is None:
        return None
    return {
        "sources": by_key(summary.counter("pages/source")),
        "distances": _distances(summary),
        "statuses": by_key(summary.counter("pages/status")),
        "failures": by_count(Counter(manifest.counts.rejected)),
        "milliseconds": distribution(summary, "pages/fetch_ms"),
        "body_bytes": distribution(summary, "pages/body_bytes"),
        "domains": _fetched_domains(details),
        "captured": _month(summary.captured),
        "ages": _ages(summary, manifest),
    }


def _distances(summary: Summary) -> list[dict[str, Any]]:
    before = summary.counter("pages/before")
    return [
        {
            "source": source,
            "pages": count,
            "before": before[source],
            "days": distribution(summary, f"pages/days/{source}"),
        }
        for source, count in sorted(summary.counter("pages/source").items())
    ]


def _fetched_domains(details: Details) -> list[dict[str, Any]]:
    counters = [details.counter(f"{name}/domain") for name in ("pages", "live", "bytes", "milliseconds")]
    failures: dict[str, Counter] = {}
    for (host, reason), count in details.counter("failed/domain").items():
        failures.setdefault(host, Counter())[reason] += count
    hosts = counters[0].keys() | failures.keys()
    rows = [_outcomes("domain", host, counters, failures.get(host, Counter())) for host in hosts]
    return sorted(rows, key=lambda row: (-row["urls"], row["domain"]))[:_TOP_DOMAINS]


def _ages(summary: Summary, manifest: Manifest) -> list[dict[str, Any]]:
    """By full years from the month of the first submission to that of the last capture of the run."""
    if not summary.captured:
        return []

    def years(name: str) -> Counter[int]:
        found: Counter[int] = Counter()
        for month, count in summary.counter(name).items():
            found[max(summary.captured - month, 0) // 12] += count
        return found

    counters = [years(f"pages/{name}month") for name in ("", "live/", "bytes/", "milliseconds/")]
    failures = {reason: years(f"pages/{reason}/month") for reason in manifest.counts.rejected}
    rows = []
    for age in sorted(counters[0].keys() | {age for counter in failures.values() for age in counter}):
        failed = Counter({reason: counter[age] for reason, counter in failures.items()})
        rows.append(_outcomes("years", age, counters, failed))
    return rows


def _outcomes(name: str, key: Any, counters: Sequence[Counter], failed: Counter) -> dict[str, Any]:
    """What came of the URLs of one domain, or age: `counters` are pages, live ones, their bytes and milliseconds."""
    pages, live, size, time = (counter[key] for counter in counters)
    urls = pages + failed.total()
    return {
        name: key,
        "urls": urls,
        "pages": pages,
        "failures": by_count(failed),
        "mean_milliseconds": _mean(time, live),
        "mean_body_bytes": _mean(size, pages),
        "share": share(pages, urls),
    }


def _mean(total: int, count: int) -> float | None:
    return round(total / count, 1) if count else None


def _month(months: int) -> str | None:
    return f"{months // 12:04d}-{months % 12 + 1:02d}" if months else None


def filters(manifests: Mapping[str, Manifest], summary: Summary) -> dict[str, Any]:
    """The figures of what clean/ and corpus/ rejected."""
    kept = summary.histogram("tokens/n_tokens").total
    reasons = [
        (manifests[name].stage, reason)
        for name in ("clean", "corpus")
        if name in manifests
        for reason, _ in Counter(manifests[name].counts.rejected).most_common()
    ]
    lost = {reason: summary.counter(f"lost/{reason}") for _, reason in reasons}
    before = kept + sum(counter["tokens"] for counter in lost.values())
    return {
        "lost": [
            {
                "stage": stage,
                "reason": reason,
                **{name: lost[reason][name] for name in ("documents", "characters", "bytes", "tokens")},
                "share": share(lost[reason]["tokens"], before),
            }
            for stage, reason in reasons
            if lost[reason]
        ],
        "dropped": [
            {
                "stage": stage,
                "reason": reason,
                "meaning": Reason.of(reason).description,
                "documents": summary.rows(f"dropped/{reason}"),
            }
            for stage, reason in reasons
            if summary.rows(f"dropped/{reason}")
        ],
        "signals": _signals(manifests["clean"]) if "clean" in manifests else [],
    }


def _signals(clean: Manifest) -> list[dict[str, Any]]:
    """The histograms that `clean` counts of what it measures; `owt_pipeline.clean.documents` says how it names them."""
    rows = []
    signals = dict(clean.properties.get("signals", {}))
    if (least := clean.options.get("min_language_score")) and "language_score" in signals:
        signals["language_score"] = {**signals["language_score"], "minimum": least}
    for name, about in signals.items():
        counts = {
            outcome: [clean.stats.get(f"signals.{name}.{outcome}.{k}", 0) for k in range(len(about["edges"]) + 1)]
            for outcome in ("kept", "dropped")
        }
        if any(map(any, counts.values())):
            outside = sum(
                count
                for k, count in enumerate(counts["kept"])
                if _is_outside(about["edges"], k, about["minimum"], about["maximum"])
            )
            measured = sum(counts["kept"])
            rows.append(
                {"signal": name, **about, **counts, "outside": outside, "outside_share": share(outside, measured) or 0}
            )
    return rows


def _is_outside(edges: Sequence[float], k: int, minimum: float | None, maximum: float | None) -> bool:
    """Whether the values of bin k break a limit; limits are edges, or no value lies between them and the next edge."""
    if minimum is not None and k < len(edges) and edges[k] <= minimum:
        return True
    return maximum is not None and k > 0 and edges[k - 1] >= maximum


def duplicates(manifests: Mapping[str, Manifest], summary: Summary, details: Details) -> dict[str, Any] | None:
    """The figures of duplicates/; None where duplicates were not looked for."""
    manifest = manifests.get("duplicates")
    if manifest is None:
        return None
    properties = manifest.properties
    rules = summary.counter("duplicates/rule")
    # Each document that goes names its cluster's size: a cluster of n has n - 1 of them.
    sizes = summary.counter("duplicates/cluster_size")
    similarity = summary.counter("duplicates/similarity")
    bands = summary.counter("duplicates/shared_bands")
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
        "domains": _removed_domains(details),
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


def _removed_domains(details: Details) -> list[dict[str, Any]]:
    """Those that lost most documents; what was examined of one is what stays of it and what went."""
    corpus, removed = (details.counter(f"{name}/domain") for name in ("corpus", "removed"))
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


Segment = tuple[str, str, str]
"""(`same`, `differs` or `skipped`, the one text's words, the other's); of `skipped`, how many words are the same."""

_CONTEXT_WORDS = 15
_MOST_SEGMENTS = 40


def side_by_side(one: str, other: str, most_words: int = 2000) -> list[Segment]:
    """The first `most_words` words of each text, what they share cut short.

    Runs of equal words are cut to 15 words next to a difference. By Ratcliff and Obershelp's matching of longest
    common runs, as difflib has it.
    """
    ours, theirs = one.split()[:most_words], other.split()[:most_words]
    codes = difflib.SequenceMatcher(a=ours, b=theirs, autojunk=False).get_opcodes()
    segments: list[Segment] = []
    for number, (tag, a, b, c, d) in enumerate(codes):
        if tag == "equal":
            segments += _shortened(ours[a:b], first=number == 0, last=number == len(codes) - 1)
        else:
            segments.append(("differs", " ".join(ours[a:b]), " ".join(theirs[c:d])))
    return segments[:_MOST_SEGMENTS]


def _shortened(words: list[str], *, first: bool, last: bool) -> list[Segment]:
    """What is shown next to a difference of a run of equal words; of a text that has none, its beginning."""
    head = 0 if first and not last else _CONTEXT_WORDS
    tail = 0 if last else _CONTEXT_WORDS
    between = len(words) - head - tail
    if between <= 0:
        return [_same(words)]
    skipped: Segment = ("skipped", str(between), str(between))
    return [*([_same(words[:head])] if head else []), skipped, *([_same(words[-tail:])] if tail else [])]


def _same(words: list[str]) -> Segment:
    return "same", " ".join(words), " ".join(words)
