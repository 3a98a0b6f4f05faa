"""The demo's inputs: a month of submissions, in the layout of Reddit's dumps, and the pages they link to as WARC."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Any

import zstandard

from owt_pipeline.formats.warc import response_record
from schemas import Reason
from tests.demo_web.site import Behaviour, Expectation, Site

DUMP_NAME = "RS_demo.zst"
_START = 1546300800  # 2019-01-01
_MONTH = 31 * 86400
_WINDOW_LOG = 28  # the real dumps need `--long=31`; past 27 a reader must ask for it
_SUBREDDITS = "programming Python books history TrueReddit science todayilearned InternetIsBeautiful".split()


def dump_expectations() -> list[Expectation]:
    """What should happen to links that are in the dump and never fetched."""
    lines = (resources.files("tests.demo_web") / "never_fetched.txt").read_text(encoding="utf-8").splitlines()
    turned_away = [Expectation(url, (Reason.of(name),)) for name, url in map(str.split, lines)]
    unwanted = [Expectation(f"http://courier.demo.test/unnoticed/{k}", (Reason.LOW_SCORE,)) for k in range(6)]
    adult = [Expectation(f"http://garden.demo.test/after-dark/{k}", (Reason.OVER_18,)) for k in range(3)]
    own = [
        Expectation(f"https://www.reddit.com/r/{_SUBREDDITS[k]}/comments/self{k}/a_question/", (Reason.SELF_POST,))
        for k in range(4)
    ]
    return [*turned_away, *unwanted, *adult, *own]


def all_expectations(site: Site) -> list[Expectation]:
    """Every URL of the dump with what should happen to it; repeats of a URL are merged into one."""
    return [*site.expectations, *dump_expectations()]


def write_dump(site: Site, path: Path) -> int:
    """Write the dump to `path`, one JSON object per line in one zstd frame; returns the number of lines.

    The bytes are the same for the same site.
    """
    return _write(list(dump_lines(site)), path)


def _write(lines: list[bytes], path: Path) -> int:
    parameters = zstandard.ZstdCompressionParameters.from_level(3, window_log=_WINDOW_LOG)
    path.parent.mkdir(parents=True, exist_ok=True)
    # Written as a stream of unknown length: else the frame's window shrinks to its content.
    compressor = zstandard.ZstdCompressor(compression_params=parameters)
    with path.open("wb") as file, compressor.stream_writer(file) as stream:
        for line in lines:
            stream.write(line)
    return len(lines)


def dump_lines(site: Site) -> Iterator[bytes]:
    """The lines of the dump in order of time, as monthly dumps have them; one is cut short."""
    rng = random.Random(2019)
    submissions = [record for link in site.expectations for record in _submissions(link, rng)]
    submissions += [_rejected(link, rng) for link in dump_expectations()]
    for k, line in enumerate(_in_order(submissions, rng, _START, "demo")):
        yield line
        if k == len(submissions) // 2:
            yield line[: len(line) // 2] + b"\n"


def _in_order(submissions: list[dict[str, Any]], rng: random.Random, start: int, name: str) -> Iterator[bytes]:
    """Submissions of the month from `start` on as lines, in order of time; their ids begin with `name`."""
    times = sorted(rng.sample(range(_MONTH), len(submissions)))
    rng.shuffle(submissions)
    for k, (record, seconds) in enumerate(zip(submissions, times, strict=True)):
        record = {"id": f"{name}{k:04x}", "name": f"t3_{name}{k:04x}", "created_utc": start + seconds, **record}
        record["permalink"] = f"/r/{record['subreddit']}/comments/{record['id']}/"
        yield json.dumps(_as_of_its_era(record, k)).encode() + b"\n"


def _submissions(link: Expectation, rng: random.Random) -> Iterator[dict[str, Any]]:
    """One submission or more of a page; the repeats write its URL in other ways."""
    title = link.article.title if link.article else link.url.rpartition("/")[2]
    yield _link(rng, link.url, title)
    for variant in rng.sample(_variants(link.url), k=rng.choice([0, 0, 0, 1, 2])):
        yield _link(rng, variant, f"{title} (again)")
    if rng.random() < 0.05:
        yield {**_link(rng, link.url, title), "crosspost_parent": "t3_demo0000", "num_crossposts": 0}


def _variants(url: str) -> list[str]:
    scheme, _, rest = url.partition("://")
    sign = "&" if "?" in url else "?"
    escaped = url.replace("&", "&amp;")
    return [
        f"{url}{sign}utm_source=reddit&utm_medium=social",
        f"{url}{sign}fbclid=IwAR0demo",
        f"{scheme}://www.{rest}",
        f"{scheme}://{rest.replace('.demo.test', '.DEMO.test', 1)}",
        f"{scheme}://{rest.replace('.demo.test', '.demo.test:80', 1)}",
        f"{escaped}#comments",
    ]


def _link(rng: random.Random, url: str, title: str) -> dict[str, Any]:
    return {
        "subreddit": rng.choice(_SUBREDDITS),
        "score": min(4000, int(3 + rng.paretovariate(0.7))),
        "num_comments": int(rng.expovariate(1 / 20)),
        "title": title,
        "url": url,
        "domain": url.partition("://")[2].partition("/")[0],
        "author": rng.choice(["walrus", "carpenter", "dormouse", "hatter", "[deleted]"]),
        "is_self": False,
        "over_18": False,
        "selftext": "",
        "edited": rng.choice([False, False, False, 1546400000.0]),
    }


def _rejected(link: Expectation, rng: random.Random) -> dict[str, Any]:
    """A submission that collect turns away for the reason that is expected."""
    record = _link(rng, link.url, "Look at this")
    (reason,) = link.reasons
    if reason is Reason.LOW_SCORE:
        record["score"] = rng.choice([0, 1, 2])
    elif reason is Reason.OVER_18:
        record["over_18"] = True
    elif reason is Reason.SELF_POST:
        record.update(is_self=True, selftext="What do you all think?", domain=f"self.{record['subreddit']}")
    return record


def _as_of_its_era(record: dict[str, Any], k: int) -> dict[str, Any]:
    """Dumps of some years write numbers as strings, or leave out what is false."""
    if k % 17 == 3:
        record = {**record, "created_utc": str(record["created_utc"]), "score": str(record["score"])}
    if k % 19 == 5:
        record = {key: value for key, value in record.items() if value is not False}
    return record


ARCHIVE_NAME = "demo.warc.gz"
_CAPTURED = 1577836800  # 2020-01-01


def write_archive(site: Site, path: Path) -> int:
    """Write what `site` answers plainly, whatever the status, to the WARC file `path`; returns the number of pages."""
    pages = [
        (f"http://{host}{target}", answer)
        for (host, target), answer in sorted(site.answers.items())
        if target != "/robots.txt" and answer.behaviour is Behaviour.PLAIN
    ]
    with open(path, "wb") as file:
        for url, answer in pages:
            headers = [("Content-Type", answer.content_type)] + [("Location", answer.location)] * bool(answer.location)
            file.write(response_record(url, _CAPTURED, f"HTTP/1.1 {answer.status} Answer", headers, answer.body))
    return len(pages)
