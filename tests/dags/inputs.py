"""A small dump and the pages that it links to, and the manifests that a run writes."""

from __future__ import annotations

import io
import json
import os
import pydoc_data.topics
from pathlib import Path
from typing import Any

REPOSITORY = Path(__file__).resolve().parents[2]
# The Python that has the pipeline. Airflow's environment does not have it.
PYTHON = os.environ.get("OWT_PYTHON", str(REPOSITORY / ".venv" / "bin" / "python"))
PAGES = 12


def write_pages(warc: Path) -> list[str]:
    """Write pages of English prose, each of another topic, as a WARC file; return their URLs."""
    from warcio.statusandheaders import StatusAndHeaders
    from warcio.warcwriter import WARCWriter

    topics = sorted(pydoc_data.topics.topics.items(), key=lambda topic: -len(topic[1]))[:PAGES]
    with open(warc, "wb") as file:
        writer = WARCWriter(file, gzip=True)
        for name, text in topics:
            paragraphs = "".join(
                f"<p>{' '.join(part.split())}</p>" for part in text.split("\n\n")[:12]
            )
            html = f"<html><head><title>{name}</title></head><body><article>{paragraphs}</article></body></html>"
            headers = StatusAndHeaders(
                "200 OK", [("Content-Type", "text/html; charset=utf-8")], "HTTP/1.1"
            )
            payload = io.BytesIO(html.encode())
            writer.write_record(
                writer.create_warc_record(
                    url_of(name), "response", payload=payload, http_headers=headers
                )
            )
    return [url_of(name) for name, _ in topics]


def url_of(topic: str) -> str:
    """Return the URL of a topic's page."""
    return f"https://host{len(topic) % 3}.example.org/{topic}"


def write_dump(dump: Path, urls: list[str]) -> None:
    """Write a monthly dump of link posts, and of a self post, which is not a link."""
    import zstandard

    posts: list[dict[str, Any]] = [
        {"id": f"a{i}", "url": url, "score": 10 + i, "is_self": False, "over_18": False}
        for i, url in enumerate(urls)
    ]
    posts.append(
        {
            "id": "b",
            "url": "https://www.reddit.com/r/x/b",
            "score": 99,
            "is_self": True,
            "over_18": False,
        }
    )
    shared = {
        "subreddit": "python",
        "author": "someone",
        "title": "a title",
        "created_utc": 1704067200,
    }
    lines = "".join(json.dumps({**post, **shared}) + "\n" for post in posts)
    dump.write_bytes(zstandard.ZstdCompressor().compress(lines.encode()))


def manifest(workdir: Path, dataset: str) -> dict[str, Any]:
    """Return the manifest of a run's dataset."""
    root = json.loads((workdir / "ledger" / "manifest.json").read_text())
    content: dict[str, Any] = root["datasets"][dataset]
    return content
