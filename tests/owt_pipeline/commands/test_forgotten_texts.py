"""A takedown holds for a text, whatever is added, changed or deleted after it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Callable, Iterable
from pathlib import Path

import pyarrow as pa
import pytest

from owt_pipeline.engine.takedowns import fingerprints
from owt_pipeline.ledger.root import COPY
from owt_pipeline.stages.export.forgotten_texts import ForgottenTexts
from schemas.manifest import ROOT
from tests.owt_pipeline.one_process import forget_processes
from tests.owt_pipeline.runs import (
    ask_owt,
    copy_of,
    manifest_of,
    root_of,
    rows_of,
    takedowns_of,
)

FLAGS = ("--min_tokens", 1, "--languages", "all", "--val_fraction", 0, "--workers", 1)
NAMED = "https://a.example/page"


def words(seed: int, count: int = 120) -> list[str]:
    """Return random words."""
    rng = random.Random(seed)
    return [f"w{rng.randrange(5000)}" for _ in range(count)]


def near_copy(text: list[str], position: int) -> list[str]:
    """Return a text with another word. Of 120 words, this changes 5 of about 121 5-grams."""
    return [*text[:position], "other", *text[position + 1 :]]


FIRST = words(1)
LATER = {
    "https://copy.example/page": FIRST,
    "https://capitals.example/page": [word.upper() for word in FIRST],
    "https://near.example/page": near_copy(FIRST, 60),
    "https://other.example/page": words(3),
}


def import_texts(run: Path, texts: dict[str, list[str]], *flags: object) -> None:
    """Import texts by their URLs."""
    path = run.parent / f"{len(texts)}-{min(texts).partition('/')[2].strip('/')[:3]}.jsonl"
    rows = ({"url": url, "text": " ".join(text)} for url, text in texts.items())
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ask_owt("import", run, path, "--num_shards", 2, *flags)


def forget(run: Path, *entries: str, flags: Iterable[object] = ()) -> str:
    """Run `owt forget` for some entries; return its output."""
    path = run.parent / "list.txt"
    path.write_text("\n".join(entries))
    return ask_owt("forget", run, path, "--workers", 1, *flags)


def corpus(run: Path) -> set[str]:
    """Return the URLs of a run's corpus."""
    return {row["url"] for row in rows_of(run, "corpus")}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of two texts."""
    run = tmp_path_factory.mktemp("imported") / "run"
    import_texts(run, {NAMED: FIRST, "https://b.example/page": words(2)})
    ask_owt("run", run, *FLAGS)
    return run


@pytest.fixture
def run(imported: Path, tmp_path: Path) -> Path:
    """A copy of the finished run."""
    return copy_of(imported, tmp_path / "run")


@pytest.mark.slow
@pytest.mark.parametrize(
    "settings", [(), ("--rules", "none"), ("--threshold", 0.99), ("--ngram", 9)], ids=str
)
@pytest.mark.parametrize("deleted", [(), ("clean", "documents")], ids=str)
def test_copies_that_come_later_are_rejected(
    run: Path, settings: tuple[object, ...], deleted: tuple[str, ...]
) -> None:
    for folder in deleted:
        shutil.rmtree(run / folder)
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    ask_owt("run", run, *FLAGS)
    ask_owt("run", run, *settings, "--workers", 1)
    assert corpus(run) == {"https://b.example/page", "https://other.example/page"}
    reasons = {row["url"]: row["reason"] for row in rows_of(run, "ledger/corpus/rejects")}
    assert reasons[NAMED] == "forgotten"
    assert reasons["https://copy.example/page"] == "forgotten"
    assert "no problems found" in ask_owt("verify", run)


def test_copies_that_other_settings_kept_are_forgotten_too(tmp_path: Path) -> None:
    run = tmp_path / "run"
    import_texts(run, {NAMED: FIRST, **LATER})
    ask_owt("run", run, *FLAGS, "--threshold", 1, "--rules", "none")
    assert len(corpus(run)) == 5
    assert "4 documents would be removed" in forget(run, NAMED, flags=["--dry_run"])
    assert "4 documents removed" in forget(run, NAMED)
    assert corpus(run) == {"https://other.example/page"}


def test_a_later_duplicate_of_a_forgotten_document_is_forgotten(run: Path) -> None:
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    ask_owt("run", run, *FLAGS)
    reasons = {row["url"]: row["reason"] for row in rows_of(run, "ledger/corpus/rejects")}
    expected = {NAMED, *LATER} - {"https://other.example/page"}
    assert reasons == dict.fromkeys(expected, "forgotten")


@pytest.mark.parametrize("settings", [(), ("--rules", "none")], ids=str)
def test_a_shard_from_the_corpus_equals_one_from_clean(
    run: Path, tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """The list of files records the digests of both, with the digests of the rejects."""
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    ask_owt("run", run, *FLAGS, *settings)
    forget(run, "https://other.example/page")
    from_clean = copy_of(run, tmp_path / "from_clean", without=("corpus", "tokens", "report"))
    ask_owt("run", from_clean)
    assert root_of(run).datasets["corpus"].digest == root_of(from_clean).datasets["corpus"].digest


def test_a_shard_without_a_forgotten_document_keeps_its_files(run: Path) -> None:
    files = sorted((run / "corpus").iterdir())
    inodes = {path: path.stat().st_ino for path in files}
    forget(run, NAMED)
    kept = [path for path in files if path.exists() and path.stat().st_ino == inodes[path]]
    assert len(kept) == len(files) - 1
    assert manifest_of(run, "corpus").properties["takedowns"] == root_of(run).takedowns
    assert "no problems found" in ask_owt("verify", run)


def test_a_takedown_holds_no_text(run: Path) -> None:
    forget(run, NAMED)
    (path,) = takedown_files(run)
    assert FIRST[0].encode() not in path.read_bytes()
    (row,) = takedowns_of(run).rows_by_name[path.name]
    assert row.text is not None
    assert len(row.text.shingles) == len(FIRST) - 4


def takedown_files(run: Path) -> list[Path]:
    """Return the files of takedowns of a run."""
    return sorted((run / "ledger/takedowns").iterdir())


def test_other_hashing_is_noticed_and_the_advice_works(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    with monkeypatch.context() as patch:
        patch.setattr("owt_pipeline.engine.takedowns.hashing", lambda: "another")
        forget_processes()
        error = ask_owt("run", run, *FLAGS, code=1)
        assert "hashes texts in another way than this release" in error
        assert "hashes texts in another way" in ask_owt("verify", run, code=1)
        name = error.partition("--replaces ")[2].partition("`")[0]
        forget(run, NAMED, flags=["--replaces", name])
        ask_owt("run", run, *FLAGS)
    assert corpus(run) == {"https://b.example/page", "https://other.example/page"}


def test_a_repeated_request_changes_nothing(run: Path) -> None:
    forget(run, NAMED)
    root_before = root_of(run)
    forget(run, NAMED)
    assert root_of(run) == root_before


@pytest.mark.parametrize("settings", [(), ("--rules", "none")], ids=str)
def test_a_repeated_request_learns_the_text_of_a_page_that_came(
    run: Path, settings: tuple[str, ...]
) -> None:
    late = "https://late.example/page"
    forget(run, late, "nobody.example")
    import_texts(run, {late: words(7)}, "--add")
    ask_owt("run", run, *FLAGS, *settings)
    assert late not in corpus(run)
    forget(run, late, "nobody.example")
    first, second = sorted(takedown_files(run), key=lambda path: path.stat().st_mtime_ns)
    rows = takedowns_of(run).rows_by_name
    assert [row.text for row in rows[first.name]] == [None, None]
    (row,) = rows[second.name]
    assert row.url == late
    copies = {"https://copy.example/a": words(7), "https://near.example/b": near_copy(words(7), 9)}
    import_texts(run, copies, "--add")
    ask_owt("run", run, *FLAGS, *settings)
    assert corpus(run) == {NAMED, "https://b.example/page"}
    # The next request lists these duplicates, and then there is nothing more to learn.
    for _ in range(2):
        forget(run, late, "nobody.example")
        assert len(takedown_files(run)) == 3
    assert "no problems found" in ask_owt("verify", run)


@pytest.mark.parametrize("has_clean", [True, False])
def test_two_requests_in_either_order_give_the_same_bytes(
    run: Path, tmp_path: Path, has_clean: bool
) -> None:
    """They name a document both, for other reasons."""
    if not has_clean:
        for folder in ("clean", "documents"):
            shutil.rmtree(run / folder)
    requests = [(NAMED, "nobody.example"), (NAMED, "https://b.example/page")]
    datasets = []
    for order in ([0, 1], [1, 0]):
        copy = copy_of(run, tmp_path / str(order[0]))
        for number in order:
            forget(copy, *requests[number], flags=["--reason", f"request {number}"])
        assert len(takedown_files(copy)) == 2
        datasets.append((root_of(copy).takedowns, manifest_of(copy, "corpus").digest))
    assert datasets[0] == datasets[1]


def test_an_older_root_brings_no_page_back(run: Path) -> None:
    older = (run / ROOT).read_bytes()
    forget(run, NAMED)
    for name in (ROOT, COPY):
        (run / name).write_bytes(older)
    problem = "takedowns changed since corpus/ was built"
    assert problem in ask_owt("verify", run, code=1)
    assert "takedowns changed since corpus/" in ask_owt("publish", run, "hf://a/b", code=1)
    ask_owt("run", run, *FLAGS)
    assert corpus(run) == {"https://b.example/page"}
    assert root_of(run).takedowns == [path.name for path in takedown_files(run)]
    import_texts(run, LATER, "--add")
    ask_owt("run", run, *FLAGS, "--rules", "none")
    assert corpus(run) == {"https://b.example/page", "https://other.example/page"}
    assert "no problems found" in ask_owt("verify", run)


def cut(path: Path) -> None:
    """Cut a file off."""
    os.truncate(path, 9)


@pytest.mark.parametrize("damage", [os.unlink, cut], ids=["deleted", "damaged"])
@pytest.mark.parametrize("is_text_left", [True, False])
def test_a_lost_file_stops_every_command_until_it_is_replaced(
    run: Path, damage: Callable[[Path], None], is_text_left: bool
) -> None:
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    (path,) = takedown_files(run)
    damage(path)
    if not is_text_left:
        for folder in ("clean", "documents"):
            shutil.rmtree(run / folder)
    list_path = run.parent / "list.txt"
    for words_of_command in (
        ["run", run, *FLAGS],
        ["run", run, "--dry_run"],
        ["import", run],
        ["forget", run, list_path],
        ["publish", run, "hf://a/b"],
        ["verify", run],
    ):
        assert str(path) in ask_owt(*words_of_command, code=1)
    ask_owt("ls", run)
    forget(run, NAMED, flags=["--replaces", path.name])
    assert "no problems found" in ask_owt("verify", run)
    if is_text_left:
        # The same request has the same content, so the file is restored under its name.
        assert takedown_files(run) == [path]
        ask_owt("run", run, *FLAGS, "--rules", "none")
        assert corpus(run) == {"https://b.example/page", "https://other.example/page"}
    else:
        assert NAMED not in corpus(run)
        assert path.name in root_of(run).takedowns


def test_two_lost_files_are_replaced_by_one_request(run: Path) -> None:
    forget(run, NAMED)
    forget(run, "https://b.example/page")
    first, second = takedown_files(run)
    first.unlink()
    cut(second)
    error = ask_owt("run", run, *FLAGS, code=1)
    assert f"--replaces {first.name} {second.name}`" in error
    flags = ["--replaces", first.name, str(second)]
    forget(run, NAMED, "https://b.example/page", flags=flags)
    assert not corpus(run)
    assert "no problems found" in ask_owt("verify", run)


def test_an_undamaged_file_stays_in_force_if_it_is_replaced(run: Path) -> None:
    forget(run, NAMED)
    (path,) = takedown_files(run)
    forget(run, "nobody.example", flags=["--replaces", path.name, "0000000000000000.parquet"])
    assert path in takedown_files(run)
    assert len(root_of(run).takedowns) == 2
    ask_owt("run", run, *FLAGS, "--min_similarity", 0.5)
    assert corpus(run) == {"https://b.example/page"}


def test_a_file_that_comes_from_elsewhere_is_in_force(run: Path, tmp_path: Path) -> None:
    """Such as one from a backup, or of a command that was killed before it changed the root."""
    other = copy_of(run, tmp_path / "other")
    forget(other, NAMED)
    shutil.copytree(other / "ledger/takedowns", run / "ledger/takedowns")
    assert "takedowns changed since corpus/" in ask_owt("verify", run, code=1)
    ask_owt("run", run, *FLAGS)
    assert corpus(run) == {"https://b.example/page"}


def test_keys_need_no_rows_after_a_takedown(run: Path) -> None:
    """A lost file of the corpus is rebuilt without the forgotten document."""
    forget(run, NAMED)
    paths = sorted((run / "corpus").iterdir())
    content = {path: path.read_bytes() for path in paths}
    for path in paths:
        path.unlink()
    ask_owt("run", run, *FLAGS)
    assert {path: path.read_bytes() for path in paths} == content
    for path in paths:
        path.unlink()
    for folder in ("clean", "documents"):
        shutil.rmtree(run / folder)
    # The inputs are lost, too. The message names the command that restores them.
    assert "to rebuild it" in ask_owt("run", run, *FLAGS, code=1)
    ask_owt("import", run, root_of(run).generations[0].sources[0]["uri"])
    ask_owt("run", run, *FLAGS)
    assert {path: path.read_bytes() for path in paths} == content


@pytest.mark.slow
def test_a_run_that_makes_texts_again_warns(run: Path) -> None:
    forget(run, NAMED)
    assert "may contain texts that were taken down" not in ask_owt("run", run, *FLAGS)
    import_texts(run, LATER, "--add")
    output = ask_owt("run", run, *FLAGS)
    assert "has rebuilt clean/ from the sources. They may contain texts that were" in output


def test_a_misspelt_entry_is_named_and_a_bom_is_not_read(run: Path) -> None:
    output = forget(run, f"\ufeff{NAMED}", "nobody.example", "https://b.example/pgae")
    assert corpus(run) == {"https://b.example/page"}
    assert f"no document of {run} matches 2 entries of the list" in output
    assert "nobody.example" in output
    assert "https://b.example/pgae" in output


def test_older_copies_of_a_domain_elsewhere_stay(tmp_path: Path) -> None:
    """An older copy may be the original. A copy that comes later is not."""
    run = tmp_path / "run"
    near = {"https://near.example/page": near_copy(FIRST, 60)}
    import_texts(run, {NAMED: FIRST, "https://b.example/page": words(2), **near})
    ask_owt("run", run, *FLAGS, "--threshold", 1, "--rules", "none")
    output = forget(run, "a.example", "b.example")
    assert "the corpus keeps 1 other document with the same text" in output
    assert corpus(run) == near.keys()
    import_texts(run, {"https://new.example/x": words(2)}, "--add")
    ask_owt("run", run, *FLAGS, "--rules", "none")
    assert corpus(run) == near.keys()


@pytest.mark.parametrize("settings", [(), ("--rules", "none")], ids=str)
def test_an_aggregator_goes_and_the_publisher_stays(
    tmp_path: Path, settings: tuple[str, ...]
) -> None:
    """Not even a later copy of the publisher's page goes."""
    run = tmp_path / "run"
    # The page that comes first is kept, and the aggregator's copy repeats it.
    import_texts(run, {"https://a.publisher.example/1": FIRST})
    import_texts(run, {"https://aggregator.example/1": FIRST, NAMED: words(2)}, "--add")
    ask_owt("run", run, *FLAGS, *settings)
    output = forget(run, "aggregator.example")
    assert "the corpus keeps 1 other document with the same text" in output
    assert corpus(run) == {"https://a.publisher.example/1", NAMED}
    import_texts(run, {"https://new.example/x": FIRST}, "--add")
    ask_owt("run", run, *FLAGS, "--rules", "none")
    assert corpus(run) == {"https://a.publisher.example/1", NAMED, "https://new.example/x"}


