"""Two rare events happen at once in the stages that read the web.

They are kills, lost rejects and lost places.
"""

from __future__ import annotations

import re
import shlex
import shutil
from pathlib import Path

import pytest

from tests.owt_pipeline.one_process import (
    forget_processes,
    interrupt,
    stopping_at_publication_of,
    stopping_before_publication,
)
from tests.owt_pipeline.random_inputs import REJECTED, url_of, write_inputs_with_rejects
from tests.owt_pipeline.remedies import attempt
from tests.owt_pipeline.runs import ask_owt, copy_of, differing, root_of, rows_of

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of a dump. Each of the first stages has rejected a post of it."""
    folder = tmp_path_factory.mktemp("pages")
    write_inputs_with_rejects(folder)
    sources = ["--dumps", folder / "RS_A.gz", "--pages_from", folder / "pages.warc.gz"]
    options = ["--num_shards", 2, "--languages", "all", "--min_tokens", 64, "--workers", 1]
    ask_owt("run", folder / "run", *sources, *options)
    return folder / "run"


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    forget_processes()
    return copy_of(finished_run, tmp_path / "run")


_OPTION_BY_STAGE = {
    "collect": ("--min_score", 4),
    "fetch": ("--max_page_bytes", 5_000_000),
    "extract": ("--favor", "recall"),
}


@pytest.mark.parametrize("stage", list(_OPTION_BY_STAGE))
@pytest.mark.parametrize("command", ["forget", "run --until clean", "verify --repair"])
def test_a_killed_stage_continues_after_another_command(
    run: Path, stage: str, command: str, tmp_path: Path
) -> None:
    finished = interrupt(run, stage, *_OPTION_BY_STAGE[stage])
    segments = set((run / "warc").rglob("*.warc.gz"))
    name, *flags = command.split()
    if name == "forget":
        (tmp_path / "list.txt").write_text(f"{url_of('A0')}\n")
        flags = [str(tmp_path / "list.txt")]
    if name != "verify":
        flags += ["--workers", "1"]
    ask_owt(name, run, *flags)
    # A command sweeps the stages that it runs, except the answers of the web and of archives.
    assert all(path.exists() for path in [*(finished if name != "run" else []), *segments])
    inodes = {path: path.stat().st_ino for path in finished if path.exists()}
    ask_owt("run", run, *_OPTION_BY_STAGE[stage], "--workers", 1)
    assert {path: path.stat().st_ino for path in inodes} == inodes
    assert not list((run / "ledger" / stage).glob("work/*/*"))
    assert (url_of("A0") in {row["url"] for row in rows_of(run, "corpus")}) == (name != "forget")
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("stage", list(_OPTION_BY_STAGE))
def test_a_complete_run_sweeps_a_killed_stages_pages(
    run: Path, finished_run: Path, stage: str
) -> None:
    finished = interrupt(run, stage, *_OPTION_BY_STAGE[stage])
    ask_owt("run", run, "--workers", 1)
    assert not any(path.exists() for path in finished)
    # Segments stay: the archives that they come from may be deleted.
    assert [name for name in differing(run, finished_run) if not name.startswith("warc/")] == []


_LEDGER_FOLDERS = (
    "ledger/urls/rejects", "ledger/pages/rejects", "ledger/pages/places", "ledger/documents/rejects",
)  # fmt: skip


@pytest.mark.parametrize("folder", _LEDGER_FOLDERS)
@pytest.mark.parametrize("loss", ["one file", "folder", "changed", "cut"])
@pytest.mark.parametrize("has_pages", [True, False])
def test_lost_rejects_and_places_are_reported_and_rebuilt(
    run: Path, finished_run: Path, folder: str, loss: str, has_pages: bool
) -> None:
    path = max((run / folder).iterdir(), key=lambda path: path.stat().st_size)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    if not has_pages:
        for name in ("warc", "pages", "documents"):
            shutil.rmtree(run / name)
    if loss == "one file":
        path.unlink()
    elif loss == "folder":
        shutil.rmtree(run / folder)
    else:
        path.write_bytes(content if loss == "changed" else content[: len(content) // 2])
    assert str(path) in ask_owt("verify", run, code=1)
    if loss == "changed":
        ask_owt("verify", run, "--repair", code=1)
        assert not path.exists()
    ask_owt("run", run, "--workers", 1)
    changed = differing(run, finished_run)
    assert all(name.startswith(("warc/", "pages/", "documents/")) for name in changed)
    assert not (has_pages and changed)
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("stage", list(REJECTED))
def test_why_names_the_lost_rejects_of_pages(run: Path, stage: str) -> None:
    dataset = {"collect": "urls", "fetch": "pages", "extract": "documents"}[stage]
    url = url_of(REJECTED[stage])
    output = ask_owt("why", run, url)
    assert f"rejected by {stage}" in output
    rejects = run / "ledger" / dataset / "rejects"
    paths = [str(path) for path in rejects.iterdir()]
    shutil.rmtree(rejects)
    # Without the rejects of collect, nothing of the URL is left.
    lost = ask_owt("why", run, url, code=3 if stage == "collect" else 0)
    assert "have not run" not in lost
    names_a_lost_file = any(f"{path} is missing" in lost for path in paths)
    assert names_a_lost_file or (stage == "collect" and "Files of the run are missing" in lost)
    ask_owt("run", run, "--workers", 1)
    assert ask_owt("why", run, url) == output


@pytest.mark.parametrize("url", ["A0", "A1"])
def test_why_of_a_page_whose_place_is_lost(run: Path, url: str) -> None:
    output = ask_owt("why", run, url_of(url))
    shutil.rmtree(run / "ledger/pages/places")
    lost = ask_owt("why", run, url_of(url))
    assert "have not run" not in lost
    assert "its tokens are" in lost
    ask_owt("run", run, "--workers", 1)
    assert ask_owt("why", run, url_of(url)) == output


def test_a_killed_growth_goes_on_whatever_the_settings_name(run: Path, finished_run: Path) -> None:
    """Older settings do not name a source from which something is published."""
    dumps = [finished_run.parent / f"RS_{name}.gz" for name in "ABC"]
    earlier_settings = (run / "settings.toml").read_bytes()
    with stopping_at_publication_of("fetch"):
        ask_owt("run", run, "--add", "--dumps", dumps[1], "--workers", 1, code=1)
    (run / "settings.toml").write_bytes(earlier_settings)
    for words, num_generations in ((["--add", "--dumps", dumps[2]], 3), ([], 2)):
        copy = copy_of(run, run.with_name(f"copy{len(words)}"))
        ask_owt("run", copy, *words, "--workers", 1)
        ask_owt("run", copy, "--workers", 1)
        num_sources = [len(generation.links) for generation in root_of(copy).generations]
        assert num_sources == [1] * num_generations
        assert "no problems found" in ask_owt("verify", copy)


@pytest.fixture(scope="module")
def collected_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of three generations, of a list of links each, next to a fourth list."""
    folder = tmp_path_factory.mktemp("collected")
    for name in "ABCD":
        (folder / f"{name}.txt").write_text(f"https://{name}.example.org/\n")
    words = ["run", folder / "run", "--until", "collect", "--num_shards", 1, "--workers", 1]
    for name in "ABC":
        ask_owt(*words, "--add", "--links", folder / f"{name}.txt")
    return folder / "run"


