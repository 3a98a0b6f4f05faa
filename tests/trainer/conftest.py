"""Real token datasets, and a real tokenizer, made small."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pytest

if TYPE_CHECKING:  # where test_gpu.py runs, msgspec may be missing
    from schemas.manifest import ShardFile, ShardRecord

torch = pytest.importorskip("torch", reason="the trainer needs torch: pip install torch")
from trainer.config import TrainConfig  # noqa: E402

torch.set_num_threads(1)

WriteTokens = Callable[..., Path]
Capture = pytest.CaptureFixture[str]
REPOSITORY = Path(__file__).resolve().parents[2]
EOT = "<|endoftext|>"
TOKENIZER = "ledger/tokens/tokenizer.json"
"""Where the tokenizer lies in a run that a test writes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    if torch.cuda.is_available():
        return
    for item in items:
        if item.get_closest_marker("gpu"):
            item.add_marker(pytest.mark.skip(reason="needs a CUDA GPU; where there is one: make gpu-check"))


@pytest.fixture(scope="session")
def tokenizer_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level BPE of 400 entries, end-of-text last, trained on this file."""
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
    """`write_token_dataset` with the test's tokenizer: `write(folder, train, val=…, shards=2, kind=…)`."""

    def write(
        folder: Path, train: Sequence[Sequence[int]], val: Sequence[Sequence[int]] = (), *, shards: int = 2, **how: Any
    ) -> Path:
        return write_token_dataset(folder, {"train": train, "val": val}, tokenizer_file, shards, **how)

    return write


def write_token_dataset(
    folder: Path,
    splits: dict[str, Sequence[Sequence[int]]],
    tokenizer: Path,
    shards: int,
    kind: pa.DataType | None = None,
) -> Path:
    """Write documents as a tokens/ folder, three in a batch; a document's url_id is its place in its split."""
    from tokenizers import Tokenizer

    from schemas.manifest import Counts, ShardRecord

    vocab_size = Tokenizer.from_file(str(tokenizer)).get_vocab_size()
    schema = pa.schema([("url_id", pa.uint64()), ("n_tokens", pa.uint32()), ("tokens", pa.list_(kind or pa.uint16()))])
    folder = folder if folder.name == "tokens" else folder / "tokens"
    records: dict[int, list[ShardFile]] = {shard: [] for shard in range(shards)}
    for split, documents in splits.items():
        (folder / split).mkdir(parents=True, exist_ok=True)
        for shard in range(shards):
            rows = list(map(list, documents))[shard::shards]
            path = folder / split / f"part-{shard:05d}.arrow"
            table = pa.table([range(shard, len(documents), shards), list(map(len, rows)), rows], schema=schema)
            with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
                writer.write_table(table, max_chunksize=3)
            records[shard].append(describe_file(folder.parent, path, "data", shard, len(rows)))
    copy = folder.parent / TOKENIZER
    copy.parent.mkdir(parents=True, exist_ok=True)
    copy.write_bytes(tokenizer.read_bytes())
    written = [ShardRecord(shard, Counts(), files) for shard, files in records.items()]
    rows_written = sum(map(len, splits.values()))
    write_ledger(folder.parent, written, {"vocab_size": vocab_size, "eot": vocab_size - 1}, rows_written)
    return folder


def write_ledger(run: Path, records: list[ShardRecord], tokenizer: dict[str, object], rows: int) -> None:
    """The manifest and the list of files of the tokens in `run`, as the tokenize stage writes them."""
    from schemas.manifest import Counts, FileList, FileTable, Manifest, Root

    asset = describe_file(run, run / TOKENIZER, "asset", -1, 0)
    table = FileTable(records, [asset])
    content = table.to_parquet()
    digest = hashlib.sha256(content).hexdigest()
    listed = FileList(f"ledger/tokens/files-{digest[:8]}.parquet", len(content), digest, len(table.files))
    manifest = Manifest(
        dataset="tokens",
        stage="tokenize",
        stage_version=1,
        num_shards=len(records),
        counts=Counts(rows, rows),
        files=listed,
        digest=table.digest,
        totals=table.totals,
        properties={"tokenizer": {"name": "test", **tokenizer, "file": asset.path, "sha256": asset.sha256}},
    )
    (run / listed.path).write_bytes(content)
    (run / "ledger/manifest.json").write_bytes(Root(datasets={"tokens": manifest}).to_json())


def edit_manifest(tokens: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """Change the manifest of `tokens` in the root, as another program might have written it."""
    path = tokens.parent / "ledger/manifest.json"
    record = json.loads(path.read_text())
    change(record["datasets"]["tokens"])
    path.write_text(json.dumps(record))


@pytest.fixture
def text_tokens(tmp_path: Path, write_tokens: WriteTokens, tokenizer_file: Path) -> Path:
    """tokens/ of the sentences of this repository's own sources: 60 documents to train on, 10 to validate."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(tokenizer_file))
    text = "\n".join(path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "schemas").glob("*.py")))
    documents = [tokenizer.encode(part).ids for part in text.split("\n\n") if part.strip()]
    return write_tokens(tmp_path / "tokens", documents[:60], documents[60:70])


def small_config(data: Path | str, out: Path, **settings: Any) -> TrainConfig:
    """A run of a model of two layers of width 32, on the CPU."""
    own = {"preset": "tiny", "width": 32, "context": 32, "batch_tokens": 512, "device": "cpu"}
    return TrainConfig(data=(str(data),), out=str(out), **own | settings)


@pytest.fixture
def config(text_tokens: Path, tmp_path: Path) -> TrainConfig:
    """A run of eight steps, of which each second one is saved."""
    return small_config(text_tokens, tmp_path / "run", max_steps=8, save_every=2)


@dataclass(frozen=True)
class TrainerProcess:
    """Runs the trainer's modules as processes of their own, by torchrun where `ranks` is not 0."""

    def command(
        self,
        *arguments: object,
        ranks: int = 0,
        torchrun: Sequence[str] = (),
        module: str = "trainer.train",
        program: Path | None = None,
    ) -> list[str]:
        nodes = torchrun or ["--standalone"]
        launcher = ["-m", "torch.distributed.run", f"--nproc-per-node={ranks}", *nodes] if ranks else []
        return [sys.executable, *launcher, *([str(program)] if program else ["-m", module]), *map(str, arguments)]

    def environment(self) -> dict[str, str]:
        own = {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(REPOSITORY), "TOKENIZERS_PARALLELISM": "false"}
        own["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"  # shared, torchrun 2.13 waits forever when a node joins
        return {**os.environ, **own}

    def run(
        self, *arguments: object, ranks: int = 0, module: str = "trainer.train", program: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            self.command(*arguments, ranks=ranks, module=module, program=program),
            capture_output=True,
            text=True,
            timeout=500,  # on a machine that may be busy
            env=self.environment(),
            check=False,
        )

    def start(self, *arguments: object, ranks: int = 0, torchrun: Sequence[str] = ()) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(*arguments, ranks=ranks, torchrun=torchrun),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=self.environment(),
            start_new_session=True,
        )


@pytest.fixture(scope="session")
def trainer() -> TrainerProcess:
    return TrainerProcess()


def sha256(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def describe_file(folder: Path, path: Path, kind: str, shard: int, rows: int) -> ShardFile:
    from schemas.manifest import ShardFile

    return ShardFile(path.relative_to(folder).as_posix(), kind, shard, rows, path.stat().st_size, sha256(path))
