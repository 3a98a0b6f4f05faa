"""WikiText: the published number of words, and running text from its tokens."""

from __future__ import annotations

import pytest

from trainer.tools.evaluate import detokenize, published_words


def test_published_perplexities_divide_by_words_and_line_ends() -> None:
    lines = [" ", " = Robert Boulter = ", " ", " He is <unk> @-@ tall , he said . ", " Next line . "]
    text = "".join(line + "\n" for line in lines)
    assert len(text.split()) == 4 + 9 + 3
    assert published_words(text, "some.raw") == (4 + 9 + 3 + 5, "")
    assert published_words(text * 1000, "some.raw") == (21_000, "")


def test_the_published_number_of_words_is_used_only_for_the_published_file() -> None:
    words = ["w "] * 241_211
    published = "".join(words[:2891]).replace(" ", " \n") + " ".join(words[2891:]) + " \n" * (4_358 - 2_891)
    assert published_words(published, "wiki.test.raw") == (245_569, "test")
    with pytest.raises(
        ValueError, match=r"^other\.raw has the 241,211 words of .* test set, but 2,892 lines in place of"
    ):
        published_words("".join(words[:2891]).replace(" ", " \n") + " ".join(words[2891:]) + " \n", "other.raw")


def test_wikitexts_tokens_become_running_text() -> None:
    tokens = (
        ' = Boulter = \n \n He \'s a poet @-@ actor , won 1 @,@ 000 ( a thousand ) at " The Bill " . \n = = Life = = \n'
    )
    assert detokenize(tokens) == (
        ' = Boulter =\n\nHe\'s a poet-actor, won 1,000 (a thousand) at "The Bill".\n== Life ==\n'
    )
