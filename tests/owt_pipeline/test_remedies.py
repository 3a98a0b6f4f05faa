"""The advice of an error message is followed, and then the same command works."""

from __future__ import annotations

import gzip
import json
import shlex
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.advice import advising_messages
from tests.conftest import REPOSITORY
from tests.owt_pipeline.remedies import COMMAND, Words, attempt, heal, run_to_copy
from tests.owt_pipeline.runs import ask_owt, copy_of, files_of, manifest_of


def write_dump(path: Path, number: int) -> Path:
    """Write a dump of one submission with a link of its own."""
    submission = {
        "id": f"a{number}", "url": f"https://example.org/{number}", "score": 9, "is_self": False,
        "over_18": False, "created_utc": 1546300800, "subreddit": "a", "title": "t",
        "num_comments": 1,
    }  # fmt: skip
    path.write_text(json.dumps(submission) + "\n")
    return path


@pytest.fixture(scope="module")
def finished_run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of the demo's pages, with options of its own. Its path has a space."""
    return run_to_copy(tmp_path_factory)


@pytest.fixture
def run(finished_run: Path, tmp_path: Path) -> Path:
    """A copy of the finished run, whose path has a space, too."""
    return copy_of(finished_run, tmp_path / "a run")


def test_a_damaged_file_is_removed_and_rebuilt(run: Path) -> None:
    path = run / files_of(run, "corpus")[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-50] + b"x" * 50)
    heal(["verify", run], "1 file damaged: run")
    assert path.read_bytes() == content


@pytest.mark.parametrize(
    "dataset",
    [
        "clean",
        pytest.param("documents", marks=pytest.mark.slow),
        pytest.param("pages", marks=pytest.mark.slow),
    ],
)
def test_a_file_that_cannot_be_read_is_rebuilt(run: Path, dataset: str) -> None:
    path = run / files_of(run, dataset)[0].path
    content = path.read_bytes()
    path.write_bytes(content[:-50] + b"x" * 50)
    changed = {
        "clean": ["--threshold", "0.7"],
        "documents": ["--min_tokens", "60"],
        "pages": ["--favor", "recall"],
    }
    heal(["run", run, *changed[dataset], "--workers", "1"], "cannot be read")
    assert path.read_bytes() == content


@pytest.fixture
def month(tmp_path: Path) -> Callable[[int], Path]:
    """A function that writes the dump of a month."""
    return lambda number: write_dump(tmp_path / f"RS {number}.ndjson", number)


@pytest.mark.parametrize("names_first", [False, True])
def test_a_second_month_is_added(
    tmp_path: Path, month: Callable[[int], Path], names_first: bool
) -> None:
    run = tmp_path / "a run"
    ask_owt("run", run, "--dumps", month(1), "--until", "collect")
    dumps = [month(1), month(2)] if names_first else [month(2)]
    heal(["run", run, "--dumps", *dumps, "--until", "collect"], "repeat the command with --add")
    assert attempt(["run", run, "--until", "collect"])[0] == 0


@pytest.mark.parametrize("flag", ["--links", "--warcs"])
def test_a_second_source_of_another_kind_is_added(
    tmp_path: Path, month: Callable[[int], Path], finished_run: Path, flag: str
) -> None:
    run = tmp_path / "a run"
    links = tmp_path / "my links.txt"
    links.write_text("https://example.org/other\n")
    ask_owt("run", run, "--dumps", month(1), "--until", "collect")
    source = links if flag == "--links" else finished_run.parent / "demo.warc.gz"
    heal(["run", run, flag, source, "--until", "collect"], "repeat the command with --add")


def test_new_text_is_added(tmp_path: Path) -> None:
    first = tmp_path / "my first.jsonl"
    second = tmp_path / "my second.jsonl"
    first.write_text('{"text": "One text."}\n')
    second.write_text('{"text": "Another text."}\n')
    run = tmp_path / "a run"
    ask_owt("import", run, first)
    heal(["import", run, second], "new in")


@pytest.mark.parametrize("added", [[], ["--add", "--dumps"]])
def test_settings_name_a_source_again(
    tmp_path: Path, month: Callable[[int], Path], added: list[object]
) -> None:
    run = tmp_path / "a run"
    ask_owt("run", run, "--dumps", month(1), month(2), "--min_score", 20, "--until", "collect")
    (run / "settings.toml").write_text("[collect]\ndumps = []\n")
    words: Words = ["run", run, *added, *([month(3)] if added else []), "--until", "collect"]
    code, output = attempt(words)
    assert (code, "the settings name no earlier source" in output) == (1, True)
    (command,) = COMMAND.findall(output)
    restoring = [*shlex.split(command)[1:], "--min_score", 20, "--until", "collect"]
    assert attempt(restoring)[0] == 0
    assert attempt(words)[0] == 0
    # No option got its default again.
    assert manifest_of(run, "urls").options["min_score"] == 20


