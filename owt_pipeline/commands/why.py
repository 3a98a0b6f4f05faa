"""`owt why`: what happened to a URL at every stage, or to the URLs of a domain."""

from __future__ import annotations

import argparse
import json
import re
import shutil
import textwrap
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, zip_longest
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.commands.history import asked_for, cut, history, in_bases, nearest, readers_of, say
from owt_pipeline.errors import NotFound, UsageError
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.stages.report.side_by_side import Segment
from owt_pipeline.storage.folder import Storage
from owt_pipeline.storage.lease import mention_running
from schemas import DATASETS


def _flags(parser: CommandParser) -> None:
    """Show what happened to a URL at every stage: who posted it, what the fetch answered, what was
    extracted, which document it repeats and how closely, or in which shard and row its tokens are.
    For a domain (example.org), the funnel of all its URLs. A URL is followed into the runs that this one builds
    on.

    examples:
      owt why https://example.org/article --workdir runs/2013
      owt why example.org --domain --workdir runs/2013
      owt why 10266087034311239731 --workdir runs/2013 --json | jq .verdict

    Exit code 3 if it does not appear in the run; the nearest URLs are then shown.
    """
    parser.add_argument("url", help="the URL in any spelling, its id, or a domain")
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument(
        "--domain", action="store_true", help="show the funnel of all URLs of the domain, or of the URL's domain"
    )
    parser.add_argument("--json", action="store_true", help="print JSON: one object")


def _why(arguments: argparse.Namespace) -> int:
    workdir, as_json = Storage(arguments.workdir), arguments.json
    mention_running(workdir)
    readers = readers_of(workdir, discarded=True)
    asked = asked_for(arguments.url)
    if arguments.domain and not asked.host:
        raise UsageError(f"--domain: {arguments.url!r} is neither a domain nor a URL that has one")
    found = domain_summary(readers, asked.host or "") if arguments.domain else history(readers, asked)
    if not arguments.domain and (earlier := in_bases(workdir, arguments.url)):
        nowhere = {"asked": asked.text, "url": asked.url, "url_id": asked.url_id, "host": asked.host, "shard": None}
        found = {**(found or {**nowhere, "verdict": "earlier", "stages": []}), "earlier": earlier}
    if found is None and asked.url == f"https://{asked.host}/":
        found = domain_summary(readers, asked.host or "")
    if arguments.domain and found is None:
        raise NotFound(f"no URL of {asked.host} appears in {workdir}")
    if found is None:
        near = nearest(readers, asked)
        if as_json:
            _print_json(near)
        raise NotFound(_unknown(workdir, near))
    if as_json:
        _print_json(found)
    elif "domain" in found:
        _print_domain(found)
    else:
        _print_history(found)
    return 0


def _print_json(found: dict[str, Any]) -> None:
    print(json.dumps(found, indent=1, ensure_ascii=False))


def _unknown(workdir: Storage, near: dict[str, Any]) -> str:
    lines = [f"{near['asked']} (id {near['url_id']}) does not appear in any stage of {workdir}"]
    if near["url"] and near["url"] != near["asked"]:
        lines.append(f"looked for as {near['url']}, its canonical form")
    if near["redirected_from"]:
        lines.append(f"but it is where a redirect from {near['redirected_from'][0]} led: ask about that")
    if near["urls_of_host"]:
        lines.append(f"{near['urls_of_host']:,} URLs of {near['host']} are known; the nearest:")
        lines += [f"  {url}" for url in near["nearest"]]
    elif near["host"]:
        lines.append(f"no URL of {near['host']} is known either: check the spelling, or the dumps it should be in")
    return "\n".join(lines)


