"""The examples of "Use the parts in your code", each run as it is written."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pyarrow
import pytest

import owt_pipeline as owt

ROOT = Path(__file__).resolve().parents[2]


def example(title: str) -> str:
    page = (ROOT / "docs" / "how-to" / "parts.md").read_text(encoding="utf-8")
    (section,) = re.findall(rf"^## {title}\n(.*?)(?=^## |\Z)", page, re.MULTILINE | re.DOTALL)
    (code,) = re.findall(r"^```python\n(.*?)^```", section, re.MULTILINE | re.DOTALL)
    return str(code)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    texts = [path.read_text()[:3000].replace("<", "") for path in sorted((ROOT / "docs" / "how-to").glob("*.md"))[:12]]
    texts += [f"{text} And more." for text in texts[:5]]
    (tmp_path / "posts.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
    urls = [f"https://example.org/2020/01/{i % 9 + 1:02}/x" for i in range(len(texts))]
    pages = [{"url": url, "html": f"<p>{text}</p>"} for url, text in zip(urls, texts, strict=True)]
    (tmp_path / "pages.jsonl").write_text("".join(json.dumps(page) + "\n" for page in pages))
    return tmp_path


def run(folder: Path, title: str, then: str, python: str = sys.executable, **environment: str) -> str:
    """Run an example and print what `then` gives; in a folder that holds its input, as a file without a main guard."""
    (folder / "example.py").write_text(f"{example(title)}\nprint('RESULT', {then})\n")
    variables = {**os.environ, "HF_HOME": str(folder / "hf"), "PYTHONPATH": str(ROOT), **environment}
    command = [python, "example.py"]
    done = subprocess.run(command, cwd=folder, env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.rpartition("RESULT ")[2].strip()


def texts_of(folder: Path) -> list[str]:
    return [json.loads(line)["text"] for line in (folder / "posts.jsonl").read_text().splitlines()]


def test_hugging_face_datasets(folder: Path) -> None:
    texts = [result.text for text in texts_of(folder) if not (result := owt.clean(text)).reason]
    unique = len(texts) - len(owt.near_duplicates(texts, workers=1))
    assert 0 < unique < len(texts)
    assert run(folder, "Hugging Face datasets", "len(dataset)") == str(unique)


def test_polars(folder: Path) -> None:
    texts = texts_of(folder)
    gone = owt.near_duplicates(texts, workers=1)
    kept = set(gone["kept_row"].to_pylist())
    assert run(folder, "Polars", "len(unique), len(clusters)") == f"{len(texts) - len(gone)} {len(kept)}"


def test_pandas(folder: Path) -> None:
    texts = texts_of(folder)
    left = len(texts) - len(owt.near_duplicates(texts, workers=1))
    assert run(folder, "pandas", "len(pages), pages['date'].iloc[0]").startswith(f"{left} 2020-01-0")


def with_packages_of(environment: str) -> dict[str, str]:
    """The Python of another environment, which has the library, too, and what it needs."""
    python = ROOT / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f"{environment} is not installed: make {environment}/installed")
    return {"python": str(python), "PYTHONPATH": os.pathsep.join([str(ROOT), str(Path(pyarrow.__file__).parents[1])])}


def test_datatrove(folder: Path) -> None:
    documents = "[Document(text=text, id='') for text in ('short', open('posts.jsonl').readline())]"
    judged = f"__import__('datatrove.data') and [OwtFilter().filter(one) for one in {documents}]"
    judged = judged.replace("Document(", "sys.modules['datatrove.data'].Document(").replace(
        "sys.", "__import__('sys')."
    )
    assert run(folder, "datatrove", judged, **with_packages_of(".venv-peers")) == "[(False, 'too_short'), True]"
