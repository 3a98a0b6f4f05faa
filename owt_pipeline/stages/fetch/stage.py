"""fetch: the page of every URL, live or from archives, in WARC files, or why there is
none."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from owt_pipeline.engine.stage import (
    SHARDS,
    Recorded,
    Runtime,
    Stage,
    StageRun,
    Step,
    Summary,
    rows_of_input,
    what_was_sent,
)
from owt_pipeline.errors import UsageError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.fetch.options import SHARDS_TOGETHER, Options, archives_of, shaping_of
from schemas.manifest import Root, ShardRecord

_PROXY = re.compile(r"https?://([^@/]+@)?[^@/]+:\d+/?")
USER_AGENT_EXAMPLE = "'my-crawl/1.0 (+mailto:me@example.org)'"

READ_AT_ONCE = 4
"""Parts that read the index at once; each holds columns of a row group, 100 MB of Common
Crawl's."""


# The modules of the work import an HTTP client, for 0.2 s. Each step imports what it needs, so
# that a run whose fetch is finished does not wait for them.


def _index_archive(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.stages.fetch.archives.warc_files import index_archive

    index_archive(run, number, _, writer)


def _read_bounds(run: StageRun, number: int, _: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.stages.fetch.archives.commoncrawl import read_bounds

    read_bounds(run, number, _, writer)


def _send_missing(
    run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter, *, number: int
) -> None:
    from owt_pipeline.stages.fetch.shards import send_missing

    send_missing(run, shard, slices, writer, number)


def _ask_gathered(
    run: StageRun, key: int, slices: Sequence[Slice], writer: ShardWriter, *, number: int
) -> None:
    from owt_pipeline.stages.fetch.shards import ask_gathered

    ask_gathered(run, key, slices, writer, number)


def _fetch_part(run: StageRun, shard: int, slices: Sequence[Slice], writer: ShardWriter) -> None:
    from owt_pipeline.stages.fetch.shards import fetch_part

    fetch_part(run, shard, slices, writer)


def _together(run: StageRun) -> int:
    """Shards at once in one process, which wait for the network; with archive files alone, the
    pool makes shards."""
    return 0 if run.options.order == ("archive",) else SHARDS_TOGETHER


def _archive_files(run: StageRun) -> range:
    return range(len(run.properties.get("archives", ())))


def _index_files(run: StageRun) -> range:
    return range(len(run.properties.get("cc_files", ())))


def _shards_to_ask(number: int) -> Callable[[StageRun], list[int]]:
    """Shards that are not finished, if there is a gathered source of this number."""

    def shards(run: StageRun) -> list[int]:
        make = sorted(run.plan.make) if run.options.gathered[number] else ()
        return [shard for shard in make if run.place(SHARDS, shard).find()[0] is None]

    return shards


class Fetch(Stage):
    """Fetch the page of each URL of urls/, over HTTP, from WARC files, or from Common Crawl or
    the Wayback Machine. Writes the responses to warc/, which is kept for good, pages/ with a row
    for each page, and a reject row with a reason for each URL without a page.
    """

    name = "fetch"
    inputs = ("urls",)
    output = "pages"
    options = Options
    version = 9
    libraries = ("fastwarc", "isal")
    steps = (
        Step(_index_archive, "index", keys=_archive_files),
        Step(
            _read_bounds,
            "bounds",
            keys=lambda run: _index_files(run)[:1],
            together=1,
        ),
        Step(
            partial(_send_missing, number=0),
            "ask_1",
            _shards_to_ask(0),
            rows_of_input,
            together=_together,
        ),
        Step(
            partial(_ask_gathered, number=0), "gather_1", keys=what_was_sent, together=READ_AT_ONCE
        ),
        Step(
            partial(_send_missing, number=1),
            "ask_2",
            _shards_to_ask(1),
            rows_of_input,
            together=_together,
        ),
        Step(
            partial(_ask_gathered, number=1), "gather_2", keys=what_was_sent, together=READ_AT_ONCE
        ),
        Step(_fetch_part, rows=rows_of_input, together=_together),
    )
    example = "owt run run --until fetch --pages_from 'archives/*.warc.gz'"

    def shaping(self, options: Options) -> dict[str, Any]:
        """With the sources that are asked, and without the options of others: pages of the web
        are not fetched again because of them."""
        return {**shaping_of(options, options.order), "sources": list(options.order)}

    def outside(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """The archive files; raises UserError for impossible options, before an earlier run's
        pages are deleted."""
        if "archive" in options.order and not options.pages_from:
            raise UsageError("--sources archive: give the WARC files with --pages_from")
        if bool(options.cc_index) != bool(options.cc_crawls):
            raise UsageError(
                "--cc_index and --cc_crawls go together: give the columnar index, and its crawls "
                "to search"
            )
        if bool(options.cc_index) != ("commoncrawl" in options.order):
            raise UsageError("--cc_index and --sources commoncrawl go together")
        if options.cc_index and not options.cc_data:
            _ = options.index_root
        agent = options.user_agent
        if options.order != ("archive",) and not ("@" in agent or "://" in agent):
            found = f"{agent!r} has no contact address" if agent else "missing"
            raise UsageError(
                f"--user_agent: {found}; give a name and a contact address, as in "
                f"{USER_AGENT_EXAMPLE}"
            )
        if agent and not (
            agent.isascii() and agent.isprintable() and agent.partition("/")[0].strip()
        ):
            raise UsageError(
                f"--user_agent: {agent!r} is not plain text such as {USER_AGENT_EXAMPLE}"
            )
        if options.proxy and not _PROXY.fullmatch(options.proxy):
            raise UsageError(
                f"--proxy: {options.proxy!r} is not http://HOST:PORT or https://HOST:PORT"
            )
        if options.resolve:  # only then: the import is slow, and the stage may be finished
            from owt_pipeline.stages.fetch.web.addresses import parse_rules

            parse_rules(options.resolve)
        return archives_of(options, recorded)

    def of_shard(
        self, options: Options, root: Root, inputs: Mapping[str, DatasetReader], shard: int
    ) -> Any:
        """How often its failed or lost URLs were asked for again."""
        return root.rounds.get(str(shard))

    def begin(self, options: Options, root: Root, runtime: Runtime) -> Root:
        from owt_pipeline.stages.fetch.segments import start_retry_rounds

        return start_retry_rounds(options, root, runtime)

    def set_up(self, run: StageRun) -> Summary:
        from owt_pipeline.stages.fetch.shards import set_up

        return set_up(run)

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        from owt_pipeline.stages.fetch.shards import finish

        return finish(run, records)


STAGE = Fetch()
