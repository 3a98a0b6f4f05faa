"""Insertions in an article that are not its text.

- Placeholders of embedded content: a sentence that asks for consent, once for each of them.
- Credits of photographs: short lines in a row, each with its photographer.
- References to other articles: a line with a label and a linked title, as in `See also: Two boats`.
- Any other sentence that stands alone between paragraphs three times.
- Further articles of a page: `next_articles`.

Each is known by its structure. Words of a list are needed where an article may have the same
structure: a refrain repeats, and a label with a linked title may name a source.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import combinations, groupby

import numpy as np

from owt_pipeline.stages.extract.content.article import MIN_ARTICLE_WORDS, article_of, holds
from owt_pipeline.stages.extract.content.next_articles import leave_next_articles
from owt_pipeline.stages.extract.html.blocks import (
    HEADING,
    ITEM,
    PREFORMATTED,
    ROW,
    Block,
    Container,
    is_prose,
    key_of,
    num_words,
)

_NO_LINE_FORMS = frozenset((HEADING, PREFORMATTED, ROW))

# Placeholders.
# Parts of words in lower case.
_CONSENT_STEMS = tuple(
    "cookie|consent|accept|third-party|third party|external content|externer inhalt"
    "|externen inhalt|externe inhalte|einwillig|zustimm|einverstanden|akzepti|akcept|aksept|accett"
    "|aceit|acept|toestemming|samtyck|samtykk|souhlas|zgod|hyväksy|eväste|sütik|hozzájárul"
    "|informasjonskaps|соглас|同意|クッキー".split("|")
)
_MIN_PLACEHOLDER_CHARS = 30
_MAX_PLACEHOLDER_CHARS = 600
# The share of words that sentences with different services have in common.
_MIN_WORDS_IN_COMMON = 0.75
_NUM_SAME_CHARS = 10
# Comparing takes the square.
_MAX_CANDIDATES = 200
# A sentence that stands alone this often is a placeholder, in any language and any article.
_MIN_REPEATS = 3
# Of two such sentences that differ in the name of a service: characters of one, and words that
# only one of the two has.
_MAX_CHARS_WITH_NAME = 150
_MAX_OTHER_WORDS = 4
# Compared with the words of prose. A policy on cookies has more.
_MAX_PLACEHOLDER_SHARE = 0.4
_NO_PLACEHOLDER_FORMS = _NO_LINE_FORMS | {ITEM}

# Credits.
_CREDIT = re.compile(
    r"\W*(?:(?:photo|foto|image|picture|pictures|pic|bild|bilder|bildquelle|bildnachweis|kuva|kép"
    r"|fotó|zdjęcie|fot|imagen|imagem|immagine|credit|crédit|courtesy|ảnh|фото|φωτο|تصوير|صورة|צילום"
    r"|사진|写真|撮影|照片|图片|圖片)\w{0,8}"
    r"(?: (?:credits?|photos?|source|courtesy|rights))?\s*"
    r"(?:[:：＝=©/–—-]|\.|\bby\b|\bof\b)"
    r"|[^\n]{0,80}\bCC[ -]BY\b|©|\(c\)|\([^()]+/[^()]+\)$)",
    re.IGNORECASE,
)
_AGENCIES = (
    *("getty images", "/getty", "via getty", "reuters", "/afp", "/ap", "/dpa", "/epa", "/imago"),
    *("ap photo", "shutterstock", "istock", "alamy", "unsplash", "press association", "xinhua"),
)
# A name with an agency that is not in the list, as in `Ada Fox / EFE`.
_NAME_OF_AGENCY = re.compile(r"\W*[^\W\d_]+(?: [^\W\d_.]+\.?){1,3} ?/ ?[A-Z]{2,8}\W*")
_LABELLED_NAME = re.compile(r"(\w[\w ]{0,20}?) ?[:：] ?(\S.*)")
_WORD = re.compile(r"[^\W\d_]+")
_MAX_CREDIT_CHARS = 100
_MAX_CREDIT_WORDS = 12
# A name in a script without capitals, like Japanese, has at most so many characters.
_MAX_NAME_CHARS_WITHOUT_CASE = 8
# Lines with credits are known by words from two on; lines after images that have the same label
# and only names, from three on.
_MIN_CREDITS = 2
_MIN_LABELLED = 3

# References. A label that is not in the list has no meaning, even if it is the same each time:
# newsletters have `See: …` and galleries `Artist: …` as a part of the text.
_LABELS = frozenset(
    """
    more on this subject|more on this topic
    see also|also see|read also|also read|read more|read next|read this|related|related story
    related stories|related article
    related articles|related coverage|more on this|more on this story
    recommended|don't miss|don’t miss|you may also like|you might also like|further reading
    passend dazu|zum thema
    siehe auch|lesen sie auch|lesen sie mehr|lies auch|mehr zum thema|auch interessant|mehr dazu
    weiterlesen|lire aussi|à lire aussi|a lire aussi|lire également|à lire également|voir aussi
    à lire
    relacionado|relacionada|nota relacionada
    lea también|lee también|leer también|lea además|ver también|lea más
    te puede interesar|también te puede interesar|le puede interesar|leia também|veja também
    leia mais|saiba mais
    leggi anche|vedi anche|guarda anche|leggi pure|lees ook|zie ook|lees meer|bekijk ook
    läs också|läs även|läs mer|se även|læs også|læs mere|les også|les mer|se også
    lue myös|katso myös|czytaj także|czytaj też|czytaj również|czytaj więcej|zobacz też
    zobacz także|zobacz również|przeczytaj też|przeczytaj także|čtěte také|přečtěte si také
    přečtěte si|viz také|čítajte aj|olvassa el|olvasd el|olvassa el ezt is|lásd még
    ezt is olvassa el|ezt is olvasd el|ezt olvasta már|olvasta már
    kapcsolódó|kapcsolódó cikk|kapcsolódó cikkünk|kapcsolódó cikkeink
    ayrıca okuyun|ayrıca bakınız|bunu da okuyun|citește și|citeşte şi|vezi și
    по теме|материалы по теме
    читайте также|смотрите также|см. также|читать также|читайте ещё|читайте також|читайте теж
    прочетете още|διαβάστε επίσης|δείτε επίσης|pročitajte i|pročitaj i|pročitajte još|preberite tudi
    baca juga|lihat juga|xem thêm|đọc thêm|关联阅读|延伸阅读|相关阅读|相关报道|延伸閱讀|相關閱讀
    相關報導|関連記事|関連|あわせて読みたい|관련기사|관련 기사|اقرأ أيضا|اقرأ أيضًا|اقرأ أيضاً|קראו גם
    """.strip()
    .replace("\n    ", "|")
    .split("|")
)
_LABELLED_LINK = re.compile(
    r"\W*([^\W\d_][^:：>»|?】\]]{1,39}?)\s*[:：>»|–—?】\]]+\s*(\S.*)", re.DOTALL
)
# The linked share of the text after a label.
_MIN_LINKED_SHARE = 0.9
_MAX_LABEL_CHARS = 40
_MIN_TITLE_CHARS = 12
_MAX_REFERENCE_CHARS = 300
# Below one label.
_MAX_REFERENCES = 6


def leave_asides(blocks: Sequence[Block], keep: np.ndarray, *, is_article: bool) -> None:
    """Clear `keep` of insertions in an article.

    Args:
      blocks: the blocks of the page.
      keep: which of them are kept.
      is_article: whether the page probably is one article, or declares it.
    """
    leave_placeholders(blocks, keep)
    if is_article:
        leave_repeated_insertions(blocks, keep)
        leave_next_articles(blocks, keep)
    words = sum(num_words(blocks[index]) for index in _kept(keep) if is_prose(blocks[index]))
    if words >= MIN_ARTICLE_WORDS:
        leave_credits(blocks, keep)
        leave_references(blocks, keep)


def _kept(keep: np.ndarray) -> list[int]:
    indexes: list[int] = np.flatnonzero(keep).tolist()
    return indexes


def leave_placeholders(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of sentences that ask for consent in place of embedded content.

    Such sentences repeat, with other text between them. They are equal; or they are in elements of
    another kind than the article's paragraphs, and differ only in the name of the service.
    """
    kept_indexes = _kept(keep)
    candidates = _consent_sentences(blocks, kept_indexes)
    if not 2 <= len(candidates) <= _MAX_CANDIDATES:
        return
    repeated, is_in_row = _find_repeated(blocks, keep, candidates)
    placeholders = [index for index in repeated if keep[index]]
    # Descriptions of cookies, in a policy on them, follow each other and are most of the text.
    prose = sum(num_words(blocks[index]) for index in kept_indexes if is_prose(blocks[index]))
    words = sum(num_words(blocks[index]) for index in placeholders)
    # A short article may have as many placeholders as paragraphs. All of them are the same then.
    is_one_sentence = len({blocks[index].text for index in placeholders}) == 1
    is_everywhere = is_one_sentence and len(placeholders) >= _MIN_REPEATS
    if not is_in_row and (is_everywhere or words <= _MAX_PLACEHOLDER_SHARE * prose):
        keep[placeholders] = False


