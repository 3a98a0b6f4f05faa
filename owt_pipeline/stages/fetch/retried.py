"""`--retry_failed`: requests the URLs of finished shards again that failed temporarily.

The root manifest counts the rounds of retries of each shard, which are part of its key. So the shard is made again, and
an interrupted retry continues with or without the flag. All other outcomes are taken from the earlier dataset.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from isal import isal_zlib

from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.fetch.answers import INDEXED, Answer, NoPage, Page
from schemas import Reason
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import Runtime, StageRun
    from owt_pipeline.stages.fetch.stage import Options
    from schemas.manifest import Root

logger = logging.getLogger("owt")


def raise_rounds(options: Options, root: Root, runtime: Runtime) -> Root:
    """The root with another round for each shard of finished `pages/` with temporary failures, if the options ask for
    it. A round that was begun counts as asked for, so a repeated call has no effect."""
    manifest = root.datasets.get("pages")
    if not options.retry_failed or manifest is None:
        return root
    failed = {}
    for record in DatasetReader(runtime.workdir, manifest).table_of_files.records:
        is_current = record.stats.get("round", 0) == root.rounds.get(str(record.shard), 0)
        count = sum(count for reason, count in record.counts.rejected.items() if Reason.of(reason) in TEMPORARY)
        if count and is_current:
            failed[str(record.shard)] = count
    logger.info("fetch: --retry_failed: %s URLs of %d shards failed temporarily and are requested again",
                f"{sum(failed.values()):,}", len(failed))  # fmt: skip
    rounds = root.rounds | {shard: root.rounds.get(shard, 0) + 1 for shard in failed}
    return msgspec.structs.replace(root, rounds=rounds)


def outcomes_that_stay(run: StageRun, shard: int) -> Outcomes | None:
    """The outcomes of a shard that a retry leaves as they are; None if the shard is made for the first time."""
    if run.before is None or str(shard) not in run.root.rounds:
        return None
    pages = DatasetReader(run.workdir, run.before)
    rows = {record.shard: record for record in pages.table_of_files.records}
    is_retried = shard in rows and rows[shard].made_from == run.made_from[shard] and shard not in run.gone
    return Outcomes(pages, shard) if is_retried else None


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
