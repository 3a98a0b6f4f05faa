"""Documents that contain text of an evaluation set are rejected."""

from __future__ import annotations

import gzip
import json
import lzma
import unicodedata
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from owt_pipeline.errors import UserError
from owt_pipeline.stages.clean import contamination
from owt_pipeline.stages.clean.contamination import evaluation_sets, shared_n_gram
from owt_pipeline.stages.clean.documents import clean_document
from owt_pipeline.stages.clean.options import Options
from owt_pipeline.stages.clean.repair import repair
from owt_pipeline.stages.clean.stage import STAGE as CLEAN
from schemas import Reason
from tests.owt_pipeline.clean.test_stage import ENGLISH
from tests.owt_pipeline.runs import ask_owt


@pytest.mark.parametrize(
    "name",
    ["set.jsonl", "set.jsonl.gz", "SET.JSON", "set.txt", "set.txt.xz", "set.csv", "set.parquet"],
)
def test_documents_with_text_of_an_evaluation_set_are_rejected(tmp_path: Path, name: str) -> None:
    question = (
        "Which of the four travellers first saw the café of the harbour on that cold evening?"
    )
    path = tmp_path / name
    if name == "set.parquet":
        pq.write_table(pa.table({"id": [1, 2], "choices": [["short one"], [question]]}), path)
    else:
        rows = {
            "txt": f"{question}\nshort one",
            "jsonl": f'{json.dumps({"q": [question], "n": 3})}\n{{"a": "short one"}}',
            "JSON": json.dumps({"list": [{"q": question, "n": 1}, "short one"]}),
            # MMLU's files do not name their columns.
            "csv": f'"{question}",4,5,A\nshort one,1,2,B\n',
        }
        pack = {".gz": gzip.compress, ".xz": lzma.compress}.get(path.suffix, bytes)
        path.write_bytes(pack(rows[name.split(".")[1]].encode()))
    options = Options()
    sets = evaluation_sets((str(path),))
    # Composed and decomposed letters are the same.
    for form in ("NFC", "NFD"):
        question_in_form = unicodedata.normalize(form, question.upper())  # type: ignore[arg-type]
        document = clean_document(ENGLISH + question_in_form, options, sets)
        assert document.reason == Reason.CONTAMINATED
        assert (
            document.detail == "which of the four travellers first saw the café of the harbour on"
        )
    assert clean_document(ENGLISH + " ".join(question.split()[:12]), options, sets).reason is None
    assert clean_document(ENGLISH + " short one", options, sets).reason is None


GOAL = "How do you keep a wooden boat dry?"
SHORT_RECORDS = {
    "choices in a list": {"goal": GOAL, "endings": ["Paint it red.", "Cover it with a waxed cloth."]},
    "choices by number": {"goal": GOAL, "sol1": "Sink it.", "sol2": "Cover it with a waxed cloth."},
    "choices with labels": {
        "stem": GOAL,
        "choices": {"label": ["A", "B"], "text": ["Sink it.", "Cover it with a waxed cloth."]},
    },
    "the question in the middle": {
        "id": "q7", "split": "test", "goal": GOAL, "a": "Sink it.", "kind": "boats", "label": "1",
        "b": "Cover it with a waxed cloth.",
    },
}  # fmt: skip


@pytest.mark.parametrize("name", SHORT_RECORDS)
def test_a_short_question_is_joined_with_each_of_its_choices(tmp_path: Path, name: str) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps(SHORT_RECORDS[name]) + "\n")
    sets = evaluation_sets((str(path),))
    document = clean_document(f"{ENGLISH} {GOAL} Cover it with a waxed cloth.", Options(), sets)
    assert document.reason == Reason.CONTAMINATED
    assert document.detail == "how do you keep a wooden boat dry cover it with a waxed"
    # Neither of them is found by itself.
    for part in (GOAL, "Cover it with a waxed cloth.", f"{GOAL} Cover it with a sail of hemp."):
        assert clean_document(f"{ENGLISH} {part}", Options(), sets).reason is None


