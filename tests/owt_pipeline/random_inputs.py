"""A small web for random programs of commands.

It has three dumps of four posts each, and a WARC file with their pages. Some pages repeat others.
"""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

_WORDS = (
    "the river carries its slow brown water past old stone houses where people read write walk and "
    "talk about weather music bread small boats long winters and a garden behind every wall"
).split()
DUMPS = "ABC"

# The first of a pair repeats the second: all of it, or with one word changed.
_COPIES = {"B0": "A0", "B2": "A2", "C1": "B3"}
_NEAR = {"B1": "A1", "C0": "A0"}
# clean rejects this page, which has 30 words.
_SHORT = "A3"
_NOT_ARCHIVED = "C3"


def url_of(post: str) -> str:
    """Return the URL of a post."""
    return f"https://site{post.lower()}.example.org/story"


def write_inputs(folder: Path) -> None:
    """Write three dumps of four posts each, and a WARC file with their pages."""
    records = []
    for name in DUMPS:
        posts = []
        for number in range(4):
            post = f"{name}{number}"
            posts.append(json.dumps(_submission(post, number)) + "\n")
            if post != _NOT_ARCHIVED:
                records.append(_record(post))
        with gzip.open(folder / f"RS_{name}.gz", "wt") as dump:
            dump.writelines(posts)
    (folder / "pages.warc.gz").write_bytes(b"".join(records))


def _submission(post: str, number: int) -> dict[str, Any]:
    """Return the row of a dump for a post."""
    return {
        "id": post.lower(), "name": f"t3_{post.lower()}", "subreddit": "x",
        "created_utc": 1_700_000_000 + number, "score": 5, "num_comments": 1,
        "title": f"Story {number}", "url": url_of(post), "is_self": False, "over_18": False,
    }  # fmt: skip


def _record(post: str) -> bytes:
    """Return the WARC record of a post's page."""
    source = _COPIES.get(post) or _NEAR.get(post) or post
    rng = random.Random(source)
    words = [rng.choice(_WORDS) for _ in range(30 if post == _SHORT else 200)]
    if post in _NEAR:
        words[100] = post
    paragraphs = []
    for start in range(0, len(words), 50):
        sentence = " ".join(words[start : start + 50]).capitalize()
        paragraphs.append(f"<p>{sentence}.</p>")
    text = "".join(paragraphs)
    page = (
        f"<html lang=en><head><title>Story {source}</title></head><body><article>"
        f"<h1>Story of {source}</h1>{text}</article></body></html>"
    ).encode()
    return _record_of(post, page)


def _record_of(post: str, page: bytes) -> bytes:
    """Return the WARC record of a page, as the response to the URL of a post."""
    http = (
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html; charset=utf-8\r\n"
        b"Content-Length: %d\r\n\r\n" % len(page)
    ) + page
    head = (
        f"WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: {url_of(post)}\r\n"
        f"WARC-Record-ID: <urn:uuid:00000000-0000-4000-8000-{post:0>12}>\r\n"
        "WARC-Date: 2024-01-01T00:00:00Z\r\nContent-Type: application/http; msgtype=response\r\n"
        f"Content-Length: {len(http)}\r\n\r\n"
    )
    return gzip.compress(head.encode() + http + b"\r\n\r\n")


# By stage that reads the web: the post of `write_inputs_with_rejects` that it rejects.
REJECTED = {"collect": "low", "fetch": "gone", "extract": "bare"}


def write_inputs_with_rejects(folder: Path) -> None:
    """Write `write_inputs`, and add to dump A a post that each stage of REJECTED rejects."""
    write_inputs(folder)
    posts = [_submission(f"A{number}", number) for number in range(4)]
    posts += [_submission(post, 10) for post in REJECTED.values()]
    # Of the posts that were added, collect rejects the first by its score. The second has no record
    # in the WARC file, and the page of the third has no text.
    posts[-3]["score"] = 0
    with gzip.open(folder / "RS_A.gz", "wt") as dump:
        dump.writelines(json.dumps(post) + "\n" for post in posts)
    bare = _record_of("bare", b"<html><head><title>x</title></head><body></body></html>")
    with (folder / "pages.warc.gz").open("ab") as archive:
        archive.write(bare)


def write_months(folder: Path) -> None:
    """Write a folder for each dump, with a WARC file of its pages. All these files have one name."""
    folder.mkdir(exist_ok=True)
    write_inputs(folder)
    (folder / "pages.warc.gz").unlink()
    for name in DUMPS:
        (folder / name).mkdir()
        posts = [f"{name}{number}" for number in range(4)]
        records = [_record(post) for post in posts if post != _NOT_ARCHIVED]
        (folder / name / "pages.warc.gz").write_bytes(b"".join(records))
