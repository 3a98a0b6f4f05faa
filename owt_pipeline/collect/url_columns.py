"""Canonical URLs of a whole column: what `urls.canonicalize` does one by one, at the speed of Arrow's kernels."""

from __future__ import annotations

import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.collect.urls import (
    KEPT_ESCAPE,
    MAX_LENGTH,
    SAFE,
    SPACE,
    TRACKING_NAMES,
    TRACKING_PREFIXES,
    BadURL,
    canonicalize,
)

# Nothing to decode, encode, resolve or lower, and no fragment: 99 of 100 links on Reddit. No segment of the path
# begins with a dot.
_BEGIN, _REST = (f"(?:[{SAFE.replace('/', '').replace(dot, '')}]|{KEPT_ESCAPE})" for dot in (".", "/"))
_PREFIX = r"^https?://(?:www\.)?"
_HOST = r"(?:[a-z0-9-]+\.)+[a-z][a-z]+"
_PATH = rf"(?:/(?:{_BEGIN}{_REST}*)?)"
_SIMPLE = f"{_PREFIX}{_HOST}{_PATH}*$"
_WITH_QUERY = rf"{_PREFIX}{_HOST}{_PATH}+\?(?:[{SAFE}?&]|{KEPT_ESCAPE})*$"

# A query after a slash, or that ends in one, or has an empty parameter or one that tracks readers.
_NAMES, _STEMS = ("|".join(map(re.escape, sorted(some))) for some in (TRACKING_NAMES, TRACKING_PREFIXES))
_DOUBTFUL = rf"/\?|/$|&amp;|[?&](?:&|$|(?i:(?:{_NAMES})(?:[=&]|$)|{_STEMS}))"


def canonicalize_column(
    urls: pa.StringArray,
) -> tuple[pa.StringArray, pa.StringArray, pa.StringArray, dict[int, str]]:
    """(URLs as by `urls.unescaped`, canonical URLs, their hosts, problems) of URLs; null is no URL.

    A URL that cannot be parsed has neither canonical URL nor host, and `problems` says why at its index.
    """
    simple = _mask(pc.and_(pc.match_substring_regex(urls, _SIMPLE), _short(urls)))  # nothing to unescape in these
    others = _unescaped(urls.filter(pa.array(~simple)))
    queried = pc.and_not(pc.match_substring_regex(others, _WITH_QUERY), pc.match_substring_regex(others, _DOUBTFUL))
    queried = _mask(pc.and_(queried, _short(others)))
    plain = pa.concat_arrays([urls.filter(pa.array(simple)), others.filter(pa.array(queried))])
    canonical, host, odd = _canonicalize_plain(plain)
    rest = pa.concat_arrays([plain.filter(pa.array(odd)), others.filter(pa.array(~queried))])
    of_simple, of_others = np.flatnonzero(simple), np.flatnonzero(~simple)
    of_plain = np.concatenate([of_simple, of_others[queried]])
    of_rest = np.concatenate([of_plain[odd], of_others[~queried]])
    problems: dict[int, str] = {}
    parsed: list[tuple[str | None, str | None]] = []
    for i, url in zip(of_rest.tolist(), rest.to_pylist(), strict=True):
        try:
            parsed.append(canonicalize(url or ""))
        except BadURL as problem:
            problems[i] = str(problem)
            parsed.append((None, None))
    order = np.empty(len(urls), np.int64)
    order[of_plain] = np.arange(len(plain))
    order[of_rest] = np.arange(len(rest)) + len(plain)
    first = plain, canonical, host
    second = rest, *(pa.array([pair[k] for pair in parsed], pa.string()) for k in (0, 1))
    urls, canonical, host = (pa.concat_arrays(parts).take(pa.array(order)) for parts in zip(first, second, strict=True))
    return urls, canonical, host, problems


def _mask(values: pa.BooleanArray) -> np.ndarray:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)


def _short(urls: pa.StringArray) -> pa.BooleanArray:
    return pc.less_equal(pc.binary_length(urls), MAX_LENGTH)


def _unescaped(urls: pa.StringArray) -> pa.StringArray:
    """As `urls.unescaped`."""
    return pc.replace_substring_regex(pc.ascii_trim(urls, SPACE), "&(?:amp;)+", "&")


def _canonicalize_plain(urls: pa.StringArray) -> tuple[pa.StringArray, pa.StringArray, np.ndarray]:
    """(canonical URLs, hosts, which of both are wrong) of URLs of the form SCHEME://HOST/REST."""
    parts = pc.split_pattern(pc.ascii_rtrim(urls, "/"), "/", max_splits=3)
    starts = parts.offsets.to_numpy()
    rest = parts.values.take(pa.array(starts[:-1] + 3, mask=np.diff(starts) < 4))
    hosts = pc.dictionary_encode(parts.values.take(pa.array(starts[:-1] + 2)))
    known = pc.replace_substring_regex(hosts.dictionary, r"^www\.", "")
    wrong = pc.or_(pc.starts_with(known, "www."), pc.invert(pc.match_substring(known, ".")))  # www.www.x.org, www.com
    wrong = _mask(pc.or_(wrong, pc.greater(pc.binary_length(known), 63)))  # whose labels may be too long
    host = known.take(hosts.indices)
    canonical = pc.binary_join_element_wise("https:/", host, rest, "/", null_handling="replace")
    return canonical, host, wrong[hosts.indices.to_numpy()]
