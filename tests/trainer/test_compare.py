"""Corpora compared by the models that they train: as a user runs it, killed and resumed, and the statistics."""

from __future__ import annotations

import json
import math
import random
import shutil
import signal
import subprocess
import time
from pathlib import Path

import numpy as np
import pytest
import torch

from schemas import SettingsError
from trainer.data import DocumentBlocks
from trainer.model import GPT, ModelConfig
from trainer.pretrained import Pretrained, Tokenizer
from trainer.tools import compare
from trainer.tools.compare import read_documents
from trainer.tools.differences import Score, as_text, difference, difference_table
from trainer.tools.evaluate import score_documents, score_text, text_windows

from .conftest import REPOSITORY, TrainerProcess, WriteTokens
from .test_page import Checked

SMALL = [
    "--preset", "tiny", "--width", "32", "--context", "32", "--batch_tokens", "512", "--device", "cpu",
]  # fmt: skip


@pytest.fixture(scope="module")
def texts() -> list[str]:
    """Parts of this repository's own sources."""
    joined = "\n\n".join(path.read_text(encoding="utf-8") for path in sorted((REPOSITORY / "schemas").glob("*.py")))
    return [part for part in joined.split("\n\n") if len(part) > 80]


@pytest.fixture
def corpora(tmp_path: Path, write_tokens: WriteTokens, tokenizer_file: Path, texts: list[str]) -> dict[str, Path]:
    """Two corpora of the same texts, `mixed` with each text's words in random order; and texts in neither."""
    from tokenizers import Tokenizer

    tokenizer, draw = Tokenizer.from_file(str(tokenizer_file)), random.Random(0)
    found = {}
    for name in ("plain", "mixed"):
        own = [text if name == "plain" else "".join(draw.sample(text, len(text))) for text in texts[40:]]
        ids = [tokenizer.encode(text).ids for text in own]
        found[name] = write_tokens(tmp_path / name / "tokens", ids[10:], ids[:10])
    found["eval"] = tmp_path / "held-out.jsonl"
    found["eval"].write_text("".join(json.dumps({"text": text}) + "\n" for text in texts[:40]))
    return found


def command(corpora: dict[str, Path], out: Path, *more: str) -> list[str]:
    data = ["--data", str(corpora["plain"]), "--data", str(corpora["mixed"])]
    return [*data, "--out", str(out), "--eval_text", str(corpora["eval"]), *SMALL, *more]


def scores(out: Path) -> dict[str, dict[str, dict[str, list[float]]]]:
    """Each run's scores, by its folder."""
    found = sorted(out.glob("runs/*/*/scores.json"))
    return {path.parent.relative_to(out / "runs").as_posix(): json.loads(path.read_text()) for path in found}


@pytest.mark.slow
@pytest.mark.timeout(1500)  # six trainings, each in a process of its own, on a machine that may be busy
def test_a_corpus_with_shuffled_characters_scores_worse(
    tmp_path: Path,
    corpora: dict[str, Path],
    trainer: TrainerProcess,
    write_tokens: WriteTokens,
    capsys: pytest.CaptureFixture[str],
) -> None:
    out = tmp_path / "comparison"
    done = trainer.run(*command(corpora, out, "--seeds", "3", "--max_steps", "30"), module="trainer.tools.compare")
    assert done.returncode == 0, done.stdout + done.stderr
    (row,) = (line.split("|") for line in (out / "comparison.md").read_text().splitlines() if "mixed − plain" in line)
    assert (row[1].strip(), row[-2].strip()) == (str(corpora["eval"]), "plain is better")
    assert list(scores(out)) == [f"{name}/seed-{seed}" for name in ("mixed", "plain") for seed in (1337, 1338, 1339)]
    text = (out / "comparison.html").read_text()
    assert "plain is better" in text
    assert text.count("<figure>") == 1
    assert "Training loss" in Checked(text).text
    runs = sorted((out / "runs").glob("*/seed-*"))
    assert [len(list((run / "checkpoints").glob("step-*"))) for run in runs] == [1] * 6
    assert not [run for run in runs if "Fatal" in (run / "output.txt").read_text()]
    first = [json.loads((run / "metrics.jsonl").read_text().splitlines()[0]) for run in runs]
    assert len({record["lr"] for record in first}) == 1
    # A second call makes nothing again.
    times = {path: path.stat().st_mtime_ns for path in out.glob("runs/*/*/checkpoints/*/model.safetensors")}
    again = trainer.run(*command(corpora, out, "--seeds", "3", "--max_steps", "30"), module="trainer.tools.compare")
    assert "6 of 6 runs are finished" in again.stdout
    assert {path: path.stat().st_mtime_ns for path in times} == times
    assert compare.main(command(corpora, out, "--max_steps", "31")) == 2
    assert "max_steps was 30, is 31. Use another --out" in capsys.readouterr().err
    write_tokens(corpora["mixed"], [[1] * 40] * 5)
    assert compare.main(command(corpora, out, "--max_steps", "30")) == 2
    assert "the shards of mixed have changed" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(1500)
