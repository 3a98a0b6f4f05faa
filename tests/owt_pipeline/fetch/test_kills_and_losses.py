"""Kills and losses: whatever happens to a crawl, each URL has one outcome, the one that it has
without the event, and no answer that was kept is requested again."""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import shutil
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest

from owt_pipeline.engine.runner import run_stages
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.urls import canonical_url, id_of
from owt_pipeline.ledger.commit import lost_files
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import read_root, require_manifest
from owt_pipeline.stages.extract.stage import STAGE as EXTRACT
from owt_pipeline.stages.fetch.options import digest_of_source
from owt_pipeline.stages.fetch.recorder import ShardLease
from owt_pipeline.stages.fetch.segments import SegmentReader
from owt_pipeline.stages.fetch.stage import STAGE
from owt_pipeline.stages.fetch.web import live
from owt_pipeline.storage.disk import Disk
from owt_pipeline.storage.folder import Storage
from schemas.manifest import ShardFile, ShardRecord
from tests.owt_pipeline.fetch.conftest import write_urls_to
from tests.owt_pipeline.fetch.reading import records
from tests.owt_pipeline.fetch.test_live import fetch, options_for
from tests.owt_pipeline.one_process import forget_processes
from tests.owt_pipeline.runs import copy_of, drop
from tests.servers.web import DOMAIN, ROBOTS, Request, WebServer

HOSTS = [f"{kind}{number}" for kind in ("page", "moved", "missing", "busy") for number in (2, 3)]
URLS = [f"http://{host}.{DOMAIN}/{page}" for host in HOSTS for page in range(2)]
NUM_SHARDS = 2
SECONDS = 1_500_000_000

Outcomes = dict[str, Any]
"""By URL: the row of its page with the record, or the reason and detail of its reject."""


class Web:
    """A web with pages, redirects and missing pages. Some of its hosts are busy at first."""

    def __init__(self) -> None:
        self.is_up = False
        self.server = WebServer(dict.fromkeys(HOSTS, self._behave))

    async def _behave(self, request: Request) -> None:
        if request.host.startswith("busy") and not self.is_up:
            await request.answer(b"", 503, Retry_After="0")
        elif request.host.startswith("missing"):
            await request.answer(b"", 404)
        elif request.host.startswith("moved") and not request.path.startswith("/new"):
            await request.redirect(f"/new{request.path}")
        else:
            await request.answer()

    def requested(self) -> Counter[str]:
        """Return how often each URL was requested."""
        return Counter(
            {
                f"http://{host}.{DOMAIN}{path}": count
                for (host, path), count in self.server.requests.items()
                if path != ROBOTS and not path.startswith("/new")
            }
        )


class Crawl(NamedTuple):
    """A run that fetches URLS from a web."""

    web: Web
    runtime: Runtime

    @property
    def folder(self) -> Path:
        return Path(self.runtime.workdir.uri)

    def fetch(self, *, is_read: bool = False, **options: Any) -> None:
        """Fetch in a new process, as it were; with `is_read`, something needs all of pages/."""
        forget_processes()
        if not is_read:
            fetch(self.runtime, self.web.server, retries=0, **options)
            return
        if (self.folder / "documents").exists():
            drop(self.folder, "documents")
        with options_for(self.web.server, retries=0, **options) as fetch_options:
            stages = [(STAGE, fetch_options), (EXTRACT, EXTRACT.options())]
            run_stages(stages, self.runtime)

    def outcomes(self) -> Outcomes:
        """Check that each URL has one outcome, and return them, without the time of requests."""
        manifest = require_manifest(self.runtime.workdir, "pages")
        dataset = DatasetReader(self.runtime.workdir, manifest)
        pages = dataset.table().drop_columns(["fetch_ms"]).to_pylist()
        rejects = dataset.table(kind="rejects").to_pylist()
        record_by_id = records(self.runtime, manifest)
        urls = [row["url"] for row in [*pages, *rejects]]
        assert sorted(urls) == sorted(map(canonical_url, URLS))
        assert manifest.counts.entered == len(URLS)
        assert sorted(record_by_id) == sorted(row["url_id"] for row in pages)
        by_url: Outcomes = {row["url"]: (row, record_by_id[row["url_id"]]) for row in pages}
        return by_url | {row["url"]: (row["reason"], row["detail"]) for row in rejects}

    def kept_urls(self) -> set[str]:
        """Return the URLs whose answers are final and in segments."""
        root, _ = read_root(self.runtime.workdir)
        url_by_id = {id_of(canonical_url(url)): url for url in URLS}
        with options_for(self.web.server, retries=0) as options:
            prefix = f"live-{digest_of_source(options, 'live', [])}"
        ids = np.fromiter(url_by_id, np.uint64)
        return {
            url_by_id[url_id]
            for shard in range(NUM_SHARDS)
            for url_id in SegmentReader(self.runtime.workdir, root, shard, prefix, ids).ids.tolist()
        }

    def check_named_files(self) -> None:
        """Check that a reader of the run finds each file that the root or a record names.

        A file is written before what names it, so this is so at any time.
        """
        workdir = self.runtime.workdir
        root, _ = read_root(workdir)
        named_files: list[ShardFile] = []
        for manifest in root.datasets.values():
            named_files += DatasetReader(workdir, manifest).table_of_files.files
        for path in self.folder.glob("ledger/fetch/records/*.json"):
            named_files += ShardRecord.from_json(path.read_bytes(), path.name).files
        assert lost_files(workdir, named_files) == {}

    def files(self) -> dict[str, bytes]:
        """Return the files that pages/ consists of."""
        folders = ("pages", "ledger/pages", "warc")
        paths = [path for folder in folders for path in (self.folder / folder).rglob("*.*")]
        return {str(path.relative_to(self.folder)): path.read_bytes() for path in paths}


