"""The part of Reddit's API that PRAW uses: the top of recorded submissions, a hundred at a time."""

from __future__ import annotations

import time
from typing import Any
from urllib.parse import parse_qs, urlsplit

from tests.servers.web import Request, WebServer

MAX_SUBMISSIONS_OF_PAGE = 100


class RedditServer(WebServer):
    """Serves `submissions` (records of the API) by subreddit.

    Attributes:
      times: when listings were requested, in order.
      fail_after: the number of listings after which each answer has status 500; None for never.
      num_refusals: how many of the next requests get a 429, with a Retry-After of 1 second.
      num_remaining: the number of requests that it reports as left, for a second.
    """

    def __init__(self, submissions: list[dict[str, Any]]):
        super().__init__({"/api/v1/access_token": self._give_token, "/r/": self._list})
        self.submissions_by_subreddit: dict[str, list[dict[str, Any]]] = {}
        for record in submissions:
            name = record["subreddit"].lower()
            self.submissions_by_subreddit.setdefault(name, []).append(record)
        self.times: list[float] = []
        self.fail_after: int | None = None
        self.num_refusals = 0
        self.num_remaining = 95

    async def _give_token(self, request: Request) -> None:
        assert request.headers["authorization"].startswith("Basic ")
        token = {"access_token": "token", "token_type": "bearer", "expires_in": 86400, "scope": "*"}
        await self._answer(request, 200, token)

    async def _list(self, request: Request) -> None:
        self.times.append(time.monotonic())
        assert request.headers["authorization"] == "bearer token"
        if self.fail_after is not None and len(self.times) > self.fail_after:
            await self._answer(request, 500, {"message": "Internal Server Error", "error": 500})
            return
        if self.num_refusals:
            self.num_refusals -= 1
            error = {"message": "Too Many Requests", "error": 429}
            await self._answer(request, 429, error, Retry_After="1")
            return
        url = urlsplit(request.path)
        _, _, subreddit, order = url.path.rstrip("/").split("/")
        assert order == "top"
        records = self.submissions_by_subreddit.get(subreddit.lower())
        if records is None:
            await self._answer(request, 404, {"message": "Not Found", "error": 404})
        else:
            await self._answer(request, 200, _page_of(records, parse_qs(url.query)))

    async def _answer(
        self, request: Request, status: int, content: dict[str, Any], **headers: str
    ) -> None:
        limits = {
            "x-ratelimit-remaining": f"{self.num_remaining}.0",
            "x-ratelimit-used": "5",
            "x-ratelimit-reset": "1",
        }
        await request.answer_json(content, status, **limits, **headers)


def _page_of(records: list[dict[str, Any]], query: dict[str, list[str]]) -> dict[str, Any]:
    """Return the page of a listing that a query asks for."""
    by_score = sorted(records, key=lambda record: -record["score"])
    names = [record["name"] for record in by_score]
    start = 0
    if "after" in query:
        start = names.index(query["after"][0]) + 1
    end = start + min(MAX_SUBMISSIONS_OF_PAGE, int(query["limit"][0]))
    page = by_score[start:end]
    data = {
        "after": page[-1]["name"] if end < len(records) else None,
        "before": None,
        "dist": len(page),
        "children": [{"kind": "t3", "data": record} for record in page],
    }
    return {"kind": "Listing", "data": data}
