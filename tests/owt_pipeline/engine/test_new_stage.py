"""The stage in CONTRIBUTING.md, copied into a module, is a stage like any other."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.ledger.root import require_manifest
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import copy_of, snapshot

PAGE = Path(__file__).parents[3] / "CONTRIBUTING.md"
MIN_WORDS = 250
SCRIPT = """
import sys

from long_documents import Long, Options
from owt_pipeline.engine.runner import run_stage
from owt_pipeline.engine.stage import Runtime
from owt_pipeline.storage.folder import Storage

_, folder, workers, min_words = sys.argv
for _ in range(2):
    print(run_stage(Long(), Options(int(min_words)), Runtime(Storage(folder), int(workers)))[1])
"""


def test_the_stage_of_the_page_runs_in_workers_and_is_finished_when_run_again(small_run: Path, tmp_path: Path) -> None:
    (code,) = re.findall(r"## Add a stage\n.*?```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(code.splitlines()) <= 40
    (tmp_path / "long_documents.py").write_text(code)
    (tmp_path / "script.py").write_text(SCRIPT)
    written = []
    for workers in ("1", "2"):
        run = copy_of(small_run, tmp_path / f"run-{workers}", without=("corpus", "tokens", "report"))
        command = [sys.executable, tmp_path / "script.py", run, workers, str(MIN_WORDS)]
        assert subprocess.run(command, check=True, capture_output=True, text=True).stdout.split() == ["True", "False"]
        manifest = require_manifest(Storage(str(run)), "corpus")
        lengths = DatasetReader(Storage(str(run)), manifest).table(columns=["n_words"])["n_words"].to_pylist()
        assert lengths
        assert min(lengths) >= MIN_WORDS
        assert manifest.counts.rejected["too_short"] > 0
        written.append(snapshot(run))
    assert written[0] == written[1]
