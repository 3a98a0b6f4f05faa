"""What each rule after the model earns: the texts that change without it, and the F1 that is lost.

The pages are extracted by the packaged model, which was fitted on the labelled ones. The news are
new to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any
from unittest import mock

from owt_pipeline.stages.extract.content import main_content
from owt_pipeline.stages.extract.content.main_content import Cut
from owt_pipeline.stages.extract.content.model import Model

from .labelled_pages import LabelledPage
from .news import score_news
from .validation import extracted, score


@dataclass(frozen=True)
class Rule:
    """A rule, and how it is switched off.

    Attributes:
      name: its name.
      owner, attribute: the module or class that has its function, and the function's name.
      replacement: the function that takes its place.
    """

    name: str
    owner: object
    attribute: str
    replacement: Callable[..., Any]


def _change_nothing(*arguments: object) -> None:
    pass


RULES = (
    Rule("cut by article", Cut, "at", lambda cut, article: (cut.lower + cut.higher) / 2),
    Rule("lead", main_content, "_keep_lead", _change_nothing),
    Rule("surroundings", main_content, "_less_for_surroundings", lambda page, blocks: 0.0),
    Rule("hidden text", main_content, "_is_left_hidden", lambda page, keep: keep & False),
    Rule("mean of tables", main_content, "_mean_of_tables", lambda page, p: p),
    Rule("terms", main_content, "_keep_terms", _change_nothing),
    Rule("references", main_content, "leave_references", _change_nothing),
    Rule("comments", main_content, "_leave_comments", _change_nothing),
    Rule("further articles", main_content, "_leave_next_articles", _change_nothing),
    Rule("repeats", main_content, "without_repeats", list),
)


def rule_lines(
    model: Model, pages: Sequence[LabelledPage], news: Sequence[LabelledPage]
) -> Iterator[str]:
    """Yield a line for the complete extraction, and one for the extraction without each rule."""
    complete = [text for _, text in extracted(model, [*pages, *news])]
    yield f"{'all rules':<18}{'texts':>6}{_f1s(pages, news, complete)}"
    for rule in RULES:
        with mock.patch.object(rule.owner, rule.attribute, rule.replacement):
            texts = [text for _, text in extracted(model, [*pages, *news])]
        num_changed = sum(map(str.__ne__, texts, complete))
        yield f"- {rule.name:<16}{num_changed:>6}{_f1s(pages, news, texts)}"


def _f1s(pages: Sequence[LabelledPage], news: Sequence[LabelledPage], texts: Sequence[str]) -> str:
    """Return the F1 of each set; `texts` are of the pages and then of the news."""
    text_by_url = {page.url: text for page, text in zip(pages, texts, strict=False)}
    f1s = {name: value.f1 for name, value in score(pages, text_by_url).items() if " " not in name}
    f1s["news"] = score_news(news, texts[len(pages) :])["f1"]
    return "".join(f"   {name} {f1:.4f}" for name, f1 in f1s.items())
