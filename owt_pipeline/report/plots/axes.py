"""Parts of plotly.js figures; their colours come from the page's style sheet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

Figure = dict[str, Any]

BARS, _BAR_PIXELS, _MARGIN_PIXELS = 20, 22, 70


def figure(traces: Sequence[Figure], *, height: int = 320, **layout: Any) -> Figure:
    """`meta` of a trace is the number of its colour."""
    return {"data": list(traces), "layout": {"height": height, **layout}}


def label(text: Any) -> str:
    """Text as it is: plotly takes some HTML in labels, and names of hosts and subreddits are anybody's."""
    return escape(str(text), quote=False)


def axis(title: str, **more: Any) -> Figure:
    return {"title": {"text": title}, "fixedrange": True, "automargin": True, **more}


def counts(title: str, values: Sequence[int]) -> Figure:
    """An axis of whole numbers."""
    return axis(title, rangemode="tozero", **({"dtick": 1} if max(values, default=0) <= 5 else {}))


def categories(title: str = "") -> Figure:
    return axis(title, type="category", showgrid=False)


def log_axis(title: str, low: int, high: int) -> Figure:
    """A logarithmic axis with ticks at 1, 2, 5, 10, …; plotly's own label but the decades in full."""
    steps = (1, 2, 5) if high < 1000 * low else (1,)
    ticks = [step * 10**decade for decade in range(len(str(high))) for step in steps]
    ticks = [tick for tick in ticks if low <= tick <= high]
    labels = [next((f"{t // u}{name}" for u, name in ((10**6, "M"), (1000, "k")) if t >= u), str(t)) for t in ticks]
    return axis(title, type="log", tickmode="array", tickvals=ticks, ticktext=labels)


def bars(names: Sequence[Any], values: Sequence[Any], hover: str, **more: Any) -> Figure:
    """Horizontal bars; `hover` is a template of plotly's."""
    trace = {"type": "bar", "orientation": "h", "meta": 1, "y": [label(name) for name in names], "x": list(values)}
    return {**trace, "hovertemplate": f"{hover}<extra></extra>", **more}


def columns(names: Sequence[Any], values: Sequence[Any], hover: str, **more: Any) -> Figure:
    """Vertical bars."""
    trace = {"type": "bar", "meta": 1, "x": [label(name) for name in names], "y": list(values)}
    return {**trace, "hovertemplate": f"{hover}<extra></extra>", **more}


def ranking(traces: Sequence[Figure], title: str, *, pixels: int = _BAR_PIXELS, **xaxis: Any) -> Figure:
    """Horizontal bars, the first on top, as high as there are many."""
    names = {"type": "category", "autorange": "reversed", "dtick": 1, "showgrid": False}
    rows = max((len(trace["y"]) for trace in traces), default=0)
    return figure(
        traces, height=_MARGIN_PIXELS + pixels * rows, yaxis=axis("", **names), xaxis=axis(title, **xaxis)
    )  # fmt: skip


def upright(x: float) -> Figure:
    """A dotted line through the plot, at `x`."""
    return {
        "type": "line", "x0": x, "x1": x, "yref": "paper", "y0": 0, "y1": 1, "line": {"dash": "dot", "width": 1},
    }  # fmt: skip
