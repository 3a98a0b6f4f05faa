"""Writes the pages that come from the code: `python docs/reference.py` fills docs/options/ and
docs/api.md."""

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
from trainer.evaluate import EvaluateOptions
from trainer.export import ExportOptions
from trainer.sample import SampleOptions

DOCS = Path(__file__).resolve().parent

_CHAIN = tuple(STAGES.values())
PAGES = (*_CHAIN[:3], IMPORT, *_CHAIN[3:])
TRAINER = {
    "trainer": TrainConfig,
    "trainer.sample": SampleOptions,
    "trainer.evaluate": EvaluateOptions,
    "trainer.export": ExportOptions,
}

# The names to import in a notebook, by subject.
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
        "trainer.data.shards:open_dataset",
        "trainer.data.corpora:open_corpora",
        "trainer.data.corpora:Corpora",
        "trainer.data.loader:Loader",
        "trainer.data.shard_writer:write_shards",
        "trainer.model:GPT",
        "trainer.config:TrainConfig",
    ],
}


def options_of_stage(stage: Stage) -> str:
    """Return the page of a stage's options."""
    table = _table(stage.options)
    return f"# {stage.name}\n\n{stage.help}\n\n```\n{stage.example}\n```\n\n{table}"


def options_of_trainer(program: str, options: type) -> str:
    """Return the page of the options of `python -m PROGRAM`."""
    introduction = f"`python -m {program} --help` prints these options."
    if program == "trainer":
        introduction += " In CONFIG.toml, they are in the table `[train]`."
    introduction += " [Training](../training.md) explains them."
    return f"# {program}\n\n{introduction}\n\n{_table(options)}"


def api() -> str:
    """Return docs/api.md: signatures and docstrings of the names of `API`."""
    parts = [
        "# In a notebook\n\nYou may import these functions and classes. Only `build` needs Beam. "
        "The names of `trainer` need torch. Other names may change without notice.\n"
    ]
    for subject, names in API.items():
        parts.append(f"## {subject}\n")
        for name in names:
            module, _, attribute = name.partition(":")
            parts.append(_entry(module, attribute))
    return "\n".join(parts)


def _entry(module: str, name: str) -> str:
    """Return the section of a name: its import, its signature, its docstring and its methods."""
    value: Any = getattr(importlib.import_module(module), name)
    code = f"from {module} import {name}"
    if not callable(value):
        return f"### `{name}`\n\n```python\n{code}\n```\n"
    # The signature of an enum is not how its members are made.
    is_enum = hasattr(value, "__members__")
    if not is_enum:
        code += f"\n\n{name}{_signature(value)}"
    docstring = inspect.getdoc(value) or ""
    methods = _methods(value, module) if inspect.isclass(value) else ""
    return f"### `{name}`\n\n```python\n{code}\n```\n\n```text\n{docstring}\n```\n\n{methods}"


def _methods(cls: type, module: str) -> str:
    """Return an item for each public method that has a docstring and is defined in the module."""
    items = []
    for name, function in inspect.getmembers(cls, inspect.isfunction):
        docstring = inspect.getdoc(function)
        if name.startswith("_") or function.__module__ != module or not docstring:
            continue
        signature = _signature(function).replace("(self, ", "(").replace("(self)", "()")
        summary = " ".join(docstring.partition("\n\n")[0].split())
        items.append(f"- `.{name}{signature}`: {summary}\n")
    return "".join(items)


def _signature(function: Any) -> str:
    """Return the signature with its annotations without quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", str(inspect.signature(function)))


def _table(options: type) -> str:
    """Return a table of the fields of a dataclass of options."""
    lines = ["| option | type | default | |", "|---|---|---|---|"]
    for name, kind, default, text in describe(options):
        shown = default if default == "required" else f"`{default}`"
        lines.append(f"| `{name}` | {_cell(kind)} | {_cell(shown)} | {_cell(text)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    """Return a text with the characters escaped that end a cell or begin a tag."""
    return text.replace("|", "\\|").replace("<", "\\<")


INDEX = """\
# Options

Each option is a flag (`--min_tokens 128`; a list takes several values), and a key of the settings
file in the table of its stage. A flag sets the option in each stage that has it. `owt run RUN
--until STAGE` ends with a stage.

| stage | |
|---|---|
"""


def _first_sentence(text: str) -> str:
    """Return the first sentence of a help text, which may go on in the next line."""
    sentence, _, _ = " ".join(text.split()).partition(". ")
    return f"{sentence.rstrip('.')}."


def _page(program: str) -> str:
    """Return the name of the page of a program of the trainer."""
    return program.replace(".", "-")


def main() -> None:
    """Write docs/options/ and docs/api.md."""
    folder = DOCS / "options"
    folder.mkdir(exist_ok=True)
    pages = {stage.name: options_of_stage(stage) for stage in PAGES}
    pages |= {_page(name): options_of_trainer(name, options) for name, options in TRAINER.items()}
    index = INDEX + "".join(
        f"| [{stage.name}]({stage.name}.md) | {_first_sentence(stage.help)} |\n" for stage in PAGES
    )
    index += "".join(f"| [python -m {name}]({_page(name)}.md) | |\n" for name in TRAINER)
    toctree = "\n```{toctree}\n:hidden:\n\n" + "\n".join(pages) + "\n```\n"
    (folder / "index.md").write_text(index + toctree, encoding="utf-8")
    for name, text in pages.items():
        (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (DOCS / "api.md").write_text(api(), encoding="utf-8")


if __name__ == "__main__":
    main()
