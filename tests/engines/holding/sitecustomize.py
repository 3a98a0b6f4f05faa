"""For workers of tests: an attempt at a Plan or at a Publish stops where a kill does the most harm.

Python imports this module when it starts, if its folder is on PYTHONPATH. In the folder `$OWT_TESTS_HOLD`, the first
attempt at each Plan and each Publish leaves a file with its process id, and waits until a file `NAME.released` is
there: a Plan when it has found out all and emitted nothing, a Publish when the manifest is there and nothing else is.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

_FOLDER = os.environ["OWT_TESTS_HOLD"]
_WRITTEN = re.compile(r"ledger/(\w+)/(?:\.work/\w+/(prepared-\w+\.json)|manifest\.json)$")


def _holding(write: Callable[..., None]) -> Callable[..., None]:
    def hold(source: str, target: str, **options: Any) -> None:
        write(source, target, **options)
        if found := _WRITTEN.search(target):
            held = os.path.join(_FOLDER, f"{'plan' if found[2] else 'publish'}-{found[1]}")
            try:
                descriptor = os.open(held, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
            except FileExistsError:
                return  # another attempt was first
            os.write(descriptor, str(os.getpid()).encode())
            os.close(descriptor)
            while not os.path.exists(f"{held}.released"):
                time.sleep(0.02)

    return hold


os.link, os.replace = _holding(os.link), _holding(os.replace)
