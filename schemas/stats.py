"""The schema of report/stats.json, as JSON Schema; writes docs/stats.md and docs/stats.schema.json.

python -m schemas.stats > docs/stats.md
python -m schemas.stats --json > docs/stats.schema.json
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from typing import Any

STATS_VERSION = 2
"""Raised whenever a key of stats.json changes its name or meaning."""

JsonSchema = dict[str, Any]


def stats_schema() -> JsonSchema:
    """The JSON Schema (draft 2020-12) of stats.json: every key is required, no other is allowed."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stats.json",
        "description": f"Every figure of a run's report, version {STATS_VERSION}.",
        **_object("", **_SECTIONS),
    }


def stats_reference() -> str:
    """docs/stats.md: every key with its type and meaning."""
    parts = [_INTRODUCTION]
    for name, schema in _SECTIONS.items():
        parts.append(f"## `{name}`\n\n{schema['description']}\n")
        rows = list(_rows(schema, ""))
        if rows:
            parts.append("| key | type | meaning |\n|---|---|---|\n" + "".join(rows))
    return "\n".join(parts)


_INTRODUCTION = f"""\
# stats.json

Generated from `schemas/stats.py` by `python -m schemas.stats > docs/stats.md`; a test fails when it is stale. The same
as JSON Schema: [stats.schema.json](stats.schema.json).

Every figure of `report/index.html`, schema version {STATS_VERSION}. The same run gives the same bytes: there is no
date in it, and the statistics merge in any order. A share lies from 0 to 1 and has six digits; `null` stands for a
share of nothing, or for what is not known. Below, `a.b` is the key b of the object a, `a[]` each item of the list a,
and `a.*` each value of an object whose keys are names. A key's name or meaning changes with the `schema_version`.
"""


def _rows(schema: JsonSchema, path: str) -> Iterator[str]:
    """The rows of the table for what is in `schema`, parents first."""
    if "anyOf" in schema:
        schema = schema["anyOf"][0]
    if schema.get("type") == "object" and "properties" in schema:
        for name, field in schema["properties"].items():
            where = f"{path}.{name}" if path else name
            yield f"| `{where}` | {_kind(field)} | {field['description']} |\n"
            yield from _rows(field, where)
    elif schema.get("type") == "object":
        yield from _rows(schema["additionalProperties"], f"{path}.*")
    elif schema.get("type") == "array" and "items" in schema:
        yield from _rows(schema["items"], f"{path}[]")


def _kind(schema: JsonSchema) -> str:
    if "anyOf" in schema:
        return f"{_kind(schema['anyOf'][0])} or null"
    if "const" in schema:
        return str(schema["const"])
    kind = str(schema.get("type", "any"))
    return "list" if kind == "array" else kind


def _integer(description: str = "") -> JsonSchema:
    return {"type": "integer", "description": description}


def _number(description: str = "") -> JsonSchema:
    return {"type": "number", "description": description}


def _share(description: str = "") -> JsonSchema:
    return _or_null({"type": "number", "minimum": 0, "maximum": 1, "description": description})


def _string(description: str = "") -> JsonSchema:
    return {"type": "string", "description": description}


def _any(description: str = "") -> JsonSchema:
    return {"description": description}


def _or_null(schema: JsonSchema) -> JsonSchema:
    return {"anyOf": [schema, {"type": "null"}], "description": schema["description"]}


def _list(description: str, items: JsonSchema) -> JsonSchema:
    return {"type": "array", "items": items, "description": description}


def _tuple(description: str, *items: JsonSchema) -> JsonSchema:
    return {"type": "array", "prefixItems": list(items), "minItems": len(items), "maxItems": len(items),
            "description": description}  # fmt: skip


def _pair(description: str, item: JsonSchema) -> JsonSchema:
    return _tuple(description, item, item)


def _map(description: str, values: JsonSchema) -> JsonSchema:
    return {"type": "object", "additionalProperties": values, "description": description}


