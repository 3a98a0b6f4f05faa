"""The alarm: a cluster, or a host, so large that it is rather a mistake than duplicates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from urllib.parse import urlsplit

import msgspec
import numpy as np

from owt_pipeline.engine.errors import UserError

LEAST_DOCUMENTS = 1000
"""Fewer raise no alarm, whatever their share."""

_SHOWN_CHARACTERS = 100
_SAMPLE = 5
_CLUSTERS = 10
_HOSTS = 1000  # of a group: so a thousandth of the corpus at most is missing where hosts are added up


class Cluster(msgspec.Struct, frozen=True):
    """Documents that repeat one.

    Attributes:
      kept_url_id: of the document that stays.
      kept_shard: of that document.
      documents: how many there are, it included.
      sample: the numbers of some that go.
    """

    kept_url_id: int
    kept_shard: int
    documents: int
    sample: list[int]


class Host(msgspec.Struct, frozen=True):
    """A host, how many documents of its go, and the numbers of some of them."""

    host: str
    documents: int
    sample: list[int]


class Largest(msgspec.Struct, frozen=True):
    """The largest clusters, and the hosts of most documents that go, largest first."""

    clusters: list[Cluster]
    hosts: list[Host]


def find_largest(
    documents: np.ndarray, hosts: Sequence[str], kept_url_id: np.ndarray, kept_shard: np.ndarray
) -> Largest:
    """Of the documents that go, each by its number (in order) and host, in favour of which other document."""
    kept, first, cluster, gone = np.unique(kept_url_id, return_index=True, return_inverse=True, return_counts=True)
    clusters = [
        Cluster(int(kept[i]), int(kept_shard[first[i]]), int(gone[i]) + 1, documents[cluster == i][:_SAMPLE].tolist())
        for i in np.argsort(-gone, kind="stable")[:_CLUSTERS].tolist()
    ]
    count = Counter(host for host in hosts if host)
    most = sorted(count, key=lambda host: (-count[host], host))[:_HOSTS]
    sample: dict[str, list[int]] = {host: [] for host in most}
    for host, document in zip(hosts, documents.tolist(), strict=True):
        if host in sample and len(sample[host]) < _SAMPLE:
            sample[host].append(document)
    return Largest(clusters, [Host(host, count[host], sample[host]) for host in most])


def merge(found: Iterable[Largest]) -> Largest:
    """The largest of all components, from those of some each."""
    clusters: list[Cluster] = []
    count: Counter[str] = Counter()
    sample: dict[str, list[int]] = {}
    for largest in found:
        clusters += largest.clusters
        for host in largest.hosts:
            count[host.host] += host.documents
            sample[host.host] = sorted([*sample.get(host.host, []), *host.sample])[:_SAMPLE]
    clusters.sort(key=lambda cluster: (-cluster.documents, cluster.kept_url_id))
    most = sorted(count, key=lambda host: (-count[host], host))
    return Largest(clusters[:_CLUSTERS], [Host(host, count[host], sample[host]) for host in most])


def check(
    what: str, option: str, documents: int, corpus: int, share: float, sample: Callable[[], list[tuple[str, str]]]
) -> None:
    """Raise UserError where `documents` that repeat others, all of one kind, exceed their share of the corpus.

    Args:
      what: the kind, for the message.
      option: the option that the share is from.
      documents: how many there are.
      corpus: documents of the corpus.
      share: how many may be.
      sample: gives (URL, text) of some of them.
    """
    if documents < LEAST_DOCUMENTS or documents <= share * corpus:
        return
    shown = "".join(f"\n  {url or '(no URL)'}: {_beginning(text)}" for url, text in sample())
    raise UserError(
        f"dedupe: {what} has {documents:,} documents that repeat others, {documents / corpus:.1%} of the corpus, more "
        f"than --{option} {share:g} allows. Often that is one page under many URLs (an error, a consent form) that "
        f"should have been rejected earlier. Some of them:{shown}\n"
        f"If they are to go, give a greater --{option} (1 allows all); the run goes on from here."
    )


def host_of(url: str | None) -> str:
    """The URL's host without `www.`; nothing for none."""
    return (urlsplit(url).hostname or "").removeprefix("www.") if url else ""


def _beginning(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "…"
