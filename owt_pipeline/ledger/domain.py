"""What became of a domain's URLs, stage by stage."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.ledger.find import arrow_ids

_EXAMPLES = 3


def summary(readers: Mapping[str, DatasetReader], domain: str) -> dict[str, Any] | None:
    """The funnel of the URLs whose host is `domain` or below it, or None where no stage has heard of any.

    The result has `domain`, `hosts` (URLs by host, the ten with most), `stages` (for each, `kept`, `rejected` by
    reason), `examples` (some URLs, by `kept` and by reason) and, where there are tokens, `tokens`.
    """
    pattern = rf"^https://([^/:]*\.)?{re.escape(domain)}(:[0-9]+)?/"
    hosts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    stages: list[dict[str, Any]] = []
    ids: dict[int, np.ndarray] | None = None  # of the URLs that entered, by shard
    tokens = None
    for name, reader in readers.items():
        kept: dict[int, np.ndarray] = {}
        rejected: Counter[str] = Counter()
        for shard in range(reader.num_shards):
            if ids is not None and not len(ids.get(shard, ())):
                continue
            if name == "tokens":
                kept[shard], count = _tokens(reader, shard, ids)
                tokens = (tokens or 0) + count
            else:
                kept[shard], urls = _ids(reader, shard, pattern, ids)
                hosts.update(re.sub("^https://|[:/].*$", "", url) for url in urls)
            for reason, urls in _rejects(reader, shard, pattern, ids).items():
                rejected[reason] += len(urls)
                examples.setdefault(reason, []).extend(urls[: _EXAMPLES - len(examples.get(reason, ()))])
        if ids is None:
            ids = kept
        if name == "duplicates":
            left = sum(map(len, ids.values())) - sum(map(len, kept.values()))
            stages.append({"stage": "dedupe", "kept": left, "rejected": {}})
            continue
        count = sum(map(len, kept.values()))
        stages.append({"stage": reader.manifest.stage, "kept": count, "rejected": dict(rejected.most_common())})
        ids = kept
    if not any(stage["kept"] or stage["rejected"] for stage in stages):
        return None
    for name in ("corpus", "clean", "documents", "pages", "urls"):
        if name in readers and ids is not None and (shown := _urls(readers[name], pattern, ids)):
            examples = {"kept": shown, **examples}
            break
    found = {"domain": domain, "hosts": dict(hosts.most_common(10)), "stages": stages, "examples": examples}
    return found | ({"tokens": tokens} if tokens is not None else {})


def _ids(
    reader: DatasetReader, shard: int, pattern: str, ids: dict[int, np.ndarray] | None
) -> tuple[np.ndarray, list[str]]:
    """Ids of the shard's rows that are the domain's; and their URLs, in the dataset that is looked at first."""
    found, urls = [np.zeros(0, np.uint64)], []
    columns = ["url_id"] if ids is not None else ["url_id", "url"]
    for batch in reader.batches(shard, columns=columns, rows=1 << 16):
        if ids is None:
            batch = batch.filter(pc.fill_null(pc.match_substring_regex(batch["url"], pattern), False))
            urls += batch["url"].to_pylist()
            found.append(batch["url_id"].to_numpy())
        else:
            here = batch["url_id"].to_numpy()
            found.append(here[np.isin(here, ids[shard])])
    return np.concatenate(found), urls


def _tokens(reader: DatasetReader, shard: int, ids: dict[int, np.ndarray] | None) -> tuple[np.ndarray, int]:
    found, tokens = [np.zeros(0, np.uint64)], 0
    for file in reader.files("data", shard):
        for batch in arrow_ids(reader, file):
            here = batch["url_id"].to_numpy()
            ours = np.isin(here, ids[shard]) if ids is not None else np.zeros(len(here), bool)
            found.append(here[ours])
            tokens += int(batch["n_tokens"].to_numpy()[ours].sum())
    return np.concatenate(found), tokens


def _rejects(
    reader: DatasetReader, shard: int, pattern: str, ids: dict[int, np.ndarray] | None
) -> dict[str, list[str]]:
    """URLs of the shard's rejects that are the domain's, by reason."""
    found: dict[str, list[str]] = {}
    columns = ["url_id", "url", "reason"]
    for batch in reader.batches(shard, kind="rejects", columns=columns, rows=1 << 16):
        if ids is None:
            ours = pc.fill_null(pc.match_substring_regex(batch["url"], pattern), False)
        else:
            ours = pa.array(np.isin(batch["url_id"].to_numpy(), ids[shard]))
        mine = batch.filter(ours)
        for reason, url in zip(mine["reason"].to_pylist(), mine["url"].to_pylist(), strict=True):
            found.setdefault(reason, []).append(url)
    return found


def _urls(reader: DatasetReader, pattern: str, ids: dict[int, np.ndarray]) -> list[str]:
    """The first few URLs of those ids."""
    urls: list[str] = []
    for shard, wanted in ids.items():
        if len(wanted):
            for batch in reader.batches(shard, columns=["url_id", "url"], rows=1 << 16):
                mine = batch.filter(pa.array(np.isin(batch["url_id"].to_numpy(), wanted)))
                urls += mine["url"].to_pylist()[: _EXAMPLES - len(urls)]
                if len(urls) == _EXAMPLES:
                    return urls
    return urls
