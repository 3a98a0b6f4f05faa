"""Tables of links, through the command line: in the layouts in which they are published, and as
they should not be."""

from __future__ import annotations

import json
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest

from owt_pipeline.commands.publish import LISTED
from owt_pipeline.errors import UserError
from owt_pipeline.formats.urls import id_of
from owt_pipeline.stages.collect.kind import Source, Tally
from owt_pipeline.stages.collect.links import LinkTable, link_rows
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.collect.collecting import Collected, collected
from tests.owt_pipeline.collect.test_stage import holds
from tests.owt_pipeline.runs import ask_owt
from tests.servers.s3 import s3_bucket

FOLDER = Path(__file__).parent


def owt_collect(workdir: Path, *flags: object, code: int = 0) -> str:
    return ask_owt(
        "run", workdir, "--until", "collect", *flags, "--workers", 1, "--num_shards", 2, code=code
    )


def links(workdir: Path, *files: object) -> Collected:
    owt_collect(workdir, "--links", *files)
    run = collected(workdir)
    assert holds(run)
    return run


def by_url(run: Collected) -> dict[str, dict[str, Any]]:
    return {row["url"]: row for row in run.urls}


@pytest.mark.parametrize("file", sorted((FOLDER / "layouts").iterdir()), ids=lambda file: file.name)
def test_hacker_news_is_read_by_the_rules_for_submissions(tmp_path: Path, file: Path) -> None:
    """layouts/ has seven rows as they are published: by BigQuery with `time` as a number, by
    others as a timestamp."""
    run = links(tmp_path / "run", file)
    counts = "7 in = 2 out + 1 blocked_domain + 1 blocked_extension + 1 low_score + 2 no_url"
    assert str(run.manifest.counts) == counts
    rows = by_url(run)
    assert sorted(rows) == ["https://example.org/essay", "https://ycombinator.com/"]
    assert rows["https://ycombinator.com/"] == {
        "url_id": id_of("https://ycombinator.com/"), "url": "https://ycombinator.com/",
        "posted_url": "http://ycombinator.com/", "host": "ycombinator.com", "title": "Y "
        "Combinator", "score": 57,
        "created_utc": 1160418111, "subreddits": [], "num_comments": None, "submission_ids": [],
        "link_sources": ["links"],
    }  # fmt: skip


def test_each_row_of_odd_tables_is_a_url_or_a_reject(tmp_path: Path) -> None:
    """tables/ has what programs and people write; tables.txt what becomes of it."""
    run = links(tmp_path / "run", *sorted((FOLDER / "tables").iterdir()))
    seen = [f"{reject['reason']}: {reject['detail']}" for reject in run.rejects]
    for row in run.urls:
        columns = {name: row[name] for name in ("score", "created_utc", "title", "link_sources")}
        usual = (None, ["links"])
        seen.append(
            " ".join([row["url"], *(f"{k}={v!r}" for k, v in columns.items() if v not in usual)])
        )
    assert sorted(seen) == (FOLDER / "tables.txt").read_text().splitlines()


# 2019-01-01T12:00:00Z.
NOON = 1546344000
TIMES = {
    "2019-01-01 12:00:00+00": NOON,
    "2019-01-01 09:00:00-03": NOON,
    "2019-01-01T17:30:00+05:30": NOON,
    "2019-01-01 17:30:00 +0530": NOON,
    "2019-01-01 12:00": NOON,
    "2019-01-01T12:00Z": NOON,
    "2019-01-01t12:00:00.123456789z": NOON,
    "20190101T120000Z": NOON,
    "2019-01-01": NOON - 12 * 3600,
    "20190101": NOON - 12 * 3600,
    NOON: NOON,
    NOON * 10**3: NOON,
    NOON + 0.5: NOON,
    "1.546344e12": NOON,
    "Tue, 01 Jan 2019 12:00:00 GMT": NOON,
    "Tue, 1 Jan 2019 07:00:00 EST": NOON,
    "01 Jan 2019 13:00 +0100": NOON,
    "Tue, 32 Jan 2019 12:00:00 GMT": None,
    "Tue, 01 Jan 2019 12:00:00 CEST": None,
    "01/02/2019": None,
    NOON * 10**6: None,
    "20190101120000": None,
    "1 January 2019": None,
    "20191301": None,
    "2019-13-01": None,
    "NULL": None,
    True: None,
}


