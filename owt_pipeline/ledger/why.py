"""`owt why`: one URL's whole story, from who posted it to where its tokens are."""

from __future__ import annotations

import argparse
import datetime
import difflib
import json
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from owt_pipeline.collect.urls import BadURL, canonical_url, url_id
from owt_pipeline.runtime.errors import UserError
from owt_pipeline.runtime.shards import DatasetReader, reading
from owt_pipeline.runtime.stage import read_manifest
from owt_pipeline.runtime.storage import Storage
from owt_pipeline.stages.command import reporting_errors
from schemas import DATASETS, Reason, ShardFile

_CONTEXT_WORDS = 12


def story(workdir: Storage, url: str) -> list[dict[str, Any]]:
    """What became of a URL (or an id, as a decimal number), one entry a stage in order.

    Each entry has `stage`, `verdict` (`kept`, `rejected` or `pending`) and what the stage knows of it.
    Raises UserError where no stage of the run has heard of it.
    """
    identifier = _identifier(url)
    entries: list[dict[str, Any]] = []
    shard: int | None = None
    for name in DATASETS:
        manifest = read_manifest(workdir / name)
        if manifest is None:
            continue
        reader = DatasetReader(workdir / name, manifest)
        found = list(_rows(reader, identifier, shard))
        entries += _entries(workdir, reader, found)
        for file, _, _ in found:
            shard = file.shard
    if not entries:
        raise UserError(f"no stage of {workdir} has heard of {url} (id {identifier}): check its spelling")
    last = entries[-1]
    if last["verdict"] == "kept" and last["stage"] != "tokenize":
        entries.append({"stage": "next", "verdict": "pending", "what": "the stages after it have not run"})
    return entries


def _identifier(url: str) -> int:
    if url.isdigit():
        return int(url)
    try:
        return url_id(canonical_url(url))
    except BadURL as error:
        raise UserError(f"{url} is neither a URL nor an id: {error}") from error


def _rows(reader: DatasetReader, identifier: int, shard: int | None) -> Iterator[tuple[ShardFile, int, dict[str, Any]]]:
    """(file, row number, row) of the id in a dataset and its rejects."""
    for file in reader.files("data", shard) + reader.files("rejects", shard):
        path = reader.folder.path(file.path)
        with reading(path):
            find = _find_in_arrow if file.path.endswith(".arrow") else _find_in_parquet
            for number, row in find(reader, file, identifier):
                yield file, number, row


def _find_in_parquet(reader: DatasetReader, file: ShardFile, identifier: int) -> Iterator[tuple[int, dict[str, Any]]]:
    """Reads the ids of those row groups whose range admits the id, and the rest of those that have it."""
    with reader.folder.open(file.path) as source:
        parquet = pq.ParquetFile(source)
        column = parquet.schema_arrow.get_field_index("url_id")
        start = 0
        for group in range(parquet.num_row_groups):
            about = parquet.metadata.row_group(group)
            statistics = about.column(column).statistics
            if statistics is None or not statistics.has_min_max or statistics.min <= identifier <= statistics.max:
                ids = parquet.read_row_group(group, columns=["url_id"])["url_id"].to_numpy()
                places = np.flatnonzero(ids == np.uint64(identifier))
                if len(places):
                    table = parquet.read_row_group(group)
                    for place in places:
                        yield start + int(place), table.slice(int(place), 1).to_pylist()[0]
            start += about.num_rows


def _find_in_arrow(reader: DatasetReader, file: ShardFile, identifier: int) -> Iterator[tuple[int, dict[str, Any]]]:
    start = 0
    for batch in reader.batches(file.shard, rows=1 << 16, only=file.path):
        for place in np.flatnonzero(batch["url_id"].to_numpy() == np.uint64(identifier)):
            yield start + int(place), {"n_tokens": batch["n_tokens"][int(place)].as_py()}
        start += batch.num_rows


