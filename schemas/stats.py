"""The structure of report/stats.json: msgspec Structs, from which its JSON Schema and its reference are generated.

stats = msgspec.json.decode(open("run/report/stats.json", "rb").read(), type=schemas.stats.Stats)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

STATS_VERSION = 6
"""Raised whenever a key of stats.json changes its name or meaning."""


def stats_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of stats.json: keys without a default are required, no other is allowed."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Stats)}


def _is(description: str) -> Meta:
    return Meta(description=description)


Part = Annotated[float, Meta(ge=0, le=1)]
Share = Part | None
Bin = tuple[int, int, int]
Rows = Annotated[int | UnsetType, _is("rows of that dataset; left out if the run does not have it")]
Integers = tuple[int | None, int | None]
Numbers = tuple[float | None, float | None]
Shares = tuple[Share, Share]


class Figures(Struct, forbid_unknown_fields=True):
    """Base of all structs: an unknown key is an error."""


class Stats(Figures):
    """Every figure of a run's report."""

    schema_version: Annotated[Literal[6], _is("The version of this schema.")]
    funnel: Annotated[list[Stage], _is("What entered and left each stage, in order.")]
    totals: Annotated[Totals, _is("What entered the run, and what it made.")]
    domains: Annotated[Domains, _is("The most frequent domains.")]
    subreddits: Annotated[Subreddits, _is("The most frequent subreddits.")]
    years: Annotated[list[Year], _is("Rows by the year of the URL's first submission.")]
    languages: Annotated[list[Language], _is("Rows by language: declared in documents, detected in clean and corpus.")]
    scores: Annotated[list[Score], _is("Rows by Reddit score.")]
    lengths: Annotated[Lengths, _is("Lengths of the corpus's documents.")]
    tokens: Annotated[Tokens | None, _is("The tokenizer, and how much of its vocabulary occurs.")]
    duplicates: Annotated[Duplicates | None, _is("The decisions of dedupe; null if it did not run.")]
    fetch: Annotated[Fetch | None, _is("The outcome of the requests; null if nothing was fetched.")]
    filters: Annotated[Filters, _is("Documents that the filters of clean, and export, removed.")]
    sampler: Annotated[Sampler | None, _is("What the trainer's samplers show, by length of document.")]
    likeness: Annotated[Likeness, _is("Comparison of the corpus with WebText and OpenWebText.")]
    documents: Annotated[list[Document], _is("Random documents of the corpus.")]
    training: Annotated[Training | None, _is("Losses of the training run of --training; null without it.")]
    settings: Annotated[dict[str, Settings], _is("The settings that made each dataset, by its name.")]
    times: Annotated[list[Time] | None, _is("When and where each stage last ran; null without --times.")]
    comparison: Annotated[Comparison | None, _is("Comparison with another run; null without --compare.")]
    months: Annotated[list[Month] | None, _is("The runs of the chain, up to this one; null without --base.")]


class Row(Figures):
    url_id: Annotated[int, _is("the row's id")]
    url: Annotated[str | None, _is("canonical URL")]


class Distribution(Figures):
    count: Annotated[int, _is("number of values")]
    sum: Annotated[int, _is("their sum")]
    mean: Annotated[float | None, _is("their mean, with two decimals")]
    minimum: Annotated[int | None, _is("the smallest value")]
    maximum: Annotated[int | None, _is("the largest value")]
    percentiles: Annotated[dict[str, int | None], _is("by percentage: the least value that so many do not exceed")]
    histogram: Annotated[
        list[Bin], _is("[low, high, count], low ≤ value < high; four bins per octave, without empty ones")
    ]


class RejectedRow(Row):
    detail: Annotated[str | None, _is("what was found")]


class Rejected(Figures):
    reason: Annotated[str, _is("reason, as in rejects/")]
    meaning: Annotated[str, _is("the reason's meaning")]
    count: Annotated[int, _is("number of rows")]
    share: Annotated[Share, _is("share of the rows that entered")]
    sample: Annotated[list[RejectedRow], _is("random rows, chosen by a hash of their ids")]


