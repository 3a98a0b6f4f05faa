"""Filters by published rules: each a pure function of a text that measures it, and says which limit it breaks."""

from __future__ import annotations

from owt_pipeline.clean.filters import boilerplate, c4, fineweb, gopher_quality, gopher_repetition
from owt_pipeline.clean.filters.judgement import Filter, Judgement, Limit
from schemas import Reason

FILTERS: dict[str, Filter] = {
    "boilerplate": Filter(boilerplate.boilerplate, {}, Reason.BOILERPLATE),
    "gopher_repetition": Filter(
        gopher_repetition.gopher_repetition, gopher_repetition.LIMITS, Reason.GOPHER_REPETITION
    ),
    "gopher_quality": Filter(gopher_quality.gopher_quality, gopher_quality.LIMITS, Reason.GOPHER_QUALITY),
    "c4": Filter(c4.c4, c4.LIMITS, Reason.C4),
    "fineweb": Filter(fineweb.fineweb, fineweb.LIMITS, Reason.FINEWEB),
}
"""Every filter by the name `--filters` takes, in the order they are applied in: FineWeb's."""

__all__ = ["FILTERS", "Filter", "Judgement", "Limit"]