@pytest.fixture(scope="module", autouse=True)
def _frozen_clock() -> Iterator[None]:
    """Fetch all pages at one time of the clock, so that two crawls have equal rows and records."""
    clock = SimpleNamespace(time=lambda: SECONDS, monotonic=time.monotonic)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(live, "time", clock)
        yield


@pytest.fixture(scope="module")
def web() -> Iterator[Web]:
    """Serve the web for all tests of this module."""
    web = Web()
    with web.server:
        yield web


def crawl_into(folder: Path, web: Web) -> Crawl:
    """Return a crawl whose URLs are written, and nothing else."""
    web.is_up = False
    return Crawl(web, write_urls_to(folder, URLS, NUM_SHARDS))


class Finished(NamedTuple):
    """A finished crawl of busy hosts, and its outcomes then and after a retry."""

    folder: Path
    outcomes: Outcomes
    retried_outcomes: Outcomes


@pytest.fixture(scope="module")
def finished(web: Web, tmp_path_factory: pytest.TempPathFactory) -> Finished:
    """Return the crawl to which nothing happens."""
    folder = tmp_path_factory.mktemp("finished")
    crawl = crawl_into(folder / "run", web)
    crawl.fetch()
    copy_of(crawl.folder, folder / "retried")
    retried = Crawl(web, Runtime(Storage(str(folder / "retried"))))
    web.is_up = True
    retried.fetch(retry_failed=True)
    outcomes = crawl.outcomes()
    reasons = Counter(outcome[0] for outcome in outcomes.values() if isinstance(outcome[0], str))
    assert reasons == {"http_404": 4, "http_503": 4}
    return Finished(crawl.folder, outcomes, retried.outcomes())


class Killed(BaseException):
    """The process ends here: nothing catches it, and it can write nothing any more."""


class Point(NamedTuple):
    """A write of a file, or with `is_deleted` its removal, at which a process is killed.

    Attributes:
      pattern: matches the beginning of the path in the run's folder.
      number: counts the writes that match, from 1.
    """

    pattern: str
    number: int = 1
    is_deleted: bool = False


@contextmanager
def killed_at(point: Point, folder: Path, *, is_after: bool) -> Iterator[None]:
    """Raise Killed before or after a write, and in place of all later ones."""
    num_left = point.number
    is_dead = False

    def watched(method: Callable[..., Any], is_deletion: bool) -> Callable[..., Any]:
        @functools.wraps(method)
        def write(disk: Disk, name: Any, *arguments: Any) -> Any:
            nonlocal num_left, is_dead
            if is_dead:
                raise Killed
            names = name if is_deletion else [name]
            paths = [
                os.path.relpath(os.path.join(disk.folder, name_in_folder), folder)
                for name_in_folder in names
            ]
            has_match = any(re.match(point.pattern, path) for path in paths)
            if is_deletion != point.is_deleted or not has_match:
                return method(disk, name, *arguments)
            num_left -= 1
            if num_left:
                return method(disk, name, *arguments)
            is_dead = True
            if is_after:
                method(disk, name, *arguments)
            raise Killed

        return write

    with pytest.MonkeyPatch.context() as patch:
        for name in ("put_file", "put_if", "delete"):
            patch.setattr(Disk, name, watched(getattr(Disk, name), name == "delete"))
        with pytest.raises(Killed):
            yield
    assert is_dead, f"nothing was written at {point}"


