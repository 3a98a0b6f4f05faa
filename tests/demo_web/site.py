"""The demo's web: some 240 pages on 29 hosts, as good and as bad as the real one, from one seed."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date, timedelta
from enum import Enum
from functools import cache
from html import escape
from importlib import resources
from string import Template
from urllib.parse import quote

from schemas import Reason
from schemas.reasons import http_reason
from tests.demo_web.texts import Article, articles, edited, mixed, mojibake, originals, typeset, zen

DOMAIN = "demo.test"
"""Hosts are below it; `.test` is reserved (RFC 6761), so no name of the real web is meant by accident."""

_SLOW_SECONDS = 0.3


@dataclass(frozen=True)
class Host:
    """A site of the demo.

    Attributes:
      name: its first label, below DOMAIN.
      title: the name it gives itself.
      template: the template of its pages.
      compress: whether it sends them gzipped.
      delay: seconds before each answer.
    """

    name: str
    title: str
    template: str
    compress: bool = False
    delay: float = 0.0

    @property
    def host(self) -> str:
        return f"{self.name}.{DOMAIN}"

    def path(self, title: str, published: date, number: int) -> str:
        """The path of the page `title`; `number` tells forum topics apart."""
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")
        return {
            "blog": f"/{published:%Y/%m}/{slug}",
            "newspaper": f"/world/{published:%Y-%m-%d}/{slug}.html",
            "docs": f"/en/latest/{slug}.html",
            "forum": f"/viewtopic.php?f=2&t={number}",
            "tables": f"/~webmaster/{slug}.htm",
            "wiki": "/wiki/" + quote(title.replace(" ", "_"), safe=""),
            "magazine": f"/stories/{slug}-{published:%Y%m}",
            "plain": f"/{slug}",
        }[self.template]


def _hosts() -> Iterator[Host]:
    for line in (resources.files("tests.demo_web") / "hosts.txt").read_text(encoding="utf-8").splitlines():
        name, template, how, title = line.split(maxsplit=3)
        yield Host(name, title, template, compress=how == "gzip", delay=_SLOW_SECONDS if how == "slow" else 0.0)


HOSTS = tuple(_hosts())
"""The hosts whose pages hold articles; there are also mirrors, and hosts that only fail."""


@cache
def _template(name: str) -> Template:
    path = resources.files("tests.demo_web") / "templates" / f"{name}.html"
    return Template(path.read_text(encoding="utf-8"))


HTML = "text/html; charset=utf-8"


class Behaviour(str, Enum):
    """What the server does beyond sending a status, headers and a body."""

    PLAIN = "plain"
    BUSY = "busy"  # 503 with Retry-After at the first request, then the page
    STALL = "stall"  # headers and half the body, then silence
    RESET = "reset"  # the connection is reset before an answer
    ENDLESS = "endless"  # a body that continues far beyond any limit
    BROKEN_GZIP = "broken_gzip"  # announced as gzip, and is none


@dataclass(frozen=True)
class Answer:
    """The answer to one path of one host; `delay` in seconds comes before it."""

    body: bytes = b""
    status: int = 200
    content_type: str = HTML
    location: str = ""
    behaviour: Behaviour = Behaviour.PLAIN
    delay: float = 0.0
    compress: bool = False


@dataclass(frozen=True)
class Expectation:
    """What should happen to one URL.

    Attributes:
      url: the URL in the form a browser shows; the dump may link to variants of it.
      reasons: the reasons it may be rejected for; empty for a document of the corpus.
      cluster: name of a cluster of duplicates: one of its URLs is kept, the others leave for one of `reasons`.
      article: the text its page holds, as extraction and repair should give it; None if it holds none.
      author: the author its page names in its metadata, else None.
      date: the date of publication that its metadata name, YYYY-MM-DD, else None.
      site_name: the name the site gives itself in its metadata, else None.
    """

    url: str
    reasons: tuple[Reason, ...] = ()
    cluster: str = ""
    article: Article | None = None
    author: str | None = None
    date: str | None = None
    site_name: str | None = None


N_ARTICLES = 170
_HOSTS = {host.name: host for host in HOSTS}
_EXACT = (Reason.EXACT_DUPLICATE,)
_NEAR = (Reason.NEAR_DUPLICATE,)
_AUTHORS = (
    "Ada Winter", "Bram Oakley", "Clara Dunn", "Dora Whitlock", "Edwin Marsh", "Flora Bright", "Gus Tanner",
    "Hester Quill", "Ivor Penrose", "June Halloway", "Kit Marlin", "Leonora Vance",
)  # fmt: skip
_STATUSES = (404, 404, 404, 410, 403, 401, 451, 500, 429, 503)
_PDF = b"%PDF-1.4\n%\xe2\xe3\xcf\xd3\n" + b"0 0 m\n" * 200
_PNG = b"\x89PNG\r\n\x1a\n" + bytes(512)
_SHELL = (
    b"<!DOCTYPE html><html><head><title>Loading</title></head><body><div id='root'></div>"
    b"<script>document.getElementById('root').dataset.state = 'pending'</script></body></html>"
)


@dataclass(frozen=True)
class Site:
    """The web of the demo.

    Attributes:
      answers: what the server answers, by (host, path with query).
      expectations: what should happen to each URL that the dump links to.
    """

    answers: dict[tuple[str, str], Answer]
    expectations: tuple[Expectation, ...]


def build_site(seed: int = 2019) -> Site:
    """The same site for the same seed and version of Python."""
    rng = random.Random(seed)
    base = articles()
    rng.shuffle(base)
    if len(base) < N_ARTICLES:
        raise ValueError(f"this Python's library holds {len(base)} articles of prose; the demo needs {N_ARTICLES}")
    builder = _Builder(rng)
    placed = builder.add_articles(base[:N_ARTICLES])
    builder.add_odd_texts(base[N_ARTICLES:])
    builder.add_copies(placed)
    builder.add_redirects(placed)
    builder.add_failures(placed)
    builder.add_dead_links(placed)
    return Site(builder.answers, tuple(builder.expectations.values()))


@dataclass(frozen=True)
class _Placed:
    host: Host
    path: str
    article: Article

    @property
    def key(self) -> tuple[str, str]:
        return self.host.host, self.path


class _Builder:
    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.answers: dict[tuple[str, str], Answer] = {}
        self.expectations: dict[tuple[str, str], Expectation] = {}

    def add_articles(self, base: list[Article]) -> Iterator[_Placed]:
        """Deal the articles to the hosts in turn; each page yielded is used by one later step at most."""
        placed = []
        for k, host in enumerate(HOSTS):
            own = base[k :: len(HOSTS)]
            for article in own:
                placed.append(self._page(host, article, related=[a for a in own if a is not article]))
        self.rng.shuffle(placed)
        return iter(placed)

    def add_odd_texts(self, spare: list[Article]) -> None:
        """Other languages, thin pages, encodings other than UTF-8, and UTF-8 that was once read as Windows-1252."""
        for language in ("de", "fr", "es"):
            for article, name in zip(originals(language), ("courier", "longread"), strict=True):
                self._page(_HOSTS[name], article, reasons=(Reason.WRONG_LANGUAGE,))
        cafe, memoir, *thin = originals("en")
        for article, name in zip(thin, ("garden", "manual", "almanac", "notes"), strict=True):
            self._page(_HOSTS[name], article, reasons=(Reason.TOO_SHORT,))
        self._page(_HOSTS["notes"], zen())
        self._page(_HOSTS["almanac"], cafe, charset="iso-8859-1", charset_in="header")
        cluster, reasons = f"misread: {memoir.title}", _EXACT + _NEAR
        self._page(
            _HOSTS["homepage"], memoir, charset="windows-1252", charset_in="meta", cluster=cluster, reasons=reasons
        )
        self._page(_HOSTS["inkwell"], memoir, misread=True, cluster=cluster, reasons=reasons)
        for article, name in zip(spare[:3], ("lantern", "gazette", "compendium"), strict=True):
            self._page(_HOSTS[name], typeset(article), misread=True)

    def add_copies(self, placed: Iterator[_Placed]) -> None:
        """Exact copies on mirrors, edited copies elsewhere, and texts that share a part and no more."""
        for k, page in enumerate(_take(placed, 8)):
            self._cluster(page, f"mirrored: {page.article.title}", _EXACT)
            for mirror in ("mirror-one", "mirror-two")[: 1 + k % 2]:
                self.answers[f"{mirror}.{DOMAIN}", page.path] = self.answers[page.key]
                self._expect(mirror, page.path, self.expectations[page.key])
        for k, page in enumerate(_take(placed, 10)):
            cluster = f"edited: {page.article.title}"
            self._cluster(page, cluster, _NEAR)
            for copy in range(1 + k % 2):
                changed = edited(page.article, self.rng, words_per_edit=200)
                self._page(_elsewhere(page.host, k + copy), changed, cluster=cluster, reasons=_NEAR)
        for k, page in enumerate(_take(placed, 4)):
            cluster = f"syndicated: {page.article.title}"
            self._cluster(page, cluster, _EXACT + _NEAR)
            self._page(_elsewhere(page.host, k), page.article, cluster=cluster, reasons=_EXACT + _NEAR)
        for k, page in enumerate(_take(placed, 4)):
            self._page(_elsewhere(page.host, k), edited(page.article, self.rng, words_per_edit=9))
        for k, (page, other) in enumerate(zip(_take(placed, 4), _take(placed, 4), strict=True)):
            self._page(_elsewhere(page.host, k), mixed(page.article, other.article))

    def add_redirects(self, placed: Iterator[_Placed]) -> None:
        """Pages that moved: over a chain, to another host, to a page that is linked too, in a ring, out of the web."""
        for k, page in enumerate(_take(placed, 3)):
            chain = [f"/old/{k}", *(f"/old/{k}/{hop}" for hop in range(k))]
            link = self.expectations.pop(page.key)  # the dump links to the old address alone
            self._expect("moved", chain[0], link)
            for at, path in enumerate(chain):
                after = f"http://moved.{DOMAIN}{chain[at + 1]}" if at + 1 < len(chain) else link.url
                self._redirect(path, after, 302 if at % 2 else 301)
        for k, page in enumerate(_take(placed, 2)):
            self._cluster(page, f"moved: {page.article.title}", _EXACT)
            self._redirect(f"/alias/{k}", self.expectations[page.key].url)
            self._expect("moved", f"/alias/{k}", self.expectations[page.key])
        for path, target, reason in [
            ("/ring/one", f"http://moved.{DOMAIN}/ring/two", Reason.REDIRECT_LOOP),
            ("/ring/two", f"http://moved.{DOMAIN}/ring/one", Reason.REDIRECT_LOOP),
            ("/by-ftp", f"ftp://files.{DOMAIN}/archive", Reason.BAD_REDIRECT),
            ("/inside", "http://10.0.0.1/admin", Reason.BLOCKED_ADDRESS),
        ]:
            self._redirect(path, target, 302)
            self._expect("moved", path, Expectation("", (reason,)))

    def add_failures(self, placed: Iterator[_Placed]) -> None:
        """Everything that gives no document, each with the reason a reader would expect."""
        for page in _take(placed, 2):  # unavailable at first, there at the second attempt
            self.answers[page.key] = replace(self.answers[page.key], behaviour=Behaviour.BUSY)
        (page,) = _take(placed, 1)
        plain = replace(self.answers[page.key], compress=False, delay=0.0)

        for k, status in enumerate(_STATUSES):
            text = f"<html><body><h1>Error {status}</h1><p>That did not work.</p></body></html>"
            self._failure("attic", f"/lost/{k}", Answer(text.encode(), status), http_reason(status))
        for name, path in [("private", "/members/1"), ("private", "/members/2"), ("hermit", "/a"), ("hermit", "/b")]:
            self._failure(name, path, plain, Reason.ROBOTS)
        for name, rules in [("private", "/members/"), ("hermit", "/"), ("garden", "/admin/")]:
            robots = f"User-agent: *\nDisallow: {rules}\n"
            self.answers[f"{name}.{DOMAIN}", "/robots.txt"] = Answer(robots.encode(), content_type="text/plain")

        self._failure("attic", "/report", Answer(_PDF, content_type="application/pdf"), Reason.NOT_HTML)
        self._failure("attic", "/photograph", Answer(_PNG, content_type="image/png"), Reason.NOT_HTML)
        self._failure("attic", "/nothing", Answer(), Reason.EMPTY_BODY)
        self._failure("attic", "/app", Answer(_SHELL), Reason.NO_TEXT)
        for name, path, behaviour, reason in [
            ("attic", "/garbled", Behaviour.BROKEN_GZIP, Reason.BAD_RESPONSE),
            ("attic", "/logbook", Behaviour.ENDLESS, Reason.TOO_LARGE),
            ("waiting", "/room", Behaviour.STALL, Reason.TIMEOUT),
            ("slammed", "/door", Behaviour.RESET, Reason.CONNECT),
        ]:
            self._failure(name, path, replace(plain, behaviour=behaviour), reason)

    def add_dead_links(self, placed: Iterator[_Placed]) -> None:
        """Pages that were taken down since."""
        for page in _take(placed, 3):
            self.answers[page.key] = Answer(b"<html><body><h1>Not found</h1></body></html>", 404)

    def _page(
        self,
        host: Host,
        article: Article,
        *,
        related: Sequence[Article] = (),
        charset: str = "utf-8",
        charset_in: str = "both",
        misread: bool = False,
        cluster: str = "",
        reasons: tuple[Reason, ...] = (),
    ) -> _Placed:
        """Publish `article` on `host`; `charset_in` is where its encoding is said: `header`, `meta` or both."""
        published = date(2012, 1, 1) + timedelta(days=self.rng.randrange(2500))
        author = self.rng.choice(_AUTHORS)
        path = host.path(article.title, published, len(self.answers))
        if (host.host, path) in self.answers:
            raise ValueError(f"two pages at http://{host.host}{path}")
        shown = mojibake(article) if misread else article
        in_head = f'<meta http-equiv="Content-Type" content="text/html; charset={charset}">'
        html = _template(host.template).substitute(
            title=escape(shown.title),
            author=escape(author),
            date=published.isoformat(),
            long_date=f"{published.day} {published:%B %Y}",
            site=escape(host.title),
            url=escape(f"http://{host.host}{path}"),
            language=shown.language,
            charset=in_head if charset_in != "header" else "",
            body="\n".join(f"<p>{escape(paragraph, quote=False)}</p>" for paragraph in shown.paragraphs),
            related="".join(
                f'<li><a href="{escape(host.path(a.title, published, 0))}">{escape(a.title)}</a></li>'
                for a in related[:6]
            ),
        )
        body = html.encode(charset, "xmlcharrefreplace")
        content_type = "text/html" if charset_in == "meta" else f"text/html; charset={charset}"
        page = _Placed(host, path, article)
        self.answers[page.key] = Answer(body, content_type=content_type, delay=host.delay, compress=host.compress)
        self._expect(
            host.name,
            path,
            Expectation(
                "",
                reasons,
                cluster,
                article,
                author=author if host.template in ("blog", "newspaper", "docs", "magazine", "plain") else None,
                date=published.isoformat() if host.template in ("blog", "newspaper", "magazine") else None,
                site_name=host.title if host.template not in ("tables", "plain") else None,
            ),
        )
        return page

    def _expect(self, name: str, path: str, link: Expectation) -> None:
        host = f"{name}.{DOMAIN}"
        self.expectations[host, path] = replace(link, url=f"http://{host}{path}")

    def _cluster(self, page: _Placed, cluster: str, reasons: tuple[Reason, ...]) -> None:
        self.expectations[page.key] = replace(self.expectations[page.key], cluster=cluster, reasons=reasons)

    def _redirect(self, path: str, target: str, status: int = 301) -> None:
        self.answers[f"moved.{DOMAIN}", path] = Answer(status=status, location=target)

    def _failure(self, name: str, path: str, answer: Answer, reason: Reason) -> None:
        self.answers[f"{name}.{DOMAIN}", path] = answer
        self._expect(name, path, Expectation("", (reason,)))


def _elsewhere(host: Host, k: int) -> Host:
    """A host with another template, another one for each small `k`."""
    others = [other for other in HOSTS if other.template != host.template and not other.delay]
    return others[(7 * k + 3) % len(others)]


def _take(placed: Iterator[_Placed], n: int) -> list[_Placed]:
    return [next(placed) for _ in range(n)]
