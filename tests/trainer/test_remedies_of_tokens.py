"""Remedies for missing and damaged tokens: what the trainer advises is done, and works."""

from __future__ import annotations

import dataclasses
import json
import re
import shlex
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from tests.owt_pipeline.remedies import COMMAND, attempt
from tests.owt_pipeline.runs import ask_owt, files_of
from tests.trainer.conftest import EOT, small_config
from trainer.checkpoint import CheckpointError
from trainer.data.corpora import open_corpora
from trainer.data.export_tokens import export_tokens
from trainer.data.shards import ShardError, open_dataset
from trainer.loop import train


@pytest.fixture
def run(tmp_path: Path) -> Path:
    """Return a run of imported text without tokens. Its path has a space."""
    texts = tmp_path / "texts.jsonl"
    lines = [json.dumps({"text": f"{n} " + "Some words of my own. " * 60}) for n in range(3)]
    texts.write_text("\n".join(lines) + "\n")
    ask_owt("import", tmp_path / "a run", texts)
    flags = ("--until", "clean", "--min_tokens", 1, "--languages", "all")
    ask_owt("run", tmp_path / "a run", *flags)
    return tmp_path / "a run"


def follow(message: str) -> None:
    """Execute the commands of a message."""
    commands = COMMAND.findall(message)
    assert commands, message
    for command in commands:
        _, output = attempt(list(shlex.split(command)[1:]))
        assert "owt: error" not in output, output


def test_tokens_are_made_first(run: Path) -> None:
    with pytest.raises(ShardError, match="has no finished tokens: run `owt run") as error:
        open_dataset(run / "tokens")
    follow(str(error.value))
    assert open_dataset(run / "tokens").files
    with pytest.raises(ShardError, match="no token shards in") as error:
        open_dataset(run.parent / "tokens")
    assert re.search(r"run `owt run \S+ --until tokenize`, or copy that file", str(error.value))


@pytest.mark.parametrize(
    "name",
    [
        "corpus",
        pytest.param("clean", marks=pytest.mark.slow),
        "token",
        pytest.param("report", marks=pytest.mark.slow),
    ],
)
def test_another_folder_of_a_run_names_the_tokens(run: Path, name: str) -> None:
    ask_owt("run", run, "--until", "tokenize", "--val_fraction", "0.4")
    with pytest.raises(ShardError, match="the tokens of this run are in ") as error:
        open_dataset(run / name)
    assert open_dataset(str(error.value).rpartition(" are in ")[2]).files


def test_exported_tokens_go_into_a_folder(run: Path) -> None:
    ask_owt("run", run, "--until", "tokenize", "--val_fraction", "0.4")
    taken = run.parent / "a file"
    taken.touch()
    with pytest.raises(ShardError, match="a file is a file, where a folder is needed: name anoth"):
        export_tokens(str(run / "tokens"), taken)
    assert export_tokens(str(run / "tokens"), run.parent / "a folder")


@pytest.mark.parametrize("is_checked", [True, False])
def test_damaged_tokens_are_rebuilt(run: Path, is_checked: bool) -> None:
    ask_owt("run", run, "--until", "tokenize", "--val_fraction", "0.4")
    files = [run / file.path for file in files_of(run, "tokens") if file.path.endswith(".arrow")]
    path = max(files, key=lambda file: file.stat().st_size)
    content = path.read_bytes()
    dataset = dataclasses.replace(open_dataset(run / "tokens"), ids_checked=is_checked)
    kind = pa.list_(pa.int64()) if is_checked else pa.list_(pa.uint32())
    table = pa.table({"tokens": pa.array([[1, 1 << 31]], kind), "n_tokens": [2]})
    with pa.ipc.new_file(path, table.schema) as writer:
        writer.write_table(table)
    with pytest.raises(ShardError, match="run `owt verify") as error:
        dataset.documents(path.parent.name)
    follow(str(error.value))
    assert path.read_bytes() == content


def test_tokens_get_one_tokenizer(run: Path, tokenizer_file: Path) -> None:
    # The tokenizer of other tokens, or of the model to start from.
    other_run = run.parent / "another run"
    shutil.copytree(run, other_run)
    flags = ("--until", "tokenize", "--val_fraction", 0)
    ask_owt("run", run, *flags, "--tokenizer", tokenizer_file, "--eot_token", EOT)
    ask_owt("run", other_run, *flags)
    data = (str(run / "tokens"), str(other_run / "tokens"))
    with pytest.raises(ShardError, match="tokenize both with one"):
        open_corpora(data)
    config = small_config(data[0], run.parent / "trained", max_steps=1)
    train(config)
    tuned = small_config(data[1], run.parent / "tuned", max_steps=1, init_from=config.out)
    with pytest.raises(CheckpointError) as error:
        train(tuned)
    advised = re.search(r"tokenize again with (--tokenizer .*), or the right", str(error.value))
    assert advised
    ask_owt("run", other_run, *flags, *shlex.split(advised[1]))
    # The texts are the same, and so their tokens are now.
    with pytest.raises(ShardError, match="are the same tokens"):
        open_corpora(data)
    train(tuned)
