"""How the demo's server answers a request: plainly, or in one of the ways in which the web misbehaves."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

HTML = "text/html; charset=utf-8"


class Behaviour(str, Enum):
    """What the server does beyond sending a status, headers and a body."""

    PLAIN = "plain"
    BUSY = "busy"  # 503 with Retry-After at the first request, then the page
    STALL = "stall"  # headers and half the body, then silence
    RESET = "reset"  # the connection is reset before an answer
    ENDLESS = "endless"  # a body that goes on far beyond any limit
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