_PIECES = ["x", "y", "", "…", "漢字", "é1 x", "don’t", "ﬁ", "İ", "\u0301", "❤\ufe0f", "a-b"]


@pytest.mark.parametrize("seed", range(20))
def test_the_search_equals_a_plain_comparison(seed: int) -> None:
    rng = random.Random(seed)
    base = [words(seed * 10 + k, rng.choice([0, 3, 5, 20, 60, 200])) for k in range(6)]
    base.append(rng.choices("abc", k=40))
    for text in base[::2]:
        text += rng.choices(_PIECES, k=rng.randrange(10))
    texts = [" ".join(text) for text in base]
    queries = ["", "…", "漢字漢字漢字"]
    for text in base:
        for num_changes in (0, 1, 2, len(text) // 30, len(text) // 20):
            query = list(text)
            for _ in range(num_changes):
                # At the beginning too, which the search looks at first.
                position = rng.choice([rng.randrange(len(query) or 1), 0, 1])
                query[position : position + 1] = rng.choices(_PIECES, k=rng.choice([1, 1, 5]))
            queries.append(" ".join(query))
    forgotten = fingerprints(pa.array(texts))
    matches = ForgottenTexts(forgotten).matches(pa.array(queries))
    matched = {match.row: set(match.positions) for match in matches}
    for row, query_fingerprint in enumerate(fingerprints(pa.array(queries))):
        query_shingles = set(query_fingerprint.shingles.tolist())
        expected = set()
        for position, fingerprint in enumerate(forgotten):
            shingles = set(fingerprint.shingles.tolist())
            union = query_shingles | shingles
            is_similar = bool(union) and len(query_shingles & shingles) >= 0.8 * len(union)
            if query_fingerprint.digest == fingerprint.digest or is_similar:
                expected.add(position)
        assert matched.get(row, set()) == expected
