"""Canonical URLs of a whole column: what `urls.canonicalize` does one by one, at the speed of Arrow's kernels."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.collect.urls import MAX_LENGTH, SAFE, TRACKING_NAMES, TRACKING_PREFIXES, BadURL, canonicalize

# Nothing to decode, encode, resolve or lower, and no fragment: 99 of 100 links on Reddit. No segment of the path
# begins with a dot.
_BEGIN, _REST = "[" + SAFE.replace(".", "").replace("/", "") + "]", "[" + SAFE.replace("/", "") + "]"
_PREFIX = r"^https?://(?:www\.)?"
_HOST = r"(?:[a-z0-9-]+\.)+[a-z][a-z]+"
_PATH = rf"(?:/(?:{_BEGIN}{_REST}*)?)"
_SIMPLE = f"{_PREFIX}{_HOST}{_PATH}*$"
_WITH_QUERY = rf"{_PREFIX}{_HOST}{_PATH}+\?[{SAFE}?&]*$"

# A query after a slash, or that ends in one, or has an empty parameter or one that tracks readers.
_NAMES, _STEMS = ("|".join(map(re.escape, sorted(some))) for some in (TRACKING_NAMES, TRACKING_PREFIXES))
_DOUBTFUL = rf"/\?|/$|&amp;|[?&](?:&|$|(?i:(?:{_NAMES})(?:[=&]|$)|{_STEMS}))"


def canonicalize_column(urls: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray, dict[int, str]]:
    """(canonical URLs, their hosts, problems) of URLs; null is no URL.

    A URL that cannot be parsed is null in the first two, and `problems` says why at its index.
    """
    short = pc.less_equal(pc.binary_length(urls), MAX_LENGTH)
    simple = _mask(pc.and_(pc.match_substring_regex(urls, _SIMPLE), short))
    places = np.flatnonzero(~simple)
    others = urls.take(pa.array(places))
    queried = pc.and_not(pc.match_substring_regex(others, _WITH_QUERY), pc.match_substring_regex(others, _DOUBTFUL))
    simple[places] = _mask(pc.and_(queried, short.take(pa.array(places))))
    canonical, host = _simple_ones(urls.filter(pa.array(simple)))
    odd = pc.or_(pc.starts_with(host, "www."), pc.invert(pc.match_substring(host, ".")))  # www.www.x.org, www.com
    odd = pc.or_(odd, pc.greater(pc.binary_length(host), 63))  # whose labels may be too long
    if pc.any(odd).as_py():
        simple[np.flatnonzero(simple)[_mask(odd)]] = False
        canonical, host = canonical.filter(pc.invert(odd)), host.filter(pc.invert(odd))
    problems: dict[int, str] = {}
    parsed: list[tuple[str | None, str | None]] = []
    places = np.flatnonzero(~simple)
    for i, url in zip(places.tolist(), urls.take(pa.array(places)).to_pylist(), strict=True):
        try:
            parsed.append(canonicalize(url or ""))
        except BadURL as problem:
            problems[i] = str(problem)
            parsed.append((None, None))
    order = np.empty(len(urls), np.int64)
    order[simple] = np.arange(len(canonical))
    order[~simple] = np.arange(len(canonical), len(urls))
    columns = (
        pa.concat_arrays([ones, pa.array([pair[k] for pair in parsed], pa.string())]).take(pa.array(order))
        for k, ones in enumerate((canonical, host))
    )
    return (*columns, problems)


def _mask(values: pa.BooleanArray) -> np.ndarray:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False).copy()


def _simple_ones(urls: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    canonical = pc.replace_substring_regex(urls, _PREFIX, "https://", max_replacements=1)
    canonical = pc.ascii_rtrim(canonical, "/")
    host = pc.list_element(pc.split_pattern(canonical, "/", max_splits=3), 2)
    is_root = pc.equal(pc.binary_length(canonical), pc.add(pc.binary_length(host), len("https://")))
    return pc.binary_join_element_wise(canonical, pc.if_else(is_root, "/", ""), ""), host
