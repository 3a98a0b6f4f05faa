"""Helpers that follow the advice of an error message, and run the failed command again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from owt_pipeline.cli import main
from tests.owt_pipeline.runs import ask_owt, run_here

Words = list[object]
COMMAND = re.compile(r"`(owt [^`]+)`")
_RENAMING = re.compile(r"rename its column (\S+) to (\w+)")
_FLAG = re.compile(r"(?:give|with) (--\w+)\b(?! \S+ is)")
_EXAMPLE_OF_FLAG = re.compile(r"(--\w+): [^;]+; give .*, as in ('[^']+')")
_SPELLING = re.compile(r"did you mean '?(-*\w+)")


def attempt(words: Words) -> tuple[int, str]:
    """Run `owt` in this process; return its exit code and output."""
    codes: list[int] = []

    def run() -> int:
        codes.append(main([str(word) for word in words]))
        return 0

    output = run_here(run)
    return codes[0], output


def follow(message: str, words: Words, table: Path | None = None) -> Words:
    """Follow the advice of a message; return the words of the command to run again.

    A command is executed as it stands. A flag or a spelling changes the returned words. A column is
    renamed in `table`. Fails if the message advises none of these.
    """
    if renaming := _RENAMING.search(message):
        assert table is not None
        table.write_text(table.read_text().replace(renaming[1], renaming[2], 1))
        return words
    if commands := COMMAND.findall(message):
        for command in commands:
            _, output = attempt(list(shlex.split(command)[1:]))
            assert "owt: error" not in output, f"{command}: {output}"
        return words
    if example := _EXAMPLE_OF_FLAG.search(message):
        return [*words, example[1], *shlex.split(example[2])]
    if spelling := _SPELLING.search(message):
        misspelled = next(word for word in words if f"{word}" in message and word != "run")
        return [spelling[1] if word == misspelled else word for word in words]
    flag = _FLAG.search(message)
    assert flag is not None, f"nothing is advised: {message}"
    return [*words, flag[1]]


def heal(words: Words, expected: str, table: Path | None = None) -> str:
    """Run a command that fails, follow its message, and run it again; return the first output."""
    code, output = attempt(words)
    assert code != 0, output
    assert expected in output, output
    message = output[output.index(expected) :]
    code, second_output = attempt(follow(message, words, table))
    assert code == 0, f"{output}\nafter its advice: {second_output}"
    return output


def make_run(folder: Path) -> Path:
    """Make a finished run of the demo's pages, with options of its own, in a path with a space."""
    inputs = folder / "my inputs"
    ask_owt("demo", "--write_inputs", inputs)
    run = inputs / "a run"
    sources = ("--dumps", inputs / "RS_demo.zst", "--pages_from", inputs / "demo.warc.gz")
    ask_owt("run", run, *sources, "--num_shards", 2, "--min_tokens", 64, "--workers", 1)
    return run