def test_a_killed_comparison_continues_to_the_same_scores_and_the_same_corpus_has_the_same(
    tmp_path: Path, corpora: dict[str, Path], trainer: TrainerProcess
) -> None:
    shutil.copytree(corpora["plain"].parent, tmp_path / "copy")
    corpora = corpora | {"mixed": tmp_path / "copy" / "tokens"}
    wanted, killed = tmp_path / "wanted", tmp_path / "killed"
    flags = ["--seeds", "1", "--max_steps", "60", "--save_every", "20"]
    assert trainer.run(*command(corpora, wanted, *flags), module="trainer.tools.compare").returncode == 0
    own = trainer.command(*command(corpora, killed, *flags), module="trainer.tools.compare")
    # In the middle of a training, and when the second run is about to be scored. The jobs end with it.
    for ready in ("runs/plain/seed-1337/checkpoints/step-00000020", "runs/copy/seed-1337/checkpoints/step-00000060"):
        process = subprocess.Popen(own, env=trainer.environment(), stdout=subprocess.DEVNULL, start_new_session=True)
        _wait_for(killed / ready)
        process.kill()
        process.wait()
    done = trainer.run(*command(corpora, killed, *flags), module="trainer.tools.compare")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "| no difference" in done.stdout
    assert scores(killed) == scores(wanted)
    assert (killed / "comparison.md").read_text() == (wanted / "comparison.md").read_text()


def test_a_stopped_comparison_ends_its_run_and_says_how_to_continue(
    tmp_path: Path, corpora: dict[str, Path], trainer: TrainerProcess
) -> None:
    own = command(corpora, tmp_path / "out", "--seeds", "2", "--max_steps", "5000")
    process = subprocess.Popen(
        trainer.command(*own, module="trainer.tools.compare"),
        env=trainer.environment(),
        stdout=subprocess.PIPE,
        text=True,
    )
    run = tmp_path / "out/runs/plain/seed-1337"
    _wait_for(run / "metrics.jsonl")
    process.send_signal(signal.SIGTERM)
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 143
    assert "stopped by SIGTERM; the same command continues here" in output
    assert len(list((run / "checkpoints").glob("step-*"))) == 1
    assert not (tmp_path / "out/runs/mixed/seed-1337/metrics.jsonl").exists()


def _wait_for(path: Path) -> None:
    end = time.monotonic() + 300
    while not path.exists():
        assert time.monotonic() < end, f"{path} did not appear"
        time.sleep(0.01)


def test_settings_that_cannot_be_compared_give_a_one_line_error(
    tmp_path: Path, corpora: dict[str, Path], capsys: pytest.CaptureFixture[str]
) -> None:
    data = ["--eval_text", str(corpora["eval"]), "--data", str(corpora["plain"])]
    both = [*data, "--data", str(corpora["mixed"])]
    for arguments, message in (
        (data, "name at least two corpora"),
        (both[2:], "eval_text is required"),
        ([*data, "--data", str(tmp_path / "none")], "no token shards in"),
        ([*both, "--save_every_step"], "unknown argument --save_every_step"),
        ([*both, "--eval_text", "none.txt"], "eval_text: none.txt cannot be read"),
    ):
        assert compare.main([*arguments, "--out", str(tmp_path / "out"), *SMALL]) in (1, 2)
        assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_each_document_is_scored_independently() -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=50, context=16, n_layer=1, n_head=2, width=16)).eval()
    documents = [torch.randint(49, (length,)).tolist() for length in (3, 40, 1, 16, 17, 33)]
    for stride in (0, 5):
        found = score_documents(model, documents, 49, stride=stride, micro_batch=4)
        for ids, nats in zip(documents, found.tolist(), strict=True):
            wanted = 0.0
            for inputs, targets in text_windows([49, *ids], 16, stride or 16):
                logits = model(torch.tensor([inputs]))[0].log_softmax(-1)
                wanted -= sum(logits[k - len(targets), own].item() for k, own in enumerate(targets))
            assert nats == pytest.approx(wanted, rel=1e-4)