# The sources that the settings name; "none" if there are no settings.
@pytest.mark.parametrize("named", ["none", "", "B", "AC"])
@pytest.mark.parametrize("words", ["", "C", "--add C", "--add D"])
def test_recorded_sources_stay_whatever_the_settings_name(
    collected_run: Path, named: str, words: str, tmp_path: Path
) -> None:
    """Only settings that name no source are refused, since their other options are lost too."""
    run = copy_of(collected_run, tmp_path / "run")
    path_by_name = {name: str(collected_run.parent / f"{name}.txt") for name in "ABCD"}
    settings = run / "settings.toml"
    if named == "none":
        settings.unlink()
    else:
        all_paths = ", ".join(f'"{path_by_name[name]}"' for name in "ABC")
        named_paths = ", ".join(f'"{path_by_name[name]}"' for name in named)
        settings.write_text(settings.read_text().replace(all_paths, named_paths))
    *flags, names = words.split("--add")
    command = ["run", str(run), *["--add"] * len(flags)]
    if names.strip():
        command += ["--links", *(path_by_name[name] for name in names.strip())]
    code, output = attempt([*command, "--until", "collect", "--workers", 1])
    assert code == int(words in ("", "--add D") and named in ("none", ""))
    if code:
        (advised,) = re.findall(r"`owt ([^`]+)`", output)
        advised_paths = [word for word in shlex.split(advised) if word.endswith(".txt")]
        assert advised_paths == [path_by_name[name] for name in "ABC" + words[-1:]]
        ask_owt(*shlex.split(advised), "--until", "collect", "--workers", 1)
    generations = root_of(run).generations
    assert [source["name"] for each in generations for source in each.links] == [
        f"{name}.txt" for name in ("ABCD" if "D" in words else "ABC")
    ]


def test_a_failed_first_run_names_its_sources_where_there_are_no_settings(tmp_path: Path) -> None:
    links = tmp_path / "links.txt"
    links.write_text("https://a.example.org/\n")
    run = tmp_path / "run"
    with stopping_before_publication():
        ask_owt("run", run, "--links", links, "--until", "collect", "--workers", 1, code=1)
    code, output = attempt(["run", run, "--until", "collect", "--workers", 1])
    assert code == 1
    (advised,) = re.findall(r"`owt ([^`]+)`, with your other flags,", output)
    assert shlex.split(advised) == ["run", str(run), "--links", str(links)]
    ask_owt(*shlex.split(advised), "--until", "collect", "--workers", 1)


