"""What report/stats.json holds: msgspec Structs, from which its JSON Schema and its reference are generated.

stats = msgspec.json.decode(open("run/report/stats.json", "rb").read(), type=schemas.stats.Stats)
"""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

STATS_VERSION = 5
"""Raised whenever a key of stats.json changes its name or meaning."""


def stats_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of stats.json: keys without a default are required, no other is allowed."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Stats)}


def _is(description: str) -> Meta:
    return Meta(description=description)


Part = Annotated[float, Meta(ge=0, le=1)]
Share = Part | None
Bin = tuple[int, int, int]
Rows = Annotated[int | UnsetType, _is("rows of that dataset, where it is there")]
Integers = tuple[int | None, int | None]
Numbers = tuple[float | None, float | None]
Shares = tuple[Share, Share]


class Figures(Struct, forbid_unknown_fields=True):
    """Base of all: an unknown key is an error."""


class Stats(Figures):
    """Every figure of a run's report."""

    schema_version: Annotated[Literal[5], _is("The version of this schema.")]
    funnel: Annotated[list[Stage], _is("What each stage let through, in order.")]
    totals: Annotated[Totals, _is("What went in, and what came of it.")]
    domains: Annotated[Domains, _is("The most frequent domains.")]
    subreddits: Annotated[Subreddits, _is("The most frequent subreddits.")]
    years: Annotated[list[Year], _is("Rows by the year of the URL's first submission; the datasets that are there.")]
    languages: Annotated[list[Language], _is("Rows by language: declared in documents, detected in clean and corpus.")]
    scores: Annotated[list[Score], _is("Rows by score on Reddit.")]
    lengths: Annotated[Lengths, _is("Lengths of the corpus' documents.")]
    tokens: Annotated[Tokens | None, _is("The tokenizer, and the use of its vocabulary.")]
    duplicates: Annotated[Duplicates | None, _is("What dedupe decided; null where it did not run.")]
    fetch: Annotated[Fetch | None, _is("What happened to the URLs asked for; null where nothing was fetched.")]
    filters: Annotated[Filters, _is("What the filters of clean, and export, took away.")]
    sampler: Annotated[Sampler | None, _is("What the trainer's samplers show of documents, by their length.")]
    likeness: Annotated[Likeness, _is("How like WebText and OpenWebText the corpus is.")]
    documents: Annotated[list[Document], _is("Documents of the corpus at random.")]
    training: Annotated[Training | None, _is("Losses of the training run that --training names, else null.")]
    settings: Annotated[dict[str, Settings], _is("By dataset.")]
    times: Annotated[list[Time] | None, _is("When and where each stage ran last, with --times, else null.")]
    comparison: Annotated[Comparison | None, _is("This run and another, with --compare, else null.")]
    months: Annotated[list[Month] | None, _is("The runs that this one builds on, and this run; null without --base.")]


class Row(Figures):
    url_id: Annotated[int, _is("of the row")]
    url: Annotated[str | None, _is("canonical")]


class Distribution(Figures):
    count: Annotated[int, _is("how many values")]
    sum: Annotated[int, _is("of the values")]
    mean: Annotated[float | None, _is("to two digits")]
    minimum: Annotated[int | None, _is("of the values")]
    maximum: Annotated[int | None, _is("of the values")]
    percentiles: Annotated[dict[str, int | None], _is("by the percentage: the least value with so many up to it")]
    histogram: Annotated[
        list[Bin], _is("[low, high, count], low ≤ value < high; four bins an octave, without empty ones")
    ]


class RejectedRow(Row):
    detail: Annotated[str | None, _is("what was found")]


class Rejected(Figures):
    reason: Annotated[str, _is("as in rejects/")]
    meaning: Annotated[str, _is("in words")]
    count: Annotated[int, _is("rows")]
    share: Annotated[Share, _is("of those that entered")]
    sample: Annotated[list[RejectedRow], _is("rows at random, by a hash of their ids")]


class Stage(Figures):
    stage: Annotated[str, _is("its name")]
    dataset: Annotated[str, _is("the dataset it wrote")]
    entered: Annotated[int, _is("rows that entered")]
    left: Annotated[int, _is("rows that left; of dedupe, which only decides, those that stay")]
    share: Annotated[Share, _is("left of entered")]
    bytes: Annotated[int, _is("of the files with its rows; of pages, of the WARC files too")]
    rejected: Annotated[list[Rejected], _is("by reason, the most frequent first")]


