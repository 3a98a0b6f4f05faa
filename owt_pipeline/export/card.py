"""The dataset's card: `ledger/corpus/README.md`, in the form in which Hugging Face's hub and `datasets` read it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping

from schemas import DATASETS
from schemas.manifest import Counts, Manifest
from schemas.settings import to_toml

LANGUAGE = "language_"
"""Before a language's code, the name of the count of its documents."""

_SIZES = ((1e3, "n<1K"), (1e4, "1K<n<10K"), (1e5, "10K<n<100K"), (1e6, "100K<n<1M"), (1e7, "1M<n<10M"))


def card(
    upstream: Mapping[str, Manifest],
    counts: Counts,
    stats: Mapping[str, int],
    options: Mapping[str, object],
    data_bytes: int,
    num_shards: int,
) -> str:
    """The card as Markdown with a YAML header; the same for the same corpus.

    Args:
      upstream: the manifests of the datasets before the corpus, in the order of the stages.
      counts: the corpus' own.
      stats: `characters`, `words`, `text_bytes`, and `language_CODE` for each language.
      options: those of export.
      data_bytes: of the corpus' files.
      num_shards: of the corpus.
    """
    languages = sorted(
        ((name[len(LANGUAGE) :], count) for name, count in stats.items() if name.startswith(LANGUAGE)),
        key=lambda item: (-item[1], item[0]),
    )
    size = next((name for limit, name in _SIZES if counts.left < limit), "n>10M")
    imported = any(manifest.stage == "import" for manifest in upstream.values())
    name, about = (_IMPORTED_NAME, _IMPORTED) if imported else (_NAME, _ABOUT)
    header = [
        "---",
        f'pretty_name: "{name}"',
        "license: other",
        "license_name: the-authors-own",
        *(["language:", *(f"- {json.dumps(code)}" for code, _ in languages)] if languages else []),
        "task_categories:",
        "- text-generation",
        "size_categories:",
        f'- "{size}"',
        *(() if imported else ("tags:", "- openwebtext", "- webtext")),
        "configs:",
        "- config_name: default",
        "  data_files:",
        "  - split: train",
        '    path: "part-*.parquet"',
        "---",
    ]
    about = f"# {name}\n\n{about}\n"
    return "\n".join(
        [*header, "", about, _READING, *_statistics(counts, stats, languages, data_bytes, num_shards)]
    ) + "\n".join(
        ["", *_fields(), *_funnel(upstream, counts), *_sources(upstream), *_settings(upstream, options), _LICENCE]
    )


_NAME = "OpenWebText, rebuilt"
_ABOUT = "Main texts of web pages that people linked to on Reddit, cleaned and without duplicates: one row a document."

_IMPORTED_NAME = "Imported text"
_IMPORTED = "Texts imported from the files below, cleaned and without duplicates: one row a document."

_READING = """\
```python
from datasets import load_dataset

corpus = load_dataset("parquet", data_files="part-*.parquet", split="train")   # in this folder
```

DuckDB reads it by `select * from 'part-*.parquet'`, Polars by `pl.scan_parquet("part-*.parquet")`.
"""

_LICENCE = """\
## Licence

The texts are their authors' and publishers'. Nobody has licensed them to you by way of this dataset: whether you may
use them, and for what, depends on the law where you are. `rejects/` and the ledger hold URLs of pages that are not in
the corpus. To take documents out: `owt forget URLS.txt --workdir RUN`.
"""


def _statistics(
    counts: Counts, stats: Mapping[str, int], languages: list[tuple[str, int]], data_bytes: int, num_shards: int
) -> list[str]:
    rows = [
        ("documents", counts.left),
        ("words", stats.get("words", 0)),
        ("characters", stats.get("characters", 0)),
        ("bytes of text (UTF-8)", stats.get("text_bytes", 0)),
        ("bytes of the files", data_bytes),
        ("shards", num_shards),
        *((f"documents in `{code}`", count) for code, count in languages[:10]),
    ]
    return ["## Statistics", "", "| | |", "|---|---|", *(f"| {name} | {count:,} |" for name, count in rows), ""]


def _fields() -> list[str]:
    rows = [
        f"| `{field.name}` | {(field.metadata or {})[b'description'].decode()} |" for field in DATASETS["corpus"].schema
    ]
    return ["## Fields", "", "| field | meaning |", "|---|---|", *rows, ""]


def _funnel(upstream: Mapping[str, Manifest], counts: Counts) -> list[str]:
    rows = []
    for stage, sums in (
        {manifest.stage: manifest.counts for manifest in upstream.values()} | {"export": counts}
    ).items():
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in Counter(sums.rejected).most_common())
        rows.append(f"| `{stage}` | {sums.entered:,} | {sums.left:,} | {reasons} |")
    return ["## How it came about", "", "| stage | in | out | rejected |", "|---|---|---|---|", *rows, ""]


def _sources(upstream: Mapping[str, Manifest]) -> list[str]:
    rows = [
        f"| `{manifest.stage}` | {source.get('name', source.get('kind', ''))} | {source.get('bytes', 0):,} |"
        for manifest in upstream.values()
        for source in manifest.sources
    ]
    return ["## Sources", "", "| read by | file | bytes |", "|---|---|---|", *rows, ""] if rows else []


def _settings(upstream: Mapping[str, Manifest], options: Mapping[str, object]) -> list[str]:
    """The options that shaped the bytes, as a CONFIG.toml; of files the names, since their folders are nobody's."""
    tables = {manifest.stage: manifest.options for manifest in upstream.values()} | {"export": options}
    lines = ["## Settings", "", "```toml"]
    for stage, table in tables.items():
        given = {name: _without_folder(value) for name, value in table.items() if value not in (None, "", [], ())}
        lines += [f"[{stage}]", *(f"{name} = {to_toml(value)}" for name, value in given.items()), ""]
    return [*lines[:-1], "```", ""]


def _without_folder(value: object) -> object:
    if isinstance(value, (list, tuple)):
        return [_without_folder(item) for item in value]
    return value.rpartition("/")[2] if isinstance(value, str) and "://" not in value else value
