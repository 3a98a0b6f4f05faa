"""How like WebText and OpenWebText the corpus is."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from owt_pipeline.engine.errors import UserError
from owt_pipeline.engine.storage import open_source
from owt_pipeline.report.figures.shares import share
from owt_pipeline.report.sketches import LogHistogram
from owt_pipeline.report.summaries import Details, Summary
from schemas.manifest import Manifest

# Of Gokaslan and Cohen's OpenWebText, tokenized with GPT-2's BPE.
OPENWEBTEXT = {"tokens_per_document": 1128, "bytes_per_token": 4.40}

_TOP_SITES = 30


@dataclass(frozen=True)
class Reference:
    """How many documents each site has in another corpus, by the site's name as `keys.site_of` gives it."""

    name: str
    counts: Mapping[str, int]


def read_reference(path: str) -> Reference:
    """A list of sites, a line `COUNT SITE` each, as OpenAI published of WebText's; else raises UserError."""
    counts: dict[str, int] = {}
    with open_source(path) as file:
        text = bytes(file.read()).decode("utf-8", "replace")
    for number, line in enumerate(text.splitlines(), start=1):
        parts = line.split()
        if not parts or (len(parts) == 1 and parts[0].isdecimal()):  # WebText's counts URLs without a site too
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


def likeness(
    manifests: Mapping[str, Manifest], summary: Summary, details: Details, reference: Reference | None
) -> dict[str, Any]:
    """Lengths beside OpenWebText's published ones, and sites beside those of `reference`."""
    lengths = summary.histograms.get("tokens/n_tokens", LogHistogram())
    size = summary.histograms.get("corpus/bytes", LogHistogram()).total
    ours = {
        "tokens_per_document": round(lengths.total / lengths.count, 2) if lengths.count else None,
        "bytes_per_token": share(size, lengths.total),
    }
    rows = [
        {"what": name, "corpus": ours[name], "openwebtext": theirs, "ratio": share(ours[name] or 0, theirs)}
        for name, theirs in OPENWEBTEXT.items()
    ]
    return {"lengths": rows, "sites": _sites(summary, details, reference) if reference else None}


def _sites(summary: Summary, details: Details, reference: Reference) -> dict[str, Any]:
    counts = {name: details.counts.get(f"{name}/site", Counter()) for name in ("urls", "corpus")}
    totals = {name: summary.frequencies[f"{name}/domain"].total for name in counts
              if f"{name}/domain" in summary.frequencies}  # fmt: skip
    first = sorted(reference.counts, key=lambda site: (-reference.counts[site], site))[:_TOP_SITES]
    return {
        "reference": reference.name,
        "listed": len(reference.counts),
        "datasets": [
            {
                "dataset": name,
                "rows": total,
                "of_listed_sites": share(counts[name].total(), total),
                "sites_present": len(counts[name]),
                "rank_correlation": rank_correlation(reference.counts, counts[name]),
            }
            for name, total in totals.items()
        ],
        "top": [
            {"site": site, "reference": reference.counts[site], **{name: counts[name][site] for name in totals}}
            for site in first
        ],
    }


def rank_correlation(reference: Mapping[str, int], counts: Mapping[str, int]) -> float | None:
    """Spearman's rho over all sites of `reference`, those without a row counting 0; None where all are equal."""
    ours = _ranks(np.array([counts.get(site, 0) for site in reference]))
    theirs = _ranks(np.array(list(reference.values())))
    if ours.std() == 0 or theirs.std() == 0:
        return None
    return round(float(np.corrcoef(ours, theirs)[0, 1]), 4)


def _ranks(values: np.ndarray) -> np.ndarray:
    """Ranks from 1, equal values sharing the mean of theirs."""
    _, inverse, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    return (last - (counts - 1) / 2)[inverse]