def test_a_score_is_what_evaluate_reports(tmp_path: Path, tokenizer_file: Path) -> None:
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=400, context=32, n_layer=1, n_head=2, width=32)).eval()
    trained = Pretrained(tmp_path, model, tokenizer_file, 399, 1, DocumentBlocks(399))
    plain = tmp_path / "plain.txt"
    plain.write_text("def main(text):\n    return text – 1\n" * 5)
    score = compare.score(trained, str(plain), 2)
    reported = score_text(model, Tokenizer(tokenizer_file), plain.read_text(), 399)
    assert score.value == pytest.approx(reported["bits_per_byte"])
    assert score.bytes == [len(plain.read_bytes())]


@pytest.mark.parametrize("between", ["\n", "\r\n"])
def test_only_a_line_feed_ends_a_text_of_json_lines(between: str, tmp_path: Path) -> None:
    texts = ["one\u2028two", "three\u2029four", "five\x85six", "seven\x0ceight", "nine\rten\n"]
    lines = [json.dumps({"text": text}, ensure_ascii=False) for text in texts]
    (tmp_path / "set.jsonl").write_bytes(between.join(lines).encode() + b"\n")
    assert read_documents(str(tmp_path / "set.jsonl")) == texts
    (tmp_path / "set.txt").write_bytes("".join(texts).encode())
    assert read_documents(str(tmp_path / "set.txt")) == ["".join(texts)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("{", "line 1 is no JSON object with a text"),
        ("7", "line 1 is no JSON object with a text"),
        ('["text"]', "line 1 is no JSON object with a text"),
        ('{"text": "two words"}\n{"text": 5}', "line 2 is no JSON object with a text"),
        (" \n", "is empty"),
    ],
)
def test_a_set_of_texts_in_another_format_is_refused(content: str, message: str, tmp_path: Path) -> None:
    (tmp_path / "set.jsonl").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_documents(str(tmp_path / "set.jsonl"))


def _models(draw: np.random.Generator, effect: float, of_seeds: float, seeds: int, texts: int) -> list[list[Score]]:
    """Scores of both corpora, whose true difference is `effect`, with chance by seeds and by texts."""
    sizes = draw.integers(200, 4000, texts).astype(float)
    common, gains = draw.normal(2, 0.3, texts), draw.normal(effect, 0.05, texts)
    made: list[list[Score]] = [[], []]
    for _ in range(seeds):
        for own, rate in zip(made, (common, common + gains), strict=True):
            bits = sizes * (rate + draw.normal(0, of_seeds) + draw.normal(0, 0.01, texts))
            own.append(Score(bits.tolist(), sizes.tolist()))
    return made


@pytest.mark.parametrize("seeds", [2, 3, 8])
def test_at_most_one_in_twenty_comparisons_of_equal_corpora_exceeds_the_noise(seeds: int) -> None:
    draw = np.random.default_rng(seeds)
    for of_seeds in (0.0005, 0.02):
        named = sum(
            difference(*_models(draw, 0.0, of_seeds, seeds, 60)).verdict("a", "b").endswith("better")
            for _ in range(400)
        )
        assert named <= 400 * 0.05 + 3 * math.sqrt(400 * 0.05 * 0.95)


def test_a_difference_larger_than_both_kinds_of_chance_is_found_with_the_right_sign() -> None:
    draw = np.random.default_rng(0)
    assert difference(*_models(draw, 0.05, 0.003, 3, 200)).verdict("a", "b") == "a is better"
    assert difference(*_models(draw, -0.05, 0.003, 3, 200)).verdict("a", "b") == "b is better"


def test_one_seed_gives_no_verdict() -> None:
    made = _models(np.random.default_rng(0), 0.5, 0.003, 1, 50)
    table = difference_table({"text": {"a": {1: made[0][0]}, "nan": {1: made[1][0]}}}, ["a", "nan"])
    assert table[1][0:2] == ["text", "nan − a"]
    assert table[1][3:5] == ["unknown", "unknown"]
    assert table[1][6] == "unknown: one seed"
    assert as_text(table).count("\n") == 2


def test_a_corpus_is_named_after_its_run() -> None:
    assert compare._names(["runs/a/tokens", "b/tokens/"]) == ["a", "b"]
    assert compare._names(["x/tokens=0.3,y/tokens=0.7", "z/tokens"]) == ["x=0.3+y=0.7", "z"]
    with pytest.raises(SettingsError, match=r"1/a/tokens is called a, as .* rename or link its folder"):
        compare._names(["1/a/tokens", "2/a/tokens"])