class Stage(Figures):
    stage: Annotated[str, _is("name of the stage")]
    dataset: Annotated[str, _is("the dataset it wrote")]
    entered: Annotated[int, _is("rows that entered")]
    left: Annotated[int, _is("rows that left; for dedupe, the documents that are kept")]
    share: Annotated[Share, _is("left / entered")]
    bytes: Annotated[int, _is("bytes of the files with its rows, and of the WARC files of pages")]
    rejected: Annotated[list[Rejected], _is("rejected rows by reason, the most frequent first")]


class Totals(Figures):
    entered: Annotated[int, _is("rows that entered the first stage")]
    documents: Annotated[int, _is("documents of the corpus")]
    text_bytes: Annotated[int, _is("bytes of their texts in UTF-8")]
    tokens: Annotated[int, _is("tokens of both splits")]


class Settings(Figures):
    stage: Annotated[str, _is("stage that wrote it")]
    stage_version: Annotated[int, _is("version of the stage's code")]
    fingerprint: Annotated[str, _is("SHA-256 of what determines its bytes")]
    sources: Annotated[list[Any], _is("files from outside the run: name, bytes, digest")]
    options: Annotated[dict[str, Any], _is("the options that shaped its bytes")]
    versions: Annotated[dict[str, str], _is("versions of the libraries that shaped its bytes")]


class Frequent(Figures):
    documents: Annotated[int, _is("documents of the corpus")]
    share: Annotated[Share, _is("share of all documents of the corpus")]
    urls: Annotated[int | None, _is("URLs collected; null without urls/")]
    survival: Annotated[Share, _is("documents / URLs")]


class FrequentDomain(Frequent):
    domain: Annotated[str, _is("the domain")]


class FrequentSubreddit(Frequent):
    subreddit: Annotated[str, _is("the subreddit")]


class Ranked(Figures):
    of: Annotated[str, _is("dataset that ranks them: corpus, or urls if no document of the corpus has one")]
    distinct: Annotated[dict[str, int], _is("number of distinct ones in urls and corpus")]


class Domains(Ranked):
    top: Annotated[list[FrequentDomain], _is("the most frequent, in order")]
    search: Annotated[
        list[tuple[str, int, int | None]],
        _is("[domain, documents of the corpus, URLs collected or null], at most 5,000"),
    ]


class Subreddits(Ranked):
    top: Annotated[list[FrequentSubreddit], _is("the most frequent, in order")]


class Through(Figures):
    urls: Rows = UNSET
    pages: Rows = UNSET
    corpus: Rows = UNSET


class Year(Through, kw_only=True):
    year: Annotated[int, _is("year in UTC")]


class Language(Figures):
    language: Annotated[str, _is("ISO 639-1 code, or none")]
    documents: Rows = UNSET
    clean: Rows = UNSET
    corpus: Rows = UNSET


class Score(Through, kw_only=True):
    low: Annotated[int | None, _is("lower bound, included; null for none")]
    high: Annotated[int | None, _is("upper bound, included; null for none")]
    survival: Annotated[Share, _is("corpus / urls")]


class Lengths(Figures):
    characters: Annotated[Distribution, _is("characters of each text")]
    bytes: Annotated[Distribution, _is("bytes of each text in UTF-8")]
    words: Annotated[Distribution, _is("words of each text, split at white space")]
    tokens: Annotated[Distribution, _is("tokens of each text, without end-of-text")]


class Split(Figures):
    documents: Annotated[int, _is("documents of the split")]
    tokens: Annotated[int, _is("tokens of the split")]


class Tokens(Figures):
    tokenizer: Annotated[str, _is("name of the tokenizer")]
    vocabulary: Annotated[int, _is("size of the vocabulary")]
    vocabulary_used: Annotated[int, _is("number of token ids that occur")]
    vocabulary_used_share: Annotated[Share, _is("vocabulary_used / vocabulary")]
    occurrences: Annotated[list[Bin], _is("[low, high, ids]: ids that occur low ≤ n < high times; one bin per octave")]
    splits: Annotated[dict[str, Split], _is("the splits, train and val")]
    bytes_per_token: Annotated[float | None, _is("bytes of text per token")]


class Shown(Figures):
    samples: Annotated[Part, _is("share of samples that contain a token of such a document")]
    tokens: Annotated[Part, _is("share of all tokens shown, including end-of-text")]


