"""Every figure of the report, as it is in stats.json: `schemas.stats` says what each key means."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from owt_pipeline.report.figures.duplicates import duplicates
from owt_pipeline.report.figures.fetching import fetching
from owt_pipeline.report.figures.filters import filters
from owt_pipeline.report.figures.funnel import funnel, totals
from owt_pipeline.report.figures.likeness import Reference, likeness
from owt_pipeline.report.figures.rankings import languages, ranked, scores, years
from owt_pipeline.report.figures.sampler import sampler
from owt_pipeline.report.figures.tokens import lengths, tokens
from owt_pipeline.report.sketches import Candidates
from owt_pipeline.report.summaries import Details, Summary
from schemas.manifest import Manifest
from schemas.stats import STATS_VERSION

_TOP_SUBREDDITS = 100


def figures(
    manifests: Mapping[str, Manifest],
    summary: Summary,
    candidates: Mapping[str, Candidates],
    details: Details,
    *,
    top_domains: int,
    reference: Reference | None = None,
) -> dict[str, Any]:
    """All figures of one run as JSON values; `comparison`, of two, is to be added to them.

    Args:
      manifests: of the datasets that are there, by name.
      summary: of the first pass.
      candidates: what the second pass counted.
      details: of the second pass.
      top_domains: domains to list.
      reference: sites to compare with.
    """
    return {
        "schema_version": STATS_VERSION,
        "funnel": funnel(manifests, summary),
        "totals": totals(manifests, summary),
        "domains": ranked("domain", summary, candidates, details, top_domains),
        "subreddits": ranked("subreddit", summary, candidates, details, _TOP_SUBREDDITS),
        "years": years(summary),
        "languages": languages(summary),
        "scores": scores(summary),
        "lengths": lengths(summary),
        "tokens": tokens(manifests, summary),
        "duplicates": duplicates(manifests, summary, details),
        "fetch": fetching(manifests, summary, details),
        "filters": filters(manifests, summary),
        "sampler": sampler(summary),
        "likeness": likeness(manifests, summary, details, reference),
        "documents": summary.rows("corpus/documents"),
        "settings": {
            name: {"stage": m.stage, "stage_version": m.stage_version, "options": m.options, "versions": m.versions}
            for name, m in manifests.items()
        },
        "comparison": None,
    }
