"""What `--retry_failed` asks for again: the URLs of finished shards whose failures time may mend.

The launcher names their shards in a list of the working directory, `retried.json`, with the round of each. So the plan
differs from what is finished, as after a takedown, and these shards are made again; whoever interrupts them continues,
with or without the flag. All other outcomes are those of the dataset that is there until the new one is published.
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

from owt_pipeline.errors import Superseded, UserError
from owt_pipeline.fetch.answers import INDEXED, Answer, NoPage, Page
from owt_pipeline.ledger.bases import RETRIED, begin_revision
from owt_pipeline.ledger.dataset import DatasetReader, is_discarded, read_manifest
from owt_pipeline.ledger.plan import Plan
from owt_pipeline.storage.folder import Storage
from schemas import Reason
from schemas.reasons import TEMPORARY

if TYPE_CHECKING:
    from owt_pipeline.engine.stage import StageRun
    from owt_pipeline.fetch.stage import Options
    from schemas.manifest import Manifest

logger = logging.getLogger("owt")


def mark_failed(options: Options, workdir: Storage, manifest: Manifest) -> bool:
    """Name the shards of finished `pages/` that have failures which time may mend; whether there are any, and the
    options ask for it. The process must hold the lease."""
    if not options.retry_failed:
        return False
    if is_discarded(workdir, manifest.dataset):
        raise UserError(
            f"--retry_failed: {workdir}/{manifest.dataset} was discarded, and with it the pages that would stay: "
            f"`owt discard fetch --undo --workdir {workdir}` lets the next run fetch all of them"
        )
    counts = {
        record.shard: sum(count for reason, count in record.counts.rejected.items() if Reason.of(reason) in TEMPORARY)
        for record in DatasetReader(workdir, manifest).table_of_files.records
    }
    failed = {shard: count for shard, count in counts.items() if count}
    logger.info("fetch: --retry_failed: %s URLs of %d shards failed in a way that time may mend",
                f"{sum(failed.values()):,}", len(failed))  # fmt: skip
    if failed:
        begin_revision(workdir, "--retry_failed")
        rounds = _rounds(workdir)
        rounds |= {str(shard): rounds.get(str(shard), 0) + 1 for shard in failed}
        workdir.write(RETRIED, json.dumps(rounds, sort_keys=True).encode())
    return bool(failed)


def rounds_of_shards(workdir: Storage, _: Mapping[str, DatasetReader]) -> Callable[[int], int | None]:
    """How often a shard was retried; None for never."""
    rounds = _rounds(workdir)
    return lambda shard: rounds.get(str(shard))


def _rounds(workdir: Storage) -> dict[str, int]:
    rounds: dict[str, int] = json.loads(workdir.read(RETRIED)) if workdir.exists(RETRIED) else {}
    return rounds


def outcomes_that_stay(run: StageRun, shard: int) -> Outcomes | None:
    """The outcomes of a shard that a retry leaves as they are; None where all of it is made for the first time.

    Raises Superseded where the retry was published meanwhile.
    """
    if str(shard) not in _rounds(run.workdir):
        return None
    if (manifest := read_manifest(run.workdir, run.stage.output)) is None:
        return None
    earlier = Plan.of_manifest(manifest, [])
    is_retried = earlier.sources != run.plan.sources and _apart_from_rounds(earlier) == _apart_from_rounds(run.plan)
    if run.is_superseded():
        raise Superseded(f"{run.workdir}/{run.stage.output} was published")
    return Outcomes(DatasetReader(run.workdir, manifest), shard) if is_retried else None


def _apart_from_rounds(plan: Plan) -> tuple[object, ...]:
    others = [source for source in plan.sources if source.get("name") != RETRIED]
    return plan.stage_version, plan.options, plan.inputs, plan.num_shards, others


class Outcomes:
    """The outcomes of a finished shard of `pages/` that time does not mend.

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
        """Where some of the pages are on the web."""
        live = self._pages.filter(pc.equal(self._pages["source"], "live"))
        found: list[str] = live["final_url"][:3].to_pylist()
        return found

    def answers(self, ids: pa.Array) -> dict[int, Answer]:
        """Those of some URLs, with the records of their pages."""
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