def _consent_sentences(blocks: Sequence[Block], kept_indexes: Sequence[int]) -> list[int]:
    """Return the indexes of sentences on consent, among the kept blocks, that may be repeated."""
    if not kept_indexes:
        return []
    sized = []
    for index in range(kept_indexes[0], kept_indexes[-1] + 1):
        if _MIN_PLACEHOLDER_CHARS <= blocks[index].chars <= _MAX_PLACEHOLDER_CHARS:
            sized.append(index)
    # Sentences that differ in the service begin or end with the same letters. Few other sentences
    # do, so most texts need no search for words.
    starts = Counter([blocks[index].text[:_NUM_SAME_CHARS] for index in sized])
    ends = Counter([blocks[index].text[-_NUM_SAME_CHARS:] for index in sized])
    candidates = []
    for index in sized:
        text = blocks[index].text
        is_repeated = starts[text[:_NUM_SAME_CHARS]] > 1 or ends[text[-_NUM_SAME_CHARS:]] > 1
        if is_repeated and asks_for_consent(blocks[index]):
            candidates.append(index)
    return candidates


def _find_repeated(
    blocks: Sequence[Block], keep: np.ndarray, candidates: Sequence[int]
) -> tuple[set[int], bool]:
    """Return the candidates that repeat another one, and whether any two follow each other.

    Two follow each other if nothing between them is kept.
    """
    article_keys = set()
    for index in _kept(keep):
        if is_prose(blocks[index]) and not asks_for_consent(blocks[index]):
            article_keys.add(key_of(blocks[index].container))
    texts = [blocks[index].text.lower() for index in candidates]
    word_sets = [frozenset(text.split()) for text in texts]
    is_apart = [key_of(blocks[index].container) not in article_keys for index in candidates]
    repeated: set[int] = set()
    is_in_row = False
    for one, other in combinations(range(len(candidates)), 2):
        are_apart = is_apart[one] and is_apart[other]
        if texts[one] == texts[other] or (
            are_apart and _are_similar(word_sets[one], word_sets[other])
        ):
            first = candidates[one]
            second = candidates[other]
            repeated.update((first, second))
            is_in_row |= not keep[first + 1 : second].any()
    return repeated, is_in_row


