"""The stage dedupe decides correctly with any shards and workers, and on difficult corpora."""

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
    decisions = decide(tmp_path, texts, ngram=ngram)
    assert {row["rule"] for row in decisions.values()} == {"exact", "near"}
    for removed, row in decisions.items():
        kept_text = row["kept"]
        assert kept_text not in decisions
        assert row["kept_shard"] == kept_text % 3
        similarity = plain.jaccard(texts[removed], texts[kept_text], ngram)
        assert row["similarity"] == pytest.approx(similarity, abs=1e-6)
        assert similarity >= 0.8
        shingles = plain.shingle_set(texts[removed], ngram)
        num_shared = len(shingles & plain.shingle_set(texts[kept_text], ngram))
        assert row["contained"] == pytest.approx(num_shared / len(shingles), abs=1e-6)
        has_equal_words = plain.words(texts[removed]) == plain.words(texts[kept_text])
        assert (row["rule"] == "exact") == has_equal_words
        num_removed = [decision["kept"] for decision in decisions.values()].count(kept_text)
        assert row["cluster_size"] == 1 + num_removed
        assert 0 <= row["shared_bands"] <= 21
        assert len(texts[removed]) <= len(texts[kept_text])
    similar_pairs = []
    for first, second in combinations(range(len(texts)), 2):
        if plain.jaccard(texts[first], texts[second], ngram) >= 0.8:
            similar_pairs.append({first, second})
    num_remaining = sum(pair.isdisjoint(decisions) for pair in similar_pairs)
    assert len(similar_pairs) > 50
    assert num_remaining <= 0.01 * len(similar_pairs)


def test_decisions_are_counted_and_equal_for_any_shards(tmp_path: Path) -> None:
    texts = corpus_with_copies(seed=3)
    decisions_of_runs = []
    for num_shards, workers in ((1, 1), (3, 1), (3, 2), (7, 2)):
        folder = tmp_path / f"{num_shards}-{workers}"
        write_clean(folder, texts, num_shards)
        manifest, rows = dedupe(folder, workers)
        columns = ("url_id", "kept_url_id", "rule", "similarity")
        decisions_of_runs.append(sorted(tuple(row[name] for name in columns) for row in rows))
        num_exact = sum(row["rule"] == "exact" for row in rows)
        assert manifest.counts.rejected == {
            "exact_duplicate": num_exact,
            "near_duplicate": len(rows) - num_exact,
        }
        assert manifest.counts.entered == manifest.counts.left + len(rows) == len(texts)
        # A decision is in the shard of the removed document.
        for shard in range(num_shards):
            ids = pq.read_table(shard_file(folder, "duplicates", shard))["url_id"].to_pylist()
            assert ids == sorted(ids)
            numbers = range(shard, len(texts), num_shards)
            assert set(ids) <= {url_id(number) for number in numbers}
        assert (manifest.properties["bands"], manifest.properties["rows"]) == (21, 6)
        curve = dict(map(tuple, manifest.properties["curve"]))
        assert (curve[0.0], curve[1.0]) == (0.0, 1.0)
        assert curve[0.8] > 0.99
    assert decisions_of_runs[0]
    assert all(decisions == decisions_of_runs[0] for decisions in decisions_of_runs)
    assert differing(tmp_path / "3-1", tmp_path / "3-2") == []


@pytest.mark.parametrize(
    ("survivor", "stays"), [("longest", 0), ("highest_score", 1), ("earliest", 2)]
)
def test_survivor_follows_the_option(tmp_path: Path, survivor: str, stays: int) -> None:
    """Exact and near copies differ in the columns that the option uses."""
    text = " ".join(prose(random.Random(0), 300))
    exact = [text + " !!!!!", text, text + "!", text]
    near = [text + " added words here", text + " other", text, text]
    columns = {"score": [5, 9, 5, None], "created_utc": [30, 20, 10, None]}
    for name, texts in (("exact", exact), ("near", near)):
        folder = tmp_path / name
        write_clean(folder, texts, 2, **columns)
        _, rows = dedupe(folder, survivor=survivor)
        assert {row["kept_url_id"] for row in rows} == {url_id(stays)}
        assert len(rows) == 3


@pytest.mark.parametrize(
    "texts", [[], ["one"], ["", "", "!!!"], ["!!!", "???", "—", "..."], ["a b", "b a"]]
)
def test_empty_and_tiny_corpora_are_deduplicated(tmp_path: Path, texts: list[str]) -> None:
    # Texts without a word are equal only if they are the same.
    distinct = {tuple(plain.words(text)) or text for text in texts}
    assert len(decide(tmp_path, texts)) == len(texts) - len(distinct)


