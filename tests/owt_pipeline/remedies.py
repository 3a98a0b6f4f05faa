"""Helpers that follow the advice of an error message, and run the failed command again."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from owt_pipeline.cli import main
from tests.owt_pipeline.runs import ask_owt, made_once, run_here

Words = list[object]
COMMAND = re.compile(r"`(owt [^`]+)`")
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


def follow(message: str, words: Words) -> Words:
    """Follow the advice of a message; return the words of the command to run again.

    A command is executed as it stands. A flag or a spelling changes the returned words. Fails if
    the message advises none of these.
    """
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


def heal(words: Words, expected: str) -> str:
    """Run a command that fails, follow its message, and run it again; return the first output."""
    code, output = attempt(words)
    assert code != 0, output
    assert expected in output, output
    message = output[output.index(expected) :]
    code, second_output = attempt(follow(message, words))
    assert code == 0, f"{output}\nafter its advice: {second_output}"
    return output


def run_to_copy(temporary: pytest.TempPathFactory) -> Path:
    """Return a finished run of the demo's pages, with options of its own, in a path with a space.

    All processes of the tests share it, so a test changes a copy. Its sources are beside it.
    """
    return made_once(temporary, "remedies", _make_run) / "my inputs/a run"


def _make_run(folder: Path) -> None:
    inputs = folder / "my inputs"
    ask_owt("demo", "--write_inputs", inputs)
    run = inputs / "a run"
    sources = ("--dumps", inputs / "RS_demo.zst", "--pages_from", inputs / "demo.warc.gz")
    ask_owt("run", run, *sources, "--num_shards", 2, "--min_tokens", 64, "--workers", 1)