@given(st.lists(st.text("ab c", max_size=12), max_size=40), st.integers(2, 5))
def test_the_n_grams_of_a_record_are_of_two_strings_or_of_all(strings: list[str], n: int) -> None:
    n_grams = set(contamination._n_grams_of_record(strings, n))
    expected = set(n_grams_of(" ".join(strings).split(), n))
    short = [string.split() for string in strings if 0 < len(string.split()) < n][:32]
    for number, first in enumerate(short):
        for second in short[number + 1 :]:
            expected.update(n_grams_of(first + second, n))
    assert n_grams == expected


def test_a_renamed_set_is_another_source(tmp_path: Path) -> None:
    for name in ("set.txt", "set.jsonl"):
        (tmp_path / name).write_text('{"a": "a text"}')
    text = Options(decontaminate=(str(tmp_path / "set.txt"),))
    json_lines = Options(decontaminate=(str(tmp_path / "set.jsonl"),))
    assert CLEAN.external_inputs(text) != CLEAN.external_inputs(json_lines)


@given(
    st.lists(st.sampled_from("abcde"), max_size=40),
    st.lists(st.sampled_from("abcde"), max_size=40),
    st.integers(2, 5),
)
def test_a_shared_n_gram_is_found_if_and_only_if_there_is_one(
    left: list[str], right: list[str], n: int
) -> None:
    keys = np.unique(contamination._hashed(contamination._n_grams(" ".join(right), n)))
    known_n_grams = n_grams_of(right, n)
    shared = [n_gram for n_gram in n_grams_of(left, n) if n_gram in known_n_grams]
    assert shared_n_gram(" ".join(left), keys, n) == (shared[0] if shared else None)


def n_grams_of(words: list[str], n: int) -> list[str]:
    """Return the word n-grams in their order."""
    return [" ".join(words[start : start + n]) for start in range(len(words) - n + 1)]


LIGATURES = "The \ufb01rst \ufb01ve o\ufb03cers found that the \ufb01nal di\ufb03culty of the o\ufb03ce was staff"
ENTITIES = "The firm&#39;s manager said the profit for the year wasn&#39;t what she&#39;d hoped it would be"
HYPHENS = (
    "Which of the follow\xading rivers flows through the old town of the north\u200bern har\xadbour"
)
SQUARES = (
    "Which of the \u2460 following river\u00b2s flows through the old town of the northern harbour"
)
CHINESE = "下列哪条河流在流入大海之前流经北方港口的古城，请从以下四个选项中选择一个正确答案"
THAI = "แม่น้ำสายใดไหลผ่านเมืองเก่าของท่าเรือทางเหนือก่อนถึงทะเล"
# Texts of an evaluation set, and the options of clean that repair them in another way.
SET_TEXTS = {
    "ligatures": (LIGATURES, {}),
    "entities": (ENTITIES, {}),
    "soft hyphens and spaces without width": (HYPHENS, {}),
    "compatibility forms": (SQUARES, {"normalization": "NFKC"}),
    "curly quotes": (ENTITIES.replace("&#39;", "\u2019"), {"uncurl_quotes": True}),
    "mojibake": (ENTITIES.replace("&#39;", "\u00e2\u20ac\u2122"), {}),
    "addresses": (f"Write to someone@example.net or {ENTITIES}", {"mask_addresses": True}),
    "as they are": (LIGATURES, {"fix_text": False}),
    "ideographs": (CHINESE, {}),
    "a script without spaces": (THAI, {}),
}


def is_contaminated(path: Path, text: str, **options: object) -> bool:
    """Return whether a document with this text is rejected by an evaluation set."""
    chosen = Options(languages=("all",), min_tokens=1, **options)  # type: ignore[arg-type]
    sets = evaluation_sets((str(path),))
    return clean_document(f"{ENGLISH} {text} {ENGLISH}", chosen, sets).reason == Reason.CONTAMINATED