def _object(description: str, /, *optional: str, **fields: JsonSchema) -> JsonSchema:
    """An object of these fields, and no other; those named in `optional` may be missing."""
    return {
        "type": "object",
        "properties": fields,
        "required": [name for name in fields if name not in optional],
        "additionalProperties": False,
        "description": description,
    }


def _or_empty(schema: JsonSchema) -> JsonSchema:
    """An object with all its keys, or none."""
    empty = {"type": "object", "maxProperties": 0}
    return {"anyOf": [schema, empty], "description": schema["description"]}


def _distribution(description: str) -> JsonSchema:
    bin_ = _tuple("", _integer(), _integer(), _integer())
    return _object(
        description,
        count=_integer("how many values"),
        sum=_integer("exact"),
        mean=_or_null(_number("exact, to two digits")),
        minimum=_or_null(_integer("exact")),
        maximum=_or_null(_integer("exact")),
        percentiles=_map("by the percentage, to within 0.4 %; exact under 256", _or_null(_integer())),
        histogram=_list("[low, high, count] with low ≤ value < high; four bins an octave, empty ones left out", bin_),
    )


def _ranked(key: str, many: str) -> JsonSchema:
    distinct = _object(
        "", count=_integer("how many"), exact=_bool("or a HyperLogLog's estimate, of standard error 0.8 %")
    )
    return _object(
        f"The most frequent {many}.",
        of=_string("what the ranking goes by: corpus, or urls where no document of the corpus has one"),
        distinct=_map(f"how many {many} there are, by dataset: urls and corpus", distinct),
        exact=_bool("whether the list is proven to be that of the most frequent; the counts always are exact"),
        top=_list(
            "the most frequent first",
            _object(
                "",
                **{key: _string("its name")},
                documents=_integer("of the corpus"),
                share=_share("of all"),
                urls=_or_null(_integer("collected; null where urls/ is not there")),
                survival=_share("documents by URLs"),
            ),
        ),
    )


def _bool(description: str) -> JsonSchema:
    return {"type": "boolean", "description": description}


def _document(description: str, **more: JsonSchema) -> JsonSchema:
    return _object(description, url_id=_integer("of the row"), url=_or_null(_string("canonical")), **more)


_TITLE = _or_null(_string("of the page"))
_TEXT = {"characters": _integer("of the whole text"), "text": _string("its first 3,000 characters")}
_FAILURES = _map("URLs without a page, by reason, the most frequent first", _integer())
_THROUGH = {name: _integer(f"rows of {name}/") for name in ("urls", "pages", "documents", "clean", "corpus")}


def _of(*datasets: str) -> dict[str, JsonSchema]:
    return {name: _THROUGH[name] for name in datasets}


_ANSWERED = {
    "urls": _integer("asked for"),
    "pages": _integer("URLs that gave one"),
    "failures": _FAILURES,
    "mean_milliseconds": _or_null(_number("from request to last byte, of its pages fetched live")),
    "mean_body_bytes": _or_null(_number("of its pages, decoded")),
    "share": _share("pages by URLs"),
}
_SHOWN = _object(
    "what the sampler shows",
    samples=_share("of the samples, those that hold a token of such a document"),
    tokens=_share("of all tokens shown, end-of-text counted in"),
)

