"""Query parameters that track readers, by tracking_parameters.txt, and that name no other page."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files


def without_tracking(query: str, host: str) -> str:
    """Return a query without empty fields and tracking parameters."""
    names_of_host = _names_of_host(host)
    kept = []
    for field in query.split("&"):
        name = field.partition("=")[0]
        if field and not _is_tracking(name) and name.lower() not in names_of_host:
            kept.append(field)
    return "&".join(kept)


@dataclass(frozen=True)
class _TrackingParameters:
    """Names of tracking parameters, in lower case.

    Attributes:
      prefixes: beginnings of names, on all hosts.
      names: names on all hosts; a final `*` marks a prefix.
      names_by_domain: names on the hosts of a domain.
    """

    prefixes: tuple[str, ...]
    names: frozenset[str]
    names_by_domain: Mapping[str, frozenset[str]]


@cache
def _tracking_parameters() -> _TrackingParameters:
    names_by_domain: defaultdict[str, set[str]] = defaultdict(set)
    text = files("owt_pipeline.formats").joinpath("tracking_parameters.txt").read_text("utf-8")
    for line in text.split("\n"):
        if line and not line.startswith("#"):
            domain, _, names = line.rpartition(": ")
            names_by_domain[domain].update(names.split())
    # Lines without a domain are for all hosts.
    general = names_by_domain.pop("")
    return _TrackingParameters(
        prefixes=tuple(name[:-1] for name in general if name.endswith("*")),
        names=frozenset(general),
        names_by_domain={domain: frozenset(names) for domain, names in names_by_domain.items()},
    )


@cache
def tracking_pattern() -> str:
    """Return a regular expression for a tracking parameter, of any domain.

    It matches in a query in lower case.
    """
    parameters = _tracking_parameters()
    names = parameters.names.union(*parameters.names_by_domain.values())
    patterns = [re.escape(name).replace(r"\*", "[^=&]*") for name in sorted(names)]
    return f"[?&](?:{'|'.join(patterns)})(?:[=&]|$)"


@lru_cache(1 << 14)
def _is_tracking(name: str) -> bool:
    """Return whether a parameter of this name tracks readers on every host."""
    parameters = _tracking_parameters()
    name = name.lower()
    return name in parameters.names or name.startswith(parameters.prefixes)


@lru_cache(1 << 14)
def _names_of_host(host: str) -> frozenset[str]:
    """Return the tracking parameters of a host and of the domains above it."""
    names_by_domain = _tracking_parameters().names_by_domain
    labels = host.split(".")
    names: set[str] = set()
    for start in range(len(labels) - 1):
        names.update(names_by_domain.get(".".join(labels[start:]), ()))
        num_labels = len(labels) - start
        # `amazon.*` is for amazon.com and amazon.co.uk.
        has_short_suffix = num_labels == 3 and len(labels[-2]) <= 3
        if num_labels == 2 or has_short_suffix:
            names.update(names_by_domain.get(f"{labels[start]}.*", ()))
    return frozenset(names)