class Mixture(Figures):
    at_least: Annotated[int, _is("least length in tokens")]
    below: Annotated[int | None, _is("length below which documents count; null for no bound")]
    documents: Annotated[Part, _is("share of all documents")]
    packed: Annotated[Shown, _is("what the packed sampler shows")]
    longbiased: Annotated[Shown | None, _is("what the longbiased sampler shows; null if no document is long")]


class Sampler(Figures):
    """Computed from the lengths of all documents; of more than 1,048,576, from that many at even ranks."""

    context: Annotated[int, _is("length of a sample in tokens")]
    long_min_tokens: Annotated[int, _is("least length of the documents that longbiased prefers")]
    long_fraction: Annotated[float, _is("share of its samples that come from those")]
    rows: Annotated[list[Mixture], _is("by the documents' length in tokens")]


class Training(Figures):
    name: Annotated[str, _is("name of the folder")]
    last_step: Annotated[int, _is("number of steps done")]
    steps: Annotated[
        list[tuple[int, float, float | None]],
        _is("[step, training loss, validation loss or null], at most 300, and all with a validation loss"),
    ]


class Member(Row):
    rule: Annotated[str, _is("exact or near")]
    similarity: Annotated[float, _is("exact Jaccard similarity")]


class Cluster(Figures):
    size: Annotated[int, _is("number of documents, including the kept one")]
    kept: Annotated[Row, _is("the document that is kept")]
    removed: Annotated[list[Member], _is("up to five documents that are removed")]


class Clusters(Figures):
    count: Annotated[int, _is("number of clusters")]
    sizes: Annotated[dict[str, int], _is("number of clusters by their number of documents")]
    largest: Annotated[list[Cluster], _is("the 20 largest clusters")]


class Similarity(Figures):
    low: Annotated[float, _is("least similarity, included")]
    high: Annotated[float, _is("upper bound, not included")]
    count: Annotated[int, _is("number of near-duplicates")]
    mean_shared_bands: Annotated[float, _is("mean number of LSH bands in which the two documents agree")]


class Lsh(Figures):
    threshold: Annotated[float | None, _is("least similarity of near-duplicates")]
    num_perm: Annotated[int | None, _is("number of MinHash permutations")]
    bands: Annotated[int | None, _is("number of LSH bands")]
    rows: Annotated[int | None, _is("MinHash values per band")]
    curve: Annotated[list[tuple[float, float]] | None, _is("[similarity, probability that a pair is compared]")]


class RemovedDomain(Figures):
    domain: Annotated[str, _is("the host")]
    documents: Annotated[int, _is("documents examined")]
    removed: Annotated[int, _is("documents removed by export")]
    share: Annotated[Share, _is("removed / documents")]


class Removal(Figures):
    rule: Annotated[str, _is("exact or near")]
    similarity: Annotated[float, _is("exact Jaccard similarity")]
    shared_bands: Annotated[int, _is("LSH bands in which the two documents agree; 0 for exact")]
    removed: Annotated[Row, _is("the document that is removed")]
    kept: Annotated[Row, _is("the document that is kept")]
    segments: Annotated[
        list[tuple[Literal["same", "differs", "skipped"], str, str]],
        _is(
            "[same, differs or skipped; words of the removed text; words of the kept text], of the first 2,000 words; "
            "for skipped, the number of words. Empty if one of the texts is in another corpus"
        ),
    ]


class Duplicates(Figures):
    examined: Annotated[int, _is("documents compared")]
    exact: Annotated[int, _is("exact duplicates to be removed")]
    near: Annotated[int, _is("near-duplicates to be removed")]
    share: Annotated[Share, _is("share of the documents examined that is to be removed")]
    clusters: Annotated[Clusters, _is("groups of documents, of which one is kept")]
    similarities: Annotated[list[Similarity], _is("near-duplicates by similarity")]
    lsh: Annotated[Lsh, _is("how candidate pairs were found")]
    domains: Annotated[list[RemovedDomain], _is("the 50 that lost the most documents")]
    removals: Annotated[list[Removal], _is("20 random decisions, near-duplicates first")]


class Answered(Figures):
    urls: Annotated[int, _is("URLs requested")]
    pages: Annotated[int, _is("URLs that gave a page")]
    failures: Annotated[dict[str, int], _is("URLs without a page, by reason, the most frequent first")]
    mean_milliseconds: Annotated[float | None, _is("mean time from request to last byte, over its pages fetched live")]
    mean_body_bytes: Annotated[float | None, _is("mean size of its pages, decoded")]
    share: Annotated[Share, _is("pages / urls")]


