"""What the report counts rows by, where there may be many: domains and subreddits."""

from __future__ import annotations

import functools

import pyarrow as pa
import pyarrow.compute as pc


def host_of(urls: pa.Array) -> pa.Array:
    """The hosts of canonical URLs; null where there is none."""
    return pc.struct_field(pc.extract_regex(urls, r"^https://(?P<host>\[[^\]]*\]|[^/:]*)"), "host")


def keys_of(dataset: str, batch: pa.RecordBatch) -> dict[str, pa.Array]:
    """The domains and subreddits of rows of urls/ or corpus/."""
    hosts = batch["host"] if dataset == "urls" else host_of(batch["url"])
    return {f"{dataset}/domain": hosts, f"{dataset}/subreddit": pc.list_flatten(batch["subreddits"])}


@functools.lru_cache(maxsize=1 << 16)
def site_of(host: str) -> str | None:
    """What a host is called before its public suffix: `bbc` of news.bbc.co.uk; None of an address, or a single name.

    That is how OpenAI's list of WebText's domains names them. The suffixes are those of the Public Suffix List
    that comes with the package tld; where it knows none, the last label counts as one, as the list's rules say.
    """
    from tld import get_tld

    found = get_tld(f"https://{host}", as_object=True, fail_silently=True, search_private=False)
    if found is not None:
        return getattr(found, "domain", None) or None
    labels = host.split(".")
    return labels[-2] if len(labels) > 1 and not labels[-1].isdigit() else None