_SECTIONS: dict[str, JsonSchema] = {
    "schema_version": {"const": STATS_VERSION, "description": "The version of this schema."},
    "funnel": _list(
        "What each stage let through, in order.",
        _object(
            "",
            stage=_string("its name"),
            dataset=_string("the dataset it wrote"),
            entered=_integer("rows that entered"),
            left=_integer("rows that left; of dedupe, which only decides, those that stay"),
            share=_share("left of entered"),
            bytes=_integer("of all files of the dataset"),
            rejected=_list(
                "by reason, the most frequent first",
                _object(
                    "",
                    reason=_string("as in rejects/"),
                    meaning=_string("in words"),
                    count=_integer("rows"),
                    share=_share("of those that entered"),
                    sample=_list(
                        "rows at random, by a hash of their ids",
                        _document("", detail=_or_null(_string("what was found"))),
                    ),
                ),
            ),
        ),
    ),
    "totals": _object(
        "What went in, and what came of it.",
        entered=_integer("rows that entered the first stage"),
        documents=_integer("of the corpus"),
        text_bytes=_integer("of the corpus"),
        tokens=_integer("of both splits"),
    ),
    "domains": _ranked("domain", "domains"),
    "subreddits": _ranked("subreddit", "subreddits"),
    "years": _list(
        "Rows by the year of the URL's first submission; the datasets that are there.",
        _object("", "urls", "pages", "corpus", year=_integer("UTC"), **_of("urls", "pages", "corpus")),
    ),
    "languages": _list(
        "Rows by language: declared by the page in documents, detected in clean and corpus.",
        _object(
            "",
            "documents",
            "clean",
            "corpus",
            language=_string("ISO 639-1 code, or none"),
            **_of("documents", "clean", "corpus"),
        ),
    ),
    "scores": _list(
        "Rows by score on Reddit.",
        _object(
            "",
            "urls",
            "pages",
            "corpus",
            low=_or_null(_integer("included; null for no bound")),
            high=_or_null(_integer("included; null for no bound")),
            **_of("urls", "pages", "corpus"),
            survival=_share("corpus by urls"),
        ),
    ),
    "lengths": _object(
        "Lengths of the corpus' documents.",
        characters=_distribution("of the text"),
        bytes=_distribution("of the text in UTF-8"),
        words=_distribution("split at white space"),
        tokens=_distribution("without end-of-text"),
    ),
    "tokens": _or_empty(
        _object(
            "The tokenizer, and the use of its vocabulary.",
            tokenizer=_string("its name"),
            vocabulary=_integer("token ids there are"),
            vocabulary_used=_integer("token ids that occur"),
            vocabulary_used_share=_share("of those there are"),
            occurrences=_list(
                "[low, high, ids]: token ids that occur low ≤ n < high times; one bin an octave",
                _tuple("", _integer(), _integer(), _integer()),
            ),
            splits=_map("train and val", _object("", documents=_integer("of it"), tokens=_integer("of it"))),
            bytes_per_token=_or_null(_number("of text")),
        )
    ),
    "duplicates": _or_empty(
        _object(
            "What dedupe decided; empty where it did not run.",
            examined=_integer("documents that were looked at"),
            exact=_integer("exact copies to be removed"),
            near=_integer("near-duplicates to be removed"),
            share=_share("of all examined"),
            clusters=_object(
                "groups of documents of which one stays",
                count=_integer("how many"),
                sizes=_map("how many clusters have that many documents", _integer()),
                largest=_list(
                    "the 20 largest",
                    _object(
                        "",
                        size=_integer("documents, the one that stays included"),
                        kept=_document("the one that stays"),
                        removed=_list(
                            "up to five of the others",
                            _document("", rule=_string("exact or near"), similarity=_number("exact Jaccard")),
                        ),
                    ),
                ),
            ),
            similarities=_list(
                "of the near-duplicates",
                _object(
                    "",
                    low=_number("included"),
                    high=_number("not included"),
                    count=_integer("near-duplicates"),
                    mean_shared_bands=_number("LSH bands in which the two agree"),
                ),
            ),
            lsh=_object(
                "how candidates were found",
                threshold=_or_null(_number("least similarity of a near-duplicate")),
                num_perm=_or_null(_integer("MinHash permutations")),
                bands=_or_null(_integer("LSH bands")),
                rows=_or_null(_integer("MinHash values in a band")),
                curve=_or_null(
                    _list(
                        "[similarity, probability that a pair of it is compared]",
                        _pair("", _number()),
                    )
                ),
            ),
            domains=_list(
                "the 50 that lost most documents",
                _object(
                    "",
                    domain=_string("a host"),
                    documents=_integer("examined"),
                    removed=_integer("by export"),
                    share=_share("removed of examined"),
                ),
            ),
            removals=_list(
                "20 decisions at random, near-duplicates first",
                _object(
                    "",
                    rule=_string("exact or near"),
                    similarity=_number("exact Jaccard"),
                    shared_bands=_integer("0 for exact"),
                    removed=_document("the document that goes"),
                    kept=_document("the document that stays"),
                    segments=_list(
                        "[same, differs or skipped; words of the removed text; words of the kept one], of the first "
                        "2,000 words; of skipped, how many. Empty where a text is of another corpus",
                        _tuple("", {"enum": ["same", "differs", "skipped"]}, _string(), _string()),
                    ),
                ),
            ),
        )
    ),
    "fetch": _or_empty(
        _object(
            "What became of the URLs that were asked for; empty where nothing was fetched.",
            sources=_map("pages, by live or warc", _integer()),
            statuses=_map("pages, by HTTP status", _integer()),
            failures=_FAILURES,
            milliseconds=_distribution("from request to last byte, of pages fetched live"),
            body_bytes=_distribution("of the decoded bodies"),
            domains=_list(
                "the 50 of most URLs",
                _object(
                    "",
                    domain=_string("a host"),
                    **_ANSWERED,
                ),
            ),
            captured=_or_null(_string("month of the last capture, YYYY-MM, from which ages count")),
            ages=_list(
                "by the link's age",
                _object(
                    "",
                    years=_integer("whole years from the month of the first submission to that of the last capture"),
                    **_ANSWERED,
                ),
            ),
        )
    ),
    "filters": _object(
        "What the filters of clean, and export, took away.",
        lost=_list(
            "by reason",
            _object(
                "",
                stage=_string("clean or export"),
                reason=_string("as in rejects/"),
                documents=_integer("dropped"),
                characters=_integer("of their texts, of clean as they were extracted"),
                bytes=_integer("of their texts in UTF-8"),
                tokens=_integer("that their texts are, by the run's tokenizer"),
                share=_share("of all tokens lost to a filter or in the corpus"),
            ),
        ),
        dropped=_list(
            "documents to read, at random, by the filter of clean that dropped them",
            _object(
                "",
                stage=_string("clean"),
                reason=_string("as in rejects/"),
                meaning=_string("in words"),
                documents=_list(
                    "as they were extracted",
                    _document("", title=_TITLE, detail=_or_null(_string("what was found")), **_TEXT),
                ),
            ),
        ),
        signals=_list(
            "what the documents measure; bin 0 is under edges[0], bin k from edges[k - 1] to under edges[k], the last "
            "one from the last edge",
            _object(
                "",
                signal=_string("FILTER.SIGNAL, or words or language_score of the document"),
                filter=_or_null(_string("it belongs to")),
                on=_bool("whether that filter rejects"),
                measured_share=_number("of the documents: all where it does, else a sample"),
                minimum=_or_null(_number("limit, included")),
                maximum=_or_null(_number("limit, included")),
                edges=_list("between the bins", _number()),
                kept=_list("documents that stay, by bin", _integer()),
                dropped=_list("documents that clean rejects for whatever reason, by bin", _integer()),
            ),
        ),
    ),
    "sampler": _or_empty(
        _object(
            "What the trainer's samplers show of documents, by their length, from all their lengths; of more than "
            "1,048,576 documents, from so many evenly by rank. A length is known to within 0.4 %, under 256 exactly.",
            context=_integer("tokens of a sample"),
            long_min_tokens=_integer("of documents that longbiased prefers"),
            long_fraction=_number("of its samples that are from those"),
            rows=_list(
                "by the documents' length in tokens",
                _object(
                    "",
                    at_least=_integer("included"),
                    below=_or_null(_integer("not included; null for no bound")),
                    documents=_share("of all documents"),
                    packed=_SHOWN,
                    longbiased=_or_null(_SHOWN),
                ),
            ),
        )
    ),
    "likeness": _object(
        "How like WebText and OpenWebText the corpus is.",
        lengths=_list(
            "beside OpenWebText's published lengths",
            _object(
                "",
                what=_string("tokens_per_document or bytes_per_token"),
                corpus=_or_null(_number("of this one")),
                openwebtext=_number("of OpenWebText"),
                ratio=_or_null(_number("the one by the other")),
            ),
        ),
        sites=_or_null(
            _object(
                "beside the list of --reference_domains; a site is a host without its public suffix and subdomains",
                reference=_string("the file's name"),
                listed=_integer("sites of the list"),
                datasets=_list(
                    "urls and corpus, where they are there",
                    _object(
                        "",
                        dataset=_string("its name"),
                        rows=_integer("with a domain"),
                        of_listed_sites=_share("of the rows"),
                        sites_present=_integer("listed sites with a row"),
                        rank_correlation=_or_null(
                            _number("Spearman's, over all sites listed; those without a row count 0")
                        ),
                    ),
                ),
                top=_list(
                    "the first 30 of the list",
                    _object(
                        "",
                        "urls",
                        "corpus",
                        site=_string("its name"),
                        reference=_integer("its count in the list"),
                        **_of("urls", "corpus"),
                    ),
                ),
            )
        ),
    ),
    "documents": _list(
        "Documents of the corpus at random.",
        _document(
            "",
            title=_TITLE,
            score=_or_null(_integer("on Reddit")),
            language=_or_null(_string("detected")),
            n_words=_integer("split at white space"),
            **_TEXT,
        ),
    ),
    "settings": _map(
        "By dataset.",
        _object(
            "",
            stage=_string("that wrote it"),
            stage_version=_integer("of its code"),
            options=_any("the options that shaped its bytes"),
            versions=_map("of the libraries that did", _string()),
        ),
    ),
    "comparison": _or_null(
        _object(
            "Two runs side by side, with --compare, else null. Of each pair, the first is this run's figure, the "
            "second the other's.",
            other=_string("the folder's name"),
            totals=_map("as in totals", _pair("", _integer())),
            bytes_per_token=_pair("", _or_null(_number())),
            duplicates=_pair("share of the examined documents", _share()),
            stages=_list(
                "as in funnel",
                _object(
                    "",
                    dataset=_string("its name"),
                    entered=_pair("rows that entered; null where the stage did not run", _or_null(_integer())),
                    left=_pair("rows that left", _or_null(_integer())),
                    share=_pair("left of entered", _share()),
                ),
            ),
            rejected=_list(
                "as in funnel",
                _object(
                    "",
                    stage=_string("its name"),
                    reason=_string("as in rejects/"),
                    count=_pair("rows", _integer()),
                    share=_pair("of those that entered", _share()),
                ),
            ),
            lengths=_map(
                "as in lengths",
                _object(
                    "",
                    mean=_pair("of all documents", _or_null(_number())),
                    percentiles=_map("by the percentage", _pair("", _or_null(_integer()))),
                ),
            ),
            token_histograms=_pair(
                "[low, high, share of the documents] of both",
                _list("", _tuple("", _integer(), _integer(), _number())),
            ),
            domains=_list(
                "the 30 most frequent of both",
                _object("", domain=_string("a host"), share=_pair("of the corpus; null where not listed", _share())),
            ),
            settings=_list(
                "options in which the two differ",
                _object("", stage=_string("its name"), option=_string("its name"), values=_pair("", _any())),
            ),
        )
    ),
}


if __name__ == "__main__":
    if sys.argv[1:] == ["--json"]:
        print(json.dumps(stats_schema(), indent=1, ensure_ascii=False))
    else:
        print(stats_reference(), end="")