POINTS = {
    "plan": Point(r"ledger/fetch/work/.*/plan"),
    "lease": Point(r"warc/part-0000\d/attempt"),
    "segment": Point(r"warc/part-0000\d/live-"),
    "later segment": Point(r"warc/part-0000\d/live-", 2),
    "end of a lease": Point(r"warc/part-0000\d/attempt", is_deleted=True),
    "rows": Point(r"pages/part-"),
    "rejects": Point(r"ledger/pages/rejects/part-"),
    "places": Point(r"ledger/pages/places/part-"),
    "record": Point(r"ledger/fetch/records/"),
    "last record": Point(r"ledger/fetch/records/", 2),
    "list of files": Point(r"ledger/pages/files-"),
    # A retry begins with a root of its own, which a crawl does not.
    "root": Point(r"ledger/manifest\.json$"),
    "later root": Point(r"ledger/manifest\.json$", 2),
    "copy of the root": Point(r"ledger/manifest\.json\.copy$"),
    "sweep": Point(r"ledger/fetch/work/", is_deleted=True),
}


@pytest.mark.parametrize("is_after", [False, True], ids=["before", "after"])
@pytest.mark.parametrize("is_retry", [False, True], ids=["crawl", "retry"])
@pytest.mark.parametrize("point", POINTS.values(), ids=POINTS)
def test_a_crawl_killed_at_any_write_continues_without_a_loss(
    point: Point, is_retry: bool, is_after: bool, web: Web, finished: Finished, tmp_path: Path
) -> None:
    if is_retry:
        crawl = Crawl(web, Runtime(Storage(str(copy_of(finished.folder, tmp_path / "run")))))
        expected = finished.retried_outcomes
    else:
        crawl = crawl_into(tmp_path / "run", web)
        expected = finished.outcomes
    web.is_up = is_retry
    with killed_at(point, crawl.folder, is_after=is_after):
        crawl.fetch(retry_failed=is_retry)
    crawl.check_named_files()
    kept_urls = crawl.kept_urls()
    requests_before = web.requested()
    root, _ = read_root(crawl.runtime.workdir)
    has_begun = bool(root.rounds)
    if is_retry and not has_begun:
        # The answers that the retry has to replace still count.
        kept_urls = {url for url in kept_urls if "//busy" not in url}
    # Once the root manifest counts the retry, the flag is not needed any more.
    crawl.fetch(retry_failed=is_retry and not has_begun)
    assert crawl.outcomes() == expected
    assert not kept_urls & set(web.requested() - requests_before)
    assert not list((crawl.folder / "warc").glob("*/attempt"))
    assert not list((crawl.folder / "ledger/fetch").glob("work/*/*"))
    files = crawl.files()
    crawl.fetch(is_read=True)
    assert crawl.files() == files


