"""`owt why`: what happened to a URL at every stage, or to the URLs of a domain."""

from __future__ import annotations

import argparse
import json
import re
import shutil
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from owt_pipeline.command_line import Command, CommandParser
from owt_pipeline.commands.history import arrow_ids, asked_for, history, in_bases, nearest, readers_of, side_by_side
from owt_pipeline.engine.dataset import DatasetReader
from owt_pipeline.engine.errors import NotFound, UsageError
from owt_pipeline.engine.lease import mention_running
from owt_pipeline.engine.storage import Storage
from owt_pipeline.formats.urls import url_rules_of

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")


def _flags(parser: CommandParser) -> None:
    """Show what happened to a URL at every stage: who posted it, what the fetch answered, what was
    extracted, which document it repeats and how closely, or in which shard and row its tokens are.
    For a domain (example.org), the funnel of all its URLs. A URL is followed into the runs that this one builds
    on.

    examples:
      owt why https://example.org/article --workdir runs/2013
      owt why example.org --domain --workdir runs/2013
      owt why 10266087034311239731 --workdir runs/2013 --json | jq .verdict

    Exit code 3 where it does not appear in the run: then the nearest URLs are shown.
    """
    parser.add_argument("url", help="the URL in any spelling, its id, or a domain")
    parser.add_argument("--workdir", metavar="DIR", required=True, help="folder of the run")
    parser.add_argument("--domain", action="store_true", help="the funnel of all URLs of the domain, or of the URL's")
    parser.add_argument("--json", action="store_true", help="print JSON: one object")


def _why(arguments: argparse.Namespace) -> int:
    workdir, as_json = Storage(arguments.workdir), arguments.json
    mention_running(workdir)
    readers = readers_of(workdir)
    asked = asked_for(arguments.url, url_rules_of(workdir))
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
    _say(f"{found['url'] or found['asked']}: {_verdict(found)}")
    if found["stages"]:
        _say(f"  id {found['url_id']}, shard {found['shard']}")
    shown: dict[str, Any] = {"url": found["url"], "url_id": found["url_id"], "host": found["host"]}
    for entry in found["stages"]:
        _say(f"{entry['stage']}: {entry['verdict']}")
        for key, value in entry.items():
            if key in ("stage", "verdict") or value is None or (shown.get(key) == value and key != "row"):
                continue  # what a stage passes on as it was is not shown again
            shown[key] = value
            if key == "differences":
                _print_differences(value)
            else:
                _say(f"  {key}: {', '.join(map(str, value)) if isinstance(value, list) else value}")

    for was in found.get("earlier", []):
        _say("")
        _say(f"in {was['run']}, which this run builds on:")
        _print_history(was)


def _verdict(found: dict[str, Any]) -> str:
    if not found["stages"]:
        return "not in this run, but in an earlier one"
    last = found["stages"][-1]
    if found["verdict"] == "rejected":
        return f"rejected by {last['stage']}: {last.get('reason', 'a duplicate')}"
    if found["verdict"] == "pending":
        return f"kept by {last['stage']}; the stages after it have not run"
    return "kept, to its tokens"


def _print_differences(places: list[dict[str, str]]) -> None:
    _say("  side by side, where they differ:" if places else "  differences: none by words")
    titles = ("this document", "the one that stays")
    for line in side_by_side(places, titles, shutil.get_terminal_size((120, 24)).columns) if places else ():
        _say(line)


def _print_domain(found: dict[str, Any]) -> None:
    hosts = ", ".join(f"{host} {count:,}" for host, count in found["hosts"].items())
    _say(f"{found['domain']}: {hosts or 'no URL was collected'}")
    for stage in found["stages"]:
        reasons = ", ".join(f"{reason} {count:,}" for reason, count in stage["rejected"].items())
        _say(f"  {stage['stage']:<9}{stage['kept']:>9,} kept{'; rejected: ' if reasons else ''}{reasons}")
    if "tokens" in found:
        _say(f"  {found['tokens']:,} tokens")
    for what, urls in found["examples"].items():
        _say(f"{what}: {'  '.join(filter(None, urls))}")


def _say(line: str) -> None:
    """Print a line of what strangers wrote: control characters, which a terminal would obey, are shown instead."""
    print(_CONTROL.sub(lambda match: f"\\x{ord(match[0]):02x}", line))


_EXAMPLES = 3
_NO_IDS = np.zeros(0, np.uint64)


