"""A takedown holds for a text, whatever is added, changed or deleted after it."""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pyarrow as pa
import pytest

from owt_pipeline.formats.fingerprint import fingerprints
from owt_pipeline.formats.forgotten_texts import ForgottenTexts
from owt_pipeline.formats.takedowns import read_takedowns, write_takedowns
from owt_pipeline.ledger.root import change_root
from owt_pipeline.storage.folder import Storage
from tests.owt_pipeline.runs import ask_owt, copy_of, root_of, rows_of

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
    forget(run, NAMED)
    assert corpus(run) == {"https://other.example/page"}


def test_a_shard_from_the_corpus_equals_one_from_clean(run: Path, tmp_path: Path) -> None:
    """The list of files records the digests of both, with the digests of the rejects."""
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    ask_owt("run", run, *FLAGS, "--rules", "none")
    from_clean = copy_of(run, tmp_path / "from_clean", without=("corpus", "tokens", "report"))
    forget(run, "https://other.example/page")
    path = root_of(run).takedowns
    for listed in (run / "ledger").glob("*-*.*"):
        shutil.copy(listed, from_clean / "ledger")
    storage = Storage(str(from_clean))
    change_root(storage, lambda root: msgspec.structs.replace(root, takedowns=path), "")
    ask_owt("run", from_clean, *FLAGS, "--rules", "none")
    assert root_of(run).datasets["corpus"].digest == root_of(from_clean).datasets["corpus"].digest


def test_the_list_holds_no_text(run: Path) -> None:
    forget(run, NAMED)
    ledger = run / "ledger"
    paths = [*ledger.glob("takedowns-*"), *ledger.glob("forgotten-*")]
    assert len(paths) == 4
    assert not any(FIRST[0].encode() in path.read_bytes() for path in paths)


@pytest.mark.parametrize("damage", [os.unlink, lambda path: os.truncate(path, 9)])
@pytest.mark.parametrize("kind", ["takedowns", "forgotten"])
def test_a_damaged_list_brings_no_text_back(run: Path, kind: str, damage: object) -> None:
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    (original,) = (run / "ledger").glob(f"{kind}-*[lt]")
    content = original.read_bytes()
    damage(original)  # type: ignore[operator]
    ask_owt("run", run, *FLAGS)
    assert original.read_bytes() == content
    assert "https://copy.example/page" not in corpus(run)
    damage(original)  # type: ignore[operator]
    damage(f"{original}.copy")  # type: ignore[operator]
    assert original.name in ask_owt("verify", run, code=1)


@pytest.mark.slow
def test_a_list_without_hashes_still_counts_and_gets_them(run: Path) -> None:
    forget(run, NAMED)
    workdir = Storage(str(run))
    old = read_takedowns(workdir, root_of(run))
    ids = {key: type(entry)(entry.url, entry.detail) for key, entry in old.ids.items()}
    path = write_takedowns(workdir, type(old)(ids))
    change_root(workdir, lambda root: msgspec.structs.replace(root, takedowns=path), "")
    ask_owt("run", run, *FLAGS)
    assert corpus(run) == {"https://b.example/page"}
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    ask_owt("run", run, *FLAGS)
    assert corpus(run) == {"https://b.example/page", "https://other.example/page"}


def test_other_hashing_is_noticed_and_the_advice_works(
    run: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    forget(run, NAMED)
    import_texts(run, LATER, "--add")
    with monkeypatch.context() as patch:
        module = "owt_pipeline.formats.fingerprint"
        patch.setattr(f"{module}.hashing", lambda: "another")
        error = ask_owt("run", run, *FLAGS, code=1)
        command = error.partition("run `echo ")[2].partition(" | owt forget")[0]
        forget(run, command)
        ask_owt("run", run, *FLAGS)
    assert corpus(run) == {"https://b.example/page", "https://other.example/page"}


def test_a_repeated_request_changes_nothing(run: Path) -> None:
    forget(run, NAMED)
    root_before = root_of(run)
    forget(run, NAMED)
    assert root_of(run) == root_before


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


@pytest.mark.parametrize("seed", range(20))
def test_the_search_equals_a_plain_comparison(seed: int) -> None:
    rng = random.Random(seed)
    base = [words(seed * 10 + k, rng.randrange(0, 60)) for k in range(6)]
    texts = [" ".join(text) for text in base]
    queries = []
    for text in base:
        query = list(text)
        for _ in range(rng.randrange(0, 3)):
            if query:
                query[rng.randrange(len(query))] = rng.choice(["x", "y", ""])
        queries.append(" ".join(query))
    fingerprint_by_id = dict(enumerate(fingerprints(pa.array(texts))))
    matches = ForgottenTexts.of(fingerprint_by_id).matches(pa.array(queries))
    matched = {match.row: set(match.url_ids) for match in matches}
    for row, query_fingerprint in enumerate(fingerprints(pa.array(queries))):
        query_shingles = set(query_fingerprint.shingles.tolist())
        expected = set()
        for key, fingerprint in fingerprint_by_id.items():
            shingles = set(fingerprint.shingles.tolist())
            union = query_shingles | shingles
            is_similar = bool(union) and len(query_shingles & shingles) >= 0.8 * len(union)
            if query_fingerprint.digest == fingerprint.digest or is_similar:
                expected.add(key)
        assert matched.get(row, set()) == expected