class Totals(Figures):
    entered: Annotated[int, _is("rows that entered the first stage")]
    documents: Annotated[int, _is("of the corpus")]
    text_bytes: Annotated[int, _is("of the corpus")]
    tokens: Annotated[int, _is("of both splits")]


class Settings(Figures):
    stage: Annotated[str, _is("that wrote it")]
    stage_version: Annotated[int, _is("of its code")]
    fingerprint: Annotated[str, _is("SHA-256 of what its bytes follow from")]
    sources: Annotated[list[Any], _is("files from outside the run: name, bytes, digest")]
    options: Annotated[dict[str, Any], _is("the options that shaped its bytes")]
    versions: Annotated[dict[str, str], _is("of the libraries that did")]


class Frequent(Figures):
    documents: Annotated[int, _is("of the corpus")]
    share: Annotated[Share, _is("of all")]
    urls: Annotated[int | None, _is("collected; null where urls/ is not there")]
    survival: Annotated[Share, _is("documents by URLs")]


class FrequentDomain(Frequent):
    domain: Annotated[str, _is("its name")]


class FrequentSubreddit(Frequent):
    subreddit: Annotated[str, _is("its name")]


class Ranked(Figures):
    of: Annotated[str, _is("what the ranking goes by: corpus, or urls where no document of the corpus has one")]
    distinct: Annotated[dict[str, int], _is("how many there are, by dataset: urls and corpus")]


class Domains(Ranked):
    top: Annotated[list[FrequentDomain], _is("the most frequent first")]
    search: Annotated[
        list[tuple[str, int, int | None]],
        _is("[domain, documents of the corpus, URLs collected or null] of at most 5,000"),
    ]


class Subreddits(Ranked):
    top: Annotated[list[FrequentSubreddit], _is("the most frequent first")]


class Through(Figures):
    urls: Rows = UNSET
    pages: Rows = UNSET
    corpus: Rows = UNSET


class Year(Through, kw_only=True):
    year: Annotated[int, _is("UTC")]


class Language(Figures):
    language: Annotated[str, _is("ISO 639-1 code, or none")]
    documents: Rows = UNSET
    clean: Rows = UNSET
    corpus: Rows = UNSET


class Score(Through, kw_only=True):
    low: Annotated[int | None, _is("included; null for no bound")]
    high: Annotated[int | None, _is("included; null for no bound")]
    survival: Annotated[Share, _is("corpus by urls")]


class Lengths(Figures):
    characters: Annotated[Distribution, _is("of the text")]
    bytes: Annotated[Distribution, _is("of the text in UTF-8")]
    words: Annotated[Distribution, _is("split at white space")]
    tokens: Annotated[Distribution, _is("without end-of-text")]


class Split(Figures):
    documents: Annotated[int, _is("of it")]
    tokens: Annotated[int, _is("of it")]


class Tokens(Figures):
    tokenizer: Annotated[str, _is("its name")]
    vocabulary: Annotated[int, _is("token ids there are")]
    vocabulary_used: Annotated[int, _is("token ids that occur")]
    vocabulary_used_share: Annotated[Share, _is("of those there are")]
    occurrences: Annotated[list[Bin], _is("[low, high, ids]: ids that occur low ≤ n < high times; one bin an octave")]
    splits: Annotated[dict[str, Split], _is("train and val")]
    bytes_per_token: Annotated[float | None, _is("of text")]


class Shown(Figures):
    samples: Annotated[Part, _is("of the samples, those that hold a token of such a document")]
    tokens: Annotated[Part, _is("of all tokens shown, end-of-text counted in")]


class Mixture(Figures):
    at_least: Annotated[int, _is("included")]
    below: Annotated[int | None, _is("not included; null for no bound")]
    documents: Annotated[Part, _is("of all documents")]
    packed: Annotated[Shown, _is("what the sampler shows")]
    longbiased: Annotated[Shown | None, _is("what the sampler shows; null where no document is long")]


class Sampler(Figures):
    """From the lengths of all documents; of over 1,048,576, from so many evenly by rank."""

    context: Annotated[int, _is("tokens of a sample")]
    long_min_tokens: Annotated[int, _is("of documents that longbiased prefers")]
    long_fraction: Annotated[float, _is("of its samples that are from those")]
    rows: Annotated[list[Mixture], _is("by the documents' length in tokens")]


