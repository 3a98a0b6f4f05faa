"""A mistake is reported in one true line, which names the cause and the remedy."""

from __future__ import annotations

import errno
import gzip
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from owt_pipeline.cli import COMMANDS, main
from owt_pipeline.command_line import reporting_errors
from owt_pipeline.config import options_of
from owt_pipeline.errors import UserError
from owt_pipeline.formats.own_code import load_own
from owt_pipeline.pipeline import STAGES
from tests.conftest import REPOSITORY
from tests.owt_pipeline.clean.test_stage import SENTENCE
from tests.owt_pipeline.remedies import attempt
from tests.owt_pipeline.runs import files_of, manifest_of
from tests.servers.web import WebServer, answer

Complain = Callable[..., str]

# The words that a command needs after the run.
MORE_WORDS = {"why": ["https://a.example/"], "forget": [os.devnull], "publish": ["hf://a/b"]}


@pytest.fixture
def complain(capsys: pytest.CaptureFixture[str]) -> Complain:
    """A function that runs `owt`, which has to fail, and returns its message.

    The message is the last line that the command prints.
    """

    def run(*words: object) -> str:
        assert main([str(word) for word in words]) in (1, 2)
        error = capsys.readouterr().err
        lines = error.splitlines()
        assert sum("owt: error: " in line for line in lines) == 1, error
        assert "Traceback" not in error
        return lines[-1].removeprefix("owt: error: ")

    return run


@pytest.fixture
def links(tmp_path: Path) -> Path:
    """A list with one link."""
    path = tmp_path / "links.txt"
    path.write_text("https://example.org/x\n")
    return path


@pytest.mark.parametrize("name", sorted({*COMMANDS} - {"demo", "page", "near-duplicates"}))
def test_a_file_in_the_place_of_the_run_is_named(
    name: str, tmp_path: Path, complain: Complain, links: Path
) -> None:
    taken = tmp_path / "taken"
    taken.touch()
    words_by_command = {"run": ["--links", links], "import": [links]} | MORE_WORDS
    message = complain(name, taken, *words_by_command.get(name, []))
    assert message == f"{taken} is a file, where a folder is needed: name another path"
    message_of_subfolder = complain(name, taken / "deeper/run", *words_by_command.get(name, []))
    assert message_of_subfolder == message


@pytest.mark.parametrize("mark", [b"\xef\xbb\xbf", b""])
@pytest.mark.parametrize("is_own_file", [True, False])
def test_settings_with_a_byte_order_mark_are_read(
    mark: bytes, is_own_file: bool, tmp_path: Path, links: Path
) -> None:
    run = tmp_path / "run"
    run.mkdir()
    settings = run / "settings.toml" if is_own_file else tmp_path / "my.toml"
    settings.write_bytes(mark + f'[collect]\r\nlinks = ["{links}"]\r\n'.encode())
    words = ["run", str(run), *([] if is_own_file else [str(settings)]), "--until", "collect"]
    assert main([*words, "--num_shards", "2"]) == 0
    assert main(["run", str(run), *words[2:]]) == 0


def test_settings_in_utf_16_are_named(tmp_path: Path, complain: Complain) -> None:
    settings = tmp_path / "my.toml"
    settings.write_bytes("[collect]\n".encode("utf-16"))
    assert complain("run", tmp_path / "run", settings) == (
        f"{settings} is UTF-16, and TOML is UTF-8: save it as UTF-8"
    )


WEB_PAGES = {
    "page.warc": b"<!DOCTYPE html><html><body>Not found</body></html>",
    "page.warc.gz": b"<html><head><title>403 Forbidden</title></head></html>",
    "zipped.warc.gz": gzip.compress(b"\xef\xbb\xbf\n  <HTML><body>Log in</body></HTML>"),
    "listing.xml.warc": b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>',
}


@pytest.mark.parametrize("name", WEB_PAGES)
@pytest.mark.parametrize("flag", ["--warcs", "--pages_from"])
def test_a_web_page_in_place_of_a_warc_file_is_named(
    name: str, flag: str, tmp_path: Path, complain: Complain, links: Path
) -> None:
    page = tmp_path / name
    page.write_bytes(WEB_PAGES[name])
    sources = [flag, page, *(["--links", links] if flag == "--pages_from" else [])]
    message = complain("run", tmp_path / "run", *sources, "--until", "fetch", "--workers", 1)
    assert message.startswith(f"{page}: {flag} takes archive files, but this is a web page, ")
    assert "0 broken" not in message


def use_up_memory_of(name: str) -> int:
    """Raise the error of a library for which no memory is left."""
    if name == "python":
        raise MemoryError
    if name == "arrow":
        raise pa.ArrowMemoryError("malloc of size 17179869184 failed")
    if name == "system":
        raise OSError(errno.ENOMEM, "Cannot allocate memory")
    import duckdb

    connection = duckdb.connect(config={"memory_limit": "1MB", "max_temp_directory_size": "0B"})
    connection.sql("SELECT list(range) FROM range(10_000_000)").fetchall()
    return 0


