"""Words of other tools are answered by ours, and each answer names commands and flags that exist."""

from __future__ import annotations

import functools
import importlib.util
import re
from pathlib import Path

import pytest

from owt_pipeline import foreign_words
from owt_pipeline.cli import COMMANDS, command_of, main
from owt_pipeline.command_line import Command
from owt_pipeline.commands.run import build_parser
from owt_pipeline.pipeline import STAGES
from schemas.values import nearest_words

ANSWERS = {
    **{f"owt {word}": text for word, text in foreign_words._ANSWER_BY_COMMAND.items()},
    **{f"--{word}": text for word, text in foreign_words._ANSWER_BY_FLAG.items()},
    **{f"--{word}": f"--{flag}" for word, flag in foreign_words._FLAG_BY_WORD.items()},
}


@functools.cache
def flags_of_all_commands() -> set[str]:
    """Return the flags of all commands, and of the trainer's that answers name."""
    flags = {"--data", "--version"}
    for action in build_parser()._actions:
        flags.update(action.option_strings)
    for name in COMMANDS:
        command = command_of(name)
        if isinstance(command, Command):
            flags.update(command.parser()._option_string_actions)
    return flags


SOURCE = ["--links", "links.txt", "--user_agent", "tests/1.0 (+mailto:me@example.org)"]


@pytest.mark.parametrize("word", ANSWERS)
def test_an_answer_names_what_exists(word: str) -> None:
    answer = ANSWERS[word]
    assert set(re.findall(r"owt ([a-z][a-z-]*)", answer)) <= set(COMMANDS)
    assert set(re.findall(r"--[a-z_]+", answer)) <= flags_of_all_commands()
    for module in re.findall(r"python -m ([\w.]+)", answer):
        assert importlib.util.find_spec(module)


def test_no_word_of_another_tool_is_one_of_ours() -> None:
    assert not set(foreign_words._ANSWER_BY_COMMAND) & {*COMMANDS, *STAGES}
    flags = {flag[2:] for action in build_parser()._actions for flag in action.option_strings}
    assert not set(foreign_words._ANSWER_BY_FLAG) & flags
    assert not set(foreign_words._FLAG_BY_WORD) & flags


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "run"], "trainer"),
        (["STATUS"], "owt ls RUN"),
        (["fuzzy_dedup"], "owt near-duplicates FILES"),
        (["verify", "run", "--fix"], "--fix is not a flag of owt verify; use --repair"),
        (["publish", "run", "hf://a/b", "--private"], "is private unless --public"),
        (["near-duplicates", "a.jsonl", "--jaccard=0.7"], "use --threshold"),
        (["near-duplicates", "a.jsonl", "--output", "x"], "use --out"),
        (["import", "run", "a.jsonl", "--text-column", "x"], "owt import; use --text_field"),
        (["import", "run", "a.jsonl", "--id_field", "x"], "hash of its URL"),
        (["run", "run", "--num_bands", "20"], "each pair is verified exactly"),
        (["run", "run", "-v"], "use --verbose"),
        (["run", "run", "--num-proc=4"], "use --workers"),
        (["run", "run", "--preset", "strict"], "owt init RUN --preset"),
        (["run", "run", "--seed", "1"], "nothing in a run is random"),
        (["run", "--dumps", "a.zst", "run"], "`owt run RUN --dumps FILE`"),
        (["run", "run", "--languages", "EN", *SOURCE], "did you mean 'en'"),
        (["run", "run", "--languages", "english", *SOURCE], "did you mean 'en'"),
        (["run", "run", "--languages", "en,de", *SOURCE], "--languages en de"),
    ],
)
def test_foreign_words_are_answered_with_exit_code_2(
    words: list[str],
    answer: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("links.txt").write_text("https://example.org/a\n")
    assert main(words) == 2
    assert answer in capsys.readouterr().err


def test_help_of_a_command_is_its_help(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["help", "verify"])
    assert capsys.readouterr().out.startswith("usage: owt verify")


@pytest.mark.parametrize(
    ("word", "nearest"),
    [("--min_tokenz", "--min_tokens"), ("--Dumps", "--dumps"), ("--resume", None), ("xyz", None)],
)
def test_only_a_near_word_is_suggested(word: str, nearest: str | None) -> None:
    flags = ["--min_tokens", "--dumps", "--resolve", "--until"]
    assert nearest_words(word, flags) == ([nearest] if nearest else [])
