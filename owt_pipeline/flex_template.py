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


def arguments(given: Sequence[str]) -> list[str]:
    """Return the arguments of `owt run` for the launcher's; what is not a parameter of the
    template is a flag of Beam."""
    words: dict[str, str] = {}
    flags: list[str] = []
    for argument in given:
        name, _, value = argument.removeprefix("--").partition("=")
        if name in ("run", "settings"):
            words[name] = value
        elif name == "beam_flags":
            flags += shlex.split(value)
        else:
            flags.append(argument)
    # A parameter that is left empty is not given.
    named = [words[name] for name in ("run", "settings") if words.get(name)]
    return [*named, *flags]


def main(given: Sequence[str]) -> int:
    """Write the job of a run to `--template_location`; returns the exit code."""
    from owt_pipeline.commands.run import main as run

    return run(arguments(given))
