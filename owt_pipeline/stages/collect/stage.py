"""collect: Reddit dumps, Reddit's API, tables of links and WARC files become `urls/`."""

from __future__ import annotations

import logging
import math
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from owt_pipeline.engine.stage import Recorded, Runtime, Stage, StageRun, Step, Summary
from owt_pipeline.errors import UserError
from owt_pipeline.stages.collect.options import Options
from owt_pipeline.stages.collect.rules import describe_blocklists
from owt_pipeline.stages.collect.shards import (
    READ_KIND,
    SOURCES_STEP,
    bytes_by_part,
    merge_shard,
    read_part,
    sources_to_read,
)
from owt_pipeline.stages.collect.sources import (
    kind_named,
    kinds,
    list_sources,
    store_source,
)
from schemas.manifest import Root, ShardRecord

logger = logging.getLogger("owt")

# Few at once: .xz and .bz2 decompress slower than few processes parse, and a dump's window takes
# 2 GB.
_MAX_CONCURRENT_SOURCES = 4

_MIN_SHARDS = 8
_MAX_SHARDS = 1 << 15


def _max_concurrent_sources(run: StageRun) -> int:
    return min(_MAX_CONCURRENT_SOURCES, run.runtime.workers)


class Collect(Stage):
    """Collect URLs that people posted and voted up on Reddit, from monthly dumps, Reddit's API,
    tables of links or WARC files. Writes urls/ with one row per canonical URL. Each submission that
    is rejected or merged into another is a reject row with a reason.
    """

    name = "collect"
    output = "urls"
    options = Options
    version = 11
    libraries = ("msgspec", "idna", "xxhash", "duckdb", "tld")
    steps = (
        Step(
            read_part,
            SOURCES_STEP,
            keys=lambda run: range(len(sources_to_read(run)) + run.plan.num_settled),
            rows=bytes_by_part,
            unit="bytes",
            max_concurrent=_max_concurrent_sources,
        ),
        Step(merge_shard),
    )
    example = "owt run run --until collect --dumps 'dumps/RS_2013-*.zst' --num_shards 64"

    @property
    def flags(self) -> Mapping[str, str]:
        """Return the flag that names sources of each kind, also of the kinds of packages."""
        return {kind.name: f"--{kind.option}" for kind in kinds()}

    def sources(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return what identifies each source; raise UserError if a new run has none."""
        is_named = options.dumps or options.links or options.warcs or options.subreddits
        if not is_named and not recorded:
            raise UserError(
                "collect has nothing to read: give at least one of --dumps, --links, --warcs and "
                "--subreddits (or the same keys in the table [collect])"
            )
        return list_sources(options, recorded)

    def shards_for(self, options: Options, sources: Sequence[Any]) -> int:
        """Return the number of shards of a generation: a power of two, at least 8.

        With powers of two, a shard shares its hosts with as few shards of another generation as
        possible. `fetch` looks in these shards.
        """
        if options.num_shards is not None:
            return options.num_shards
        num_wanted = 0.0
        for source in sources:
            num_wanted += source.get("bytes", 0) / kind_named(source["kind"]).bytes_per_shard
        num_doublings = max(0, math.ceil(num_wanted / _MIN_SHARDS) - 1).bit_length()
        return min(_MIN_SHARDS << num_doublings, _MAX_SHARDS)

    def update_root(self, options: Options, root: Root, runtime: Runtime) -> Root:
        """Return the root with the responses of Reddit's API, stored once as sources."""
        generations = []
        for number, generation in enumerate(root.generations):
            sources = [
                store_source(source, number, options, runtime.workdir)
                for source in generation.links
            ]
            sources += generation.pages
            generations.append(msgspec.structs.replace(generation, sources=sources))
        return msgspec.structs.replace(root, generations=generations)

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return what identifies the lists of blocked domains."""
        return describe_blocklists(options.blocked_domains, recorded)

    def finish(self, run: StageRun, _: Sequence[ShardRecord]) -> Summary:
        """Return the damaged sources; warn of problems and of sources without a row.

        Sources of published generations are not read again, so their damage is taken from the
        published manifest.
        """
        read = []
        for record in run.records_of_step(SOURCES_STEP):
            for file in record.files:
                if file.kind == READ_KIND:
                    read.append(msgspec.json.decode(run.work.read(file.path)))
        for source in read:
            # The manifest keeps the rest.
            times = source.pop("times")
            if times:
                logger.warning("%s: %s", source["name"], times)
            if source["problem"] is not None:
                logger.warning("%s: %s", source["name"], source["problem"])
            elif not source["lines"]:
                logger.warning("%s has nothing to collect", source["name"])
        damaged = []
        if run.published and run.plan.num_settled:
            names_read = {source["name"] for source in read}
            damaged_before = run.published.properties.get("damaged", [])
            damaged += [source for source in damaged_before if source["name"] not in names_read]
        damaged += [source for source in read if source["problem"] is not None]
        return Summary(properties={"damaged": damaged} if damaged else None)


STAGE = Collect()
