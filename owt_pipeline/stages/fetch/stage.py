"""`fetch`: the page of every URL, live or from archives, in WARC files, or why there is none.

    index      archive files of --pages_from        -> the places of their captures
    captures   the captures of a range of shards    -> one file of them, by shard
    bounds     the files of Common Crawl's index    -> the least and the greatest key of each
    ask_1      the sources before the first gathered one -> the URLs of a shard without a page
    gather_1   the first gathered source            -> the results of the URLs of all shards
    ask_2, gather_2   the same for the second gathered source
    shards     the other sources                    -> pages/ and rejects of a shard

A single part queries a gathered source for the URLs of many shards: Common Crawl's index
is read once for all of them, and the Wayback Machine limits the requests of a machine.
"""

from __future__ import annotations

import dataclasses
import importlib
import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from itertools import chain
from typing import Any

from owt_pipeline.engine.generations import PAGES_FLAG
from owt_pipeline.engine.stage import (
    SHARDS,
    Recorded,
    Runtime,
    Stage,
    StageRun,
    Step,
    Summary,
    rows_of_input,
    sent_keys,
)
from owt_pipeline.errors import UsageError
from owt_pipeline.ledger.commit import ShardWriter
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.exchange import Slice
from owt_pipeline.stages.fetch.options import SHARDS_TOGETHER, Options, archives_of, shaping_of
from owt_pipeline.stages.fetch.page_sources import GATHERED, LATER, PAGE_SOURCES
from schemas.manifest import PAGES, Root, ShardRecord

_PROXY = re.compile(r"https?://([^@/]+@)?[^@/]+:\d+/?")
# The kind of a source whose links are the addresses of the records of a WARC file.
_WARC = "warc"
USER_AGENT_EXAMPLE = "'my-crawl/1.0 (+mailto:me@example.org)'"

READ_AT_ONCE = 4
"""Parts that read the index at once. Each holds columns of a row group, 100 MB of Common
Crawl's."""


def _work(
    function: str,
    run: StageRun,
    key: int,
    slices: Sequence[Slice],
    writer: ShardWriter,
    **arguments: int,
) -> None:
    """Do the work of a step by a function of this room, written as `module:name`.

    The modules import an HTTP client, for 0.2 s. So a run whose fetch is finished does not wait.
    """
    module, _, name = function.partition(":")
    work = getattr(importlib.import_module(f"{__package__}.{module}"), name)
    work(run, key, slices, writer, **arguments)


def _num_together(run: StageRun) -> int:
    """Return the shards at once in one process, which wait for the network.

    With archive files only, nothing waits: the pool makes shards.
    """
    numbers = {run.root.generation_number_of(shard) for shard in run.plan.pending}
    for number in numbers:
        options = run.stage.options_of_generation(run.options, run.root, number)
        if options.is_online:
            return SHARDS_TOGETHER
    return 0


def _index_parts(run: StageRun) -> range:
    """Return the keys of the parts that index archive files."""
    return range(run.properties["index_parts"])


def _ranges_of_shards(run: StageRun) -> range:
    """Return the ranges of shards that captures are sent to, if there are archive files."""
    num_shards = run.num_shards if run.properties["archives"] else 0
    return range(math.ceil(num_shards / run.properties["shards_of_range"]))


def _one_part_with_index(run: StageRun) -> range:
    """Return the only key, if there is an index of Common Crawl."""
    return range(1 if run.properties.get("cc_files") else 0)


def _unfinished_shards(run: StageRun, *, number: int) -> list[int]:
    """Return the shards to make, if there is a gathered source of this number."""
    if not run.options.gathered[number]:
        return []
    shards = sorted(run.plan.pending)
    return [shard for shard in shards if run.record_path(SHARDS, shard).find()[0] is None]


def _steps_of_gathered_source(number: int) -> tuple[Step, Step]:
    """Return the steps that query the gathered source of this number, if there is one."""
    query = Step(
        partial(_work, "shards:send_missing", number=number),
        f"ask_{number + 1}",
        keys=partial(_unfinished_shards, number=number),
        rows=rows_of_input,
        max_concurrent=_num_together,
    )
    gather = Step(
        partial(_work, "shards:query_gathered", number=number),
        f"gather_{number + 1}",
        keys=sent_keys,
        max_concurrent=READ_AT_ONCE,
    )
    return query, gather


def _check_sources(options: Options) -> None:
    """Raise UserError for a source without its options, and for options without their source."""
    if bool(options.cc_index) != bool(options.cc_crawls):
        raise UsageError(
            "--cc_index and --cc_crawls go together: give the columnar index, and its crawls "
            "to search"
        )
    if bool(options.cc_index) != ("commoncrawl" in options.order):
        raise UsageError("--cc_index and --sources commoncrawl go together")
    if options.cc_index and not options.cc_data:
        # Raises if there is no such root.
        _ = options.index_root


