"""`owt run` as a Dataflow Flex Template: what it can be given, and how the template's launcher starts it.

    python -m owt_pipeline.flex_template > flex/metadata.json

The launcher (`/opt/google/dataflow/python_template_launcher`, in an image of Google's) runs the file that
`FLEX_TEMPLATE_PYTHON_PY_FILE` names, here `flex/launch.py`, with `--NAME=VALUE` for each of the template's parameters
and for what Beam needs: the project, the region, `--template_location`, and so on. With the last, the SDK writes the
job there instead of submitting it; the launcher submits it when the program has ended.
"""

from __future__ import annotations

import dataclasses
import json
import sys
import typing
from collections.abc import Sequence
from typing import Any

from owt_pipeline.stages import ORDER, load
from schemas.settings import scalar_type

_ITEM = {bool: "(true|false)", int: "-?[0-9]+", float: "-?[0-9]*[.]?[0-9]+([eE]-?[0-9]+)?", str: "[^ \n]+"}
_IMAGE = "[a-z0-9./_-]+(:[a-zA-Z0-9._-]+|@sha256:[0-9a-f]+)"
_URI = "gs://[a-z0-9][-_.a-z0-9]+[a-z0-9]/.+"


def metadata() -> dict[str, Any]:
    """The template's metadata: a parameter for each option of `owt run`, with the pattern that its value matches."""
    own = [
        _parameter("workdir", "Working directory", "The folder of the run in a bucket.", _URI, optional=False),
        _parameter("config", "Settings", "A CONFIG.toml in a bucket; the other parameters override it.", _URI),
        _parameter("base", "Bases", "Finished runs to build on; several are divided by spaces.", f"{_URI}( +{_URI})*"),
        _parameter("until", "Last stage", f"The last stage to run: {', '.join(ORDER)}.", _one_of(ORDER)),
        _parameter("sdk_container_image", "Workers' image", "The image of the workers: that of the template.", _IMAGE),
        _parameter("take_over", "Take over", "Take the folder from a run whose job has ended.", _ITEM[bool]),
    ]
    return {
        "name": "owt run",
        "description": "From Reddit submissions to token shards: collects URLs, fetches and extracts pages, cleans and "
        "deduplicates documents, tokenizes them and writes a report.",
        "parameters": own + [_of_field(name, field, kind) for name, (_, field, kind) in _options().items()],
    }


def arguments(given: Sequence[str]) -> list[str]:
    """The arguments of `owt run` for what the launcher gives: `--NAME=VALUE`, a list's items with spaces between.

    What is no parameter of the template is left as it is: a flag of Beam.
    """
    options = _options()
    flags: list[str] = []
    for argument in given:
        name, _, value = argument.removeprefix("--").partition("=")
        if not value and (name in ("config", "base") or name in options):
            continue  # a parameter that was left empty is none
        if name == "base":
            flags += [f"--base={uri}" for uri in value.split()]
        elif name == "take_over":
            flags += ["--take_over"] if value == "true" else []
        elif name in options:
            stage, field, kind = options[name]
            flags += _flag(f"{stage}.{field.name}", kind, value)
        else:
            flags.append(argument)
    return flags


def main(given: Sequence[str]) -> int:
    """Write the job of a run to `--template_location`; returns the exit code."""
    from owt_pipeline.commands.run import main as run

    return run(arguments(given))


def _options() -> dict[str, tuple[str, dataclasses.Field[Any], Any]]:
    """(stage, field, type) of each parameter; with the stage's name in front where two stages have the option."""
    found: dict[str, list[tuple[str, dataclasses.Field[Any], Any]]] = {}
    for stage in ORDER:
        cls = load(stage).options
        kinds = typing.get_type_hints(cls)
        for field in dataclasses.fields(cls):
            # `times` is what a launcher notes that waits for the job.
            if field.name != "times" and field.metadata["is_flag"]:
                found.setdefault(field.name, []).append((stage, field, kinds[field.name]))
    return {
        name if len(owners) == 1 else f"{owner[0]}_{name}": owner for name, owners in found.items() for owner in owners
    }


def _flag(name: str, kind: Any, value: str) -> list[str]:
    scalar, many = scalar_type(kind)
    if scalar is bool:
        stage, _, option = name.partition(".")
        return [f"--{name}" if value == "true" else f"--{stage}.no_{option}"]
    return [f"--{name}", *value.split()] if many else [f"--{name}={value}"]


def _of_field(name: str, field: dataclasses.Field[Any], kind: Any) -> dict[str, Any]:
    scalar, many = scalar_type(kind)
    choices = field.metadata.get("choices")
    item = _one_of(choices) if choices else _ITEM[scalar]
    if scalar is str and not choices and not many:
        item = "[^\n]*"
    help = field.metadata.get("help", "")
    if many:
        help += "; several are divided by spaces"
    return _parameter(name, name.replace("_", " ").capitalize(), help, f"{item}( +{item})*" if many else item)


def _parameter(name: str, label: str, help: str, pattern: str, optional: bool = True) -> dict[str, Any]:
    return {
        "name": name,
        "label": label,
        "helpText": help[:1].upper() + help[1:],
        "isOptional": optional,
        "regexes": [f"^{pattern}$"],
    }


def _one_of(choices: Sequence[str]) -> str:
    return f"({'|'.join(choices)})"


if __name__ == "__main__":
    json.dump(metadata(), sys.stdout, indent=1, ensure_ascii=False)
    print()
