"""Canonical URLs of a whole column: what `urls.canonicalize` does one by one, at the speed of Arrow's kernels."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.collect.urls import MAX_LENGTH, SAFE, BadURL, canonicalize

# Nothing to decode, encode, resolve or lower, and no query or fragment: five of six links on Reddit. No segment of the
# path begins with a dot.
_BEGIN, _REST = "[" + SAFE.replace(".", "").replace("/", "") + "]", "[" + SAFE.replace("/", "") + "]"
_SIMPLE = rf"^https?://(?:www\.)?(?:[a-z0-9-]+\.)+[a-z][a-z]+(?:/(?:{_BEGIN}{_REST}*)?)*$"
_PREFIX = r"^https?://(?:www\.)?"


def canonicalize_column(urls: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray, dict[int, str]]:
    """(canonical URLs, their hosts, problems) of URLs; null is no URL.

    A URL that cannot be parsed is null in the first two, and `problems` says why at its index.
    """
    simple = pc.match_substring_regex(urls, _SIMPLE)
    simple = pc.and_not(simple, pc.greater(pc.binary_length(urls), MAX_LENGTH))
    simple = simple.fill_null(False).to_numpy(zero_copy_only=False).copy()
    canonical, host = _simple_ones(urls.filter(pa.array(simple)))
    odd = pc.or_(pc.starts_with(host, "www."), pc.invert(pc.match_substring(host, ".")))  # www.www.x.org, www.com
    odd = pc.or_(odd, pc.greater(pc.binary_length(host), 63))  # whose labels may be too long
    if pc.any(odd).as_py():
        simple[np.flatnonzero(simple)[odd.to_numpy(zero_copy_only=False)]] = False
        canonical, host = canonical.filter(pc.invert(odd)), host.filter(pc.invert(odd))
    problems: dict[int, str] = {}
    others: list[tuple[str | None, str | None]] = []
    places = np.flatnonzero(~simple)
    for i, url in zip(places.tolist(), urls.take(pa.array(places)).to_pylist(), strict=True):
        try:
            others.append(canonicalize(url or ""))
        except BadURL as problem:
            problems[i] = str(problem)
            others.append((None, None))
    order = np.empty(len(urls), np.int64)
    order[simple] = np.arange(len(canonical))
    order[~simple] = np.arange(len(canonical), len(urls))
    columns = (
        pa.concat_arrays([ones, pa.array([pair[k] for pair in others], pa.string())]).take(pa.array(order))
        for k, ones in enumerate((canonical, host))
    )
    return (*columns, problems)


def _simple_ones(urls: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray]:
    canonical = pc.replace_substring_regex(urls, _PREFIX, "https://", max_replacements=1)
    canonical = pc.ascii_rtrim(canonical, "/")
    host = pc.list_element(pc.split_pattern(canonical, "/", max_splits=3), 2)
    is_root = pc.equal(pc.binary_length(canonical), pc.add(pc.binary_length(host), len("https://")))
    return pc.binary_join_element_wise(canonical, pc.if_else(is_root, "/", ""), ""), host
