"""Writes the pages that are made from the code: `python docs/reference.py` fills docs/options/
and docs/api.md."""

from __future__ import annotations

import importlib
import inspect
import re
from pathlib import Path
from typing import Any

from owt_pipeline.engine.stage import Stage
from owt_pipeline.pipeline import STAGES
from owt_pipeline.stages.import_text.stage import STAGE as IMPORT
from schemas.settings import describe
from trainer.config import TrainConfig
from trainer.tools.evaluate import EvaluateOptions
from trainer.tools.export import ExportOptions
from trainer.tools.sample import SampleOptions

DOCS = Path(__file__).resolve().parent

_CHAIN = tuple(STAGES.values())
PAGES = (*_CHAIN[:3], IMPORT, *_CHAIN[3:])
TRAINER = {
    "train": TrainConfig,
    "tools.sample": SampleOptions,
    "tools.evaluate": EvaluateOptions,
    "tools.export": ExportOptions,
}

API = {
    "Run a pipeline": [
        "owt_pipeline.pipeline:Run",
        "owt_pipeline.pipeline:build",
        "owt_pipeline.pipeline:STAGES",
    ],
    "Read datasets": [
        "owt_pipeline.storage.folder:Storage",
        "owt_pipeline.ledger.dataset:DatasetReader",
        "schemas.manifest:Manifest",
        "schemas.reasons:Reason",
        "owt_pipeline.commands.why:readers_of",
        "owt_pipeline.commands.why:asked_for",
        "owt_pipeline.commands.why:history",
    ],
    "URLs": ["owt_pipeline.formats.urls:canonical_url", "owt_pipeline.library:url_id"],
    "Text from pages": [
        "owt_pipeline.stages.extract.extractor:Page",
        "owt_pipeline.stages.extract.extractor:Settings",
        "owt_pipeline.stages.extract.extractor:Extracted",
        "owt_pipeline.stages.extract.extractor:load",
    ],
    "Clean text": ["owt_pipeline.stages.clean.filters:FILTERS"],
    "Tokens": ["owt_pipeline.formats.encoding:load", "owt_pipeline.formats.encoding:Encoding"],
    "Train": [
        "trainer.shards:open_dataset",
        "trainer.corpora:open_corpora",
        "trainer.corpora:Corpora",
        "trainer.data:Loader",
        "trainer.model:GPT",
        "trainer.config:TrainConfig",
    ],
}
"""What one imports in a notebook, by subject."""


def options_of_stage(stage: Stage) -> str:
    """The page of a stage's options."""
    return f"# {stage.name}\n\n{stage.help}\n\n```\n{stage.example}\n```\n\n{_table(stage.options)}"


def options_of_trainer(name: str, options: type) -> str:
    """The page of the options of `python -m trainer.NAME`."""
    table = " In CONFIG.toml, the table `[train]`." if name == "train" else ""
    intro = f"`python -m trainer.{name} --help`.{table} [Training](../training.md) explains them."
    return f"# trainer.{name}\n\n{intro}\n\n{_table(options)}"


def api() -> str:
    """docs/api.md: signatures and docstrings of the names of `API`."""
    parts = [
        "# In a notebook\n\nThe functions and classes meant to be imported. They need no Beam, "
        "except `build`; those "
        "of `trainer` need torch. Other names may change without notice.\n"
    ]
    for subject, names in API.items():
        parts.append(f"## {subject}\n")
        parts += [_entry(*name.split(":")) for name in names]
    return "\n".join(parts)


def _entry(module: str, name: str) -> str:
    found: Any = getattr(importlib.import_module(module), name)
    text = inspect.getdoc(found) or ""
    shown = f"from {module} import {name}"
    if not callable(found):
        return f"### `{name}`\n\n```python\n{shown}\n```\n"
    if not (inspect.isclass(found) and hasattr(found, "__members__")):
        shown += f"\n\n{name}{_signature(found)}"
    methods = ""
    if inspect.isclass(found):
        for method, function in inspect.getmembers(found, inspect.isfunction):
            if (
                not method.startswith("_")
                and function.__module__ == module
                and (said := inspect.getdoc(function))
            ):
                signature = _signature(function).replace("(self, ", "(").replace("(self)", "()")
                methods += (
                    f"- `.{method}{signature}`: "
                    f"{' '.join(said.partition(chr(10) * 2)[0].split())}\n"
                )
    return f"### `{name}`\n\n```python\n{shown}\n```\n\n```text\n{text}\n```\n\n{methods}"


def _signature(function: Any) -> str:
    """The signature, its annotations without quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))


def _table(options: type) -> str:
    lines = ["| option | is | default | |", "|---|---|---|---|"]
    for name, kind, default, text in describe(options):
        shown = default if default == "required" else f"`{default}`"
        lines.append(f"| `{name}` | {_cell(kind)} | {_cell(shown)} | {_cell(text)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


INDEX = """\
# Options

Each option is a flag (`--min_tokens 128`; a list takes several values) and a key of the settings
file, in the table of its stage. A flag sets the option in each stage that has it. `owt run RUN
--until STAGE` ends with a stage.

| stage | |
|---|---|
"""


def _page(program: str) -> str:
    """Return the name of the page of a program of the trainer."""
    return f"trainer-{program.rpartition('.')[2]}"


def main() -> None:
    """Write the pages."""
    folder = DOCS / "options"
    folder.mkdir(exist_ok=True)
    pages = {stage.name: options_of_stage(stage) for stage in PAGES}
    pages |= {_page(name): options_of_trainer(name, options) for name, options in TRAINER.items()}
    index = INDEX + "".join(
        f"| [{stage.name}]({stage.name}.md) | {stage.help.splitlines()[0]} |\n" for stage in PAGES
    )
    index += "".join(f"| [python -m trainer.{name}]({_page(name)}.md) | |\n" for name in TRAINER)
    toctree = "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"
    (folder / "index.md").write_text(index + toctree, encoding="utf-8")
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (DOCS / "api.md").write_text(api(), encoding="utf-8")


if __name__ == "__main__":
    main()