def add_dump(run: Path, folder: Path, finished_run: Path, *flags: object, code: int = 0) -> None:
    """Add dump B with `--add`, and its pages by a second WARC file, which the settings lack."""
    archive = folder / "later.warc.gz"
    inputs = finished_run.parent
    shutil.copy(inputs / "pages.warc.gz", archive)
    sources = ["--dumps", inputs / "RS_B.gz", "--pages_from", archive]
    ask_owt("run", run, "--add", *sources, *flags, "--workers", 1, code=code)


@pytest.fixture(scope="module")
def grown_run(finished_run: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the finished run with dump B, added without an interruption."""
    folder = tmp_path_factory.mktemp("grown")
    grown_run = copy_of(finished_run, folder / "run")
    add_dump(grown_run, folder, finished_run)
    return grown_run


@pytest.mark.parametrize("stage", ["fetch", "export"])
@pytest.mark.parametrize(
    "command", ["run", "run --until clean", "run --dry_run", "run --retry_failed", "forget"]
)
def test_any_command_continues_an_interrupted_growth(
    run: Path, finished_run: Path, grown_run: Path, stage: str, command: str, tmp_path: Path
) -> None:
    """Something is published from the new generation, so the settings name its sources."""
    with stopping_at_publication_of(stage):
        add_dump(run, tmp_path, finished_run, code=1)
    name, *flags = command.split()
    if name == "forget":
        (tmp_path / "list.txt").write_text("https://nobody.example/x\n")
        flags = [str(tmp_path / "list.txt")]
    ask_owt(name, run, *flags, "--workers", 1)
    ask_owt("run", run, "--workers", 1)
    if name == "forget":
        assert rows_of(run, "corpus") == rows_of(grown_run, "corpus")
    else:
        assert differing(run, grown_run) == []
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("flag", ["--dumps", "--links", "--warcs"])
@pytest.mark.parametrize("is_corrected_at_once", [False, True])
def test_a_wrong_source_is_left_out_after_its_error(
    run: Path,
    finished_run: Path,
    grown_run: Path,
    flag: str,
    is_corrected_at_once: bool,
    tmp_path: Path,
) -> None:
    """Whoever repaired the command was told of the wrong file for ever."""
    inputs = finished_run.parent
    wrong = {"--dumps": tmp_path / "cut.gz", "--links": tmp_path / "links.csv"}
    wrong["--dumps"].write_bytes((inputs / "RS_B.gz").read_bytes()[:60])
    wrong["--links"].write_text("name,place\nA,B\n")
    wrong["--warcs"] = tmp_path / "x.warc.gz"
    wrong["--warcs"].write_bytes(b"not a WARC file")
    settings = (run / "settings.toml").read_bytes()
    output = ask_owt("run", run, "--add", flag, wrong[flag], "--workers", 1, code=1)
    assert str(wrong[flag]) in output
    assert (run / "settings.toml").read_bytes() == settings
    assert len(root_of(run).generations) == 2
    if not is_corrected_at_once:
        assert "the generation is left out" in ask_owt("run", run, "--workers", 1)
        assert differing(run, finished_run) == []
    add_dump(run, tmp_path, finished_run)
    assert differing(run, grown_run) == []
    assert "no problems found" in ask_owt("verify", run)


def test_a_takedown_meets_a_source_that_was_added_by_mistake(
    run: Path, finished_run: Path, tmp_path: Path
) -> None:
    """The takedown covers the run, and the next command leaves the source out."""
    other = copy_of(finished_run, tmp_path / "other")
    wrong = tmp_path / "cut.gz"
    wrong.write_bytes((finished_run.parent / "RS_B.gz").read_bytes()[:60])
    ask_owt("run", run, "--add", "--dumps", wrong, "--workers", 1, code=1)
    url = rows_of(run, "corpus")[0]["url"]
    (tmp_path / "takedowns.txt").write_text(f"{url}\n")
    for each in (run, other):
        ask_owt("forget", each, tmp_path / "takedowns.txt", "--workers", 1)
        ask_owt("run", each, "--workers", 1)
    assert len(root_of(run).generations) == 1
    assert url not in [row["url"] for row in rows_of(run, "corpus")]
    assert differing(run, other) == []
    assert "no problems found" in ask_owt("verify", run)


def test_a_failed_growth_writes_no_settings_where_there_are_none(
    run: Path, finished_run: Path, tmp_path: Path
) -> None:
    """Settings with the sources only would give all other options their defaults."""
    (run / "settings.toml").unlink()
    dumps = ["--dumps", finished_run.parent / "RS_A.gz"]
    with stopping_at_publication_of("fetch"):
        add_dump(run, tmp_path, finished_run, *dumps, code=1)
    assert not (run / "settings.toml").exists()