def leave_repeated_insertions(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of a sentence that stands between paragraphs three times or more.

    It may name another service each time, as in `Content of X is hidden by your settings`. Each
    time it is in an element of its own within the article, in any language. A refrain is a
    paragraph like all others, and the sentence of a list belongs to an item.
    """
    kept_indexes = _kept(keep)
    indexes_by_ends: dict[tuple[str, str], list[int]] = {}
    for index in kept_indexes:
        block = blocks[index]
        is_sized = _MIN_PLACEHOLDER_CHARS <= block.chars <= _MAX_PLACEHOLDER_CHARS
        if is_sized and block.form not in _NO_PLACEHOLDER_FORMS:
            ends = block.text[:_NUM_SAME_CHARS], block.text[-_NUM_SAME_CHARS:]
            indexes_by_ends.setdefault(ends, []).append(index)
    repeats = [indexes for indexes in indexes_by_ends.values() if len(indexes) >= _MIN_REPEATS]
    element = article_of([blocks[index] for index in kept_indexes]) if repeats else None
    if element is None:
        return
    article = element[0]
    for indexes in repeats:
        containers = [blocks[index].container for index in indexes]
        if not all(map(partial(_is_wrapped_in, article), containers)):
            continue
        first = blocks[indexes[0]].text
        if all(_differ_in_name(first, blocks[index].text) for index in indexes):
            keep[indexes] = False


def _differ_in_name(text: str, other: str) -> bool:
    """Return whether two sentences are equal, or differ only in words with a capital letter."""
    if text == other:
        return True
    different = set(text.split()) ^ set(other.split())
    if len(text) > _MAX_CHARS_WITH_NAME or len(different) > _MAX_OTHER_WORDS:
        return False
    return all(word[0].isupper() for word in different)


def _is_wrapped_in(article: Container, container: Container) -> bool:
    """Return whether a text is in an element of its own between the paragraphs of an article."""
    return container.parent is not article and holds(article, container)


def _are_similar(words: frozenset[str], others: frozenset[str]) -> bool:
    return len(words & others) >= _MIN_WORDS_IN_COMMON * max(len(words), len(others))


def asks_for_consent(block: Block) -> bool:
    """Return whether a block has a sentence with words for consent, external content or cookies."""
    if not _MIN_PLACEHOLDER_CHARS <= block.chars <= _MAX_PLACEHOLDER_CHARS:
        return False
    if block.form in _NO_PLACEHOLDER_FORMS:
        return False
    text = block.text.lower()
    return any(stem in text for stem in _CONSENT_STEMS)


def leave_credits(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of rows of photo credits."""
    kept_indexes = _kept(keep)
    for run in _runs(kept_indexes, [_is_credit(blocks[index]) for index in kept_indexes]):
        if len(run) >= _MIN_CREDITS:
            keep[run] = False
    labels = [_label_of_name(blocks[index]) for index in kept_indexes]
    for run in _runs(kept_indexes, labels):
        if len(run) >= _MIN_LABELLED:
            keep[run] = False


def _runs(indexes: Sequence[int], values: Sequence[object]) -> Iterator[list[int]]:
    """Yield the runs of indexes with equal true values."""
    position = 0
    for value, run in groupby(values):
        length = len(list(run))
        if value:
            yield list(indexes[position : position + length])
        position += length


def _is_credit(block: Block) -> bool:
    if not _is_credit_sized(block):
        return False
    text = block.text
    return bool(_CREDIT.match(text) or _NAME_OF_AGENCY.fullmatch(text)) or _is_of_agency(text)


def _is_of_agency(text: str) -> bool:
    return text.lower().replace("/ ", "/").rstrip(" .)]").endswith(_AGENCIES)


def _is_credit_sized(block: Block) -> bool:
    if block.form in _NO_LINE_FORMS or block.chars > _MAX_CREDIT_CHARS:
        return False
    return num_words(block) <= _MAX_CREDIT_WORDS and not block.text.endswith(("?", "!"))


def _label_of_name(block: Block) -> str | None:
    """Return the label of a line after an image that has a label and only names, in any
    language; else None."""
    if not block.images or not _is_credit_sized(block):
        return None
    match = _LABELLED_NAME.fullmatch(block.text)
    if match is None:
        return None
    label, names = match.groups()
    words = _WORD.findall(names)
    is_named = len(words) > 1 and all(word[0].isupper() for word in words)
    is_short = len(names) <= _MAX_NAME_CHARS_WITHOUT_CASE and not names[:1].isascii()
    if not is_named and not (is_short and names.lower() == names.upper()):
        return None
    return label.lower()


def leave_references(blocks: Sequence[Block], keep: np.ndarray) -> None:
    """Clear `keep` of lines below a paragraph that refer to another article."""
    kept_indexes = _kept(keep)
    has_prose = False
    for position, index in enumerate(kept_indexes):
        block = blocks[index]
        has_prose |= is_prose(block)
        if not has_prose or block.form in _NO_LINE_FORMS or block.chars > _MAX_REFERENCE_CHARS:
            continue
        if _label_of(block) in _LABELS:
            keep[index] = False
        elif _is_label(block):
            following = kept_indexes[position + 1 : position + _MAX_REFERENCES + 2]
            references = _titles_after(blocks, following)
            if references:
                keep[[index, *references]] = False


def _label_of(block: Block) -> str | None:
    """Return the label of a line whose other text is one linked title; None for other lines."""
    if block.links != 1:
        return None
    match = _LABELLED_LINK.fullmatch(block.text)
    if match is None:
        # A label in bold needs no sign after it.
        label = block.text[: block.chars - block.link_chars]
        return _plain_label(label) if block.link_chars >= _MIN_TITLE_CHARS else None
    label, title = match.groups()
    if len(title) < _MIN_TITLE_CHARS or block.link_chars < _MIN_LINKED_SHARE * len(title):
        return None
    return _plain_label(label)


def _is_label(block: Block) -> bool:
    """Return whether a block is a label without a title."""
    if block.chars > _MAX_LABEL_CHARS or block.link_chars:
        return False
    return _plain_label(block.text) in _LABELS


def _plain_label(text: str) -> str:
    return " ".join(text.lower().split()).strip(" :：>»|–—-.…")


def _titles_after(blocks: Sequence[Block], indexes: Sequence[int]) -> list[int]:
    """Return the indexes of the linked titles that follow a label; none if there are many."""
    titles: list[int] = []
    for index in indexes:
        block = blocks[index]
        if block.form == HEADING or block.link_chars < _MIN_LINKED_SHARE * block.chars:
            break
        titles.append(index)
    return titles if len(titles) <= _MAX_REFERENCES else []
