"""The tokens of a run that builds on others: only its own documents, and references to those of its bases."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pyarrow as pa
import pytest

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.errors import UserError
from owt_pipeline.formats.encoding import gpt2_tokenizer_json
from owt_pipeline.ledger.bases import pin
from owt_pipeline.stages.tokenize.stage import STAGE, TokenizeOptions
from owt_pipeline.storage.folder import Storage
from schemas.datasets import is_validation
from tests.owt_pipeline.dedupe.corpora import make_month
from tests.owt_pipeline.runs import manifest_of, snapshot

VAL = 0.3


@pytest.fixture(scope="module")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Three tokenized months; each has one new text and repeats all of the month before."""
    folder = tmp_path_factory.mktemp("chain")
    texts: list[str] = []
    for month in range(3):
        texts = [*texts, *(f"text {i} of month {month} about {'a b c d'.split()[i % 4]}" for i in range(20))]
        bases = [folder / str(month - 1)] if month else []
        make_month(folder / str(month), month, texts, bases)
        tokenize(folder / str(month))
    return folder


def tokenize(workdir: Path, **options: object) -> None:
    run_stage(STAGE, TokenizeOptions(**{"val_fraction": VAL, **options}), Runtime(Storage(str(workdir))))


def test_only_new_documents_are_written_and_the_manifest_names_the_base(chain: Path) -> None:
    manifests = [manifest_of(chain / str(month), "tokens") for month in range(3)]
    assert "bases" not in manifests[0].properties
    assert [entry["uri"] for entry in manifests[2].properties["bases"]] == ["../0", "../1"]
    for month, entry in enumerate(manifests[2].properties["bases"]):
        base, manifest = chain / str(month), manifests[month]
        named = (base / "ledger/tokens/manifest.json").read_bytes()
        assert entry["sha256"] == hashlib.sha256(named).hexdigest()
        files = list((base / "tokens").rglob("*.arrow"))
        rows = [pa.ipc.open_file(file).read_all() for file in files]
        assert entry["totals"] == {
            "documents": sum(map(len, rows)),
            "tokens": sum(sum(some["n_tokens"].to_pylist()) for some in rows),
            "files": len(files),
            "bytes": sum(file.stat().st_size for file in files),
        }
        assert manifest.counts.left == 20


def test_split_over_a_chain_equals_that_of_one_run(chain: Path) -> None:
    for month in range(3):
        for split in ("train", "val"):
            for file in (chain / str(month) / "tokens" / split).glob("*.arrow"):
                ids = pa.ipc.open_file(file).read_all()["url_id"].to_numpy()
                assert (is_validation(ids, VAL) == (split == "val")).all()


def test_base_with_another_tokenizer_or_split_is_refused_early(chain: Path, tmp_path: Path) -> None:
    new = Storage(str(tmp_path / "new"))
    (tmp_path / "other.json").write_bytes(gpt2_tokenizer_json() + b"\n")
    other = TokenizeOptions(tokenizer=str(tmp_path / "other.json"), eot_token="<|endoftext|>", val_fraction=VAL)
    with pytest.raises(UserError, match=r"base .*/0 was tokenized with gpt2 .*, not with .*other"):
        pin(new, [str(chain / "0")], [(STAGE, other)])
    with pytest.raises(UserError, match=r"split with --val_fraction 0\.3, not 0\.01: .* move between train and val"):
        pin(new, [str(chain / "0")], [(STAGE, TokenizeOptions())])
    assert not snapshot(tmp_path / "new")


def test_no_warning_about_validation_if_the_base_has_documents(
    chain: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    make_month(tmp_path / "new", 5, ["a text of some words"], [chain / "0"])
    assert manifest_of(chain / "0", "tokens").stats["documents_val"]
    tokenize(tmp_path / "new")
    assert not manifest_of(tmp_path / "new", "tokens").stats.get("documents_val")
    assert "val/" not in caplog.text
    make_month(tmp_path / "alone", 5, ["a text of some words"])
    tokenize(tmp_path / "alone")
    assert "val/ is empty" in caplog.text


def test_a_base_without_tokens_is_refused(tmp_path: Path) -> None:
    make_month(tmp_path / "base", 0, ["a text of some words"])
    with pytest.raises(UserError, match="has no finished tokens/: run `owt tokenize --workdir"):
        pin(Storage(str(tmp_path / "new")), [str(tmp_path / "base")], [(STAGE, TokenizeOptions())])


def test_the_trainer_reads_the_tokens_of_all_months_and_trains_on_with_each(chain: Path, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the trainer needs torch: pip install torch")
    from trainer.data import open_corpora
    from trainer.train import main as train

    for split in ("train", "val"):
        files = [file for month in range(3) for file in sorted((chain / str(month) / "tokens" / split).glob("*.arrow"))]
        expected = [ids for file in files for ids in pa.ipc.open_file(file).read_all()["tokens"].to_pylist()]
        parts = [dataset.documents(split) for dataset in open_corpora([str(chain / "2/tokens")]).datasets]
        assert [own[row].tolist() for own in parts for row in range(len(own))] == expected

    def months(out: str, *steps: int) -> bytes:
        for month, step in enumerate(steps):
            data = [
                "--data",
                str(chain / str(month) / "tokens"),
                "--out",
                str(tmp_path / out),
                "--max_steps",
                str(step),
            ]
            shape = ["--preset", "tiny", "--width", "32", "--context", "16", "--batch_tokens", "64", "--device", "cpu"]
            assert train([*data, *shape, "--schedule", "constant", "--val_every", "0", "--tracker", "none"]) == 0
        return (tmp_path / out / f"checkpoints/step-{step:08d}/model.safetensors").read_bytes()

    assert months("all", 2, 4, 6) == months("again", 2, 4, 6)