def _print_history(found: dict[str, Any]) -> None:
    say(f"{found['url'] or found['asked']}: {_verdict(found)}")
    if found["stages"]:
        say(f"  id {found['url_id']}, shard {found['shard']}")
    shown: dict[str, Any] = {"url": found["url"], "url_id": found["url_id"], "host": found["host"]}
    for entry in found["stages"]:
        say(f"{entry['stage']}: {entry['verdict']}")
        for key, value in entry.items():
            if key in ("stage", "verdict") or value is None or (shown.get(key) == value and key != "row"):
                continue  # unchanged values are not shown again
            shown[key] = value
            if key != "differences":
                say(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")
            elif all(kind != "differs" for kind, *_ in value):
                say("  differences: none by words")
            else:
                say("  side by side, where they differ:")
                width = shutil.get_terminal_size((120, 24)).columns
                for line in columns(value, ("this document", "the kept one"), width):
                    say(line)
    for was in found.get("earlier", []):
        say("")
        say(f"in {was['run']}, which this run builds on:")
        _print_history(was)


def _verdict(found: dict[str, Any]) -> str:
    if not found["stages"]:
        return "not in this run, but in an earlier one"
    last = found["stages"][-1]
    if found["verdict"] == "rejected":
        return f"rejected by {last['stage']}: {last.get('reason', 'a duplicate')}"
    if found["verdict"] == "pending":
        return f"kept by {last['stage']}; the stages after it have not run"
    return "kept; its tokens are in tokens/"


def columns(segments: Sequence[Segment], titles: tuple[str, str], width: int) -> Iterator[str]:
    """Lines of two columns: two texts wherever they differ, the differences in brackets."""
    column = max((width - 7) // 2, 20)
    rows = [titles]
    for skipped, place in groupby(segments, lambda segment: segment[0] == "skipped"):
        if not skipped:
            shown = [[f"[{cut(text)}]" if kind == "differs" else text for text in texts] for kind, *texts in place]
            rows.append((" ".join(left for left, _ in shown), " ".join(right for _, right in shown)))
    for row in rows:
        for left, right in zip_longest(*(textwrap.wrap(text, column) for text in row), fillvalue=""):
            yield f"    {left:<{column}} | {right}".rstrip()
        yield ""


def _print_domain(found: dict[str, Any]) -> None:
    hosts = ", ".join(f"{host} {count:,}" for host, count in found["hosts"].items())
    say(f"{found['domain']}: {hosts or 'no URL was collected'}")
    for stage in found["stages"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in stage["rejected"].items())
        kept = "(no rows)" if stage["kept"] is None else f"{stage['kept']:,} kept"
        say(f"  {stage['stage']:<9}{kept:>14}{'; rejected: ' if reasons else ''}{reasons}")
    if "tokens" in found:
        say(f"  {found['tokens']:,} tokens")
    for what, urls in found["examples"].items():
        say(f"{what}: {'  '.join(filter(None, urls))}")


_EXAMPLES = 3
_NO_IDS = np.zeros(0, np.uint64)


def domain_summary(readers: Mapping[str, DatasetReader], domain: str) -> dict[str, Any] | None:
    """The funnel of the URLs whose host is `domain` or below it, or None if no stage has any.

    The result has `domain`, `hosts` (URLs by host, the ten with most), `stages` (for each, `kept`, None if its rows
    were discarded, and `rejected` by reason), `examples` (some URLs, by `kept` and by reason) and, where there are
    tokens, `tokens`.
    """
    pattern = rf"^https://([^/:]*\.)?{re.escape(domain)}(:[0-9]+)?/"
    hosts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {"kept": []}
    stages: list[dict[str, Any]] = []
    ids: dict[int, np.ndarray] | None = None  # of the URLs that entered, by shard
    tokens, is_known = 0, True  # is_known: how many documents enter
    for name, reader in readers.items():
        has_urls = "url" in DATASETS[name].schema.names
        columns = ["url_id", *(["url"] if has_urls else []), *(["n_tokens"] if name == "tokens" else [])]
        kept: dict[int, np.ndarray] = {}
        shown: list[str] = []
        rejected: Counter[str] = Counter()
        for shard in range(reader.num_shards):
            known = ids.get(shard, _NO_IDS) if ids is not None else None if has_urls else _NO_IDS
            if known is not None and not len(known):
                continue
            here = list(_ours(reader, shard, columns, pattern, known))
            kept[shard] = np.concatenate([_NO_IDS, *(batch["url_id"].to_numpy() for batch in here)])
            for batch in here:
                if known is None:
                    hosts.update(re.sub("^https://|[:/].*$", "", url) for url in batch["url"].to_pylist())
                if has_urls:
                    shown += batch["url"].to_pylist()[: _EXAMPLES - len(shown)]
                if name == "tokens":
                    tokens += pc.sum(batch["n_tokens"]).as_py() or 0
            for batch in _ours(reader, shard, ["url_id", "url", "reason"], pattern, known, kind="rejects"):
                for reason, url in zip(batch["reason"].to_pylist(), batch["url"].to_pylist(), strict=True):
                    rejected[reason] += 1
                    if len(some := examples.setdefault(reason, [])) < _EXAMPLES:
                        some.append(url)
        examples["kept"] = shown or examples["kept"]
        count: int | None = sum(map(len, kept.values()))
        if name == "duplicates":  # its rows are the removed documents
            count = sum(map(len, (ids or {}).values())) - sum(map(len, kept.values())) if is_known else None
        elif not reader.discarded:
            ids = kept
        is_known = not reader.discarded
        count = None if reader.discarded else count
        stages.append({"stage": reader.manifest.stage, "kept": count, "rejected": dict(rejected.most_common())})
    if not any(stage["kept"] or stage["rejected"] for stage in stages):
        return None
    if not examples["kept"]:
        del examples["kept"]
    found = {"domain": domain, "hosts": dict(hosts.most_common(10)), "stages": stages, "examples": examples}
    return found | ({"tokens": tokens} if "tokens" in readers else {})


def _ours(
    reader: DatasetReader, shard: int, columns: list[str], pattern: str, ids: np.ndarray | None, kind: str = "data"
) -> Iterator[pa.RecordBatch]:
    """The shard's rows that are the domain's: by their URLs in the dataset that is looked at first, then by `ids`."""
    for batch in reader.batches(shard, kind=kind, columns=columns, rows=1 << 16):
        if ids is None:
            yield batch.filter(pc.fill_null(pc.match_substring_regex(batch["url"], pattern), False))
        else:
            yield batch.filter(pa.array(np.isin(batch["url_id"].to_numpy(), ids)))


main = Command("owt why", _flags, _why)