@pytest.mark.parametrize("time", TIMES)
def test_a_time_of_any_precision_and_offset_is_read(tmp_path: Path, time: Any) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(json.dumps({"url": "https://a.example/", "time": time}))
    (row,) = link_rows(str(path), "a")
    assert row["created_utc"] == TIMES[time]


def test_times_that_are_not_understood_are_counted(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    times = ["2019-01-01", "1546344000", "01/02/2019", "NULL", "", "noon"]
    rows = [f"https://a.example/{number},{time}" for number, time in enumerate(times)]
    (tmp_path / "a.csv").write_text("\n".join(["url,time", *rows, ""]))
    run = links(tmp_path / "run", tmp_path / "a.csv")
    warning = "a.csv: 2 of 4 dates are not understood and become null, the first is '01/02/2019' "
    assert any(message.startswith(f"{warning}(line 4)") for message in caplog.messages)
    assert len(run.urls) == len(times)


@pytest.mark.parametrize(
    "score",
    [
        "NULL", r"\N", "NA", "n/a", "NaN", "nan", "None", "<NA>", "", "-", "null", "#N/A N/A",
        "[NULL]", "<null>", "NaT", "?", ".", "--",
    ],
)  # fmt: skip
def test_a_null_of_any_spelling_is_no_score(tmp_path: Path, score: str) -> None:
    path = tmp_path / "a.tsv"
    path.write_text(f"url\tscore\tcreated_utc\nhttps://a.example/\t{score}\t{score}\n")
    (row,) = link_rows(str(path), "a")
    assert (row.get("reason"), row["score"], row["created_utc"]) == (None, None, None)


@pytest.mark.parametrize("kind", [pa.string(), pa.binary(), pa.large_binary(), pa.binary_view()])
def test_a_url_that_is_not_utf8_is_an_error(tmp_path: Path, kind: pa.DataType) -> None:
    urls = pa.array([b"https://a.example/\xff", b"https://b.example/"])
    bad = urls.view(kind) if pa.types.is_string(kind) else urls.cast(kind)
    pq.write_table(pa.table({"url": bad}), tmp_path / "a.parquet")
    with pytest.raises(UserError, match=r"column url, rows 1 to 2: .*; write the column again"):
        list(link_rows(str(tmp_path / "a.parquet"), "a"))


def test_numbers_of_databases_are_scores_and_times(tmp_path: Path) -> None:
    table = pa.table(
        {
            "url": pa.array([b"https://a.example/", b"https://b.example/"], pa.binary()),
            "score": pa.array([Decimal("5.00"), None], pa.decimal128(10, 2)),
            "created_utc": pa.array([Decimal(NOON), Decimal(NOON * 1000)], pa.decimal256(40, 0)),
        }
    )
    pq.write_table(table, tmp_path / "a.parquet")
    rows = list(link_rows(str(tmp_path / "a.parquet"), "a"))
    assert [(row["url"], row["score"], row["created_utc"]) for row in rows] == [
        ("https://a.example/", 5, NOON),
        ("https://b.example/", None, NOON),
    ]


def dump_of_files(folder: Path) -> list[Path]:
    """Write lists of links in folders by year, as archives of Hacker News have them; returns the
    lists."""
    # Files of the same name in two folders have to stay apart.
    for name in ("2006/10.csv", "2006/11.csv", "2007/10.csv"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(
            "url\n" + "".join(f"https://example.org/{name}/{i}\n" for i in range(20))
        )
    (folder / "README.md").write_text("# A data set\n")
    return sorted(folder.rglob("*.csv"))


def test_many_files_and_their_folder_give_the_same_bytes(tmp_path: Path) -> None:
    folder = tmp_path / "dump"
    links_of_files = links(tmp_path / "files", *dump_of_files(folder))
    assert len(links_of_files.urls) == 60
    names = [
        source["name"] for source in links_of_files.manifest.sources if source["kind"] == "links"
    ]
    assert names == ["2006/10.csv", "2006/11.csv", "2007/10.csv"]
    assert links(tmp_path / "folder", folder).bytes() == links_of_files.bytes()
    assert links(tmp_path / "glob", folder / "*" / "1?.csv").bytes() == links_of_files.bytes()


@pytest.mark.slow
def test_a_folder_of_a_bucket_gives_the_same_urls(tmp_path: Path) -> None:
    links_of_files = links(tmp_path / "files", *(files := dump_of_files(tmp_path / "dump")))
    with s3_bucket() as bucket:
        for file in files:
            Storage(bucket).write(f"hn/{file.relative_to(tmp_path / 'dump')}", file.read_bytes())
        assert links(tmp_path / "bucket", f"{bucket}/hn").urls == links_of_files.urls


def test_a_low_score_counts_with_a_later_generation(tmp_path: Path) -> None:
    for number, score in enumerate((1, 5)):
        (tmp_path / f"{number}.csv").write_text(f"url,score\nhttps://example.org/1,{score}\n")
    run = tmp_path / "run"
    owt_collect(run, "--links", tmp_path / "0.csv")
    owt_collect(run, "--links", tmp_path / "0.csv", tmp_path / "1.csv", "--add")
    (row,) = collected(run).urls
    assert row["score"] == 5


DAMAGED = [line.split("\t") for line in (FOLDER / "damaged.tsv").read_text().splitlines()[1:]]


@pytest.mark.parametrize(("name", "problem", "counts"), DAMAGED)
def test_a_damaged_or_foreign_file_is_an_error_in_one_line(
    tmp_path: Path, name: str, problem: str, counts: str
) -> None:
    path = FOLDER / "damaged" / name
    source = (f"--{name.partition('/')[0]}", path)
    output = owt_collect(tmp_path / "run", *source, code=1)
    (line,) = [line for line in output.splitlines() if "error" in line.lower()]
    assert str(path) in line
    assert problem in line
    # A missing column is nothing damaged, though the flag is taken.
    lacks_column = "has no column" in line
    assert "rename " in line or not lacks_column
    is_of_another_kind = " but this is " in line
    is_damaged = bool(counts) and not lacks_column and not is_of_another_kind
    assert ("--allow_damaged" in line) == is_damaged
    if counts:
        output = owt_collect(tmp_path / "run", *source, "--allow_damaged")
        run = collected(tmp_path / "run")
        assert str(run.manifest.counts) == counts
        (damaged,) = run.manifest.properties["damaged"]
        assert damaged["name"] == path.name
        assert damaged["problem"] in output
        assert "--allow_damaged" not in damaged["problem"]
        assert holds(run)


def test_files_without_rows_are_named(tmp_path: Path) -> None:
    files = sorted((FOLDER / "empty").iterdir())
    output = owt_collect(tmp_path / "run", "--links", *files)
    assert [
        file.name for file in files if f"{file.name} has nothing to collect" not in output
    ] == []
    assert collected(tmp_path / "run").urls == []


def test_what_publish_wrote_is_a_table(small_run: Path, tmp_path: Path) -> None:
    corpus = pa.concat_tables(
        pq.read_table(path) for path in sorted((small_run / "corpus").glob("part-*.parquet"))
    )
    for split, rows in (("train", corpus.slice(0, 10)), ("validation", corpus.slice(10))):
        (tmp_path / "urls" / split).mkdir(parents=True)
        pq.write_table(rows.select(LISTED), tmp_path / "urls" / split / "part-00000-aaaa.parquet")
    rows = by_url(links(tmp_path / "run", tmp_path / "urls"))
    expected = corpus.select(["url", "score", "created_utc", "subreddits"]).to_pylist()
    assert [{name: rows[row["url"]][name] for name in row} for row in expected] == expected
    assert pc.count(corpus["score"]).as_py() > 0


@pytest.mark.parametrize("field", ["url", "title", "source", "subreddits"])
def test_long_rows_come_in_batches_of_bounded_bytes(tmp_path: Path, field: str) -> None:
    path = tmp_path / "links.jsonl"
    with path.open("w") as file:
        for number in range(30):
            long = f"http://example.com/{number}/" + "x" * 1_000_000
            value = [long] if field == "subreddits" else long
            file.write(json.dumps({"url": f"http://example.com/{number}", field: value}) + "\n")
    source = Source(0, "links", str(path), "links.jsonl")
    batches = list(LinkTable().read(source, str(path), Tally(LinkTable()), False))
    assert sum(batch.num_rows for batch in batches) == 30
    assert max(batch.nbytes for batch in batches) < 6 << 20


def test_short_rows_come_in_large_batches(tmp_path: Path) -> None:
    path = tmp_path / "links.txt"
    path.write_text("".join(f"http://example.com/{number}\n" for number in range(25_000)))
    source = Source(0, "links", str(path), "links.txt")
    batches = list(LinkTable().read(source, str(path), Tally(LinkTable()), False))
    assert [batch.num_rows for batch in batches] == [10_000, 10_000, 5_000]
