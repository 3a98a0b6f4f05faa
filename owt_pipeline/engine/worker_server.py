"""Imported by the fork server of `workers`, and by nothing else: loads what all workers need,
once for all of them."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
from multiprocessing import spawn

from owt_pipeline.engine.workers import PRELOAD, importing, keep_pandas_out

_folder, *_needed = os.environ[PRELOAD].split("\n")
atexit.register(
    shutil.rmtree, _folder, ignore_errors=True
)  # its socket, also if the process that asks was killed

for name in (
    "_fixup_main_from_name",
    "_fixup_main_from_path",
):  # of a script, which workers do not need
    if hasattr(spawn, name):
        setattr(spawn, name, lambda _: None)

keep_pandas_out()
with importing():  # and freezes: workers share the memory of what no collection touches
    for needed in _needed:
        module, _, function = needed.partition(":")
        with contextlib.suppress(Exception):
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
