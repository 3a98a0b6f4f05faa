"""The schema of report/stats.json, as JSON Schema."""

from __future__ import annotations

from schemas.json_schema import (
    JsonSchema,
    anything,
    boolean,
    fixed_list,
    integer,
    listing,
    mapping,
    number,
    obj,
    or_empty,
    or_null,
    pair,
    rows,
    share,
    string,
)

STATS_VERSION = 3
"""Raised whenever a key of stats.json changes its name or meaning."""


def stats_schema() -> JsonSchema:
    """The JSON Schema (draft 2020-12) of stats.json: every key is required, no other is allowed."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "stats.json",
        "description": f"Every figure of a run's report, version {STATS_VERSION}.",
        **obj("", **_SECTIONS),
    }


def _distribution(description: str) -> JsonSchema:
    bin_ = fixed_list("", integer(), integer(), integer())
    return obj(
        description,
        count=integer("how many values"),
        sum=integer("exact"),
        mean=or_null(number("exact, to two digits")),
        minimum=or_null(integer("exact")),
        maximum=or_null(integer("exact")),
        percentiles=mapping("by the percentage, to within 0.4 %; exact under 256", or_null(integer())),
        histogram=listing("[low, high, count] with low ≤ value < high; four bins an octave, empty ones left out", bin_),
    )


def _ranked(key: str, many: str, **more: JsonSchema) -> JsonSchema:
    distinct = obj("", count=integer("how many"), exact=boolean("or a HyperLogLog's estimate, of standard error 0.8 %"))
    return obj(
        f"The most frequent {many}.",
        of=string("what the ranking goes by: corpus, or urls where no document of the corpus has one"),
        distinct=mapping(f"how many {many} there are, by dataset: urls and corpus", distinct),
        exact=boolean("whether the list is proven to be that of the most frequent; the counts always are exact"),
        top=rows(
            "the most frequent first",
            **{key: string("its name")},
            documents=integer("of the corpus"),
            share=share("of all"),
            urls=or_null(integer("collected; null where urls/ is not there")),
            survival=share("documents by URLs"),
        ),
        **more,
    )


def _document(description: str, **more: JsonSchema) -> JsonSchema:
    return obj(description, url_id=integer("of the row"), url=or_null(string("canonical")), **more)


_TITLE = or_null(string("of the page"))
_TEXT = {"characters": integer("of the complete text"), "text": string("its first 3,000 characters")}
_FAILURES = mapping("URLs without a page, by reason, the most frequent first", integer())
_THROUGH = {name: integer(f"rows of {name}/") for name in ("urls", "pages", "documents", "clean", "corpus")}


def _of(*datasets: str) -> dict[str, JsonSchema]:
    return {name: _THROUGH[name] for name in datasets}


_ANSWERED = {
    "urls": integer("asked for"),
    "pages": integer("URLs that gave one"),
    "failures": _FAILURES,
    "mean_milliseconds": or_null(number("from request to last byte, of its pages fetched live")),
    "mean_body_bytes": or_null(number("of its pages, decoded")),
    "share": share("pages by URLs"),
}
_SHOWN = obj(
    "what the sampler shows",
    samples=share("of the samples, those that hold a token of such a document"),
    tokens=share("of all tokens shown, end-of-text counted in"),
)


def _domains_of(description: str) -> JsonSchema:
    return obj(
        f"Domains {description}, among the 5,000 of most documents.",
        count=integer("how many"),
        top=listing("the 20 of most documents", fixed_list("", string("domain"), integer("documents"))),
    )


_SECTIONS: dict[str, JsonSchema] = {
    "schema_version": {"const": STATS_VERSION, "description": "The version of this schema."},
    "funnel": rows(
        "What each stage let through, in order.",
        stage=string("its name"),
        dataset=string("the dataset it wrote"),
        entered=integer("rows that entered"),
        left=integer("rows that left; of dedupe, which only decides, those that stay"),
        share=share("left of entered"),
        bytes=integer("of the files with its rows; of pages, of the WARC files too"),
        rejected=rows(
            "by reason, the most frequent first",
            reason=string("as in rejects/"),
            meaning=string("in words"),
            count=integer("rows"),
            share=share("of those that entered"),
            sample=listing(
                "rows at random, by a hash of their ids",
                _document("", detail=or_null(string("what was found"))),
            ),
        ),
    ),
    "totals": obj(
        "What went in, and what came of it.",
        entered=integer("rows that entered the first stage"),
        documents=integer("of the corpus"),
        text_bytes=integer("of the corpus"),
        tokens=integer("of both splits"),
    ),
    "domains": _ranked(
        "domain",
        "domains",
        search=listing(
            "[domain, documents of the corpus, URLs collected or null] of at most 5,000, those of most documents first",
            fixed_list("", string(), integer(), or_null(integer())),
        ),
    ),
    "subreddits": _ranked("subreddit", "subreddits"),
    "years": rows(
        "Rows by the year of the URL's first submission; the datasets that are there.",
        "urls",
        "pages",
        "corpus",
        year=integer("UTC"),
        **_of("urls", "pages", "corpus"),
    ),
    "languages": rows(
        "Rows by language: declared by the page in documents, detected in clean and corpus.",
        "documents",
        "clean",
        "corpus",
        language=string("ISO 639-1 code, or none"),
        **_of("documents", "clean", "corpus"),
    ),
    "scores": rows(
        "Rows by score on Reddit.",
        "urls",
        "pages",
        "corpus",
        low=or_null(integer("included; null for no bound")),
        high=or_null(integer("included; null for no bound")),
        **_of("urls", "pages", "corpus"),
        survival=share("corpus by urls"),
    ),
    "lengths": obj(
        "Lengths of the corpus' documents.",
        characters=_distribution("of the text"),
        bytes=_distribution("of the text in UTF-8"),
        words=_distribution("split at white space"),
        tokens=_distribution("without end-of-text"),
    ),
    "tokens": or_empty(
        obj(
            "The tokenizer, and the use of its vocabulary.",
            tokenizer=string("its name"),
            vocabulary=integer("token ids there are"),
            vocabulary_used=integer("token ids that occur"),
            vocabulary_used_share=share("of those there are"),
            occurrences=listing(
                "[low, high, ids]: token ids that occur low ≤ n < high times; one bin an octave",
                fixed_list("", integer(), integer(), integer()),
            ),
            splits=mapping("train and val", obj("", documents=integer("of it"), tokens=integer("of it"))),
            bytes_per_token=or_null(number("of text")),
        )
    ),
    "duplicates": or_empty(
        obj(
            "What dedupe decided; empty where it did not run.",
            examined=integer("documents that were looked at"),
            exact=integer("exact copies to be removed"),
            near=integer("near-duplicates to be removed"),
            share=share("of all examined"),
            clusters=obj(
                "groups of documents of which one stays",
                count=integer("how many"),
                sizes=mapping("how many clusters have that many documents", integer()),
                largest=rows(
                    "the 20 largest",
                    size=integer("documents, the one that stays included"),
                    kept=_document("the one that stays"),
                    removed=listing(
                        "up to five of the others",
                        _document("", rule=string("exact or near"), similarity=number("exact Jaccard")),
                    ),
                ),
            ),
            similarities=rows(
                "of the near-duplicates",
                low=number("included"),
                high=number("not included"),
                count=integer("near-duplicates"),
                mean_shared_bands=number("LSH bands in which the two agree"),
            ),
            lsh=obj(
                "how candidates were found",
                threshold=or_null(number("least similarity of a near-duplicate")),
                num_perm=or_null(integer("MinHash permutations")),
                bands=or_null(integer("LSH bands")),
                rows=or_null(integer("MinHash values in a band")),
                curve=or_null(listing("[similarity, probability that a pair is compared]", pair("", number()))),
            ),
            domains=rows(
                "the 50 that lost most documents",
                domain=string("a host"),
                documents=integer("examined"),
                removed=integer("by export"),
                share=share("removed of examined"),
            ),
            removals=rows(
                "20 decisions at random, near-duplicates first",
                rule=string("exact or near"),
                similarity=number("exact Jaccard"),
                shared_bands=integer("0 for exact"),
                removed=_document("the document that goes"),
                kept=_document("the document that stays"),
                segments=listing(
                    "[same, differs or skipped; words of the removed text; words of the kept one], of the first "
                    "2,000 words; of skipped, how many. Empty where a text is of another corpus",
                    fixed_list("", {"enum": ["same", "differs", "skipped"]}, string(), string()),
                ),
            ),
        )
    ),
    "fetch": or_empty(
        obj(
            "What happened to the URLs that were asked for; empty where nothing was fetched.",
            sources=mapping("pages, by source: live, archive, commoncrawl or wayback", integer()),
            distances=rows(
                "by source",
                source=string("as in sources"),
                pages=integer("from there"),
                before=integer("of them captured before the earliest submission"),
                days=_distribution("between the earliest submission and the capture, where both dates are known"),
            ),
            statuses=mapping("pages, by HTTP status", integer()),
            failures=_FAILURES,
            milliseconds=_distribution("from request to last byte, of pages fetched live"),
            body_bytes=_distribution("of the decoded bodies"),
            domains=rows(
                "the 50 of most URLs",
                domain=string("a host"),
                **_ANSWERED,
            ),
            captured=or_null(string("month of the last capture, YYYY-MM, from which ages count")),
            ages=rows(
                "by the link's age",
                years=integer("whole years from the month of the first submission to that of the last capture"),
                **_ANSWERED,
            ),
        )
    ),
    "filters": obj(
        "What the filters of clean, and export, took away.",
        lost=rows(
            "by reason",
            stage=string("clean or export"),
            reason=string("as in rejects/"),
            documents=integer("dropped"),
            characters=integer("of their texts, of clean as they were extracted"),
            bytes=integer("of their texts in UTF-8"),
            tokens=integer("that their texts are, by the run's tokenizer"),
            share=share("of all tokens lost to a filter or in the corpus"),
        ),
        dropped=rows(
            "documents to read, at random, by the filter of clean that dropped them",
            stage=string("clean"),
            reason=string("as in rejects/"),
            meaning=string("in words"),
            documents=listing(
                "as they were extracted",
                _document("", title=_TITLE, detail=or_null(string("what was found")), **_TEXT),
            ),
        ),
        signals=rows(
            (
                "what the documents measure; bin 0 is under edges[0], bin k from edges[k - 1] to under edges[k], the "
                "last one from the last edge"
            ),
            signal=string("FILTER.SIGNAL, or words or language_score of the document"),
            filter=or_null(string("it belongs to")),
            on=boolean("whether that filter rejects"),
            measured_share=number("of the documents: all where it does, else a sample"),
            minimum=or_null(number("limit, included")),
            maximum=or_null(number("limit, included")),
            edges=listing("between the bins", number()),
            kept=listing("documents that stay, by bin", integer()),
            dropped=listing("documents that clean rejects for whatever reason, by bin", integer()),
            outside=integer("documents that stay though they break a limit: what the filter would remove"),
            outside_share=share("of those that stay and were measured"),
        ),
    ),
    "sampler": or_empty(
        obj(
            "What the trainer's samplers show of documents, by their length, from all their lengths; of more than "
            "1,048,576 documents, from so many evenly by rank. A length is known to within 0.4 %, under 256 exactly.",
            context=integer("tokens of a sample"),
            long_min_tokens=integer("of documents that longbiased prefers"),
            long_fraction=number("of its samples that are from those"),
            rows=rows(
                "by the documents' length in tokens",
                at_least=integer("included"),
                below=or_null(integer("not included; null for no bound")),
                documents=share("of all documents"),
                packed=_SHOWN,
                longbiased=or_null(_SHOWN),
            ),
        )
    ),
    "likeness": obj(
        "How like WebText and OpenWebText the corpus is.",
        lengths=rows(
            "next to OpenWebText's published lengths",
            what=string("tokens_per_document or bytes_per_token"),
            corpus=or_null(number("of this one")),
            openwebtext=number("of OpenWebText"),
            ratio=or_null(number("the one by the other")),
            off=boolean("whether the ratio is under 0.8 or over 1.25"),
        ),
        sites=or_null(
            obj(
                "next to the list of --reference_domains; a site is a host without its public suffix and subdomains",
                reference=string("the file's name"),
                listed=integer("sites of the list"),
                datasets=rows(
                    "urls and corpus, where they are there",
                    dataset=string("its name"),
                    rows=integer("with a domain"),
                    of_listed_sites=share("of the rows"),
                    sites_present=integer("listed sites with a row"),
                    rank_correlation=or_null(number("Spearman's, over all sites listed; 0 for those without a row")),
                ),
                top=rows(
                    "the first 30 of the list",
                    "urls",
                    "corpus",
                    site=string("its name"),
                    reference=integer("its count in the list"),
                    **_of("urls", "corpus"),
                ),
            )
        ),
    ),
    "documents": listing(
        "Documents of the corpus at random.",
        _document(
            "",
            title=_TITLE,
            score=or_null(integer("on Reddit")),
            language=or_null(string("detected")),
            n_words=integer("split at white space"),
            page=or_null(string("of some: the page's HTML without scripts, styles and images")),
            **_TEXT,
        ),
    ),
    "training": or_null(
        obj(
            "Losses of the training run that --training names, else null.",
            name=string("the folder's name"),
            last_step=integer("steps done"),
            steps=listing(
                "[step, training loss, validation loss or null], at most 300 and those with a validation",
                fixed_list("", integer(), number(), or_null(number())),
            ),
        )
    ),
    "settings": mapping(
        "By dataset.",
        obj(
            "",
            stage=string("that wrote it"),
            stage_version=integer("of its code"),
            fingerprint=string("SHA-256 of what its bytes follow from"),
            sources=listing("files from outside the run: name, bytes, digest", anything()),
            options=anything("the options that shaped its bytes"),
            versions=mapping("of the libraries that did", string()),
        ),
    ),
    "comparison": or_null(
        obj(
            "Two runs side by side, with --compare, else null. Of each pair, the first is this run's figure, the "
            "second the other's.",
            other=string("the folder's name"),
            totals=mapping("as in totals", pair("", integer())),
            bytes_per_token=pair("of text", or_null(number())),
            duplicates=pair("share of the examined documents", share()),
            stages=rows(
                "as in funnel",
                dataset=string("its name"),
                entered=pair("rows that entered; null where the stage did not run", or_null(integer())),
                left=pair("rows that left", or_null(integer())),
                share=pair("left of entered", share()),
            ),
            rejected=rows(
                "as in funnel",
                stage=string("its name"),
                reason=string("as in rejects/"),
                count=pair("rows", integer()),
                share=pair("of those that entered", share()),
            ),
            lengths=mapping(
                "as in lengths",
                obj(
                    "",
                    mean=pair("of all documents", or_null(number())),
                    percentiles=mapping("by the percentage", pair("", or_null(integer()))),
                ),
            ),
            token_histograms=pair(
                "[low, high, share of the documents] of both",
                listing("", fixed_list("", integer(), integer(), number())),
            ),
            domains=rows(
                "the 30 most frequent of both",
                domain=string("a host"),
                share=pair("of the corpus; null where not listed", share()),
            ),
            settings=rows(
                "options in which the two differ",
                stage=string("its name"),
                option=string("its name"),
                values=pair("of the option; null where a run has none", anything()),
            ),
        )
    ),
    "months": or_null(
        listing(
            "The runs that this one builds on (--base), the oldest first, and this run; null for a run without any. "
            "Each run's figures are of what it added.",
            obj(
                "",
                run=string("the folder's name"),
                urls=or_null(integer("new URLs; null for imported text, which has none")),
                seen_before=or_null(integer("URLs that an earlier run had")),
                documents=or_null(integer("new documents in the corpus")),
                tokens=or_null(integer("of these")),
                examined=or_null(integer("documents that dedupe compared")),
                repeat_month=integer("of these, duplicates of a document of the same run"),
                repeat_past=integer("duplicates of a document of an earlier run"),
                domains=or_null(integer("distinct domains of the new documents; null for a base without a report")),
                gained=or_null(_domains_of("that no earlier run has; null where an earlier or this report is missing")),
                lost=or_null(_domains_of("that the run before has and this one has not")),
            ),
        )
    ),
}
