"""The demo's web: enough of it, the same each time, and pages whose articles can be recognized."""

from __future__ import annotations

import hashlib
import os
import pathlib
import random
import subprocess
import sys
from collections import Counter, defaultdict
from itertools import combinations

import pytest
import trafilatura

from owt_pipeline.demo import site as demo_site
from owt_pipeline.demo.inputs import dump_lines
from owt_pipeline.demo.site import HOSTS, HTML, Behaviour, Expectation, Site, build_site
from owt_pipeline.demo.texts import Article, articles, edited, mixed, mojibake, originals
from schemas import Reason

BOILERPLATE = (
    "We use cookies",
    "Subscribe to my newsletter",
    "Breaking: weather expected",
    "No part of this publication",
    "Quick search",
    "Report this post",
    "Who is online",
    "visitor number 004711",
    "Articles with unclear tone",
    "842 partners",
    "two free articles left",
)
"""Phrases around the articles that no extracted text should hold."""


def test_the_site_has_150_pages_on_20_hosts_in_every_template(site: Site) -> None:
    pages = [answer for answer in site.answers.values() if answer.status == 200 and answer.content_type == HTML]
    assert len(pages) >= 150
    assert len(site.hosts) >= 20
    templates = pathlib.Path(demo_site.__file__).parent.glob("templates/*.html")
    assert {host.template for host in HOSTS} == {path.stem for path in templates}


def test_two_processes_with_different_hash_seeds_build_the_same_bytes(site: Site) -> None:
    code = (
        "import hashlib, owt_pipeline.demo.site as s, owt_pipeline.demo.inputs as d; site = s.build_site()\n"
        "print(hashlib.sha256(repr(site).encode() + b''.join(d.dump_lines(site))).hexdigest())"
    )
    seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    environment = os.environ | {"PYTHONHASHSEED": seed}
    done = subprocess.run([sys.executable, "-c", code], env=environment, check=True, capture_output=True, timeout=240)
    here = hashlib.sha256(repr(site).encode() + b"".join(dump_lines(site))).hexdigest()
    assert done.stdout.decode().strip() == here


def test_another_seed_builds_another_site(site: Site) -> None:
    assert build_site(seed=1).answers != site.answers


@pytest.fixture(scope="module")
def base() -> list[Article]:
    return articles()


def test_no_paragraph_is_in_two_articles(base: list[Article]) -> None:
    paragraphs = Counter(paragraph for article in base for paragraph in article.paragraphs)
    assert max(paragraphs.values()) == 1


def test_every_kind_of_failure_is_expected(site: Site) -> None:
    reasons = Counter(reason for link in site.expectations for reason in link.reasons)
    assert set(reasons) >= {
        *(Reason.HTTP_404, Reason.HTTP_410, Reason.HTTP_403, Reason.HTTP_5XX, Reason.HTTP_429, Reason.HTTP_503),
        *(Reason.ROBOTS, Reason.TIMEOUT, Reason.CONNECT, Reason.TOO_LARGE, Reason.NOT_HTML, Reason.EMPTY_BODY),
        *(Reason.REDIRECT_LOOP, Reason.BAD_REDIRECT, Reason.BLOCKED_ADDRESS, Reason.BAD_RESPONSE, Reason.NO_TEXT),
        *(Reason.WRONG_LANGUAGE, Reason.TOO_SHORT, Reason.EXACT_DUPLICATE, Reason.NEAR_DUPLICATE),
    }


def test_clusters_are_near_and_all_else_is_far(site: Site) -> None:
    """Articles of one cluster are similar beyond 0.8; any others stay below 0.5, whatever they share."""
    documents = [link for link in site.expectations if link.article and Reason.TOO_SHORT not in link.reasons]
    clusters: dict[str, list[Article]] = defaultdict(list)
    for link in documents:
        assert link.article is not None
        clusters[link.cluster or link.url].append(link.article)
    for members in clusters.values():
        assert min((jaccard(a, b) for a, b in combinations(members, 2)), default=1.0) > 0.8
    apart = [jaccard(a[0], b[0]) for a, b in combinations(clusters.values(), 2)]
    assert max(apart) < 0.5
    assert sum(similarity > 0.1 for similarity in apart) >= 8  # the rewritten and the mixed ones