class Training(Figures):
    name: Annotated[str, _is("the folder's name")]
    last_step: Annotated[int, _is("steps done")]
    steps: Annotated[
        list[tuple[int, float, float | None]],
        _is("[step, training loss, validation loss or null], at most 300 and those with a validation"),
    ]


class Member(Row):
    rule: Annotated[str, _is("exact or near")]
    similarity: Annotated[float, _is("exact Jaccard")]


class Cluster(Figures):
    size: Annotated[int, _is("documents, the one that stays included")]
    kept: Annotated[Row, _is("the one that stays")]
    removed: Annotated[list[Member], _is("up to five of the others")]


class Clusters(Figures):
    count: Annotated[int, _is("how many")]
    sizes: Annotated[dict[str, int], _is("how many clusters have that many documents")]
    largest: Annotated[list[Cluster], _is("the 20 largest")]


class Similarity(Figures):
    low: Annotated[float, _is("included")]
    high: Annotated[float, _is("not included")]
    count: Annotated[int, _is("near-duplicates")]
    mean_shared_bands: Annotated[float, _is("LSH bands in which the two agree")]


class Lsh(Figures):
    threshold: Annotated[float | None, _is("least similarity of a near-duplicate")]
    num_perm: Annotated[int | None, _is("MinHash permutations")]
    bands: Annotated[int | None, _is("LSH bands")]
    rows: Annotated[int | None, _is("MinHash values in a band")]
    curve: Annotated[list[tuple[float, float]] | None, _is("[similarity, probability that a pair is compared]")]


class RemovedDomain(Figures):
    domain: Annotated[str, _is("a host")]
    documents: Annotated[int, _is("examined")]
    removed: Annotated[int, _is("by export")]
    share: Annotated[Share, _is("removed of examined")]


class Removal(Figures):
    rule: Annotated[str, _is("exact or near")]
    similarity: Annotated[float, _is("exact Jaccard")]
    shared_bands: Annotated[int, _is("0 for exact")]
    removed: Annotated[Row, _is("the document that goes")]
    kept: Annotated[Row, _is("the document that stays")]
    segments: Annotated[
        list[tuple[Literal["same", "differs", "skipped"], str, str]],
        _is(
            "[same, differs or skipped; words of the removed text; words of the kept one], of the first 2,000 words; "
            "of skipped, how many. Empty where a text is of another corpus"
        ),
    ]


class Duplicates(Figures):
    examined: Annotated[int, _is("documents that were looked at")]
    exact: Annotated[int, _is("exact copies to be removed")]
    near: Annotated[int, _is("near-duplicates to be removed")]
    share: Annotated[Share, _is("of all examined")]
    clusters: Annotated[Clusters, _is("groups of documents of which one stays")]
    similarities: Annotated[list[Similarity], _is("of the near-duplicates")]
    lsh: Annotated[Lsh, _is("how candidates were found")]
    domains: Annotated[list[RemovedDomain], _is("the 50 that lost most documents")]
    removals: Annotated[list[Removal], _is("20 decisions at random, near-duplicates first")]


class Answered(Figures):
    urls: Annotated[int, _is("asked for")]
    pages: Annotated[int, _is("URLs that gave one")]
    failures: Annotated[dict[str, int], _is("URLs without a page, by reason, the most frequent first")]
    mean_milliseconds: Annotated[float | None, _is("from request to last byte, of its pages fetched live")]
    mean_body_bytes: Annotated[float | None, _is("of its pages, decoded")]
    share: Annotated[Share, _is("pages by URLs")]


class AnsweredDomain(Answered):
    domain: Annotated[str, _is("a host")]


class AnsweredAge(Answered):
    years: Annotated[int, _is("full years from the month of the first submission to that of the last capture")]


class Distance(Figures):
    source: Annotated[str, _is("as in sources")]
    pages: Annotated[int, _is("from there")]
    before: Annotated[int, _is("of them captured before the earliest submission")]
    days: Annotated[Distribution, _is("between the earliest submission and the capture, where both dates are known")]