def _check_user_agent(options: Options) -> None:
    """Raise UsageError for a User-Agent without an address to write to, or that cannot be sent."""
    agent = options.user_agent
    has_contact = "@" in agent or "://" in agent
    if options.is_online and not has_contact:
        problem = f"{agent!r} has no contact address" if agent else "missing"
        raise UsageError(
            f"--user_agent: {problem}; give a name and a contact address, as in "
            f"{USER_AGENT_EXAMPLE}"
        )
    has_name = bool(agent.partition("/")[0].strip())
    is_sendable = agent.isascii() and agent.isprintable() and has_name
    if agent and not is_sendable:
        raise UsageError(f"--user_agent: {agent!r} is not plain text such as {USER_AGENT_EXAMPLE}")


class Fetch(Stage):
    """Fetch the page of each URL of urls/: over HTTP, from WARC files, from Common Crawl or from
    the Wayback Machine. Writes the responses to warc/, a row for each page to pages/, and a reject
    row with a reason for each URL without a page.
    """

    name = "fetch"
    inputs = ("urls",)
    output = "pages"
    options = Options
    version = 13
    libraries = ("isal",)
    steps = (
        Step(partial(_work, "archives.warc_files:index_archives"), "index", keys=_index_parts),
        Step(
            partial(_work, "archives.warc_files:write_captures"), "captures", keys=_ranges_of_shards
        ),
        Step(
            partial(_work, "archives.commoncrawl:read_bounds"),
            "bounds",
            keys=_one_part_with_index,
            max_concurrent=1,
        ),
        *chain.from_iterable(map(_steps_of_gathered_source, range(len(GATHERED)))),
        Step(partial(_work, "shards:fetch_part"), rows=rows_of_input, max_concurrent=_num_together),
    )
    example = "owt run run --until fetch --pages_from 'archives/*.warc.gz'"

    def key_options(self, options: Options) -> dict[str, Any]:
        """Return the sources of pages of a generation, and their options.

        Options of other sources are left out, so that a change of them does not rebuild anything.
        """
        # The key has the digests of later sets.
        named = [name for name in options.order if name in PAGE_SOURCES]
        return {**shaping_of(options, options.order), "sources": named}

    def options_of_generation(self, options: Options, root: Root, number: int) -> Options:
        """Return the options with the archive files of the generation, and its sources of pages.

        By default, a generation with archive files takes its pages from them, and every other one
        from the web. If the files contain the run's links, the web also has the pages of the
        generation's other links. Later sets come last, so that they are searched for the URLs that
        have no page. Raises UsageError without the User-Agent that the sources need.
        """
        generation = root.generations[number]
        uris = tuple(source["uri"] for source in generation.pages)
        sources = options.sources
        if uris and not sources:
            warcs: set[str] = set()
            for each_generation in root.generations:
                links = each_generation.links
                warcs.update(source["uri"] for source in links if source["kind"] == _WARC)
            has_other_links = any(source["kind"] != _WARC for source in generation.links)
            sources = ("archive",)
            if has_other_links and warcs.issuperset(uris):
                sources = ("archive", "live")
        if not uris and len(sources) > 1:
            # A source without files has no page, so naming it does not rebuild earlier months.
            sources = tuple(source for source in sources if source != "archive")
        of_generation = dataclasses.replace(options, pages_from=uris, sources=sources)
        if not options.sources or "archive" in options.sources:
            later = [f"{LATER}{number + 1}" for number in range(len(generation.later))]
            of_generation = dataclasses.replace(
                of_generation, sources=(*of_generation.order, *later)
            )
        _check_user_agent(of_generation)
        return of_generation

    @property
    def flags(self) -> Mapping[str, str]:
        """Return the flag that names archive files."""
        return {PAGES: PAGES_FLAG}

    def sources(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return the archive files that `--pages_from` names."""
        if options.pages_from:
            return archives_of(options, recorded)
        if "archive" in options.order and not recorded:
            raise UsageError("--sources archive: give the WARC files with --pages_from")
        return []

    def external_inputs(self, options: Options, recorded: Recorded = ()) -> list[dict[str, Any]]:
        """Return nothing: the generations have the archive files.

        Raises UserError for impossible options, before a run starts.
        """
        _check_sources(options)
        if options.proxy and not _PROXY.fullmatch(options.proxy):
            raise UsageError(
                f"--proxy: {options.proxy!r} is not http://HOST:PORT or https://HOST:PORT"
            )
        # The import takes .2 s, and the stage may be finished.
        if options.resolve:
            from owt_pipeline.stages.fetch.web.addresses import parse_rules

            parse_rules(options.resolve)
        return []

    def shard_history(
        self, options: Options, root: Root, inputs: Mapping[str, DatasetReader], shard: int
    ) -> dict[str, Any]:
        """Return how often its failed or lost URLs were requested again."""
        return {"rounds": root.rounds.get(str(shard))}

    def update_root(self, options: Options, root: Root, runtime: Runtime) -> Root:
        from owt_pipeline.stages.fetch.rounds import start_retry_rounds

        return start_retry_rounds(options, root, runtime)

    def set_up(self, run: StageRun) -> Summary:
        from owt_pipeline.stages.fetch.shards import set_up

        return set_up(run)

    def finish(self, run: StageRun, records: Sequence[ShardRecord]) -> Summary:
        from owt_pipeline.stages.fetch.shards import finish

        return finish(run, records)


STAGE = Fetch()
