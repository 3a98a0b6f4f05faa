"""Real token datasets, and a real tokenizer, made small."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch: pip install torch")
from trainer.config import TrainConfig  # noqa: E402
from trainer.data.corpora import Corpora  # noqa: E402
from trainer.data.samplers import Sampler  # noqa: E402
from trainer.model import GPT  # noqa: E402

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path.append(str(REPOSITORY / "benchmarks"))
from token_shards import Shard, write_shards  # noqa: E402
from trainer_flags import TINY, flags_of  # noqa: E402, F401

torch.set_num_threads(1)

WriteTokens = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
EOT = "<|endoftext|>"
TOKENIZER = "ledger/tokens/tokenizer.json"
"""Where the tokenizer lies in a run that a test writes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(
                pytest.mark.skip(reason="needs a CUDA GPU; where there is one: make gpu-check")
            )


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a byte-level BPE of 400 entries, end-of-text last, trained on this file."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=399, initial_alphabet=pre_tokenizers.ByteLevel.alphabet(), show_progress=False
    )
    tokenizer.train_from_iterator([Path(__file__).read_text(encoding="utf-8")], trainer)
    tokenizer.add_special_tokens([EOT])
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(str(path))
    return path


@pytest.fixture
def write_tokens(tokenizer_file: Path) -> WriteTokens:
    """Return `write(folder, train, val=…, shards=2, kind=…)`.

    It is `write_token_dataset` with the test's tokenizer.
    """

    def write(
        folder: Path,
        train: Sequence[Sequence[int]],
        val: Sequence[Sequence[int]] = (),
        *,
        shards: int = 2,
        **settings: Any,
    ) -> Path:
        return write_token_dataset(
            folder, {"train": train, "val": val}, tokenizer_file, shards, **settings
        )

    return write


def write_token_dataset(
    folder: Path,
    splits: dict[str, Sequence[Sequence[int]]],
    tokenizer: Path,
    shards: int,
    kind: type[np.integer[Any]] = np.uint16,
) -> Path:
    """Write documents as a tokens/ folder, in batches of three.

    A document's url_id is its place in its split.
    """
    from tokenizers import Tokenizer

    parts: dict[str, list[Shard]] = {}
    for split, documents in splits.items():
        for numbers in np.array_split(np.arange(len(documents)), shards):
            chosen = [documents[k] for k in numbers]
            lengths = np.array(list(map(len, chosen)), np.int64)
            ids = [token for document in chosen for token in document]
            parts.setdefault(split, []).append((lengths, np.array(ids, kind)))
    size = Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    text = tokenizer.read_text(encoding="utf-8")
    return write_shards(folder, parts, tokenizer=text, vocab_size=size, eot=size - 1, rows=3)


def edit_manifest(tokens: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of `tokens` in the root, as another program might have written it."""
    path = tokens.parent / "ledger/manifest.json"
    record = json.loads(path.read_text())
    change(record["datasets"]["tokens"])
    path.write_text(json.dumps(record))


@pytest.fixture
def text_tokens(tmp_path: Path, write_tokens: WriteTokens, tokenizer_file: Path) -> Path:
    """Return tokens/ of the sentences of this repository's own sources.

    It has 60 documents to train on and 10 to validate.
    """
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    text = "\n".join(
        path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "schemas").glob("*.py"))
    )
    documents = [tokenizer.encode(part).ids for part in text.split("\n\n") if part.strip()]
    return write_tokens(tmp_path / "tokens", documents[:60], documents[60:70])


def small_config(data: Path | str, out: Path, **settings: Any) -> TrainConfig:
    """Return a run of a model of two layers of width 32, on the CPU."""
    defaults = {
        "preset": "tiny",
        "n_embd": 32,
        "block_size": 32,
        "batch_tokens": 512,
        "device": "cpu",
    }
    return TrainConfig(data=(str(data),), out=str(out), **defaults | settings)


def generate(model: GPT, prompt: Sequence[int], max_tokens: int, **settings: Any) -> list[int]:
    """Return the ids that continue one prompt."""
    written = model.generate(torch.tensor([list(prompt)]), max_tokens, **settings)
    return written[0, len(prompt) :].tolist()


def sampler_of(corpora: Corpora, name: str, block_size: int, seed: int, **settings: Any) -> Sampler:
    """Return the training samples of corpora, by the settings of a run."""
    defaults = {"sampler": name, "block_size": block_size, "seed": seed, **settings}
    return corpora.sampler(TrainConfig(data=("",), out="", **defaults))


def records_of(run: Path | str) -> list[dict[str, Any]]:
    """Return the records of a run's steps."""
    return [json.loads(line) for line in (Path(run) / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture
def config(text_tokens: Path, tmp_path: Path) -> TrainConfig:
    """Return a run of eight steps, which saves each second one."""
    return small_config(text_tokens, tmp_path / "run", max_steps=8, save_every=2)


@dataclass(frozen=True)
class TrainerProcess:
    """Runs the trainer's modules as processes of their own, by torchrun where `ranks` is not 0."""

    def command(
        self,
        *arguments: object,
        ranks: int = 0,
        torchrun: Sequence[str] = (),
        module: str = "trainer",
        program: Path | None = None,
    ) -> list[str]:
        nodes = torchrun or ["--standalone"]
        launcher = (
            ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *nodes] if ranks else []
        )
        return [
            sys.executable,
            *launcher,
            *([str(program)] if program else ["-m", module]),
            *map(str, arguments),
        ]

    def environment(self) -> dict[str, str]:
        additions = {
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(REPOSITORY),
            "TOKENIZERS_PARALLELISM": "false",
        }
        additions["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = (
            # With a shared store, torchrun 2.13 waits forever when a node joins.
            "1"
        )
        return {**os.environ, **additions}

    def run(self, *arguments: object, **settings: Any) -> subprocess.CompletedProcess[str]:
        """Run a command, with a time limit for a machine that may be busy."""
        pipes: dict[str, Any] = {"capture_output": True, "text": True, "env": self.environment()}
        return subprocess.run(
            self.command(*arguments, **settings), timeout=500, check=False, **pipes
        )

    def start(self, *arguments: object, **settings: Any) -> subprocess.Popen[str]:
        pipes: dict[str, Any] = {
            "stdout": subprocess.PIPE,
            "stderr": subprocess.STDOUT,
            "text": True,
        }
        command = self.command(*arguments, **settings)
        environment = self.environment()
        return subprocess.Popen(command, env=environment, start_new_session=True, **pipes)


@pytest.fixture(scope="session")
def trainer() -> TrainerProcess:
    return TrainerProcess()
