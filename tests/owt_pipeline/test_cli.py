"""The command line: its help, its exit codes, and one line for each mistake."""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

import pytest

from owt_pipeline.cli import COMMANDS, command_of, main
from owt_pipeline.commands import import_text
from owt_pipeline.commands.run import build_parser, check_folder
from owt_pipeline.flex_template import arguments
from owt_pipeline.formats.warc import response_record
from owt_pipeline.pipeline import STAGES
from owt_pipeline.storage.folder import Storage
from schemas.settings import ExitCode
from tests.conftest import REPOSITORY
from tests.owt_pipeline.runs import (
    ask_owt,
    copy_of,
    drop,
    manifest_of,
    owt,
    shard_file,
    write_sources,
)


@pytest.mark.parametrize("name", COMMANDS)
def test_every_help_has_usage_an_example_and_all_flags(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit) as exit_info:
        main([name, "--help"])
    assert exit_info.value.code == 0
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert text.startswith(f"usage: owt {name}")
    assert re.search(rf"examples?:\n.*owt {name} ", text, re.DOTALL)
    parsers = {"run": build_parser, "import": import_text.parser}
    parser = parsers[name]() if name in parsers else command_of(name).parser()
    for action in parser._actions:
        assert action.help, f"{name}: {action.dest} has no help"


@pytest.mark.parametrize("stage", STAGES)
def test_the_help_of_a_stage_fits_80_columns(
    stage: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["run", "--until", stage, "--help"])
    text = capsys.readouterr().out
    assert max(map(len, text.splitlines())) <= 80
    assert re.search(rf"^  owt run \S+ --until {stage} ", text, re.MULTILINE)