class Fetch(Figures):
    sources: Annotated[dict[str, int], _is("pages, by source: live, archive, commoncrawl or wayback")]
    distances: Annotated[list[Distance], _is("by source")]
    statuses: Annotated[dict[str, int], _is("pages, by HTTP status")]
    failures: Annotated[dict[str, int], _is("URLs without a page, by reason, the most frequent first")]
    milliseconds: Annotated[Distribution, _is("from request to last byte, of pages fetched live")]
    body_bytes: Annotated[Distribution, _is("of the decoded bodies")]
    domains: Annotated[list[AnsweredDomain], _is("the 50 of most URLs")]
    captured: Annotated[str | None, _is("month of the last capture, YYYY-MM, from which ages count")]
    ages: Annotated[list[AnsweredAge], _is("by the link's age")]


class Lost(Figures):
    stage: Annotated[str, _is("clean or export")]
    reason: Annotated[str, _is("as in rejects/")]
    documents: Annotated[int, _is("dropped")]
    characters: Annotated[int, _is("of their texts, of clean as they were extracted")]
    bytes: Annotated[int, _is("of their texts in UTF-8")]
    tokens: Annotated[int, _is("that their texts are, by the run's tokenizer")]
    share: Annotated[Share, _is("of all tokens lost to a filter or in the corpus")]


class DroppedDocument(RejectedRow):
    title: Annotated[str | None, _is("of the page")]
    characters: Annotated[int, _is("of the complete text")]
    text: Annotated[str, _is("its first 3,000 characters")]


class Dropped(Figures):
    stage: Annotated[str, _is("clean")]
    reason: Annotated[str, _is("as in rejects/")]
    meaning: Annotated[str, _is("in words")]
    documents: Annotated[list[DroppedDocument], _is("as they were extracted")]


class Signal(Figures):
    signal: Annotated[str, _is("FILTER.SIGNAL, or words or language_score of the document")]
    filter: Annotated[str | None, _is("it belongs to")]
    on: Annotated[bool, _is("whether that filter rejects")]
    measured_share: Annotated[float, _is("of the documents: all where it does, else a sample")]
    minimum: Annotated[float | None, _is("limit, included")]
    maximum: Annotated[float | None, _is("limit, included")]
    edges: Annotated[list[float], _is("between the bins")]
    kept: Annotated[list[int], _is("documents that stay, by bin")]
    dropped: Annotated[list[int], _is("documents that clean rejects for whatever reason, by bin")]
    outside: Annotated[int, _is("documents that stay though they break a limit: what the filter would remove")]
    outside_share: Annotated[Share, _is("of those that stay and were measured")]


class Filters(Figures):
    lost: Annotated[list[Lost], _is("by reason")]
    dropped: Annotated[list[Dropped], _is("documents to read, at random, by the filter of clean that dropped them")]
    signals: Annotated[list[Signal], _is("what the documents measure; bin k is from edges[k - 1] to under edges[k]")]


class LengthNextTo(Figures):
    what: Annotated[str, _is("tokens_per_document or bytes_per_token")]
    corpus: Annotated[float | None, _is("of this one")]
    openwebtext: Annotated[float, _is("of OpenWebText")]
    ratio: Annotated[float | None, _is("the one by the other")]
    off: Annotated[bool, _is("whether the ratio is under 0.8 or over 1.25")]


class DatasetSites(Figures):
    dataset: Annotated[str, _is("its name")]
    rows: Annotated[int, _is("with a domain")]
    of_listed_sites: Annotated[Share, _is("of the rows")]
    sites_present: Annotated[int, _is("listed sites with a row")]
    rank_correlation: Annotated[float | None, _is("Spearman's, over all sites listed; 0 for those without a row")]


class Site(Figures):
    site: Annotated[str, _is("its name: that of its hosts without public suffix and subdomains")]
    reference: Annotated[int, _is("its count in the list")]
    urls: Rows = UNSET
    corpus: Rows = UNSET


class Sites(Figures):
    reference: Annotated[str, _is("the file's name")]
    listed: Annotated[int, _is("sites of the list")]
    datasets: Annotated[list[DatasetSites], _is("urls and corpus, where they are there")]
    top: Annotated[list[Site], _is("the first 30 of the list")]


class Likeness(Figures):
    lengths: Annotated[list[LengthNextTo], _is("next to OpenWebText's published lengths")]
    sites: Annotated[Sites | None, _is("next to the list of --reference_domains")]