@pytest.mark.parametrize("name", ["python", "arrow", "system", "duckdb"])
def test_the_end_of_memory_is_one_line(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert reporting_errors(lambda: use_up_memory_of(name)) == 1
    assert capsys.readouterr().err == (
        "owt: error: memory is used up: use fewer --workers, or a machine with more memory, "
        "and run the same command again\n"
    )


KILLED = """
import os, signal, sys
from owt_pipeline.engine import runner

def killed(*_): os.kill(os.getpid(), signal.SIGKILL)

runner._run_graph = killed
from owt_pipeline.__main__ import main
sys.exit(main())
"""


@pytest.mark.parametrize("command", ["run", "import"])
def test_a_run_killed_before_its_first_success_continues(
    command: str, tmp_path: Path, links: Path
) -> None:
    run = tmp_path / "run"
    texts = tmp_path / "texts.jsonl"
    texts.write_text('{"body": "Some text of my own."}\n')
    flags = {
        "run": ["--links", links, "--num_shards", "3", "--until", "collect"],
        "import": [texts, "--text_field", "body", "--num_shards", "3"],
    }[command]
    words = [sys.executable, "-c", KILLED, command, str(run), *map(str, flags)]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(words, env=environment, timeout=120, check=False)
    assert process.returncode == -9
    rerun = {"run": ["run", str(run), "--until", "collect"], "import": ["import", str(run)]}
    assert main(rerun[command]) == 0
    dataset = {"run": "urls", "import": "documents"}[command]
    assert manifest_of(run, dataset).counts.left == 1
    assert len(files_of(run, dataset)) == 3


def test_a_run_killed_after_its_first_success_keeps_its_settings(
    tmp_path: Path, links: Path
) -> None:
    run = tmp_path / "run"
    collect = ["run", str(run), "--until", "collect", "--links", str(links)]
    assert main([*collect, "--min_score", "2"]) == 0
    settings_before = (run / "settings.toml").read_bytes()
    words = [sys.executable, "-c", KILLED, *collect, "--min_score", "5"]
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    subprocess.run(words, env=environment, timeout=120, check=False)
    assert (run / "settings.toml").read_bytes() == settings_before


def test_import_ends_with_the_command_that_is_next(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "my run"
    texts = tmp_path / "texts.jsonl"
    texts.write_text("".join(f'{{"text": "{n} {SENTENCE * 30}"}}\n' for n in range(3)))
    assert main(["import", str(run), str(texts)]) == 0
    line = capsys.readouterr().out.splitlines()[-1]
    assert line == f"next:   owt run {shlex.quote(str(run))}"
    assert main([*shlex.split(line.removeprefix("next:   owt ")), "--workers", "1"]) == 0
    assert manifest_of(run, "tokens").counts.left > 0
    capsys.readouterr()
    assert main(["import", str(run), "--quiet"]) == 0
    assert capsys.readouterr().out == ""


def test_warc_files_are_named_once(tmp_path: Path) -> None:
    assert main(["demo", "--write_inputs", str(tmp_path)]) == 0
    words = ["--until", "fetch", "--workers", "1"]
    archive = str(tmp_path / "demo.warc.gz")
    assert main(["run", str(tmp_path / "once"), "--warcs", archive, *words]) == 0
    once = manifest_of(tmp_path / "once", "pages")
    assert main(["run", str(tmp_path / "once"), *words]) == 0
    twice = ["--warcs", archive, "--pages_from", archive]
    assert main(["run", str(tmp_path / "twice"), *twice, *words]) == 0
    assert once.counts == manifest_of(tmp_path / "twice", "pages").counts
    assert once.counts.left > 100


@pytest.mark.parametrize(
    ("collect", "fetch", "expected"),
    [
        ({"warcs": ["w"]}, {}, (("w",), ("archive",))),
        (
            {"warcs": ["w", "x"]},
            {"sources": ["archive", "wayback"]},
            (("w", "x"), ("archive", "wayback")),
        ),
        ({"warcs": ["w"], "links": ["l"]}, {"sources": ["archive"]}, (("w",), ("archive",))),
        ({"warcs": ["w"]}, {"pages_from": ["p"]}, (("p",), ("archive",))),
        ({"warcs": ["w"]}, {"sources": ["live"]}, ((), ("live",))),
        ({"links": ["l"]}, {}, ((), ("live",))),
    ],
)
def test_pages_come_from_the_warc_files_of_the_links(
    collect: dict[str, object], fetch: dict[str, object], expected: tuple[object, object]
) -> None:
    options = options_of(list(STAGES.values()), None, {"collect": collect, "fetch": fetch}, {})
    assert (options[1].pages_from, options[1].order) == expected


# The module's tests name its lines, so a new function belongs at its end.
OWN_CODE = """
from owt_pipeline import Extracted

def length(text): return len(text)
def fails(text): return 1 / (len(text) - len(text))
def is_none(text): pass
def is_text(text): return "many"
def is_nan(text): return float("nan")
def of_two(text, model): return 1

def good(settings): return lambda page: Extracted(page.html)
def finds_nothing(settings): return lambda page: None
def fails_with_a_page(settings): return lambda page: page.content
def fails_at_once(settings): raise FileNotFoundError("model.bin")
def returns_a_text(settings): return lambda page: page.html
"""


@pytest.fixture
def own_code(tmp_path: Path) -> Path:
    """A folder with a text and a module of the user."""
    (tmp_path / "of_mine.py").write_text(OWN_CODE)
    (tmp_path / "texts.jsonl").write_text('{"text": "Some text of my own."}\n')
    return tmp_path


def owt_in(folder: Path, *words: object) -> tuple[int, str]:
    """Run the console script's function in a folder that is not on Python's path."""
    code = (
        f"import sys; sys.path[0] = {str(REPOSITORY)!r}\n"
        "from owt_pipeline.__main__ import main; sys.exit(main())"
    )
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    process = subprocess.run(
        [sys.executable, "-c", code, *map(str, words)],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    return process.returncode, process.stdout + process.stderr


@pytest.fixture
def run_words(own_code: Path, monkeypatch: pytest.MonkeyPatch) -> list[object]:
    """Return the words of a run that may use the user's module, which was not imported yet."""
    monkeypatch.syspath_prepend(str(own_code))
    monkeypatch.delitem(sys.modules, "of_mine", raising=False)
    links = own_code / "links.txt"
    links.write_text("https://example.org/x\n")
    return ["run", own_code / "run", "--links", links, "--user_agent", "a b@example.org"]


@pytest.mark.parametrize(
    ("signal", "expected"),
    [
        ("fails", "fails with an ordinary document: ZeroDivisionError: division by zero"),
        ("of_two", "fails with an ordinary document: TypeError"),
        ("is_none", "returns None for an ordinary document"),
        ("is_text", "returns 'many' for an ordinary document"),
        ("is_nan", "returns nan for an ordinary document"),
    ],
)
def test_a_signal_that_fails_is_found_before_the_run(
    signal: str, expected: str, own_code: Path, run_words: list[object], complain: Complain
) -> None:
    message = complain(*run_words, "--signals", "of_mine:length", f"of_mine:{signal}<=3")
    assert message.startswith(f"signals: of_mine:{signal} {expected}")
    assert "own_code.py" not in message, "a place in the project's code is not the user's mistake"
    assert not (own_code / "run/urls").exists()


@pytest.mark.parametrize(
    ("factory", "expected"),
    [
        ("fails_with_a_page", "AttributeError: 'Page' object has no attribute 'content' (of_mine"),
        ("fails_at_once", "FileNotFoundError: model.bin (of_mine.py, line 14)"),
        ("returns_a_text", "returns str for an ordinary page, and has to return"),
    ],
)
def test_an_extractor_that_fails_is_found_before_the_run(
    factory: str, expected: str, run_words: list[object], complain: Complain
) -> None:
    message = complain(*run_words, "--extractor", f"of_mine:{factory}")
    assert message.startswith(f"extractor: of_mine:{factory} ")
    assert expected in message
    for valid in ("good", "finds_nothing"):
        assert main([*map(str, run_words), "--extractor", f"of_mine:{valid}", "--dry_run"]) == 0


@pytest.mark.parametrize("workers", [1, pytest.param(2, marks=pytest.mark.slow)])
def test_a_module_in_the_current_folder_is_found(own_code: Path, workers: int) -> None:
    code, output = owt_in(own_code, "import", "run", "texts.jsonl")
    assert code == 0, output
    words = ["--signals", "of_mine:length", "--languages", "all", "--min_tokens", 1]
    code, output = owt_in(own_code, "run", "run", *words, "--until", "clean", "--workers", workers)
    assert code == 0, output
    code, output = owt_in(own_code, "run", "run", "--signals", "of_myne:length")
    assert code == 1
    assert output.splitlines()[-1] == (
        "owt: error: signals: of_myne:length cannot be imported (ModuleNotFoundError: No module "
        "named 'of_myne'); run the command in the folder that has of_myne.py, or set PYTHONPATH"
    )


@pytest.mark.parametrize("module", ["of_mine.py", "./of_mine.py", "./of_mine"])
def test_a_file_is_named_as_a_module(
    module: str, own_code: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own_code)
    monkeypatch.syspath_prepend(str(own_code))
    with pytest.raises(UserError, match="names a file; expected a module, as in") as error:
        load_own(f"{module}:length", "signals")
    assert callable(load_own(str(error.value).rpartition("as in ")[2], "signals"))


def test_addresses_of_an_own_network_are_allowed_by_a_flag(tmp_path: Path) -> None:
    with WebServer({"": answer()}) as server:
        (tmp_path / "links.txt").write_text(f"http://127.0.0.1:{server.port}/page\n")
        words = ["run", tmp_path / "run", "--links", tmp_path / "links.txt", "--until", "fetch"]
        words += ["--user_agent", "tests/1.0 (+http://example.org/)", "--workers", 1]
        words += ["--allowed_ports", server.port]
        code, output = attempt(words)
        flag = re.search(r"is not public; .* add (--\w+)", output)
        assert flag is not None, output
        assert code == 1
        assert attempt([*words, flag[1]])[0] == 0