def domain_summary(readers: Mapping[str, DatasetReader], domain: str) -> dict[str, Any] | None:
    """The funnel of the URLs whose host is `domain` or below it, or None where no stage has any.

    The result has `domain`, `hosts` (URLs by host, the ten with most), `stages` (for each, `kept`, `rejected` by
    reason), `examples` (some URLs, by `kept` and by reason) and, where there are tokens, `tokens`.
    """
    pattern = rf"^https://([^/:]*\.)?{re.escape(domain)}(:[0-9]+)?/"
    hosts: Counter[str] = Counter()
    examples: dict[str, list[str]] = {}
    stages: list[dict[str, Any]] = []
    ids: dict[int, np.ndarray] | None = None  # of the URLs that entered, by shard
    tokens = None
    for name, reader in readers.items():
        kept: dict[int, np.ndarray] = {}
        rejected: Counter[str] = Counter()
        for shard in range(reader.num_shards):
            known = None if ids is None else ids.get(shard, _NO_IDS)
            if known is not None and not len(known):
                continue
            if name == "tokens":
                kept[shard], count = _tokens(reader, shard, _NO_IDS if known is None else known)
                tokens = (tokens or 0) + count
            else:
                here = list(_ours(reader, shard, ["url_id", *(["url"] if known is None else [])], pattern, known))
                kept[shard] = np.concatenate([_NO_IDS, *(batch["url_id"].to_numpy() for batch in here)])
                if known is None:
                    urls = (url for batch in here for url in batch["url"].to_pylist())
                    hosts.update(re.sub("^https://|[:/].*$", "", url) for url in urls)
            for batch in _ours(reader, shard, ["url_id", "url", "reason"], pattern, known, kind="rejects"):
                for reason, url in zip(batch["reason"].to_pylist(), batch["url"].to_pylist(), strict=True):
                    rejected[reason] += 1
                    if len(shown := examples.setdefault(reason, [])) < _EXAMPLES:
                        shown.append(url)
        if ids is None:
            ids = kept
        if name == "duplicates":
            left = sum(map(len, ids.values())) - sum(map(len, kept.values()))
            stages.append({"stage": "dedupe", "kept": left, "rejected": {}})
            continue
        count = sum(map(len, kept.values()))
        stages.append({"stage": reader.manifest.stage, "kept": count, "rejected": dict(rejected.most_common())})
        ids = kept
    if not any(stage["kept"] or stage["rejected"] for stage in stages):
        return None
    for name in ("corpus", "clean", "documents", "pages", "urls"):
        if name in readers and ids is not None and (some := _urls(readers[name], ids)):
            examples = {"kept": some, **examples}
            break
    found = {"domain": domain, "hosts": dict(hosts.most_common(10)), "stages": stages, "examples": examples}
    return found | ({"tokens": tokens} if tokens is not None else {})


def _ours(
    reader: DatasetReader, shard: int, columns: list[str], pattern: str, ids: np.ndarray | None, kind: str = "data"
) -> Iterator[pa.RecordBatch]:
    """The shard's rows that are the domain's: by their URLs in the dataset that is looked at first, then by `ids`."""
    for batch in reader.batches(shard, kind=kind, columns=columns, rows=1 << 16):
        if ids is None:
            yield batch.filter(pc.fill_null(pc.match_substring_regex(batch["url"], pattern), False))
        else:
            yield batch.filter(pa.array(np.isin(batch["url_id"].to_numpy(), ids)))


def _tokens(reader: DatasetReader, shard: int, ids: np.ndarray) -> tuple[np.ndarray, int]:
    """Those of `ids` that have tokens in the shard, and how many."""
    found, tokens = [_NO_IDS], 0
    for file in reader.files("data", shard):
        for batch in arrow_ids(reader, file):
            ours = np.isin(batch["url_id"].to_numpy(), ids)
            found.append(batch["url_id"].to_numpy()[ours])
            tokens += int(batch["n_tokens"].to_numpy()[ours].sum())
    return np.concatenate(found), tokens


def _urls(reader: DatasetReader, ids: dict[int, np.ndarray]) -> list[str]:
    """The first few URLs of those ids."""
    urls: list[str] = []
    for shard, wanted in ids.items():
        for batch in _ours(reader, shard, ["url_id", "url"], "", wanted) if len(wanted) else ():
            urls += batch["url"].to_pylist()[: _EXAMPLES - len(urls)]
            if len(urls) == _EXAMPLES:
                return urls
    return urls


main = Command("owt why", _flags, _why)
