"""Each month of a growing run has its own files of links and of pages.

Once a month is published, its files can be moved or deleted, and the settings can lose them. The
documents of the month stay.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.owt_pipeline.one_process import forget_processes, stopping_at_publication_of
from tests.owt_pipeline.random_inputs import DUMPS, url_of, write_months
from tests.owt_pipeline.remedies import heal
from tests.owt_pipeline.runs import (
    ask_owt,
    differing,
    manifest_of,
    root_of,
    rows_of,
    snapshot,
)

OPTIONS = ("--num_shards", 2, "--languages", "all", "--min_tokens", 20, "--workers", 1)


@pytest.fixture(autouse=True)
def _with_new_processes() -> None:
    forget_processes()


def files_of_month(inputs: Path, name: str) -> tuple[Path, Path]:
    """Return the dump and the WARC file of a month."""
    return inputs / f"RS_{name}.gz", inputs / name / "pages.warc.gz"


def add_month(inputs: Path, run: Path, name: str, *, is_deleted: bool = False) -> str:
    """Run a month, or add it, and delete its files then if `is_deleted`; return the output."""
    dump, pages = files_of_month(inputs, name)
    flags = ["--add"] if run.exists() else []
    output = ask_owt("run", run, *flags, "--dumps", dump, "--pages_from", pages, *OPTIONS)
    if is_deleted:
        dump.unlink()
        pages.unlink()
    return output


def urls_of(run: Path) -> set[str]:
    """Return the URLs in the corpus."""
    return {row["url"] for row in rows_of(run, "corpus")}


def shards_fetched(run: Path) -> list[int]:
    """Return how many shards each run of fetch has made."""
    entries = map(json.loads, (run / "run-log.jsonl").read_text().splitlines())
    return [entry["shards_written"] for entry in entries if entry.get("stage") == "fetch"]


@pytest.fixture(scope="module")
def kept_months(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three months, next to all their files."""
    folder = tmp_path_factory.mktemp("kept")
    write_months(folder / "inputs")
    for name in DUMPS:
        add_month(folder / "inputs", folder / "run", name)
    return folder / "run"


@pytest.fixture
def first_month(tmp_path: Path) -> tuple[Path, Path]:
    """The inputs of three months, and a run of the first."""
    inputs = tmp_path / "inputs"
    write_months(inputs)
    add_month(inputs, tmp_path / "run", "A")
    return inputs, tmp_path / "run"


