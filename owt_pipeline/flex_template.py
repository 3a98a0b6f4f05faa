"""`owt run` as a Dataflow Flex Template: how the template's launcher starts it.

The launcher (`/opt/google/dataflow/python_template_launcher`, in an image of Google's) runs the
file that `FLEX_TEMPLATE_PYTHON_PY_FILE` names, here `flex/launch.py`, with `--NAME=VALUE` for each
of the template's parameters (`flex/metadata.json`) and for what Beam needs: the project, the
region, `--template_location`, and so on. With the last, the SDK writes the job there instead of
submitting it; the launcher submits it when the program has ended.
"""

from __future__ import annotations

import shlex
from collections.abc import Sequence


def arguments(parameters: Sequence[str]) -> list[str]:
    """Return the arguments of `owt run` for the launcher's parameters.

    A parameter that is not the template's is a flag of Beam.
    """
    value_by_name: dict[str, str] = {}
    flags: list[str] = []
    for parameter in parameters:
        name, _, value = parameter.removeprefix("--").partition("=")
        if name in ("run", "settings"):
            value_by_name[name] = value
        elif name == "beam_flags":
            flags += shlex.split(value)
        else:
            flags.append(parameter)
    # An empty parameter counts as missing.
    places = [value_by_name[name] for name in ("run", "settings") if value_by_name.get(name)]
    return [*places, *flags]


def main(parameters: Sequence[str]) -> int:
    """Write the job of a run to `--template_location`; return the exit code."""
    from owt_pipeline.commands.run import main as run

    return run(arguments(parameters))
