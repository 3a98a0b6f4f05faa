"""Words of other tools are answered by ours, and each answer names commands and flags that exist."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path

import pytest

from owt_pipeline import foreign_words
from owt_pipeline.cli import COMMANDS, main
from owt_pipeline.commands.run import build_parser
from owt_pipeline.pipeline import STAGES
from schemas.values import nearest_words

ANSWERS = {
    **{f"owt {word}": text for word, text in foreign_words._ANSWER_BY_COMMAND.items()},
    **{f"--{word}": text for word, text in foreign_words._ANSWER_BY_FLAG.items()},
}


SOURCE = ["--links", "links.txt", "--user_agent", "tests/1.0 (+mailto:me@example.org)"]


@pytest.mark.parametrize("word", ANSWERS)
def test_an_answer_names_what_exists(word: str, capsys: pytest.CaptureFixture[str]) -> None:
    answer = ANSWERS[word]
    names = re.findall(r"owt ([a-z][a-z-]*)", answer) or ["run"]
    known_flags = {"--data", "--public", "--version"}
    for action in build_parser()._actions:
        known_flags.update(action.option_strings)
    for name in names:
        with pytest.raises(SystemExit):
            main([name, "--help"])
        known_flags.update(re.findall(r"--[a-z_]+", capsys.readouterr().out))
    assert set(re.findall(r"--[a-z_]+", answer)) <= known_flags
    for module in re.findall(r"python -m ([\w.]+)", answer):
        assert importlib.util.find_spec(module)


def test_no_word_of_another_tool_is_one_of_ours() -> None:
    assert not set(foreign_words._ANSWER_BY_COMMAND) & {*COMMANDS, *STAGES}
    flags = {flag[2:] for action in build_parser()._actions for flag in action.option_strings}
    assert not set(foreign_words._ANSWER_BY_FLAG) & flags


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (["train", "run"], "trainer"),
        (["STATUS"], "owt ls RUN"),
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