def test_months_whose_files_are_deleted_give_the_same_files(
    kept_months: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    shutil.copytree(kept_months.parent / "inputs", tmp_path / "inputs")
    for name in DUMPS:
        add_month(tmp_path / "inputs", run, name, is_deleted=True)
        before = snapshot(run)
        ask_owt("run", run, "--workers", 1)
        assert snapshot(run) == before
    assert differing(run, kept_months) == []
    assert shards_fetched(run) == [2, 2, 2] == shards_fetched(kept_months)
    assert {url_of("A2"), url_of("B3"), url_of("C2")} <= urls_of(run)
    assert "no problems found" in ask_owt("verify", run)


def test_archives_with_one_name_are_counted_each(kept_months: Path) -> None:
    archives = manifest_of(kept_months, "pages").properties["archives"]
    assert [archive["name"] for archive in archives] == ["pages.warc.gz"] * 3
    assert sorted(archive["responses"] for archive in archives) == [3, 4, 4]
    assert len(manifest_of(kept_months, "pages").sources) == 3


def test_a_month_without_its_own_archives_takes_those_that_exist(
    first_month: tuple[Path, Path],
) -> None:
    inputs, run = first_month
    dump, pages = files_of_month(inputs, "B")
    with files_of_month(inputs, "A")[1].open("ab") as archive:
        archive.write(pages.read_bytes())
    ask_owt("run", run, "--workers", 1)
    assert shards_fetched(run) == [2, 2]
    ask_owt("run", run, "--add", "--dumps", dump, "--workers", 1)
    assert {url_of("A2"), url_of("B3")} <= urls_of(run)
    first, later = root_of(run).generations
    assert first.pages == later.pages


def test_a_moved_archive_changes_nothing(first_month: tuple[Path, Path], tmp_path: Path) -> None:
    inputs, run = first_month
    before = snapshot(run)
    pages = files_of_month(inputs, "A")[1]
    moved = shutil.move(pages, tmp_path)
    ask_owt("run", run, "--pages_from", moved, "--workers", 1)
    assert snapshot(run) == before
    (source,) = root_of(run).generations[0].pages
    assert source["uri"] == str(moved)
    output = ask_owt("run", run, "--max_page_bytes", 5_000_000, "--workers", 1)
    assert "max_page_bytes" in output


def test_next_month_can_have_the_path_of_the_last_one(
    first_month: tuple[Path, Path], kept_months: Path
) -> None:
    inputs, run = first_month
    dump, pages = files_of_month(inputs, "B")
    shutil.copy(pages, files_of_month(inputs, "A")[1])
    same_path = files_of_month(inputs, "A")[1]
    ask_owt("run", run, "--add", "--dumps", dump, "--pages_from", same_path, "--workers", 1)
    ask_owt("run", run, "--workers", 1)
    assert {url_of("A2"), url_of("B3")} <= urls_of(run)
    assert shards_fetched(run) == [2, 2]
    assert "no problems found" in ask_owt("verify", run)
    add_month(inputs, run, "C")
    assert urls_of(run) == urls_of(kept_months)


@pytest.mark.slow
@pytest.mark.parametrize("is_deleted", [False, True])
@pytest.mark.parametrize("lost", ["first", "all"])
def test_documents_stay_without_their_archive_in_the_settings(
    first_month: tuple[Path, Path], lost: str, is_deleted: bool
) -> None:
    inputs, run = first_month
    add_month(inputs, run, "B")
    urls = urls_of(run)
    before = snapshot(run)
    settings = run / "settings.toml"
    named = [str(files_of_month(inputs, name)[1]) for name in "AB"]
    present = json.dumps(named)
    assert present in settings.read_text()
    remaining = json.dumps(named[1:] if lost == "first" else [])
    settings.write_text(settings.read_text().replace(present, remaining))
    if is_deleted:
        for path in named:
            Path(path).unlink()
    ask_owt("run", run, "--workers", 1)
    assert snapshot(run) == before
    assert "no problems found" in ask_owt("verify", run)
    add_month(inputs, run, "C")
    assert urls < urls_of(run)


@pytest.mark.parametrize("sources", [(), ("--sources", "archive", "live")])
def test_a_month_from_files_leaves_the_months_from_the_web(
    first_month: tuple[Path, Path], tmp_path: Path, sources: tuple[str, ...]
) -> None:
    """A generation without files takes its pages from the other sources, as before."""
    inputs, _ = first_month
    run = tmp_path / "web"
    refused = ("--user_agent", "test/1 (+mailto:a@b.example)", "--resolve", "*=127.0.0.1:1")
    dump, _ = files_of_month(inputs, "A")
    ask_owt(
        "run", run, "--dumps", dump, *refused, *OPTIONS, "--until", "fetch",
        code=1,
    )  # fmt: skip
    before = rows_of(run / "ledger/pages", "rejects")
    dump, pages = files_of_month(inputs, "B")
    added = ("--dumps", dump, "--pages_from", pages, *sources)
    ask_owt("run", run, "--add", *added, *refused, *OPTIONS)
    assert shards_fetched(run) == [2, 2]
    assert url_of("B3") in urls_of(run)
    rejects = rows_of(run / "ledger/pages", "rejects")
    assert [row for row in rejects if row in before] == before


def test_warcs_are_links_and_pages_of_their_month(kept_months: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "inputs"
    write_months(inputs)
    run = tmp_path / "run"
    urls: set[str] = set()
    for number, name in enumerate(DUMPS):
        path = inputs / f"{name}.warc.gz"
        shutil.move(files_of_month(inputs, name)[1], path)
        flags = ["--add"] if number else []
        ask_owt("run", run, *flags, "--warcs", path, *OPTIONS)
        path.unlink()
        assert urls < urls_of(run)
        urls = urls_of(run)
    assert urls == urls_of(kept_months)
    assert shards_fetched(run) == [2, 2, 2]
    # A month of links from elsewhere may ask the web for other pages. Earlier months do not.
    kinds = [{source["kind"] for source in each.sources} for each in root_of(run).generations]
    assert kinds == [{"warc", "pages"}] * 3


def test_a_later_archive_fills_gaps_of_all_months_with_add(
    first_month: tuple[Path, Path], tmp_path: Path
) -> None:
    """It is read for the URLs without a page, so the earlier archives may be gone."""
    inputs, run = first_month
    dump, pages = files_of_month(inputs, "B")
    ask_owt("run", run, "--add", "--dumps", dump, "--workers", 1)
    assert url_of("B3") not in urls_of(run)
    before = snapshot(run)
    page_rows = rows_of(run, "pages")
    files_of_month(inputs, "A")[1].unlink()
    words: list[object] = ["run", run, "--pages_from", pages, "--workers", 1]
    output = ask_owt(*words, code=1)
    assert "repeat the command with --add to look there for URLs that have no page" in output
    assert snapshot(run) == before
    with stopping_at_publication_of("fetch"):
        ask_owt(*words, "--add", code=1)
    ask_owt("run", run, "--workers", 1)
    assert {url_of("A2"), url_of("B3")} <= urls_of(run)
    assert [row for row in rows_of(run, "pages") if row in page_rows] == page_rows
    pages.unlink()
    before = snapshot(run)
    ask_owt("run", run, "--workers", 1)
    assert snapshot(run) == before
    # Another such archive is another set.
    shutil.copy(files_of_month(inputs, "C")[1], tmp_path / "C.warc.gz")
    ask_owt("run", run, "--add", "--pages_from", tmp_path / "C.warc.gz", "--workers", 1)
    add_month(inputs, run, "C", is_deleted=True)
    assert {url_of("A2"), url_of("B3"), url_of("C2")} <= urls_of(run)
    assert [len(each.later) for each in root_of(run).generations] == [2, 2, 0]
    # The interrupted command had made the shards with the first set.
    assert shards_fetched(run) == [2, 2, 0, 4, 2]
    assert "no problems found" in ask_owt("verify", run)


def test_a_later_archive_that_was_a_mistake_is_left_out(
    first_month: tuple[Path, Path], tmp_path: Path
) -> None:
    _, run = first_month
    settings = (run / "settings.toml").read_text()
    before = urls_of(run)
    damaged = tmp_path / "damaged.warc.gz"
    damaged.write_bytes(files_of_month(first_month[0], "B")[1].read_bytes()[:-30])
    ask_owt("run", run, "--add", "--pages_from", damaged, "--workers", 1, code=1)
    damaged.unlink()
    (run / "settings.toml").write_text(settings)
    ask_owt("run", run, "--workers", 1)
    assert [len(each.later) for each in root_of(run).generations] == [0]
    assert urls_of(run) == before


def test_new_links_need_pages_that_exist(first_month: tuple[Path, Path]) -> None:
    inputs, run = first_month
    files_of_month(inputs, "A")[1].unlink()
    before = snapshot(run)
    dump, pages = files_of_month(inputs, "B")
    output = ask_owt("run", run, "--add", "--dumps", dump, "--workers", 1, code=1)
    assert "give WARC files with their pages as --pages_from" in output
    assert snapshot(run) == before
    ask_owt("run", run, "--add", "--dumps", dump, "--pages_from", pages, "--workers", 1)
    assert {url_of("A2"), url_of("B3")} <= urls_of(run)


def test_advice_to_add_links_keeps_their_archive(first_month: tuple[Path, Path]) -> None:
    inputs, run = first_month
    dump, pages = files_of_month(inputs, "B")
    words = ["run", run, "--dumps", dump, "--pages_from", pages, "--workers", 1]
    heal(words, "repeat the command with --add")
    assert {url_of("A2"), url_of("B3")} <= urls_of(run)


def test_a_deleted_archive_is_missed_only_if_pages_are_needed(
    first_month: tuple[Path, Path],
) -> None:
    inputs, run = first_month
    pages = files_of_month(inputs, "A")[1]
    content = pages.read_bytes()
    pages.unlink()
    before = snapshot(run)
    for attempt in range(2):
        output = ask_owt("run", run, "--max_page_bytes", 5_000_000, "--workers", 1, code=1)
        assert f"--pages_from: {pages} is missing, but the run needs pages from it" in output
        assert snapshot(run) == before, attempt
    # All pages are in segments.
    shutil.rmtree(run / "pages")
    shutil.rmtree(run / "documents")
    ask_owt("run", run, "--favor", "recall", "--workers", 1)
    assert url_of("A2") in urls_of(run)
    pages.write_bytes(content)
    ask_owt("run", run, "--max_page_bytes", 5_000_000, "--workers", 1)
    assert url_of("A2") in urls_of(run)


def test_segments_of_a_deleted_archive_are_not_swept(first_month: tuple[Path, Path]) -> None:
    inputs, run = first_month
    urls = urls_of(run)
    files_of_month(inputs, "A")[1].unlink()
    web = ("--user_agent", "test/1 (+mailto:a@b.example)", "--resolve", "*=127.0.0.1:1")
    ask_owt("run", run, "--sources", "live", *web, "--workers", 1, code=1)
    assert urls_of(run) == set()
    ask_owt("run", run, "--sources", "archive", "--workers", 1)
    assert urls_of(run) == urls
