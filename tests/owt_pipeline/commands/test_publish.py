"""owt publish sends the corpus to a local server that speaks the Hub's commit protocol."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path

import datasets
import duckdb
import huggingface_hub.constants
import msgspec
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import yaml

from owt_pipeline.commands import publish, verify
from owt_pipeline.commands.card import Config, published_card
from owt_pipeline.engine.takedowns import Takedown, write_takedowns
from owt_pipeline.ledger.dataset import DatasetReader
from owt_pipeline.storage.folder import Storage
from schemas import DATASETS
from tests.owt_pipeline.making import publish_rows
from tests.owt_pipeline.runs import copy_of, manifest_of, root_of, run_owt, shard_file
from tests.servers.hub import Hub, environment_of, hub_server

NAME = "someone/small-web"


Run = Callable[..., str]


@pytest.fixture
def published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Run:
    """A function that runs `owt publish` and returns its output."""
    # The library reads this from the environment only once.
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_DISABLE_XET", True)

    def run(hub: Hub, workdir: Path, *flags: str, code: int = 0, **environment: str) -> str:
        for name, value in {**environment_of(hub, tmp_path / "hf"), **environment}.items():
            monkeypatch.setenv(name, value)
        assert publish.main([str(workdir), f"hf://{NAME}", *flags]) == code
        output = capsys.readouterr()
        return output.out + output.err

    return run


def count_files(run: Path) -> int:
    """Return the number of files that are sent.

    Each shard has a file in two configurations for each split that has rows of it.
    """
    paths = (run / "tokens").rglob("part-*.arrow")
    num_rows = [pa.ipc.open_file(path).read_all().num_rows for path in paths]
    return 2 * sum(map(bool, num_rows))


def unpack(hub: Hub, folder: Path) -> dict[str, bytes]:
    """Write the files of the hub to a folder; return them."""
    for path, content in hub.files[NAME].items():
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
        (folder / path).write_bytes(content)
    return hub.files[NAME]


def test_without_yes_nothing_is_sent_and_the_card_is_printed(
    small_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    assert publish.main([str(small_run), f"hf://{NAME}"]) == 0
    printed = capsys.readouterr().out
    counts = manifest_of(small_run, "corpus").counts
    assert printed.startswith(
        f"{counts.left:,} documents in {count_files(small_run)} files, to hf://{NAME}\n"
    )
    assert printed.endswith("Nothing was sent: repeat the command with --yes to send it.\n")
    for reason, count in counts.rejected.items():
        assert f"{count} `{reason}`" in printed


def test_a_corpus_is_published_while_a_month_is_half_added(
    small_config: Path, small_run: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    (tmp_path / "more.txt").write_text("https://new.demo.test/\n")
    sources = ("--links", tmp_path / "more.txt", "--until", "collect", "--workers", 1)
    run_owt("run", run, small_config, "--add", *sources)
    assert publish.main([str(run), f"hf://{NAME}"]) == 0
    printed = capsys.readouterr().out
    num_documents = manifest_of(small_run, "corpus").counts.left
    assert printed.startswith(f"{num_documents:,} documents in ")
    assert "RS_demo.zst" in printed
    assert "more.txt" not in printed.partition("## Sources")[2].partition("## Settings")[0]


def test_a_card_of_the_users_own_is_sent_in_place_of_the_made_one(
    small_run: Path, tmp_path: Path, published: Run
) -> None:
    card = tmp_path / "card.md"
    card.write_text("---\nlicense: mit\n---\n\n# Ours\n")
    with hub_server() as hub:
        published(hub, small_run, "--yes", "--card", str(card))
        assert hub.files[NAME]["README.md"] == card.read_bytes()
        card.unlink()
        assert f"--card {card}: " in published(hub, small_run, "--yes", "--card", str(card), code=1)


def test_texts_without_urls_have_no_configuration_of_urls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = tmp_path / "run"
    words = " ".join(f"word{number}" for number in range(40))
    (tmp_path / "texts.jsonl").write_text(json.dumps({"text": words}))
    run_owt("import", run, tmp_path / "texts.jsonl", "--num_shards", 1)
    run_owt("run", run, "--min_tokens", 1, "--languages", "all", "--workers", 1)
    assert publish.main([str(run), f"hf://{NAME}", "--license", "MIT"]) == 0
    printed = capsys.readouterr().out
    head = yaml.safe_load(printed.split("---")[1])
    assert [config["config_name"] for config in head["configs"]] == ["corpus"]
    assert head["license"] == "mit"
    assert "| `import` | texts.jsonl |" in printed
    assert publish.main([str(run), f"hf://{NAME}", "--urls_only"]) == 1
    assert "publish it without --urls_only" in capsys.readouterr().err


def test_the_corpus_is_published_and_again_after_a_takedown(
    small_run: Path, tmp_path: Path, published: Run
) -> None:
    """A takedown deletes from the hub.

    Before it, an interrupted upload is continued, and a second upload changes nothing.
    """
    run = copy_of(small_run, tmp_path / "run")
    with hub_server() as hub:
        hub.commits_left = 0
        words = ("--yes", "--contact", "web@example.org")
        assert "run the same command again" in published(hub, run, *words, code=1)
        assert not hub.commits
        hub.commits_left = None
        sent = set(hub.objects)
        contact = ("--contact", "web@example.org")
        assert f"published: hf://{NAME}" in published(hub, run, "--yes", *contact)
        assert hub.commits == [(NAME, "The corpus")]
        assert set(hub.objects) == sent, "the bytes were there from the interrupted upload"
        files_before = dict(unpack(hub, tmp_path / "hub"))
        assert len(files_before) == count_files(run) + 1
        published(hub, run, "--yes", *contact)
        assert hub.files[NAME] == files_before
        ((forgotten,),) = duckdb.sql(f"select url from '{run}/corpus/*.parquet' limit 1").fetchall()
        (tmp_path / "list.txt").write_text(forgotten)
        run_owt("forget", run, tmp_path / "list.txt")
        published(hub, run, "--yes")
        tables = read_parquet(hub.files[NAME])
    urls = {url for table in tables for url in table["url"].to_pylist()}
    expected = duckdb.sql(f"select url from '{run}/corpus/*.parquet'").fetchall()
    assert urls == {url for (url,) in expected}
    assert forgotten not in urls

    card = files_before["README.md"].decode()
    head = yaml.safe_load(card.split("---")[1])
    assert [config["config_name"] for config in head["configs"]] == ["corpus", "urls"]
    assert "Write to web@example.org" in card
    loaded = datasets.load_dataset(
        str(tmp_path / "hub"), "corpus", cache_dir=str(tmp_path / "cache")
    )
    query = f"select url_id, text from '{small_run}/corpus/*.parquet' order by 1"
    all_rows = duckdb.sql(query).fetchall()
    for split, folder in (("train", "train"), ("validation", "val")):
        ids = set()
        for path in (small_run / "tokens" / folder).iterdir():
            ids |= set(pa.ipc.open_file(path).read_all()["url_id"].to_pylist())
        rows = sorted(zip(loaded[split]["url_id"], loaded[split]["text"], strict=True))
        assert rows == [row for row in all_rows if row[0] in ids]


def read_parquet(files: dict[str, bytes]) -> list[pa.Table]:
    """Return the tables of the Parquet files of a hub."""
    contents = [content for name, content in files.items() if name.endswith(".parquet")]
    return [pq.read_table(io.BytesIO(content)) for content in contents]


def test_squash_leaves_one_revision_with_the_same_files(small_run: Path, published: Run) -> None:
    with hub_server() as hub:
        published(hub, small_run, "--yes")
        published(hub, small_run, "--yes", "--contact", "web@example.org")
        assert len(hub.commits) == 2
        files_before = dict(hub.files[NAME])
        published(hub, small_run, "--yes", "--contact", "web@example.org", "--squash")
        assert len(hub.commits) == 1
        assert hub.files[NAME] == files_before


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        (["dump"], "web pages that were linked on Reddit:"),
        (["subreddit", "links"], "web pages that were linked on Reddit or listed in tables of"),
        (["warc"], "web pages that were captured in WARC files:"),
        (["links"], "web pages that were listed in tables of links (hackernews, metafilter):"),
    ],
)
def test_a_card_names_the_sources_of_the_run(
    small_run: Path, kinds: list[str], expected: str
) -> None:
    datasets = root_of(small_run).datasets
    manifests = {name: datasets[name] for name in DATASETS if name in datasets}
    sources = [{"kind": kind, "name": f"{kind}-file", "bytes": 1} for kind in kinds]
    manifests["urls"] = msgspec.structs.replace(manifests["urls"], sources=sources)
    generation = root_of(small_run).generations[0]
    text = published_card(
        manifests,
        [msgspec.structs.replace(generation, sources=sources)],
        NAME,
        [Config("corpus", {"train": "corpus/train/*.parquet"})],
        list(DATASETS["corpus"].schema),
        ["reddit", "links", "metafilter", "hackernews"] if kinds == ["links"] else [],
        license="other",
        contact="",
    )
    assert expected in text
    is_of_reddit = bool({"dump", "subreddit"} & set(kinds))
    prose = text.partition("## Fields")[0] + text.partition("## Known biases")[2]
    assert ("Reddit" in prose) == is_of_reddit
    assert ("reddit" in yaml.safe_load(text.split("---")[1])["tags"]) == is_of_reddit
    assert ("openwebtext" in text) == (kinds == ["dump"])
    assert f"{kinds[0]}-file" in text
    assert text.count("\n## ") == text.count("\n\n## ")


@pytest.mark.slow
def test_a_card_of_imported_text_mentions_no_pages(small_run: Path, tmp_path: Path) -> None:
    texts = [{"text": f"Sentence {n} of a text of one's own. " * 40} for n in range(20)]
    (tmp_path / "own.jsonl").write_bytes(b"\n".join(map(msgspec.json.encode, texts)))
    run_owt("import", tmp_path / "run", tmp_path / "own.jsonl")
    run_owt("run", tmp_path / "run", "--val_fraction", "0.2")
    text = publish.dataset_card(
        Storage(str(tmp_path / "run")), NAME, ["corpus"], license="cc0-1.0", contact=""
    )
    assert "\n20 texts imported from files" in text
    prose = text.partition("## Fields")[0] + text.partition("## Settings")[2]
    for word in ("Reddit", "web pages", "not asked", "openwebtext"):
        assert word not in prose
    assert "have the licence of these files" in text
    assert text.count("\n## ") == text.count("\n\n## "), "each heading after a blank line"


def test_a_shard_without_documents_has_no_file(tmp_path: Path) -> None:
    manifest = publish_rows(Storage(str(tmp_path)), "corpus", [])
    ((_, paths),) = publish.plan(DatasetReader(Storage(str(tmp_path)), manifest), ["corpus"], 0.1)
    assert paths == {}


def test_a_corpus_without_the_latest_takedown_is_not_published(
    small_run: Path, tmp_path: Path, published: Run, capsys: pytest.CaptureFixture[str]
) -> None:
    """The file is in the run, as after an `owt forget` that was killed before export ran."""
    run = copy_of(small_run, tmp_path / "run")
    write_takedowns(Storage(str(run)), [Takedown(None, None, "demo.test", "on request")])
    problem = f"takedowns changed since corpus/ was built: run `owt run {run}`"
    with hub_server() as hub:
        assert problem in published(hub, run, "--yes", code=1)
        assert not hub.commits
    assert verify.main([str(run)]) != 0
    assert problem in capsys.readouterr().out


def test_a_list_of_urls_holds_nothing_of_the_pages(
    small_run: Path, tmp_path: Path, published: Run
) -> None:
    run = copy_of(small_run, tmp_path / "run")
    with hub_server() as hub:
        published(hub, run, "--yes", "--urls_only")
        files = dict(hub.files[NAME])
        damaged = shard_file(run, "corpus", 1)
        content = damaged.read_bytes()
        damaged.write_bytes(content[:99] + bytes([content[99] ^ 1]) + content[100:])
        assert "was changed after it was written" in published(hub, run, "--yes", code=1)
    tables = read_parquet(files)
    assert {name for table in tables for name in table.schema.names} == set(publish.LISTED)
    assert sum(table.num_rows for table in tables) == manifest_of(small_run, "corpus").counts.left
    assert {name.split("/")[0] for name in files} == {"urls", "README.md"}
    assert "The texts are not part of this dataset" in files["README.md"].decode()


def test_a_refused_token_is_reported_in_one_line(small_run: Path, published: Run) -> None:
    with hub_server() as hub:
        output = published(hub, small_run, "--yes", code=1, HF_TOKEN="hf_wrong")
    assert re.search(rf"hf://{NAME}: .*401.*run `hf auth login` to enter a token", output)


def test_a_hub_that_cannot_be_reached_is_one_line(
    small_run: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with hub_server() as hub:
        # After the block, nothing listens on its port.
        pass
    monkeypatch.setenv("HF_ENDPOINT", hub.url)
    monkeypatch.setenv("HF_TOKEN", "hf_test")
    assert publish.main([str(small_run), f"hf://{NAME}", "--yes"]) == 1
    error = capsys.readouterr().err.strip()
    assert re.search(rf"hf://{NAME}: .*; run the same command again to continue$", error)


@pytest.mark.parametrize("destination", ["someone/name", "hf://name", "hf://a/b/c", "s3://a/b"])
def test_a_destination_of_another_form_is_refused(
    small_run: Path, capsys: pytest.CaptureFixture[str], destination: str
) -> None:
    assert publish.main([str(small_run), destination]) == 2
    assert f"{destination} is not hf://OWNER/NAME" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("licence", "hint"),
    [("CC-BY", "it has cc-by-2.0, "), ("apache2.0", "it has apache-2.0;"), ("x", "use other for")],
)
def test_a_licence_that_the_hub_does_not_know_is_refused(
    small_run: Path, capsys: pytest.CaptureFixture[str], licence: str, hint: str
) -> None:
    assert publish.main([str(small_run), f"hf://{NAME}", "--license", licence]) == 2
    assert f"'{licence}' is not in the Hub's list of licences; {hint}" in capsys.readouterr().err
    assert publish.main([str(small_run), f"hf://{NAME}", "--license", "other"]) == 0


def test_a_card_names_roles_as_they_are(small_run: Path) -> None:
    """Blocked domains are no source, and evaluation sets are what was removed."""
    datasets = root_of(small_run).datasets
    manifests = {name: datasets[name] for name in DATASETS if name in datasets}
    evaluation = {"kind": "evaluation", "name": "bench.jsonl", "sha256": "0"}
    manifests["clean"] = msgspec.structs.replace(manifests["clean"], sources=[evaluation])
    blocked = [*manifests["urls"].sources, {"kind": "blocklist", "name": "wikipedia.org"}]
    manifests["urls"] = msgspec.structs.replace(manifests["urls"], sources=blocked)
    text = published_card(
        manifests,
        root_of(small_run).generations,
        NAME,
        [Config("corpus", {"train": "corpus/train/*.parquet"})],
        list(DATASETS["corpus"].schema),
        [],
        license="other",
        contact="",
    )
    assert "one of these evaluation sets were rejected: bench.jsonl" in text
    assert "The recipe is OpenWebText's." in text
    assert "wikipedia.org" not in text
    assert text.count("near_duplicate") == 2
