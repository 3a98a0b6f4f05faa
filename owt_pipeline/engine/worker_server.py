"""Load the modules that all workers need once. Only the fork server of `workers` imports this."""

from __future__ import annotations

import atexit
import contextlib
import importlib
import os
import shutil
from multiprocessing import spawn

from owt_pipeline.engine.workers import PRELOAD, importing, keep_pandas_out

_folder, *_preloaded = os.environ[PRELOAD].split("\n")
# The folder has the server's socket. It is removed here, since the process that started the server
# may be killed.
atexit.register(shutil.rmtree, _folder, ignore_errors=True)

# Workers do not need the script that the process runs.
for name in ("_fixup_main_from_name", "_fixup_main_from_path"):
    if hasattr(spawn, name):
        setattr(spawn, name, lambda _: None)

keep_pandas_out()
# `importing` also freezes the imported objects. Workers share memory that no collection touches.
with importing():
    for preloaded in _preloaded:
        module, _, function = preloaded.partition(":")
        with contextlib.suppress(Exception):
            imported = importlib.import_module(module)
            if function:
                getattr(imported, function)()
