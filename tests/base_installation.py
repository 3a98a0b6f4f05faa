"""A program that uses only the library, which the base installation has to run to its end.

It is started in an environment of its own, in an empty folder, and prints the packages that each
import has loaded.
"""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

OF_THE_START = set(sys.modules)

# isort: split
import owt_pipeline as owt  # noqa: E402

HEAVY = (
    "aiohttp apache_beam brotli duckdb huggingface_hub isal jinja2 praw tld tokenizers "
    "trafilatura yarl"
).split()


def loaded() -> list[str]:
    """Return the packages that were imported since the start, without Python's own."""
    top_level_names = {name.partition(".")[0] for name in set(sys.modules) - OF_THE_START}
    return sorted(top_level_names - set(sys.stdlib_module_names))


def main() -> None:
    """Call the functions of the library; print the packages that were loaded after each."""
    report = {"import": loaded()}
    assert owt.canonical_url("HTTP://www.Example.com/a?utm_source=x") == "https://example.com/a"

    sentence = "A long enough sentence of the page. "
    page = f"<html><body><p>{sentence * 30}</p></body></html>"
    extraction = owt.extract(page, text_format="markdown")
    assert extraction is not None
    assert extraction.text.startswith("A long enough sentence")
    report["extract"] = loaded()
    (isolated,) = owt.Extractor(isolated=True, workers=1).map([page.encode("utf-16")])
    assert isolated.text.startswith("A long enough sentence")

    # A short text is counted in tokens of GPT-2, and so is one with a run of a million blanks.
    assert owt.clean("Two words").reason == "too_short"
    assert owt.clean("a" + " " * 1_000_000 + "b", languages=["all"]).reason is None
    assert owt.clean(sentence * 30, filters=["gopher_quality", "c4"]).language == "en"
    report["clean"] = loaded()

    texts = [sentence * 3, "Quite another text, with other words.", sentence * 3]
    assert owt.near_duplicates(texts).num_rows == 1
    rows = "".join(json.dumps({"text": text}) + "\n" for text in texts)
    plain = Path("texts.jsonl")
    compressed = Path("texts.jsonl.zst")
    plain.write_text(rows)
    import zstandard

    compressed.write_bytes(zstandard.compress(rows.encode()))
    assert owt.near_duplicates([plain, compressed], workers=1).num_rows == 4
    report["near_duplicates"] = loaded()

    message = ""
    try:
        owt.Extractor(extractor="trafilatura")
    except ValueError as error:
        message = str(error)
    assert message.endswith("pip install 'owt-pipeline[pipeline]'")
    assert [name for name in HEAVY if importlib.util.find_spec(name)] == []
    print(json.dumps(report))


if __name__ == "__main__":
    main()
