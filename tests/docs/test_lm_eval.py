"""The command of docs/training.md measures an exported model with lm-evaluation-harness."""

from __future__ import annotations

import json
import math
import os
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

torch = pytest.importorskip("torch", reason="the trainer needs torch: pip install torch")
pytest.importorskip("transformers", reason="the extra hf: pip install transformers")

from tests.trainer.conftest import tokenizer_file  # noqa: E402, F401
from trainer.data.text import Tokenizer  # noqa: E402
from trainer.huggingface import save_huggingface  # noqa: E402
from trainer.model import GPT, ModelConfig  # noqa: E402

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ROOT / ".venv-lm-eval"
# This is lm_eval's task lambada_openai, with the texts of a file.
TASK = """\
task: last_words
dataset_path: json
dataset_kwargs: {data_files: {test: FILE}}
test_split: test
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' '+text.split(' ')[-1]}}"
metric_list: [{metric: perplexity, aggregation: perplexity}, {metric: acc, aggregation: mean}]
"""


@pytest.mark.slow
def test_lm_eval_gives_an_exported_model_the_scores_of_ours(
    tmp_path: Path,
    tokenizer_file: Path,  # noqa: F811
) -> None:
    if not PACKAGES.exists():
        pytest.skip("lm_eval is not installed here: run `make .venv-lm-eval/installed`")
    torch.manual_seed(0)
    model = GPT(ModelConfig(vocab_size=400, block_size=32, n_layer=2, n_head=2, n_embd=32)).eval()
    save_huggingface(model, tmp_path / "FOLDER", tokenizer_file, 399)
    texts = [
        "def one two",
        "import many words path",
        "def one tokenizer",
        "a tokenizer",
        "for every file",
    ]
    (tmp_path / "texts.jsonl").write_text(
        "".join(json.dumps({"text": text}) + "\n" for text in texts)
    )
    (tmp_path / "task.yaml").write_text(TASK.replace("FILE", str(tmp_path / "texts.jsonl")))
    page = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    (line,) = (line for line in page.split("\n") if line.startswith("lm_eval "))
    program, *arguments = shlex.split(line.replace("lambada_openai,hellaswag", "last_words"))
    arguments += ["--include_path", str(tmp_path), "--device", "cpu", "--output_path", "scores"]
    variables = {
        "PYTHONPATH": os.pathsep.join([str(PACKAGES), str(ROOT)]),
        "HF_HOME": str(tmp_path / "home"),
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
    }
    process = subprocess.run(
        [sys.executable, "-m", program, *arguments],
        cwd=tmp_path,
        env=os.environ | variables,
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert process.returncode == 0, process.stdout[-2000:] + process.stderr[-2000:]
    (written,) = (tmp_path / "scores").rglob("results_*.json")
    scores = json.loads(written.read_text())["results"]["last_words"]

    # The perplexity of the last word of each text, given the words before it.
    tokenizer = Tokenizer(tokenizer_file)
    nats = 0.0
    for text in texts:
        ids = tokenizer.encode(text)
        context, _, _ = text.rpartition(" ")
        num_context_tokens = len(tokenizer.encode(context))
        with torch.no_grad():
            log_probabilities = model(torch.tensor([ids[:-1]]))[0].log_softmax(1)
        for position in range(num_context_tokens, len(ids)):
            nats -= log_probabilities[position - 1, ids[position]].item()
    assert scores["perplexity,none"] == pytest.approx(math.exp(nats / len(texts)), rel=1e-3)
    assert 0 <= scores["acc,none"] <= 1
