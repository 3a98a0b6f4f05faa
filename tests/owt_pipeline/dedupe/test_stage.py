"""The stage dedupe: decisions are correct for any shards and workers, and on difficult corpora."""

from __future__ import annotations

import gzip
import json
import random
from itertools import combinations
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from owt_pipeline.errors import UserError
from tests.owt_pipeline.dedupe import plain
from tests.owt_pipeline.dedupe.corpora import (
    corpus_with_copies,
    decide,
    dedupe,
    edited,
    prose,
    url_id,
    write_clean,
)
from tests.owt_pipeline.runs import differing, shard_file


@pytest.mark.parametrize("ngram", [5, 3])
def test_removed_documents_have_a_similar_kept_one(tmp_path: Path, ngram: int) -> None:
    texts = corpus_with_copies(seed=2, documents=150)
    found = decide(tmp_path, texts, ngram=ngram)
    assert {row["rule"] for row in found.values()} == {"exact", "near"}
    for gone, row in found.items():
        kept = row["kept"]
        assert kept not in found
        assert row["kept_shard"] == kept % 3
        similarity = plain.jaccard(texts[gone], texts[kept], ngram)
        assert row["similarity"] == pytest.approx(similarity, abs=1e-6)
        assert similarity >= 0.8
        theirs, of_kept = (plain.shingle_set(texts[i], ngram) for i in (gone, kept))
        assert row["contained"] == pytest.approx(len(theirs & of_kept) / len(theirs), abs=1e-6)
        assert (row["rule"] == "exact") == (plain.words(texts[gone]) == plain.words(texts[kept]))
        assert row["cluster_size"] == 1 + sum(other["kept"] == kept for other in found.values())
        assert 0 <= row["shared_bands"] <= 21
        assert len(texts[gone]) <= len(texts[kept])
    pairs = combinations(range(len(texts)), 2)
    similar = [(a, b) for a, b in pairs if plain.jaccard(texts[a], texts[b], ngram) >= 0.8]
    left = [(a, b) for a, b in similar if a not in found and b not in found]
    assert len(similar) > 50
    assert len(left) <= 0.01 * len(similar)


def test_decisions_are_counted_and_equal_for_any_shards(tmp_path: Path) -> None:
    texts = corpus_with_copies(seed=3)
    found = []
    for num_shards, workers in ((1, 1), (3, 1), (3, 2), (7, 2)):
        folder = tmp_path / f"{num_shards}-{workers}"
        write_clean(folder, texts, num_shards)
        manifest, rows = dedupe(folder, workers)
        found.append(
            sorted(
                (row["url_id"], row["kept_url_id"], row["rule"], row["similarity"]) for row in rows
            )
        )
        exact = sum(row["rule"] == "exact" for row in rows)
        assert manifest.counts.rejected == {
            "exact_duplicate": exact,
            "near_duplicate": len(rows) - exact,
        }
        assert manifest.counts.entered == manifest.counts.left + len(rows) == len(texts)
        for shard in range(num_shards):  # of the removed document
            ids = pq.read_table(shard_file(folder, "duplicates", shard))["url_id"].to_pylist()
            assert ids == sorted(ids)
            assert set(ids) <= {url_id(i) for i in range(shard, len(texts), num_shards)}
    assert found[0]
    assert all(rows == found[0] for rows in found)
    assert differing(tmp_path / "3-1", tmp_path / "3-2") == []
    assert (manifest.properties["bands"], manifest.properties["rows"]) == (21, 6)
    curve = dict(map(tuple, manifest.properties["curve"]))
    assert (curve[0.0], curve[1.0]) == (0.0, 1.0)
    assert curve[0.8] > 0.99


@pytest.mark.parametrize(
    ("survivor", "stays"), [("longest", 0), ("highest_score", 1), ("earliest", 2)]
)
def test_survivor_follows_the_option(tmp_path: Path, survivor: str, stays: int) -> None:
    """Exact and near copies that differ in the columns used by the option."""
    text = " ".join(prose(random.Random(0), 300))
    exact = [text + " !!!!!", text, text + "!", text]
    near = [text + " added words here", text + " other", text, text]
    score, created = [5, 9, 5, None], [30, 20, 10, None]
    for name, texts in (("exact", exact), ("near", near)):
        folder = tmp_path / name
        write_clean(folder, texts, 2, score=score, created_utc=created)
        _, rows = dedupe(folder, survivor=survivor)
        assert {row["kept_url_id"] for row in rows} == {url_id(stays)}
        assert len(rows) == 3


@pytest.mark.parametrize(
    "texts", [[], ["one"], ["", "", "!!!"], ["!!!", "???", "—", "..."], ["a b", "b a"]]
)
def test_empty_and_tiny_corpora_are_deduplicated(tmp_path: Path, texts: list[str]) -> None:
    found = decide(tmp_path, texts)
    assert len(found) == len(texts) - len({tuple(plain.words(t)) or t for t in texts})


def test_planted_copies_of_articles_are_found(tmp_path: Path, testdata: Path) -> None:
    with gzip.open(testdata / "neardup/articles-1000.jsonl.gz", "rt") as file:
        articles = [json.loads(line) for line in file]
    number = {article["id"]: i for i, article in enumerate(articles)}
    truth = {
        frozenset(number[name] for name in line.split())
        for line in (testdata / "neardup/articles-1000.truth.txt").read_text().splitlines()
    }
    found = decide(tmp_path, [article["text"] for article in articles], threshold=0.5)
    assert {frozenset((gone, row["kept"])) for gone, row in found.items()} == truth