def test_names_with_hyphens_stay_whole_in_the_help(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    with pytest.raises(SystemExit):
        main(["run", "--until", "fetch", "--help"])
    words = capsys.readouterr().out.split()
    assert "CC-MAIN-2013-20" in words
    assert "s3://commoncrawl/cc-index/table/cc-main/warc," in words


def test_the_usage_and_the_page_list_every_command_and_exit_code(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main([]) == 0
    usage = capsys.readouterr().out
    assert max(map(len, usage.splitlines())) <= 80
    page = (Path(__file__).parents[2] / "docs/how-to/troubleshooting.md").read_text()
    in_one_line = " ".join(usage.split())
    for code in ExitCode:
        assert f" {code.value} {code.meaning}" in in_one_line
        assert f"| {code.value} | {code.meaning} |".replace("... | ", "... \\| ") in page
    assert all(f"\n  {name} " in usage for name in COMMANDS)


# Each case has the words after `owt`, and below them a part of the error.
MISTYPED = Path(__file__).with_name("mistyped.txt").read_text().strip().split("\n\n")


@pytest.mark.parametrize("case", MISTYPED)
def test_a_mistyped_command_is_one_line_and_exit_code_2(
    case: str, capsys: pytest.CaptureFixture[str]
) -> None:
    words, message = case.split("\n")
    assert main(words.split()) == 2
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith("owt: error: ")
    assert message in error
    assert error.count("\n") == 1


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"min_tokens = 3\n", "'min_tokens' is outside a table"),
        (
            b"[clean]\nmin_tokenz = 3\n",
            "[clean]: unknown key 'min_tokenz'; did you mean 'min_tokens'?",
        ),
        (b"[fetch]\nmin_tokens = 3\n", "[fetch]: min_tokens is an option of [clean]"),
        (b"[cleen]\n", "unknown table [cleen]; did you mean 'clean'?"),
        (b"[clean]\nname = '\xff'\n", "is not valid TOML"),
        (b"[run]\nworkers = 0\n", "[run]: workers: 0 is not a whole number of at least 1"),
    ],
)
def test_a_mistake_in_the_settings_names_their_file(
    text: bytes, message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "config.toml"
    path.write_bytes(text)
    assert main(["run", str(tmp_path), str(path)]) == 2
    error = capsys.readouterr().err
    assert str(path) in error
    assert message in error


@pytest.mark.parametrize("words", [["w", "config.toml"], ["w"]])
def test_settings_are_a_named_file_or_the_folders_own(
    words: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("w").mkdir()
    path = Path("config.toml" if len(words) == 2 else "w/settings.toml")
    path.write_text("[clean]\nmin_tokens = 'many'\n")
    assert main(["run", *words, "--min_language_score", "0.7"]) == 2
    assert f"{path} [clean]: min_tokens: 'many' is not" in capsys.readouterr().err
    path.write_text("[clean]\nmin_tokens = 5\n")
    assert main(["run", *words, "--min_tokens", "-7"]) == 2
    error = capsys.readouterr().err
    assert error == "owt: error: --min_tokens: -7 is not a whole number of at least 0\n"


def test_nothing_installs_a_name_that_we_do_not_own() -> None:
    """The package is not in an index yet, so whoever took its name could run their code.

    A message may name an extra. It is printed where the package is installed, and pip takes that
    one.
    """
    install = r"pip install[^\n`]*['\" ]owt-pipeline"
    pattern_by_suffix = {".py": rf"{install}(?!\[pipeline\])", ".md": install}
    paths = list(REPOSITORY.glob("*.md"))
    for folder in ("docs", "owt_pipeline", "trainer", "dags"):
        paths += (REPOSITORY / folder).rglob("*")
    for path in paths:
        if path.suffix in pattern_by_suffix:
            assert not re.search(pattern_by_suffix[path.suffix], path.read_text()), path


def test_a_file_in_the_place_of_the_folder_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    assert main(["run", str(taken), "--links", os.devnull]) == 1
    assert capsys.readouterr().err.startswith(
        f"owt: error: {taken} is a file, where a folder is needed: name another path"
    )


def test_a_closed_pipe_is_not_an_error(tmp_path: Path) -> None:
    page = tmp_path / "page.html"
    # A thousand paragraphs are more than a pipe holds, and one paragraph is less.
    for num_paragraphs in (1000, 1):
        paragraph = "<p>The committee met in the spring, and the report was read to its end."
        page.write_text(f"<article>{paragraph * num_paragraphs}</article>")
        command = owt("page", page)
        with subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            process.stdout.close()
            assert process.stderr is not None
            assert process.stderr.read() == ""
        assert process.returncode == 141


def test_a_path_that_is_not_utf8_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name = os.fsdecode(bytes(tmp_path) + b"/\xff")
    assert main(["ls", name]) == 1
    os.mkdir(name)
    Path(name, "RS.zst").touch()
    assert main(["run", str(tmp_path / "run"), "--dumps", name]) == 1
    errors = capsys.readouterr().err.splitlines()
    assert len(errors) == 2
    assert all("/\\xff" in line and "is not UTF-8: rename it" in line for line in errors)


def test_values_of_beams_flags_are_not_files() -> None:
    words = (
        "w --runner DataflowRunner config.toml --project=p --region r --dumps a.zst b.zst --flag"
    )
    namespace, files, flags = build_parser().parse_with_files(words.split())
    assert files == ["w", "config.toml"]
    assert flags == ["--runner", "DataflowRunner", "--project=p", "--region", "r", "--flag"]
    assert vars(namespace)["dumps"] == ["a.zst", "b.zst"]


@pytest.mark.parametrize(
    ("flags", "problem"),
    [
        (("--dumps", "nowhere*.zst"), "no file matches 'nowhere*.zst'"),
        (("--tokenizer", "nowhere.json"), "cannot read nowhere.json"),
        (("--sources", "live", "--user_agent", ""), "--user_agent: missing"),
    ],
)
def test_a_mistake_of_any_stage_ends_a_run_before_its_first_one(
    small_config: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    flags: tuple[str, ...],
    problem: str,
) -> None:
    assert main(["run", str(tmp_path / "run"), str(small_config), *flags]) in (1, 2)
    assert problem in capsys.readouterr().err
    assert not (tmp_path / "run/urls").exists()


def test_a_stage_runs_in_a_notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """There, Beam would import its interactive runner, whose packages may not be installed."""
    monkeypatch.setattr("apache_beam.utils.interactive_utils.is_in_ipython", lambda: True)
    (tmp_path / "in.jsonl").write_text('{"text": "some text of my own"}\n')
    words = ["import", str(tmp_path / "run"), str(tmp_path / "in.jsonl"), "--workers", "1"]
    assert main(words) == 0
    assert manifest_of(tmp_path / "run", "documents").counts.left == 1


def test_ls_shows_the_stages_of_a_run_on_one_screen(small_run: Path, tmp_path: Path) -> None:
    lines = ask_owt("ls", small_run).splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(STAGES)
    assert all(len(line) <= 105 and line.split()[1] == "finished" for line in lines[1:])
    rows = {row["stage"]: row for row in json.loads(ask_owt("ls", small_run, "--json"))}
    corpus = manifest_of(small_run, "corpus")
    assert rows["export"]["rows"] == corpus.counts.left
    assert rows["export"]["rejected"] == sum(corpus.counts.rejected.values())
    assert rows["export"]["bytes"] == corpus.total_bytes
    assert rows["export"]["finished"].startswith("20")
    run = copy_of(small_run, tmp_path / "run")
    drop(run, "tokens")
    (run / "ledger/tokenize/records").mkdir(parents=True)
    (run / "ledger/tokenize/records/00000-0123456789abcdef.json").write_text("{}")
    states = {row["stage"]: row["state"] for row in json.loads(ask_owt("ls", run, "--json"))}
    assert (states["tokenize"], states["clean"]) == ("interrupted", "finished")


# The words that a command needs after the run.
MORE_WORDS = {"why": ["https://a.example/"], "forget": [os.devnull], "publish": ["hf://a/b"]}


@pytest.mark.parametrize(
    "name", sorted({*COMMANDS} - {"demo", "init", "page", "near-duplicates", "import", "run"})
)
def test_a_missing_run_is_one_message_in_every_command(
    name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    missing = tmp_path / "missing"
    assert main([name, str(missing), *MORE_WORDS.get(name, [])]) == ExitCode.NOT_FOUND
    output, error = capsys.readouterr()
    assert output == ""
    assert error.startswith(f"owt: error: {missing} is not a run: it has no ledger/manifest.json; ")
    assert error.count("\n") == 1
    assert not missing.exists()


@pytest.mark.parametrize("command", ["run", "import"])
def test_a_folder_with_other_files_is_refused_as_a_run(command: str, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "photos").mkdir(parents=True)
    (home / "photos/holiday.jpg").write_bytes(b"...")
    (home / "config.toml").write_text("[run]\n")
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"text": "some text of my own"}\n')
    sources = ["--links", os.devnull] if command == "run" else [texts]
    output = ask_owt(command, home, *sources, "--workers", 1, code=1)
    assert (
        f"{home} is not a run, and it is not empty: it contains photos/holiday.jpg; give a new "
        "folder" in output
    )
    assert sorted(path.name for path in home.iterdir()) == ["config.toml", "photos"]


def test_a_run_killed_before_its_first_stage_is_not_refused(tmp_path: Path) -> None:
    (tmp_path / ".lock").write_text("")
    (tmp_path / "run-log.jsonl").write_text("")
    (tmp_path / "config.toml").write_text("")
    check_folder(Storage(str(tmp_path)))


def test_a_file_that_no_stage_wrote_stays(
    small_config: Path, small_run: Path, tmp_path: Path
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    part = shard_file(run, "corpus", 0).name
    users_files = [
        "corpus/notes.txt",
        "corpus/part-notes.txt",
        f"corpus/{part}.bak",
        f"corpus/{part[:10]}.parquet",
        f"corpus/mine/{part}",
        f"corpus/old-{part}",
    ]
    (run / "corpus/mine").mkdir()
    # An earlier attempt may have left this file.
    orphan = run / "corpus" / f"{part[:10]}-00000000.parquet"
    for name in (*users_files, orphan):
        (run / name).write_text("mine")
    os.utime(orphan, (0, 0))
    ask_owt("run", run, small_config, "--workers", 1)
    assert all((run / name).read_text() == "mine" for name in users_files)
    assert not orphan.exists()


def test_a_run_ends_with_its_results_and_the_next_command(
    small_config: Path, small_run: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["run", str(small_run), str(small_config), "--workers", "1"]) == 0
    *results, next_line = capsys.readouterr().out.splitlines()[-4:]
    assert [line.split()[:2] for line in results] == [
        ["corpus", f"{small_run}/corpus"],
        ["tokens", f"{small_run}/tokens"],
        ["report", f"{small_run}/report/index.html"],
    ]
    train = f"python -m trainer --data {small_run}/tokens --out gpt2 --preset 124M"
    assert next_line == f"next:   {train}"


def test_a_run_without_a_document_ends_with_1_and_the_cause(tmp_path: Path) -> None:
    config = write_sources(tmp_path)
    archive = tmp_path / "other.warc.gz"
    record = response_record(
        "http://a.example/", 0, "HTTP/1.1 200 OK", [("Content-Type", "text/html")], b"<p>"
    )
    archive.write_bytes(record)
    output = ask_owt(
        "run", tmp_path / "run", config, "--workers", 1, "--pages_from", archive, code=1
    )
    assert "next:" not in output
    assert "the run has no document: fetch rejected " in output.strip().splitlines()[-1]
    words = ["run", tmp_path / "run", config, "--until", "fetch", "--pages_from", archive]
    assert "the run has no document" in ask_owt(*words, code=1)


def test_a_pipe_gets_lines_with_times_and_no_control_codes(
    small_config: Path, tmp_path: Path
) -> None:
    command = owt("run", tmp_path / "run", small_config, "--workers", 1, "--until", "fetch")
    process = subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)
    assert not re.search(r"[\x00-\x08\x0b-\x1f]", process.stdout + process.stderr)
    assert re.match(r"\d\d:\d\d:\d\d collect: ", process.stderr)
    table = process.stdout.splitlines()
    assert table[0].split() == ["stage", "in", "out", "seconds", "rejected"]
    assert [line.split()[0] for line in table[1:3]] == ["collect", "fetch"]
    assert table[-1] == f"next:   owt run {tmp_path / 'run'} {small_config} --until extract"


def test_quiet_prints_nothing_and_verbose_more(small_config: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    assert ask_owt("run", run, small_config, "--workers", 1, "--until", "collect", "--quiet") == ""
    shown = ask_owt("run", run, small_config, "--workers", 1, "--until", "fetch", "--verbose")
    assert "fetch: done in" in shown
    assert "not allowed with" in ask_owt("run", small_config, "--quiet", "--verbose", code=2)


METADATA = json.loads((REPOSITORY / "flex/metadata.json").read_text())
PARAMETERS = {parameter["name"]: parameter for parameter in METADATA["parameters"]}


@pytest.mark.parametrize(
    ("name", "value", "holds"),
    [
        ("run", "gs://bucket/run", True),
        ("run", "/tmp/run", False),
        ("settings", "config.toml", False),
        ("beam_flags", "--num_workers=2 --sdk_container_image=a/b:c", True),
        ("beam_flags", "num_workers", False),
    ],
)
def test_a_parameter_refuses_invalid_values(name: str, value: str, holds: bool) -> None:
    assert all(bool(re.search(pattern, value)) == holds for pattern in PARAMETERS[name]["regexes"])


def test_parameters_become_flags_and_the_launchers_flags_stay() -> None:
    beam = ["--project=p", "--template_location=gs://bucket/job", "--labels={}"]
    ours = ["--run=gs://b/run", "--settings=gs://b/c.toml", "--beam_flags=--a=1 '--b=2'"]
    _, files, flags = build_parser().parse_with_files(arguments([*beam, *ours]))
    assert files == ["gs://b/run", "gs://b/c.toml"]
    assert flags == [*beam, "--a=1", "--b=2"]
    assert arguments(["--settings=", "--beam_flags="]) == []
