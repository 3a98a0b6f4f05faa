"""For workers of tests: an attempt at a Plan or at a Publish stops where a kill does the most harm.

Python imports this module when it starts, if its folder is on PYTHONPATH. In the folder
`$OWT_TESTS_HOLD`, the first attempt at each Plan and each Publish leaves a file with its process
id, and waits until a file `NAME.released` is there: a Plan when it has found out all and emitted
nothing, a Publish when the root names its dataset.
"""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Callable
from typing import Any

_FOLDER = os.environ["OWT_TESTS_HOLD"]
_PLAN = re.compile(r"ledger/(\w+)/work/[\w-]+/plan-\w+\.json$")


def _first(name: str) -> bool:
    """Leave this file with the process's id; False if another attempt was first."""
    try:
        descriptor = os.open(os.path.join(_FOLDER, name), os.O_WRONLY | os.O_CREAT | os.O_EXCL)
    except FileExistsError:
        return False
    os.write(descriptor, str(os.getpid()).encode())
    os.close(descriptor)
    return True


def _holding(write: Callable[..., None]) -> Callable[..., None]:
    def hold(source: str, target: str, **options: Any) -> None:
        write(source, target, **options)
        names = []
        if found := _PLAN.search(target):
            names = [f"plan-{found[1]}"]
        elif target.endswith("ledger/manifest.json"):
            with open(target) as file:
                names = [f"publish-{dataset}" for dataset in json.load(file)["datasets"]]
        for name in names:
            if _first(name):
                while not os.path.exists(os.path.join(_FOLDER, f"{name}.released")):
                    time.sleep(0.02)

    return hold


os.link, os.replace = _holding(os.link), _holding(os.replace)
