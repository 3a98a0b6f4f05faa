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
    rng = random.Random(seed)
    return [f"w{rng.randrange(5000)}" for _ in range(count)]


def changed(text: list[str], at: int) -> list[str]:
    """A near-copy: one word of 120 is another, so five of about 121 5-grams."""
    return [*text[:at], "other", *text[at + 1 :]]


FIRST = words(1)
LATER = {
    "https://copy.example/page": FIRST,
    "https://capitals.example/page": [word.upper() for word in FIRST],
    "https://near.example/page": changed(FIRST, 60),
    "https://other.example/page": words(3),
}


def import_texts(run: Path, texts: dict[str, list[str]], *flags: object) -> None:
    source = run.parent / f"{len(texts)}-{min(texts).partition('/')[2].strip('/')[:3]}.jsonl"
    rows = ({"url": url, "text": " ".join(text)} for url, text in texts.items())
    source.write_text("".join(json.dumps(row) + "\n" for row in rows))
    ask_owt("import", run, source, "--num_shards", 2, *flags)


def forget(run: Path, *entries: str, flags: Iterable[object] = ()) -> str:
    path = run.parent / "list.txt"
    path.write_text("\n".join(entries))
    return ask_owt("forget", run, path, "--workers", 1, *flags)


def corpus(run: Path) -> set[str]:
    return {row["url"] for row in rows_of(run, "corpus")}


@pytest.fixture(scope="module")
def imported(tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("imported") / "run"
    import_texts(run, {NAMED: FIRST, "https://b.example/page": words(2)})
    ask_owt("run", run, *FLAGS)
    return run


@pytest.fixture
def run(imported: Path, tmp_path: Path) -> Path:
    return copy_of(imported, tmp_path / "run")


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


def test_copies_that_other_settings_had_kept_go_with_it(tmp_path: Path) -> None:
    run = tmp_path / "run"
    import_texts(run, {NAMED: FIRST, **LATER})
    ask_owt("run", run, *FLAGS, "--threshold", 1, "--rules", "none")
    assert len(corpus(run)) == 5
    assert "4 documents would be removed" in forget(run, NAMED, flags=["--dry_run"])
    forget(run, NAMED)
    assert corpus(run) == {"https://other.example/page"}


def test_a_shard_from_the_corpus_equals_one_from_clean(run: Path, tmp_path: Path) -> None:
    """The digests of both are recorded in the list of files, with those of the rejects."""
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


def test_no_text_is_kept(run: Path) -> None:
    forget(run, NAMED)
    kept = list((run / "ledger").glob("takedowns-*")) + list((run / "ledger").glob("forgotten-*"))
    assert len(kept) == 4
    assert not any(FIRST[0].encode() in path.read_bytes() for path in kept)


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
    with monkeypatch.context() as other:
        module = "owt_pipeline.formats.fingerprint"
        other.setattr(f"{module}.hashing", lambda: "another")
        error = ask_owt("run", run, *FLAGS, code=1)
        command = error.partition("run `echo ")[2].partition(" | owt forget")[0]
        forget(run, command)
        ask_owt("run", run, *FLAGS)
    assert corpus(run) == {"https://b.example/page", "https://other.example/page"}


def test_a_repeated_request_changes_nothing(run: Path) -> None:
    forget(run, NAMED)
    before = root_of(run)
    forget(run, NAMED)
    assert root_of(run) == before


def test_keys_need_no_rows_after_a_takedown(run: Path) -> None:
    """A lost file of the corpus is made again from what is left, without the forgotten document."""
    forget(run, NAMED)
    left = sorted((run / "corpus").iterdir())
    content = {path: path.read_bytes() for path in left}
    for path in left:
        path.unlink()
    ask_owt("run", run, *FLAGS)
    assert {path: path.read_bytes() for path in left} == content
    for path in left:
        path.unlink()
    for folder in ("clean", "documents"):
        shutil.rmtree(run / folder)
    # Nothing is left to make them from: the message names the command that brings it back.
    assert "to rebuild it" in ask_owt("run", run, *FLAGS, code=1)
    ask_owt("import", run, root_of(run).generations[0].sources[0]["uri"])
    ask_owt("run", run, *FLAGS)
    assert {path: path.read_bytes() for path in left} == content


def test_a_run_that_makes_texts_again_says_so(run: Path) -> None:
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
    """One of them may be the original. A copy that comes later is none."""
    run = tmp_path / "run"
    near = {"https://near.example/page": changed(FIRST, 60)}
    import_texts(run, {NAMED: FIRST, "https://b.example/page": words(2), **near})
    ask_owt("run", run, *FLAGS, "--threshold", 1, "--rules", "none")
    output = forget(run, "a.example", "b.example")
    assert "the corpus keeps 1 other document with the same text" in output
    assert corpus(run) == near.keys()
    import_texts(run, {"https://new.example/x": words(2)}, "--add")
    ask_owt("run", run, *FLAGS, "--rules", "none")
    assert corpus(run) == near.keys()


@pytest.mark.parametrize("seed", range(20))
def test_the_search_finds_what_a_plain_comparison_finds(seed: int) -> None:
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
    known = dict(enumerate(fingerprints(pa.array(texts))))
    matched = {
        match.row: set(match.url_ids)
        for match in ForgottenTexts.of(known).matches(pa.array(queries))
    }
    for row, query in enumerate(fingerprints(pa.array(queries))):
        ours = set(query.shingles.tolist())
        expected = set()
        for key, text in known.items():
            theirs = set(text.shingles.tolist())
            is_similar = bool(ours | theirs) and len(ours & theirs) >= 0.8 * len(ours | theirs)
            if query.digest == text.digest or is_similar:
                expected.add(key)
        assert matched.get(row, set()) == expected
