"""The packages that workers install next to a staged wheel of this project.

A runner installs a staged wheel (`--extra_package`) with its dependencies but without its extras,
and in the newest versions. So a requirements file of the job names all packages and versions.
"""

from __future__ import annotations

import functools
import importlib.metadata
import os
import re
import tempfile
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError
from typing import Any

_OURS = "owt-pipeline"
_BEAM = "apache-beam"
_EXTRAS_OF_WORKERS = ("pipeline", "aws", "azure", "gcp")

_NAME = re.compile(r"[A-Za-z0-9._-]+")
_EXTRA = re.compile(r"""extra\s*==\s*["']([\w-]+)["']""")


def package_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return Beam's options with which workers install the packages that a staged wheel needs.

    Returns an empty dict if the job stages no wheel of this project, or if the job has its own
    requirements file, which then has to name the packages. The options name a temporary file, which
    is removed when this process ends.

    Args:
      given: all of Beam's options.
    """
    packages = given.get("extra_packages") or ()
    is_staged = any(os.path.basename(path).startswith("owt_pipeline-") for path in packages)
    if not is_staged or given.get("requirements_file"):
        return {}
    path = os.path.join(_folder().name, "requirements.txt")
    with open(path, "w", encoding="utf-8") as file:
        file.writelines(f"{line}\n" for line in worker_requirements())
    # With a cache, Beam would download every package to this machine and upload it.
    return {"requirements_file": path, "requirements_cache": "skip"}


@functools.cache
def _folder() -> tempfile.TemporaryDirectory[str]:
    return tempfile.TemporaryDirectory(prefix="owt-")


def worker_requirements() -> list[str]:
    """Return what workers need besides the wheel, as `NAME==VERSION` of this environment.

    Workers of other versions refuse a run. Beam is not among them: it is in the worker's image.
    """
    versions: dict[str, str] = {}
    for line in importlib.metadata.requires(_OURS) or []:
        name_match = _NAME.match(line)
        extra = _EXTRA.search(line)
        if name_match is None or (extra and extra[1] not in _EXTRAS_OF_WORKERS):
            continue
        name = name_match[0]
        if name in (_OURS, _BEAM):
            continue
        try:
            versions[name] = importlib.metadata.version(name)
        except PackageNotFoundError:
            # A client of a bucket that this run does not use.
            continue
    return [f"{name}=={version}" for name, version in versions.items()]