def test_planted_copies_of_articles_are_found(tmp_path: Path, testdata: Path) -> None:
    with gzip.open(testdata / "neardup/articles-1000.jsonl.gz", "rt") as file:
        articles = [json.loads(line) for line in file]
    number_by_id = {article["id"]: number for number, article in enumerate(articles)}
    truth = (testdata / "neardup/articles-1000.truth.txt").read_text()
    planted_pairs = set()
    for line in truth.splitlines():
        planted_pairs.add(frozenset(number_by_id[name] for name in line.split()))
    decisions = decide(tmp_path, [article["text"] for article in articles], threshold=0.5)
    pairs = {frozenset((removed, row["kept"])) for removed, row in decisions.items()}
    assert pairs == planted_pairs


def test_pairs_judged_by_people_are_removed_if_similar(tmp_path: Path, testdata: Path) -> None:
    """Every removed page reaches the threshold, and every pair that reaches it is found."""
    with gzip.open(testdata / "neardup/gov2-pairs.jsonl.gz", "rt") as file:
        pairs = [json.loads(line) for line in file][::2]
    texts = []
    for pair in pairs:
        texts += [pair["left"], pair["right"]]
    decisions = decide(tmp_path, texts)
    for removed, row in decisions.items():
        assert plain.jaccard(texts[removed], texts[row["kept"]]) >= 0.8
    for number, pair in enumerate(pairs):
        if plain.jaccard(pair["left"], pair["right"]) >= 0.8:
            assert 2 * number in decisions or 2 * number + 1 in decisions


def test_documents_that_repeat_texts_of_other_files_are_removed(tmp_path: Path) -> None:
    rng = random.Random(3)
    known_file = tmp_path / "known.parquet"
    known_texts = [prose(rng, 200) for _ in range(3)]
    near_copy = edited(rng, known_texts[1], 0.01)
    words_of_texts = (known_texts[0], near_copy, prose(rng, 200), known_texts[0])
    texts = [" ".join(words) for words in words_of_texts]
    in_capitals = [" ".join(words).upper() for words in [*known_texts, known_texts[0]]]
    pq.write_table(pa.table({"text": in_capitals}), known_file)
    write_clean(tmp_path / "run", [*texts, texts[2] + " and more"], 2)
    _, rows = dedupe(tmp_path / "run", against=(str(known_file),))
    decisions = {row["url_id"]: (row["rule"], row["kept_shard"]) for row in rows}
    # Shards 0 and 1 are the run's own. The known texts count as shard 2.
    assert decisions == {
        url_id(0): ("exact", 2),
        url_id(3): ("exact", 2),
        url_id(1): ("near", 2),
        url_id(2): ("near", 0),
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
    # The edited text is the longest, so it is kept. The others share 95 of 100 shingles with it.
    matches = {removed: (row["kept"], row["rule"]) for removed, row in decisions.items()}
    assert matches == {0: (1, "near"), 3: (1, "near")}
    similarity = pytest.approx(0.95 / 1.05, abs=1e-4)
    assert decisions[0]["similarity"] == decisions[3]["similarity"] == similarity


@pytest.mark.parametrize(
    ("last", "edges", "comparisons"), [("", 4, 0), ("visitor{}", 21 * COUNT - 1, COUNT - 1)]
)
def test_many_copies_are_not_compared_pair_by_pair(
    tmp_path: Path, last: str, edges: int, comparisons: int
) -> None:
    """A repeated text is sketched once in a part.

    Texts that differ in one word share buckets.
    """
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
    """Three quarters of each text are a template. Every hundredth text has a near-copy.

    Only the near-copies are removed.
    """
    rng = random.Random(0)
    template = prose(rng, 120)
    bodies = [prose(rng, 40) for _ in range(COUNT)]
    copied = range(0, COUNT, 100)
    texts = [" ".join([*template[:60], *body, *template[60:]]) for body in bodies]
    for number in copied:
        near_copy = [*template[:60], *bodies[number][:-1], "other", *template[60:]]
        texts.append(" ".join(near_copy))
    write_clean(tmp_path, texts, 4)
    manifest, rows = dedupe(tmp_path)
    number_by_id = {url_id(number): number for number in range(len(texts))}
    pairs = set()
    for row in rows:
        pairs.add(frozenset((number_by_id[row["url_id"]], number_by_id[row["kept_url_id"]])))
    assert pairs == {frozenset((number, COUNT + copy)) for copy, number in enumerate(copied)}
    assert manifest.stats["largest_component"] > COUNT / 2
    assert manifest.stats["comparisons"] < 33 * COUNT