def test_pairs_judged_by_people_are_removed_if_similar(tmp_path: Path, testdata: Path) -> None:
    """Every removed page reaches the threshold, and every pair that reaches it is found."""
    with gzip.open(testdata / "neardup/gov2-pairs.jsonl.gz", "rt") as file:
        pairs = [json.loads(line) for line in file][::2]
    found = decide(
        tmp_path, texts := [text for pair in pairs for text in (pair["left"], pair["right"])]
    )
    assert all(plain.jaccard(texts[gone], texts[row["kept"]]) >= 0.8 for gone, row in found.items())
    for i, pair in enumerate(pairs):
        assert (
            2 * i in found or 2 * i + 1 in found or plain.jaccard(pair["left"], pair["right"]) < 0.8
        )


def test_documents_that_repeat_texts_of_other_files_are_removed(tmp_path: Path) -> None:
    rng, other = random.Random(3), tmp_path / "known.parquet"
    known = [prose(rng, 200) for _ in range(3)]
    texts = [
        " ".join(words)
        for words in (known[0], edited(rng, known[1], 0.01), prose(rng, 200), known[0])
    ]
    theirs = pa.table({"text": [" ".join(words).upper() for words in [*known, known[0]]]})
    pq.write_table(theirs, other)
    write_clean(tmp_path / "run", [*texts, texts[2] + " and more"], 2)
    _, rows = dedupe(tmp_path / "run", against=(str(other),))
    found = {row["url_id"]: (row["rule"], row["kept_shard"]) for row in rows}
    assert found == {
        url_id(0): ("exact", 2),
        url_id(3): ("exact", 2),
        url_id(1): ("near", 2),
        url_id(2): ("near", 0),  # shards 0 and 1 are the run's own
    }
    (tmp_path / "titles.jsonl").write_text('{"title": "no text"}\n')
    with pytest.raises(UserError, match=r"no field 'text'; it has title"):
        dedupe(tmp_path / "run", against=(str(tmp_path / "titles.jsonl"),))


COUNT = 2_000


def test_texts_of_three_megabytes_are_compared(tmp_path: Path) -> None:
    """Exact and near copies are removed, and a text that shares the first half is kept."""
    words = [f"word{i}" for i in range(300_000)]
    base = " ".join(words)
    assert len(base) > 3_000_000
    near = " ".join(word if i % 100 else f"edit{i}" for i, word in enumerate(words))
    half = " ".join([*words[:150_000], *(f"other{i}" for i in range(150_000))])
    texts = [base, near + " and its end", half, base.upper() + "!", "a short text"]
    decisions = decide(tmp_path, texts)
    # The edited one is the longest: both copies go for it, with the similarity of the 95 shingles
    # of 100 they share.
    assert {gone: (row["kept"], row["rule"]) for gone, row in decisions.items()} == {
        0: (1, "near"),
        3: (1, "near"),
    }
    assert (
        decisions[0]["similarity"]
        == decisions[3]["similarity"]
        == pytest.approx(0.95 / 1.05, abs=1e-4)
    )


@pytest.mark.parametrize(
    ("last", "edges", "comparisons"), [("", 4, 0), ("visitor{}", 21 * COUNT - 1, COUNT - 1)]
)
def test_many_copies_are_not_compared_pair_by_pair(
    tmp_path: Path, last: str, edges: int, comparisons: int
) -> None:
    """Of a repeated text, which is sketched once a part; and of texts that share buckets and
    differ in one word."""
    words = prose(random.Random(0), 200)
    write_clean(tmp_path, [" ".join([*words, last.format(i)]) for i in range(COUNT)], 4)
    manifest, rows = dedupe(tmp_path)
    assert len(rows) == COUNT - 1
    assert len({row["kept_url_id"] for row in rows}) == 1
    assert {row["cluster_size"] for row in rows} == {COUNT}
    assert manifest.stats["edges"] <= edges
    assert manifest.stats.get("comparisons", 0) <= comparisons
    assert last or manifest.stats["candidates"] == 0


def test_pages_of_one_template_with_different_bodies_are_kept(tmp_path: Path) -> None:
    """Three quarters of each text are template; every hundredth has a near-copy, and only these
    are removed."""
    rng = random.Random(0)
    template = prose(rng, 120)
    bodies = [prose(rng, 40) for _ in range(COUNT)]
    copied = range(0, COUNT, 100)
    texts = [" ".join([*template[:60], *body, *template[60:]]) for body in bodies]
    texts += [" ".join([*template[:60], *bodies[i][:-1], "other", *template[60:]]) for i in copied]
    write_clean(tmp_path, texts, 4)
    manifest, rows = dedupe(tmp_path)
    number = {url_id(i): i for i in range(len(texts))}
    pairs = {frozenset((number[row["url_id"]], number[row["kept_url_id"]])) for row in rows}
    assert pairs == {frozenset((i, COUNT + k)) for k, i in enumerate(copied)}
    assert manifest.stats["largest_component"] > COUNT / 2
    assert manifest.stats["comparisons"] < 33 * COUNT
