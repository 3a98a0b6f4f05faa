"""Writes every option of every stage and of the trainer: `python docs/reference.py > docs/options.md`."""

from __future__ import annotations

from owt_pipeline.stages import ORDER, load
from schemas.settings import describe
from trainer.config import TrainConfig


def options_reference() -> str:
    """docs/options.md: a table a stage, and one for training."""
    parts = [
        "# Options\n\n"
        "Made from the code by `make docs`. Each is a flag "
        "(`--min_tokens 128`; a list takes several values) and a key of CONFIG.toml in the table of its stage. Beside "
        "them every stage takes `--workdir`, `--workers` and `--config`, and Beam's own flags.\n"
    ]
    for name in (*ORDER[:3], "import", *ORDER[3:]):
        stage = load(name)
        parts.append(f"## `owt {name}`\n\n{stage.help}\n\n```\n{stage.example}\n```\n\n{_table(stage.options)}")
    parts.append(
        "## `python -m trainer.train`\n\n"
        "In CONFIG.toml, the table `[train]`. [Training](training.md) explains them.\n\n" + _table(TrainConfig)
    )
    return "\n".join(parts)


def _table(options: type) -> str:
    lines = ["| option | is | default | |", "|---|---|---|---|"]
    for name, kind, default, text in describe(options):
        shown = default if default == "required" else f"`{default}`"
        lines.append(f"| `{name}` | {_cell(kind)} | {_cell(shown)} | {_cell(text)} |")
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "\\<")


if __name__ == "__main__":
    print(options_reference(), end="")