class Document(Row):
    title: Annotated[str | None, _is("of the page")]
    score: Annotated[int | None, _is("on Reddit")]
    language: Annotated[str | None, _is("detected")]
    n_words: Annotated[int, _is("split at white space")]
    page: Annotated[str | None, _is("of some: the page's HTML without scripts, styles and images")]
    characters: Annotated[int, _is("of the complete text")]
    text: Annotated[str, _is("its first 3,000 characters")]


class ComparedStage(Figures):
    dataset: Annotated[str, _is("its name")]
    entered: Annotated[Integers, _is("rows that entered; null where the stage did not run")]
    left: Annotated[Integers, _is("rows that left")]
    share: Annotated[Shares, _is("left of entered")]


class ComparedReason(Figures):
    stage: Annotated[str, _is("its name")]
    reason: Annotated[str, _is("as in rejects/")]
    count: Annotated[tuple[int, int], _is("rows")]
    share: Annotated[Shares, _is("of those that entered")]


class ComparedLengths(Figures):
    mean: Annotated[Numbers, _is("of all documents")]
    percentiles: Annotated[dict[str, Integers], _is("by the percentage")]


class ComparedDomain(Figures):
    domain: Annotated[str, _is("a host")]
    share: Annotated[Shares, _is("of the corpus; null where not listed")]


class ComparedOption(Figures):
    stage: Annotated[str, _is("its name")]
    option: Annotated[str, _is("its name")]
    values: Annotated[tuple[Any, Any], _is("of the option; null where a run has none")]


_ShareBins = list[tuple[int, int, float]]


class Comparison(Figures):
    """Of each pair, the first is this run's figure, the second the other's."""

    other: Annotated[str, _is("the folder's name")]
    totals: Annotated[dict[str, tuple[int, int]], _is("as in totals")]
    bytes_per_token: Annotated[Numbers, _is("of text")]
    duplicates: Annotated[Shares, _is("share of the examined documents")]
    stages: Annotated[list[ComparedStage], _is("as in funnel")]
    rejected: Annotated[list[ComparedReason], _is("as in funnel")]
    lengths: Annotated[dict[str, ComparedLengths], _is("as in lengths")]
    token_histograms: Annotated[tuple[_ShareBins, _ShareBins], _is("[low, high, share of the documents] of both")]
    domains: Annotated[list[ComparedDomain], _is("the 30 most frequent of both")]
    settings: Annotated[list[ComparedOption], _is("options in which the two differ")]


class MonthDomains(Figures):
    count: Annotated[int, _is("how many, among the 5,000 of most documents")]
    top: Annotated[list[tuple[str, int]], _is("the 20 of most documents, and how many they have")]


class Time(Figures):
    stage: Annotated[str, _is("its name")]
    started: Annotated[str, _is("ISO 8601, UTC")]
    seconds: Annotated[float, _is("until its output was published")]
    host: Annotated[str | None, _is("the machine, or on a cluster the runner; null where the log does not say")]
    workers: Annotated[str | None, _is("processes, or on Dataflow machines of which type; null for another cluster")]
    dollars: Annotated[float | None, _is("on Dataflow, what its machines cost at most by list prices")]


class Month(Figures):
    """One run of the chain, the oldest first; its figures are of what it added."""

    run: Annotated[str, _is("the folder's name")]
    report: Annotated[str | None, _is("its index.html, as this one's link; null without one in a neighbouring folder")]
    urls: Annotated[int | None, _is("new URLs; null for imported text, which has none")]
    seen_before: Annotated[int | None, _is("URLs that an earlier run had")]
    documents: Annotated[int | None, _is("new documents in the corpus")]
    tokens: Annotated[int | None, _is("of these")]
    examined: Annotated[int | None, _is("documents that dedupe compared")]
    repeat_month: Annotated[int, _is("of these, duplicates of a document of the same run")]
    repeat_past: Annotated[int, _is("duplicates of a document of an earlier run")]
    domains: Annotated[int | None, _is("distinct domains of the new documents; null for a base without a report")]
    gained: Annotated[MonthDomains | None, _is("domains that no earlier run has; null where a report is missing")]
    lost: Annotated[MonthDomains | None, _is("domains that the run before has and this one has not")]