class AnsweredDomain(Answered):
    domain: Annotated[str, _is("the host")]


class AnsweredAge(Answered):
    years: Annotated[int, _is("complete years from the first submission's month to the last capture's")]


class Distance(Figures):
    source: Annotated[str, _is("source, as in sources")]
    pages: Annotated[int, _is("pages from this source")]
    before: Annotated[int, _is("those captured before the earliest submission")]
    days: Annotated[Distribution, _is("days from the earliest submission to the capture, if both are known")]


class Fetch(Figures):
    sources: Annotated[dict[str, int], _is("number of pages by source: live, archive, commoncrawl or wayback")]
    distances: Annotated[list[Distance], _is("time between submission and capture, by source")]
    statuses: Annotated[dict[str, int], _is("number of pages by HTTP status")]
    failures: Annotated[dict[str, int], _is("URLs without a page, by reason, the most frequent first")]
    milliseconds: Annotated[Distribution, _is("time from request to last byte, for pages fetched live")]
    body_bytes: Annotated[Distribution, _is("size of the decoded bodies")]
    domains: Annotated[list[AnsweredDomain], _is("the 50 with the most URLs")]
    captured: Annotated[str | None, _is("month of the last capture, YYYY-MM, from which ages count")]
    ages: Annotated[list[AnsweredAge], _is("by the age of the link")]


class Lost(Figures):
    stage: Annotated[str, _is("clean or export")]
    reason: Annotated[str, _is("reason, as in rejects/")]
    documents: Annotated[int, _is("documents dropped")]
    characters: Annotated[int, _is("characters of their texts, for clean as extracted")]
    bytes: Annotated[int, _is("bytes of their texts in UTF-8")]
    tokens: Annotated[int, _is("tokens of their texts, by the run's tokenizer")]
    share: Annotated[Share, _is("share of all tokens, lost or in the corpus")]


class DroppedDocument(RejectedRow):
    title: Annotated[str | None, _is("title of the page")]
    characters: Annotated[int, _is("characters of the complete text")]
    text: Annotated[str, _is("first 3,000 characters of the text")]


class Dropped(Figures):
    stage: Annotated[str, _is("always clean")]
    reason: Annotated[str, _is("reason, as in rejects/")]
    meaning: Annotated[str, _is("the reason's meaning")]
    documents: Annotated[list[DroppedDocument], _is("documents as extracted")]


class Filters(Figures):
    lost: Annotated[list[Lost], _is("lost documents, by reason")]
    dropped: Annotated[list[Dropped], _is("random documents that clean dropped, by filter")]


class LengthNextTo(Figures):
    what: Annotated[str, _is("tokens_per_document or bytes_per_token")]
    corpus: Annotated[float | None, _is("value of this corpus")]
    openwebtext: Annotated[float, _is("value of OpenWebText")]
    ratio: Annotated[float | None, _is("corpus / openwebtext")]
    off: Annotated[bool, _is("whether the ratio is below 0.8 or above 1.25")]


class DatasetSites(Figures):
    dataset: Annotated[str, _is("name of the dataset")]
    rows: Annotated[int, _is("rows with a domain")]
    of_listed_sites: Annotated[Share, _is("share of the rows")]
    sites_present: Annotated[int, _is("number of listed sites that have a row")]
    rank_correlation: Annotated[float | None, _is("Spearman's, over all listed sites, with 0 for sites without a row")]


class Site(Figures):
    site: Annotated[str, _is("name of the site: its hosts' name without public suffix and subdomains")]
    reference: Annotated[int, _is("its count in the reference list")]
    urls: Rows = UNSET
    corpus: Rows = UNSET


class Sites(Figures):
    reference: Annotated[str, _is("name of the file")]
    listed: Annotated[int, _is("number of sites in the list")]
    datasets: Annotated[list[DatasetSites], _is("urls and corpus, if the run has them")]
    top: Annotated[list[Site], _is("the first 30 sites of the list")]


class Likeness(Figures):
    lengths: Annotated[list[LengthNextTo], _is("comparison with OpenWebText's published lengths")]
    sites: Annotated[Sites | None, _is("comparison with the list given with --reference_domains")]