@pytest.mark.parametrize("name", SET_TEXTS)
def test_sets_are_repaired_as_documents_are(tmp_path: Path, name: str) -> None:
    text, options = SET_TEXTS[name]
    path = tmp_path / "set.jsonl"
    path.write_text(json.dumps({"q": text}, ensure_ascii=False), "utf-8")
    assert is_contaminated(path, text, **options)
    if not options:
        assert is_contaminated(path, repair(text, Options())[0])
        assert not is_contaminated(path, "another text about the rivers of the town")


def test_entities_are_found_in_a_document_with_html(tmp_path: Path) -> None:
    (tmp_path / "set.txt").write_text(ENTITIES)
    assert is_contaminated(tmp_path / "set.txt", f"<b>bold</b> {ENTITIES}")


QUESTION = "which of the rivers flows through the"
ANSWER = "old town of the northern harbour"
RECORDS = [
    {"question": QUESTION, "answer": ANSWER},
    {"id": 7, "question": QUESTION, "choices": {"text": [ANSWER, "a hill"], "label": ["A", "B"]}},
    {"data": [{"title": "x", "paragraphs": [{"question": QUESTION, "answers": [ANSWER]}]}]},
    {"messages": [{"role": "user"}, {"content": QUESTION}, {"content": ANSWER}]},
]


@pytest.mark.parametrize("record", RECORDS)
def test_the_fields_of_a_record_are_one_text(tmp_path: Path, record: dict) -> None:
    (tmp_path / "set.jsonl").write_text(json.dumps(record))
    assert is_contaminated(tmp_path / "set.jsonl", f"{QUESTION} {ANSWER}")


LEAKED = "Which of the four travellers first saw the cafe of the harbour on that cold evening"


def test_a_json_array_is_refused_with_the_command_that_converts_it(tmp_path: Path) -> None:
    (tmp_path / "set.json").write_text(json.dumps([RECORDS[0]], indent=1))
    with pytest.raises(UserError, match=r"expected JSON Lines.*jq -c"):
        is_contaminated(tmp_path / "set.json", f"{QUESTION} {ANSWER}")


@pytest.mark.parametrize(
    "column",
    [
        pa.array([LEAKED.encode(), b"\xff\xd8\xff"]),
        pa.array([LEAKED.encode(), None], pa.large_binary()),
        pa.array([[("question", LEAKED)], None], pa.map_(pa.string(), pa.string())),
        pa.array([{"image": b"\xff\xd8", "q": [LEAKED.encode()]}, None]),
    ],
    ids=["bytes", "large", "map", "nested"],
)
def test_texts_in_bytes_and_maps_are_found(tmp_path: Path, column: pa.Array) -> None:
    path = tmp_path / "set.parquet"
    pq.write_table(pa.table({"x": column}), path)
    leaked = clean_document(ENGLISH + LEAKED, Options(), evaluation_sets((str(path),)))
    assert leaked.reason == Reason.CONTAMINATED


def test_texts_of_two_records_are_not_joined(tmp_path: Path) -> None:
    rows = [{"q": QUESTION}, {"q": ANSWER}]
    (tmp_path / "set.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert not is_contaminated(tmp_path / "set.jsonl", f"{QUESTION} {ANSWER}")


def test_the_run_counts_the_texts_that_are_too_short(tmp_path: Path) -> None:
    texts = ["What is the capital?", "How many?", f"{QUESTION} {ANSWER}"]
    (tmp_path / "set.txt").write_text("\n".join(texts))
    (tmp_path / "long.txt").write_text(texts[-1])
    (tmp_path / "docs.jsonl").write_text(json.dumps({"text": ENGLISH}))
    run = tmp_path / "run"
    ask_owt("import", run, tmp_path / "docs.jsonl", "--num_shards", 1)
    flags = ("--until", "clean", "--workers", 1)
    sets = (tmp_path / "set.txt", tmp_path / "long.txt")
    output = ask_owt("run", run, *flags, "--decontaminate", *sets)
    expected = f"2 of the 3 texts in {tmp_path / 'set.txt'} have fewer than 13 words"
    assert expected in output
    assert "long.txt have" not in output
