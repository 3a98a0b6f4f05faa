"""Verdicts and rates of datatrove's filters: the peer of `clean.py`.

    .venv-peers/bin/python benchmarks/peers/datatrove_filters.py TEXTS.json

TEXTS.json is a list of strings. Prints one JSON object: by filter, the seconds it took on one core and, for each
text, the rule it broke, or null.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from datatrove.data import Document
from datatrove.pipeline.filters import (
    C4QualityFilter,
    FineWebQualityFilter,
    GopherQualityFilter,
    GopherRepetitionFilter,
)

FILTERS = {
    "gopher_quality": GopherQualityFilter,
    "gopher_repetition": GopherRepetitionFilter,
    "c4": C4QualityFilter,
    "fineweb": FineWebQualityFilter,
}


def main() -> None:
    texts = json.loads(Path(sys.argv[1]).read_text())
    print(json.dumps({name: judge(make(), texts) for name, make in FILTERS.items()}))


def judge(rules: object, texts: list[str]) -> dict[str, object]:
    rules.filter(Document(text="It loads its tokenizer.", id=""))  # type: ignore[attr-defined]
    started = time.process_time()
    verdicts = []
    for text in texts:
        verdict = rules.filter(Document(text=text, id=""))  # type: ignore[attr-defined]
        verdicts.append(verdict[1] if isinstance(verdict, tuple) else None if verdict else "rejected")
    return {"seconds": time.process_time() - started, "verdicts": verdicts}


if __name__ == "__main__":
    main()