class Document(Row):
    title: Annotated[str | None, _is("title of the page")]
    score: Annotated[int | None, _is("Reddit score")]
    language: Annotated[str | None, _is("detected language")]
    n_words: Annotated[int, _is("words of the text, split at white space")]
    page: Annotated[str | None, _is("for some documents, the page's HTML without scripts, styles and images")]
    characters: Annotated[int, _is("characters of the complete text")]
    text: Annotated[str, _is("first 3,000 characters of the text")]


class ComparedStage(Figures):
    dataset: Annotated[str, _is("name of the dataset")]
    entered: Annotated[Integers, _is("rows that entered; null if the stage did not run")]
    left: Annotated[Integers, _is("rows that left")]
    share: Annotated[Shares, _is("left / entered")]


class ComparedReason(Figures):
    stage: Annotated[str, _is("name of the stage")]
    reason: Annotated[str, _is("reason, as in rejects/")]
    count: Annotated[tuple[int, int], _is("number of rows")]
    share: Annotated[Shares, _is("share of the rows that entered")]


class ComparedLengths(Figures):
    mean: Annotated[Numbers, _is("mean over all documents")]
    percentiles: Annotated[dict[str, Integers], _is("by percentage")]


class ComparedDomain(Figures):
    domain: Annotated[str, _is("the host")]
    share: Annotated[Shares, _is("share of the corpus; null if not listed")]


class ComparedOption(Figures):
    stage: Annotated[str, _is("name of the stage")]
    option: Annotated[str, _is("name of the option")]
    values: Annotated[tuple[Any, Any], _is("values of the option; null if a run does not have it")]


_ShareBins = list[tuple[int, int, float]]


class Comparison(Figures):
    """In each pair, the first figure is of this run, the second of the other."""

    other: Annotated[str, _is("name of the folder")]
    totals: Annotated[dict[str, tuple[int, int]], _is("as in totals")]
    bytes_per_token: Annotated[Numbers, _is("bytes of text per token")]
    duplicates: Annotated[Shares, _is("share of the examined documents that is to be removed")]
    stages: Annotated[list[ComparedStage], _is("as in funnel")]
    rejected: Annotated[list[ComparedReason], _is("as in funnel")]
    lengths: Annotated[dict[str, ComparedLengths], _is("as in lengths")]
    token_histograms: Annotated[
        tuple[_ShareBins, _ShareBins], _is("[low, high, share of the documents], for both runs")
    ]
    domains: Annotated[list[ComparedDomain], _is("the 30 most frequent domains of both runs")]
    settings: Annotated[list[ComparedOption], _is("options that differ")]


class MonthDomains(Figures):
    count: Annotated[int, _is("their number among the 5,000 with the most documents")]
    top: Annotated[list[tuple[str, int]], _is("the 20 with the most documents, and how many")]


class Time(Figures):
    stage: Annotated[str, _is("name of the stage")]
    started: Annotated[str, _is("ISO 8601, UTC")]
    seconds: Annotated[float, _is("seconds until its output was published")]
    host: Annotated[str | None, _is("the machine; on a cluster, the runner; null if unknown")]
    workers: Annotated[str | None, _is("processes; null on a cluster")]


class Month(Figures):
    """One run of the chain, the oldest first; the figures count what it added."""

    run: Annotated[str, _is("name of the folder")]
    report: Annotated[str | None, _is("path to its index.html from this one; null unless in a folder next to it")]
    urls: Annotated[int | None, _is("new URLs; null for imported text, which has none")]
    seen_before: Annotated[int | None, _is("URLs that an earlier run had")]
    documents: Annotated[int | None, _is("new documents in the corpus")]
    tokens: Annotated[int | None, _is("tokens of these documents")]
    examined: Annotated[int | None, _is("documents that dedupe compared")]
    repeat_month: Annotated[int, _is("those that duplicate a document of the same run")]
    repeat_past: Annotated[int, _is("those that duplicate a document of an earlier run")]
    domains: Annotated[int | None, _is("distinct domains of the new documents; null for a base without a report")]
    gained: Annotated[MonthDomains | None, _is("domains that no earlier run has; null if a report is missing")]
    lost: Annotated[MonthDomains | None, _is("domains that the previous run has and this one does not")]