def jaccard(one: Article, two: Article) -> float:
    """Jaccard similarity of the two articles' sets of five lower-cased words in a row."""
    a, b = (
        {tuple(words[i : i + 5]) for i in range(len(words) - 4)}
        for words in (one.text.lower().split(), two.text.lower().split())
    )
    return len(a & b) / len(a | b)


def test_every_cluster_has_at_least_two_urls(site: Site) -> None:
    sizes = Counter(link.cluster for link in site.expectations if link.cluster)
    assert min(sizes.values()) >= 2
    assert len(sizes) >= 20


def test_an_edit_changes_as_much_as_asked(base: list[Article]) -> None:
    article = base[0]
    near = edited(article, random.Random(0), words_per_edit=200)
    far = edited(article, random.Random(0), words_per_edit=9)
    assert jaccard(article, article) == 1.0
    assert 0.88 < jaccard(article, near) < 1.0
    assert jaccard(article, far) < 0.5
    assert 0.1 < jaccard(article, mixed(article, base[1])) < 0.4


@pytest.mark.parametrize("language", ["en", "de", "fr", "es"])
def test_the_texts_written_for_the_demo_are_in_their_language(language: str) -> None:
    import py3langid

    for article in originals(language):
        assert article.paragraphs
        assert py3langid.classify(article.text)[0] == language, article.title


def test_mojibake_is_what_ftfy_repairs() -> None:
    import ftfy

    memoir = originals("en")[1]
    broken = mojibake(memoir)
    assert "chemistâ€™s shop" in broken.text
    assert ftfy.fix_text(broken.text) == ftfy.fix_text(memoir.text)


def test_the_main_text_of_every_page_can_be_extracted(site: Site) -> None:
    """Nearly all of each article, none of what surrounds it: so that a stage that fails, fails for its own faults."""
    checked = 0
    for link in site.expectations:
        host, _, path = link.url.removeprefix("http://").partition("/")
        answer = site.answers[host, "/" + path]
        if not isinstance(link.article, Article) or answer.status != 200 or answer.content_type != HTML:
            continue
        text = trafilatura.extract(answer.body, url=link.url, include_comments=False) or ""
        assert _recall(link, text) > 0.9, (link.url, text[:500])
        if Reason.TOO_SHORT in link.reasons:  # on a page with next to no text an extractor takes what there is
            continue
        assert not [phrase for phrase in BOILERPLATE if phrase in text], link.url
        checked += 1
    assert checked >= 150


def test_every_link_has_an_answer_and_every_page_a_link(site: Site) -> None:
    urls = {f"http://{host}{path}" for host, path in site.answers if path != "/robots.txt"}
    expected = {link.url for link in site.expectations}
    assert len(expected) == len(site.expectations)
    assert expected <= urls
    unlinked = {url for url in urls - expected if not url.startswith("http://moved.")}
    assert len(unlinked) == 3  # those that the dump knows by their old address only


def test_a_page_that_is_busy_at_first_is_there(site: Site) -> None:
    busy = [answer for answer in site.answers.values() if answer.behaviour is Behaviour.BUSY]
    assert len(busy) == 2
    assert all(answer.body for answer in busy)


def _recall(link: Expectation, text: str) -> float:
    """The share of the article's words that the text holds; a misread page is compared as it was misread."""
    import ftfy

    assert link.article is not None
    wanted = Counter(ftfy.fix_text(link.article.text).split())
    return (wanted & Counter(ftfy.fix_text(text).split())).total() / wanted.total()
