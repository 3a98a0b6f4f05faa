"""`--retry_failed`: requests the URLs of finished shards again that failed temporarily.

The launcher lists these shards in the working directory, in `retried.json`, each with its number of retries. So the
plan differs from the finished dataset, as after a takedown, and the shards are made again; an interrupted retry
continues with or without the flag. All other outcomes are taken from the earlier dataset, which stays until the new one
is published.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from owt_pipeline.errors import Superseded
from owt_pipeline.ledger.bases import RETRIED, begin_revision
from owt_pipeline.ledger.dataset import DatasetReader, read_manifest
from owt_pipeline.ledger.plan import Plan
from owt_pipeline.stages.fetch.answers import INDEXED, Answer, NoPage, Page
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.stages.fetch.stage import Options
    from schemas.manifest import Manifest

logger = logging.getLogger("owt")


def mark_failed(options: Options, workdir: Storage, manifest: Manifest) -> bool:
    """List the shards of finished `pages/` with temporary failures, if the options ask for it; returns whether there
    are any. The process must hold the lease."""
    if not options.retry_failed:
        return False
    counts = {
        record.shard: sum(count for reason, count in record.counts.rejected.items() if Reason.of(reason) in TEMPORARY)
        for record in DatasetReader(workdir, manifest).table_of_files.records
    }
    failed = {shard: count for shard, count in counts.items() if count}
    logger.info("fetch: --retry_failed: %s URLs of %d shards failed temporarily and are requested again",
                f"{sum(failed.values()):,}", len(failed))  # fmt: skip
    if failed:
        begin_revision(workdir, "--retry_failed")
        rounds = _rounds(workdir)
        rounds |= {str(shard): rounds.get(str(shard), 0) + 1 for shard in failed}
        workdir.write(RETRIED, json.dumps(rounds, sort_keys=True).encode())
    return bool(failed)


def rounds_of_shards(workdir: Storage, _: Mapping[str, DatasetReader]) -> Callable[[int], int | None]:
    """A function that returns how often a shard was retried, or None for never."""
    rounds = _rounds(workdir)
    return lambda shard: rounds.get(str(shard))


def _rounds(workdir: Storage) -> dict[str, int]:
    rounds: dict[str, int] = json.loads(workdir.read(RETRIED)) if workdir.exists(RETRIED) else {}
    return rounds


def outcomes_that_stay(run: StageRun, shard: int) -> Outcomes | None:
    """The outcomes of a shard that a retry leaves as they are; None if the shard is made for the first time.

    Raises Superseded if the retry was published meanwhile.
    """
    if str(shard) not in _rounds(run.workdir):
        return None
    if (manifest := read_manifest(run.workdir, run.stage.output)) is None:
        return None
    earlier = Plan.of_manifest(manifest, [])
    lists = (RETRIED,)
    is_retried = earlier.sources != run.plan.sources and earlier.apart_from(lists) == run.plan.apart_from(lists)
    if run.is_superseded():
        raise Superseded(f"{run.workdir}/{run.stage.output} was published")
    return Outcomes(DatasetReader(run.workdir, manifest), shard) if is_retried else None


class Outcomes:
    """The outcomes of a finished shard of `pages/` but for temporary failures.

    Attributes:
      ids: their url_ids, ascending.
    """

    def __init__(self, pages: DatasetReader, shard: int):
        table = pages.table(shard, columns=["url_id", *INDEXED, "warc_offset", "warc_length"]).sort_by("warc_offset")
        rejects = pages.table(shard, kind="rejects", columns=["url_id", "reason", "detail"])
        is_mended = pc.is_in(rejects["reason"], value_set=pa.array(sorted(map(str, TEMPORARY))))
        self._rejects = rejects.filter(pc.invert(is_mended))
        ends = pc.add(table["warc_offset"], table["warc_length"]).combine_chunks().to_numpy()
        self._pages = table.append_column("begins", pa.array(np.append(np.uint64(0), ends)[: len(table)], pa.uint64()))
        self._workdir, self._warc = pages.workdir, pages.files("warc", shard)[0].path
        self.ids = np.sort(np.concatenate([each["url_id"].to_numpy() for each in (self._pages, self._rejects)]))

    def final_urls(self) -> list[str]:
        """The final URLs of some live pages."""
        live = self._pages.filter(pc.equal(self._pages["source"], "live"))
        found: list[str] = live["final_url"][:3].to_pylist()
        return found

    def answers(self, ids: pa.Array) -> dict[int, Answer]:
        """The outcomes of some URLs, by url_id, with the records of their pages."""
        rejects, pages = (each.filter(pc.is_in(each["url_id"], value_set=ids)) for each in (self._rejects, self._pages))
        found: dict[int, Answer] = {
            row["url_id"]: NoPage(Reason.of(row["reason"]), row["detail"]) for row in rejects.to_pylist()
        }
        with self._workdir.open(self._warc) as warc:
            for row in pages.to_pylist():
                warc.seek(row["begins"])
                before = list(_members(warc.read(row["warc_offset"] - row["begins"])))
                redirects = tuple(before[row["begins"] == 0 and bool(before) and _is_warcinfo(before[0]) :])
                record = warc.read(row["warc_length"])
                found[row["url_id"]] = Page(**{name: row[name] for name in INDEXED}, record=record, redirects=redirects)
        return found


def _members(data: bytes) -> Iterator[bytes]:
    """The gzip members of `data`."""
    while data:
        gzip = isal_zlib.decompressobj(31)
        gzip.decompress(data)
        end = len(data) - len(gzip.unused_data)
        yield data[:end]
        data = data[end:]


def _is_warcinfo(member: bytes) -> bool:
    return b"\r\nWARC-Type: warcinfo\r\n" in isal_zlib.decompress(member, 31)
