"""Token datasets of runs that build on each other."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path


def add_bases(tokens: Path, *bases: Path) -> None:
    """Write into the manifest of `tokens` that its run builds on the runs of `bases`, as tokenize does."""
    path = tokens.parent / "ledger/tokens/manifest.json"
    record = json.loads(path.read_text())
    record["properties"]["bases"] = [
        {
            "uri": os.path.relpath(base.parent, tokens.parent),
            "sha256": hashlib.sha256((base.parent / "ledger/tokens/manifest.json").read_bytes()).hexdigest(),
            "totals": {},
        }
        for base in bases
    ]
    path.write_text(json.dumps(record))