def test_lost_settings_of_an_import_are_restored(tmp_path: Path) -> None:
    for name in ("first.jsonl", "second.jsonl"):
        (tmp_path / name).write_text(json.dumps({"body": f"The text of {name}."}))
    run = tmp_path / "a run"
    ask_owt("import", run, tmp_path / "first.jsonl", "--text_field", "body")
    (run / "settings.toml").unlink()
    heal(
        ["import", run, tmp_path / "second.jsonl", "--add", "--text_field", "body"],
        "is missing, and without its options",
    )
    assert manifest_of(run, "documents").counts.left == 2


@pytest.mark.parametrize("name", ["links.csv", "links.jsonl"])
def test_a_column_of_links_is_renamed(tmp_path: Path, name: str) -> None:
    table = tmp_path / name
    rows = {"links.csv": "n,HREF\n3,https://example.org/x\n"}
    table.write_text(rows.get(name, '{"n": 3, "HREF": "https://example.org/x"}\n'))
    words: Words = ["run", tmp_path / "run", "--links", table, "--until", "collect"]
    code, output = attempt(words)
    assert code == 1
    assert "n, HREF" in output
    assert "rename the column that has the URLs to url" in output
    table.write_text(table.read_text().replace("HREF", "url"))
    assert attempt(words)[0] == 0


@pytest.mark.parametrize("kind", ["dumps", "warcs"])
def test_a_damaged_archive_is_read_with_allow_damaged(
    tmp_path: Path, month: Callable[[int], Path], finished_run: Path, kind: str
) -> None:
    path = tmp_path / ("RS.gz" if kind == "dumps" else "pages.warc.gz")
    if kind == "dumps":
        content = gzip.compress(month(1).read_bytes() * 1000)
    else:
        content = (finished_run.parent / "demo.warc.gz").read_bytes()
    path.write_bytes(content[:-20])
    words: Words = ["run", tmp_path / "run", f"--{kind}", path, "--until", "collect"]
    heal(words, "expected a complete")


def test_the_example_of_a_user_agent_is_taken(tmp_path: Path) -> None:
    (tmp_path / "links.txt").write_text("https://example.org/x\n")
    words: Words = ["run", tmp_path / "run", "--links", tmp_path / "links.txt", "--dry_run"]
    heal(words, "--user_agent: missing")


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--min_tokns", "64"], "--min_tokns"),
        (["--val_fractoin", "0.5"], "--val_fractoin"),
        (["--alow_damaged"], "--alow_damaged"),
    ],
)
def test_a_mistyped_flag_is_corrected(run: Path, words: Words, expected: str) -> None:
    heal(["run", run, "--dry_run", *words], expected)


def test_a_larger_val_fraction_fills_val(run: Path) -> None:
    _, output = attempt(["run", run, "--val_fraction", "0.0000001", "--workers", "1"])
    assert "val/ is empty, since --val_fraction" in output
    code, output = attempt(["run", run, "--val_fraction", "0.5", "--workers", "1"])
    assert (code, "val/ is empty" in output) == (0, False)


# For each message that advises something, it has a part of the message and the test that follows
# the advice, or the reason why there is none.
TABLE = Path(__file__).with_name("remedies.txt")


def remedies() -> list[tuple[str, str]]:
    """Return the table's rows: a part of a message, and the test that follows its advice."""
    rows = []
    for line in TABLE.read_text().splitlines():
        if line and not line.startswith("#"):
            part, _, shown_by = line.rpartition(" => ")
            rows.append((part, shown_by))
    return rows


def test_each_message_that_advises_has_a_test_of_its_remedy() -> None:
    """A new message needs a row in remedies.txt, and a test that follows its advice."""
    rows = remedies()
    messages = advising_messages(REPOSITORY)
    missing = []
    for message, place in messages.items():
        # test_foreign_words.py tries what each answer in that table names.
        if place.startswith("owt_pipeline/foreign_words.py"):
            continue
        if not any(part in message for part, _ in rows):
            missing.append(f"{place}: {message}")
    assert missing == [], "add these to remedies.txt"
    stale = [part for part, _ in rows if not any(part in message for message in messages)]
    assert stale == [], "no message has these any more"


def test_each_test_of_a_remedy_exists() -> None:
    tests = {path: path.read_text() for path in (REPOSITORY / "tests").rglob("test_*.py")}
    for part, shown_by in remedies():
        if shown_by.startswith("by hand: "):
            continue
        name, _, function = shown_by.partition("::")
        files = [text for path, text in tests.items() if path.name == name]
        assert any(f"def {function}(" in text for text in files), (part, shown_by)
