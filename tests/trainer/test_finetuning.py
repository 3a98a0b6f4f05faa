"""The complete path of fine-tuning: text of their own, a model in Hugging Face's format, and back to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from tests.owt_pipeline.runs import ask_owt
from tests.trainer.conftest import Capture, small_config
from trainer import train
from trainer.pretrained import Tokenizer, load_pretrained
from trainer.shards import open_dataset
from trainer.tools import evaluate, export, sample
from trainer.validation import windows_of_text

Run = Callable[..., str]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Capture) -> Run:
    """Runs the `main` of a module in an empty folder, and gives what it printed."""
    monkeypatch.chdir(tmp_path)

    def run(main: Callable[[list[str]], int], *arguments: object) -> str:
        capsys.readouterr()
        assert main([*map(str, arguments)]) == 0
        return capsys.readouterr().out

    return run


@pytest.mark.slow
def test_a_hugging_face_model_is_finetuned_on_imported_text_and_exported_again(
    testdata: Path, tmp_path: Path, run: Run
) -> None:
    transformers = pytest.importorskip("transformers", reason="the peer: pip install transformers")
    verse = (testdata / "text" / "tinyshakespeare.txt").read_text()[:100_000]
    (tmp_path / "verse.txt").write_text(verse)
    corpus = tmp_path / "verse"
    ask_owt("import", corpus, tmp_path / "verse.txt", "--split_text", "blank_lines", "--num_shards", 2)
    ask_owt("run", corpus, "--min_tokens", 16, "--until", "export")
    ask_owt("train-tokenizer", corpus, "--vocab_size", 500)
    ask_owt("run", corpus, "--tokenizer", corpus / "tokenizer.json", "--val_fraction", 0.1, "--until", "tokenize")
    shape = {"vocab_size": 500, "n_positions": 64, "n_layer": 2, "n_head": 2, "n_embd": 64, "eos_token_id": 499}
    torch.manual_seed(0)
    transformers.GPT2LMHeadModel(transformers.GPT2Config(**shape, bos_token_id=499)).save_pretrained(tmp_path / "base")
    flags = ("--preset", "tiny", "--context", 64, "--batch_tokens", 512, "--val_every", 0, "--device", "cpu")
    said = run(train.main, "--data", "verse/tokens", "--init_from", "base", "--out", "tuned", *flags)

    assert "weights from base" in said
    records = [json.loads(line) for line in (tmp_path / "tuned" / "metrics.jsonl").read_text().splitlines()]
    assert records[-1]["loss"] < records[0]["loss"] - 0.3

    run(export.main, "tuned", "folder")
    model = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "folder").eval()
    encode = transformers.AutoTokenizer.from_pretrained(tmp_path / "folder")
    speech = verse.split("\n\n")[3]
    (tmp_path / "speech.txt").write_text(speech)
    ids = torch.tensor([[499, *encode(speech).input_ids]])
    with torch.no_grad():
        theirs = model(ids, labels=ids).loss.item()
    ours = json.loads(run(evaluate.main, "tuned", "--data", "verse/tokens", "--text", "speech.txt"))
    assert ours["tokens"] == ids.shape[1] - 1 <= 64
    assert ours["loss"] == pytest.approx(theirs, rel=1e-4)
    assert ours["val_loss"] < records[0]["loss"] - 0.3
    assert run(sample.main, "tuned", "--prompt", "ROMEO:", "--max_tokens", 20).startswith("ROMEO:")


def test_training_reports_the_loss_over_evenly_spaced_windows_of_the_text(tmp_path: Path, text_tokens: Path) -> None:
    path, tokenizer = tmp_path / "wiki.valid.raw", open_dataset(text_tokens).tokenizer
    path.write_text("The heron is a wading bird of Europe and Asia . \n" * 30)
    ids = [399, *Tokenizer(tokenizer.path).encode(path.read_text())]
    every = windows_of_text(str(path), tokenizer, 32, 64).tolist()
    assert every == [ids[k : k + 33] for k in range(0, len(ids) - 32, 32)]
    some = windows_of_text(str(path), tokenizer, 32, 3).tolist()
    assert some == [every[0], every[round((len(every) - 1) / 2)], every[-1]]
    config = small_config(text_tokens, tmp_path / "run", val_data=str(path), batch_tokens=256, max_steps=2, val_every=1)
    train.train(config)
    model, windows = load_pretrained(str(tmp_path / "run")).model, torch.tensor(every)
    with torch.no_grad():
        wanted = model(windows[:, :-1], windows[:, 1:]).item()
    last = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert last["val_loss"] == pytest.approx(wanted, rel=1e-5)