def cut(path: Path) -> None:
    """Cut a file in half."""
    os.truncate(path, path.stat().st_size // 2)


def repeat(path: Path) -> None:
    """Write a segment again with a later number, as a late attempt may do."""
    shutil.copy(path, re.sub(r"-\d{6}-", "-000077-", str(path)))


def hold(path: Path) -> None:
    """Leave a lease next to a file, as a killed process does."""
    workdir = Storage(str(path.parents[2]))
    ShardLease(workdir, f"warc/{path.parent.name}").begin()


def mislabel(path: Path) -> None:
    """Give a record the content of another shard's, and lose the list that is read before it."""
    (other,) = (record for record in path.parent.iterdir() if record != path)
    shutil.copy(other, path)
    for file_list in path.parents[2].glob("pages/files-*"):
        file_list.unlink()


SEGMENTS = "warc/part-00001/live-*"
HARMLESS = [
    ("pages/part-*", Path.unlink),
    ("pages/part-*", cut),
    ("ledger/pages/rejects/*", Path.unlink),
    ("ledger/pages/rejects/*", cut),
    ("ledger/pages/places/*", Path.unlink),
    ("ledger/pages/places/*", cut),
    ("ledger/pages/files-*", Path.unlink),
    ("ledger/pages/files-*", cut),
    ("ledger/fetch/records/*", Path.unlink),
    ("ledger/fetch/records/*", cut),
    ("ledger/fetch/records/00000-*", mislabel),
    ("ledger/manifest.json", Path.unlink),
    ("ledger/manifest.json", cut),
    ("ledger/manifest.json.copy", Path.unlink),
    (SEGMENTS, repeat),
    (SEGMENTS, hold),
]


@pytest.fixture
def crawl(web: Web, finished: Finished, tmp_path: Path) -> Crawl:
    """Return a copy of the finished crawl, of a web that is up by now."""
    folder = copy_of(finished.folder, tmp_path / "run")
    web.is_up = True
    return Crawl(web, Runtime(Storage(str(folder))))


@pytest.mark.parametrize(
    ("pattern", "happen"),
    HARMLESS,
    ids=[f"{pattern} {happen.__name__}" for pattern, happen in HARMLESS],
)
def test_files_lost_beside_segments_are_rebuilt_from_them(
    pattern: str, happen: Callable[[Path], None], crawl: Crawl, finished: Finished
) -> None:
    before = crawl.web.requested()
    files = crawl.files()
    paths = list(crawl.folder.glob(pattern))
    assert paths
    root = crawl.folder / "ledger/manifest.json"
    content_of_root = root.read_bytes()
    for path in paths:
        happen(path)
    if root in paths:
        crawl.fetch()
        assert root.read_bytes() == content_of_root
    crawl.fetch(is_read=True)
    assert crawl.web.requested() == before
    assert crawl.outcomes() == finished.outcomes
    repeated = set(crawl.folder.glob("warc/*/*-000077-*"))
    assert {name: crawl.files()[name] for name in files} == files
    assert len(crawl.files()) == len(files) + len(repeated)


@pytest.mark.parametrize("happen", [Path.unlink, cut])
def test_lost_segments_are_fetched_again_only_with_refetch(
    happen: Callable[[Path], None], crawl: Crawl, finished: Finished
) -> None:
    for path in crawl.folder.glob(SEGMENTS):
        happen(path)
    urls = DatasetReader.open(crawl.runtime.workdir, "urls")
    lost = [url for batch in urls.batches(1) for url in batch["posted_url"].to_pylist()]
    before = crawl.web.requested()
    # Nothing needs them.
    crawl.fetch()
    problem = r"warc/part-00001/live-.* (is missing|has \d+ bytes).* in shard 1\).*--refetch"
    with pytest.raises(UserError, match=problem):
        crawl.fetch(is_read=True)
    assert crawl.web.requested() == before
    crawl.fetch(is_read=True, refetch=True)
    assert crawl.web.requested() - before == Counter(lost)
    outcomes = crawl.outcomes()
    for url, outcome in finished.outcomes.items():
        if outcome[0] == "http_503" and url in map(canonical_url, lost):
            outcome = finished.retried_outcomes[url]
        assert outcomes[url] == outcome
    requested = crawl.web.requested()
    crawl.fetch(is_read=True, refetch=True)
    assert crawl.web.requested() == requested, "nothing is lost any more"


def test_no_option_requests_a_page_twice(crawl: Crawl) -> None:
    before = crawl.web.requested()
    pages = crawl.files()
    crawl.fetch(max_page_bytes=5_000)
    once_more = crawl.web.requested() - before
    assert set(once_more) == set(URLS)
    for options in ({}, {"max_page_bytes": 5_000}, {}):
        crawl.fetch(**options)
    assert crawl.web.requested() == before + once_more
    assert {name: crawl.files()[name] for name in pages} == pages
    crawl.fetch(refetch=True)
    assert crawl.web.requested() == before + once_more


def test_a_page_that_two_sources_have_is_there_once(
    crawl: Crawl, finished: Finished, tmp_path: Path
) -> None:
    before = crawl.web.requested()
    archives = tmp_path / "archives"
    archives.mkdir()
    for segment in crawl.folder.glob("warc/*/live-*"):
        shutil.copy(segment, archives)
    pages = {url for url, outcome in finished.outcomes.items() if not isinstance(outcome[0], str)}
    # The live web has the same pages in its segments, and a later archive only fills gaps.
    with options_for(crawl.web.server, retries=0, pages_from=(str(archives),)) as options:
        options = dataclasses.replace(options, sources=("archive", "live"))
        run_stages([(STAGE, options)], dataclasses.replace(crawl.runtime, add=True))
    manifest = require_manifest(crawl.runtime.workdir, "pages")
    rows = DatasetReader(crawl.runtime.workdir, manifest).table().to_pylist()
    assert Counter(row["url"] for row in rows) == Counter(pages)
    assert {row["source"] for row in rows} == {"live"}
    assert manifest.stats["from_live"] == len(pages)
    assert "from_archive" not in manifest.stats
    assert crawl.outcomes().keys() == finished.outcomes.keys()
    assert crawl.web.requested() == before
