"""A small whole run for tests: the demo's pages as a WARC file, the dump that links to them, `owt` as a process."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path

from warcio.statusandheaders import StatusAndHeaders
from warcio.warcwriter import WARCWriter

from owt_pipeline.demo.answers import Behaviour
from owt_pipeline.demo.dump import write_dump
from owt_pipeline.demo.site import build_site

CONFIG = """\
[collect]
dumps = ["{folder}/RS_demo.zst"]
num_shards = 3

[fetch]
pages_from = ["{folder}/demo.warc.gz"]

[clean]
min_tokens = 64
"""


def write_sources(folder: Path) -> Path:
    """Write the dump, the WARC file and a CONFIG.toml; returns the last."""
    site = build_site()
    write_dump(site, folder / "RS_demo.zst")
    with open(folder / "demo.warc.gz", "wb") as file:
        writer = WARCWriter(file, gzip=True)
        for (host, path), answer in sorted(site.answers.items()):
            if path == "/robots.txt" or answer.behaviour is not Behaviour.PLAIN:
                continue
            head = StatusAndHeaders(
                f"{answer.status} Answer", [("Content-Type", answer.content_type)], protocol="HTTP/1.1"
            )
            writer.write_record(
                writer.create_warc_record(
                    f"http://{host}{path}",
                    "response",
                    payload=io.BytesIO(answer.body),
                    http_headers=head,
                    warc_headers_dict={"WARC-Date": "2020-01-01T00:00:00Z"},
                )
            )
    config = folder / "config.toml"
    config.write_text(CONFIG.format(folder=folder))
    return config


def owt(*arguments: object) -> list[str]:
    """The command line of `owt`."""
    return [sys.executable, "-m", "owt_pipeline", *map(str, arguments)]


def run_owt(*arguments: object, code: int = 0, env: dict[str, str] | None = None) -> str:
    """Run `owt` to its end; returns what it printed, which must not be a traceback."""
    done = subprocess.run(
        owt(*arguments), capture_output=True, text=True, timeout=300, check=False, env={**os.environ, **(env or {})}
    )
    output = done.stdout + done.stderr
    assert done.returncode == code, output
    assert "Traceback" not in output, output
    return output


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file of a run by its path, but for the log of its times and the lock."""
    names = [
        path for path in sorted(folder.rglob("*")) if path.is_file() and path.name not in ("run-log.jsonl", ".lock")
    ]
    return {str(path.relative_to(folder)): path.read_bytes() for path in names}


def differing(one: Path, other: Path) -> list[str]:
    """The names of files that are not the same in two runs."""
    ours, theirs = snapshot(one), snapshot(other)
    return sorted(name for name in ours.keys() | theirs.keys() if ours.get(name) != theirs.get(name))


def copy_of(run: Path, target: Path, without: tuple[str, ...] = ()) -> Path:
    """A copy of a run's folder but for some of its datasets."""
    shutil.copytree(
        run, target, ignore=lambda folder, names: [n for n in names if Path(folder) == run and n in without]
    )
    return target