def _entries(
    workdir: Storage, reader: DatasetReader, found: list[tuple[ShardFile, int, dict[str, Any]]]
) -> Iterator[dict[str, Any]]:
    stage = reader.manifest.stage
    for file, number, row in found:
        where = {"file": reader.folder.path(file.path), "row": number}
        if file.kind == "rejects":
            reason = Reason.of(row["reason"])
            what = {"reason": str(reason), "meaning": reason.description, "detail": row["detail"]}
            yield {"stage": stage, "verdict": "rejected", "url": row["url"], **what, **where}
        elif stage == "dedupe":
            yield {"stage": stage, "verdict": "duplicate", **_decision(workdir, row, file.shard), **where}
        elif stage == "tokenize":
            split = file.path.split("/", 1)[0]
            yield {"stage": stage, "verdict": "kept", "split": split, "n_tokens": row["n_tokens"], **where}
        else:
            yield {"stage": stage, "verdict": "kept", **_shown(row), **where}


def _shown(row: dict[str, Any]) -> dict[str, Any]:
    """A row for a person: its text cut, its empty fields left out."""
    shown = {key: value for key, value in row.items() if value not in (None, [], "")}
    if "text" in shown:
        shown["characters"] = len(row["text"])
        shown["text"] = _cut(row["text"])
    for key in ("created_utc", "fetched_at"):
        if key in shown:
            moment = datetime.datetime.fromtimestamp(shown[key], datetime.timezone.utc)
            shown[key] = moment.strftime("%Y-%m-%d %H:%M:%S UTC")
    return shown


def _decision(workdir: Storage, row: dict[str, Any], shard: int) -> dict[str, Any]:
    """A dedupe decision with the document that stays and where the two texts differ."""
    shown = {key: value for key, value in row.items() if key != "url_id"}
    manifest = read_manifest(workdir / "clean")
    if manifest is None:
        return shown
    clean = DatasetReader(workdir / "clean", manifest)
    removed = next(_rows(clean, row["url_id"], shard), None)
    kept = next(_rows(clean, row["kept_url_id"], row["kept_shard"]), None)
    if removed and kept:
        shown["kept_url"] = kept[2]["url"]
        shown["differences"] = differences(removed[2]["text"], kept[2]["text"])
    return shown


def differences(removed: str, kept: str, most: int = 5) -> list[dict[str, str]]:
    """The first places where two texts differ by words: what each has there, with a few words before."""
    ours, theirs = removed.split()[:5000], kept.split()[:5000]
    matcher = difflib.SequenceMatcher(a=ours, b=theirs, autojunk=False)
    places = []
    for tag, a, b, c, d in matcher.get_opcodes():
        if tag == "equal":
            continue
        before = " ".join(ours[max(0, a - _CONTEXT_WORDS) : a])
        places.append({"after": before, "removed": _cut(" ".join(ours[a:b])), "kept": _cut(" ".join(theirs[c:d]))})
        if len(places) == most:
            break
    return places


def _cut(text: str, length: int = 160) -> str:
    text = " ".join(text.split())
    return text if len(text) <= length else text[:length] + "…"


def main(argv: Sequence[str] | None = None) -> int:
    """`owt why`; exit code 1 where the run has not heard of the URL."""
    parser = argparse.ArgumentParser(
        prog="owt why",
        description="Tell a URL's whole story: who posted it, what the fetch answered, what was extracted,\n"
        "which document it repeats and how closely, or in which shard and row its tokens are.",
        epilog="example:\n  owt why https://example.org/article --workdir runs/2013",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("url", help="the URL in any spelling, or its id")
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument("--json", action="store_true", help="print JSON, one list of entries")
    arguments = parser.parse_args(argv)
    return reporting_errors(lambda: _print(story(Storage(arguments.workdir), arguments.url), arguments.json))


def _print(entries: list[dict[str, Any]], as_json: bool) -> int:
    if as_json:
        print(json.dumps(entries, indent=1, ensure_ascii=False))
        return 0
    told: dict[str, Any] = {}
    for entry in entries:
        print(f"{entry['stage']}: {entry['verdict']}")
        for key, value in entry.items():
            if key in ("stage", "verdict") or value is None or (told.get(key) == value and key != "row"):
                continue  # what a stage passes on as it was is not told again
            told[key] = value
            if key == "differences":
                _print_differences(value)
            else:
                shown = ", ".join(map(str, value)) if isinstance(value, list) else value
                print(f"  {key}: {shown}")
    return 0


def _print_differences(places: list[dict[str, str]]) -> None:
    for place in places:
        print(f"  … {place['after']}")
        print(f"    - {place['removed'] or '(nothing)'}")
        print(f"    + {place['kept'] or '(nothing)'}")
