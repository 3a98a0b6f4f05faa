"""Tables of the hosts below `bad.test`: how each behaves, and the reason that a user expects."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from typing import Any

import brotli
import zstandard

from tests.servers.web import (
    DOMAIN,
    PAGE,
    Behaviour,
    Request,
    answer,
    at_robots,
    once,
    raw,
    redirect,
)

HANG = 60.0
CHUNKED = {"Content_Length": "", "Transfer_Encoding": "chunked"}


def silent(_: Request) -> Any:
    raise AssertionError("no connection, no request")


async def cookie_wall(request: Request) -> None:
    if "seen=pâté".encode().decode("latin-1") in request.headers.get("cookie", ""):
        assert "other" not in request.headers["cookie"]
        await request.answer()
    else:
        cookies = "seen=pâté; Path=/\r\nSet-Cookie: other=x; Domain=example.com"
        await request.answer(b"", "302 Found", Location=request.path, Set_Cookie=cookies)


async def longer_than_it_says(request: Request) -> None:
    await request.answer()
    await asyncio.sleep(3)
    await request.send(b"and some more")


def nested(count: int) -> bytes:
    body = PAGE
    for _ in range(count):
        body = gzip.compress(body, 1)
    return body


# Bombs are made before they are requested: the server would keep all other hosts waiting.
# Decompressed, it is `<html>` and 20 MB of zeros.
BROTLI_BOMB = bytes.fromhex(
    "cbffff3ff8073c64cfc1b42cd0c46d81c0d9fb3fe5abe1ffff1ffc1300715804a07bff97052d31f82700e2b00000982406"
)
GZIPPED = gzip.compress(PAGE)
GZIPPED_PDF = gzip.compress(b"%PDF-1.4" * 1000)
DAMAGED = gzip.compress(bytes(range(256)) * 20)
DAMAGED = DAMAGED[:100] + b"0123456789" + DAMAGED[110:]
CHUNKS = b"".join(
    b"%x\r\n%s\r\n" % (len(PAGE[at : at + 100]), PAGE[at : at + 100]) for at in range(0, 600, 100)
)
CHUNK = b"%x\r\n%s\r\n0\r\n\r\n" % (len(PAGE), PAGE)
HTML = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length: %d\r\n" % len(PAGE)
ROBOTS_TXT = b"User-agent: *\nDisallow: /private\n"
BUSY = answer(b"", "503 Service Unavailable")

PAGES: dict[str, Behaviour] = {
    "page": answer(),
    "chunked": answer(CHUNKS + b"0\r\n\r\n", **CHUNKED),
    "until-close": answer(Content_Length="", Connection="close", then="close"),
    "unknown-encoding": answer(Content_Encoding="x-klingon"),
    "no-encoding": answer(Content_Encoding="UTF-8, none"),
    "gzip-among-others": answer(GZIPPED, Content_Encoding=" GZIP , text/html"),
    "chunked-twice": answer(CHUNK, Content_Length="", Transfer_Encoding="chunked, Chunked"),
    "length-in-a-folded-line": raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nContent-Length:\r\n %d\r\n\r\n%s"
        % (len(PAGE), PAGE)
    ),
    "meta-refresh": answer(
        b'<html><head><meta http-equiv="refresh" content="0;url=/elsewhere"></head></html>'
    ),
    "charset-lie": answer(
        "<html><p>Привет</p></html>".encode("koi8-r"), Content_Type="text/html; charset=utf-8"
    ),
    "unknown-charset": answer(Content_Type="text/html; charset=x-klingon"),
    "untyped-html": answer(Content_Type=""),
    "two-content-types": answer(
        Content_Type="text/plain\r\nContent-Type: text/html"
        # The last type counts.
    ),
    "early-hints": raw(
        b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n" + HTML + b"\r\n" + PAGE
    ),
    "odd-header-lines": raw(HTML + b"X-Folded: a\r\n b\r\nX-Odd: \x01\xe9\r\n\r\n" + PAGE),
    "cookie-wall": cookie_wall,
    "lines-end-in-lf": raw(HTML.replace(b"\r", b"") + b"\n" + PAGE),
    "body-longer-than-it-says": longer_than_it_says,
    "deflate-without-its-head": answer(zlib.compress(PAGE)[2:-4], Content_Encoding="deflate"),
    "redirected": once(redirect(f"http://hop.{DOMAIN}/%E4%B8%AD?a=b#part")),
    "hop": answer(),
    "too-many-requests-once": once(answer(b"", "429 Too Many Requests", Retry_After="1")),
    "busy-once": once(BUSY),
    "reset-once": once(raw(b"", then="reset")),
    # RFC 9309: 4xx and more than five redirects mean that there are no rules
    "robots-forbidden": at_robots(answer(b"go away", "403 Forbidden"), answer()),
    "robots-loops": at_robots(redirect("/robots.txt?again"), answer()),
    "robots-redirected": at_robots(redirect(f"http://hop.{DOMAIN}/robots.txt"), answer()),
    "robots-binary": at_robots(answer(bytes(range(256)) * 10), answer()),
    "robots-for-others": at_robots(
        answer(b"User-agent: other\nDisallow: /\n\nUser-agent: *\nDisallow: /private\n"), answer()
    ),
    "robots-encoded-as-text": at_robots(answer(ROBOTS_TXT, Content_Encoding="utf-8"), answer()),
    "robots-cut-once": at_robots(
        once(answer(ROBOTS_TXT, Content_Length="99", then="close")), answer()
    ),
    "robots-names-others": at_robots(
        answer(b"User-agent: Bot\nUser-agent: TestBot-News\nDisallow: /\n"),
        answer(),
    ),
    "robots-endless": at_robots(
        answer(
            b"User-agent: *\nDisallow: /private\n",
            Content_Length="1000000000",
            endless=b"# and so on\n" * 1000,
        ),
        answer(),
    ),
}

NO_PAGES: dict[str, dict[str, Behaviour]] = {
    "not_html": {
        # judged by its type, before the body is read
        "pdf": answer(
            b"%PDF-1.4", Content_Type="application/pdf", Content_Length="100000000", then=HANG
        ),
        "gzipped-pdf": answer(
            GZIPPED_PDF[:50],
            Content_Type="application/pdf",
            Content_Encoding="gzip",
            Content_Length=str(len(GZIPPED_PDF)),
        ),
        "binary-as-html": answer(b"\x89PNG\r\n\x1a\n" + bytes(500)),
        "gzip-file-as-html": answer(GZIPPED),
        "zeros-as-html": answer(bytes(500)),
        "untyped-text": answer(b"just words", Content_Type=""),
    },
    "empty_body": {
        "empty-body": answer(b""),
        "no-content": raw(b"HTTP/1.1 204 No Content\r\n\r\n"),
        "empty-gzip": answer(b"", Content_Encoding="gzip"),
    },
    "redirect_loop": {
        "redirect-loop": lambda request: request.redirect("/b" if request.path == "/" else "/"),
        "redirect-to-itself": redirect("/"),
        "endless-redirects": redirect("/1{path}"),
    },
    "bad_redirect": {
        "redirect-to-file": redirect("file:///etc/passwd"),
        "redirect-to-javascript": redirect("javascript:alert(1)"),
        "redirect-nowhere": answer(b"", "301 Moved Permanently"),
        "redirect-to-nonsense": redirect("http://[::1/"),
        "redirect-to-brackets-behind-a-name": redirect("http://é[::1]@"),
        "redirect-to-blanks": redirect("http://two words.example.com/"),
    },
    "blocked_address": {
        "redirect-to-loopback": redirect("http://127.0.0.1/"),
        "redirect-to-metadata": redirect("http://169.254.169.254/latest/meta-data/"),
        "redirect-to-mapped": redirect("http://[::ffff:10.0.0.1]/"),
        "redirect-to-number": redirect("http://2130706433/"),
        "redirect-to-hexadecimal": redirect("http://0x7f.1/"),
        "redirect-to-octal": redirect("http://0300.0250.1.1/"),
        "redirect-to-nat64": redirect("http://[64:ff9b::7f00:1]/"),
        "redirect-behind-a-name": redirect("http://www.example.com@127.0.0.1/"),
        "redirect-without-scheme": redirect("//192.168.0.1/admin"),
        "redirect-to-localhost": redirect("http://localhost/"),
        "redirect-to-port": redirect("http://example.com:22/"),
    },
    "http_401": {"unauthorized": answer(PAGE, "401 Unauthorized")},
    "http_403": {"forbidden": answer(PAGE, "403 Forbidden")},
    "http_404": {
        "not-found": answer(PAGE, "404 Not Found"),
        "missing-in-chunks": answer(b"400\r\n<html>Go", "404 Not Found", then=HANG, **CHUNKED),
    },
    "http_410": {"gone": answer(PAGE, "410 Gone")},
    "http_4xx": {"teapot": answer(PAGE, "418 I'm a teapot")},
    "http_5xx": {"server-error": answer(PAGE, "500 Internal Server Error")},
    "http_other": {
        "odd-status": answer(PAGE, "999 Request denied"),
        "not-modified": raw(b"HTTP/1.1 304 Not Modified\r\n\r\n"),
    },
    "http_429": {
        "too-many-requests": answer(b"", "429 Too Many Requests", Retry_After="0"),
        "wait-for-an-hour": answer(b"", "429 Too Many Requests", Retry_After="3600"),
        "robots-asks-for-patience": at_robots(answer(b"", "429 Too Many Requests")),
    },
    "http_503": {"busy": BUSY},
    "robots": {
        "robots-bans": at_robots(
            answer(b"User-agent: *\nDisallow: /\n", Content_Type="text/plain")
        ),
        "robots-bans-us": at_robots(
            answer(b"User-agent: *\nAllow: /\n\nUser-agent: TestBot\nDisallow: /\n")
        ),
        "robots-bans-with-203": at_robots(
            answer(b"User-agent: *\nDisallow: /\n", "203 Non-Authoritative Information")
        ),
        "robots-bans-with-206": at_robots(
            answer(b"User-agent: *\nDisallow: /\n", "206 Partial Content")
        ),
        "robots-bans-with-226": at_robots(
            answer(b"User-agent: TestBot\nDisallow: /\n", "226 IM Used")
        ),
        "robots-bans-us-in-a-group": at_robots(
            answer(
                b"User-agent: *\rAllow: /\rUser-agent: other\ruseragent testbot # us\rDisallow: /"
            )
        ),
    },
    "robots_unreachable": {
        "robots-fails": at_robots(answer(b"", "500 Internal Server Error")),
        "robots-busy": at_robots(BUSY),
        "robots-times-out": at_robots(answer(wait=HANG)),
        "robots-is-cut": at_robots(answer(b"User-agent: *\n", Content_Length="99", then="close")),
        "robots-is-half-a-gzip": at_robots(answer(GZIPPED[:-20], Content_Encoding="gzip")),
        "robots-is-damaged": at_robots(answer(DAMAGED, Content_Encoding="gzip")),
        "robots-is-garbage": at_robots(raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", then="close")),
        "robots-has-two-lengths": at_robots(answer(Content_Length="5\r\nContent-Length: 6")),
        "robots-leads-inside": at_robots(redirect("http://10.0.0.1/robots.txt")),
        "robots-leads-to-nowhere": at_robots(redirect("http://nowhere.invalid/robots.txt")),
    },
    "timeout": {
        "slow-first-byte": answer(wait=HANG),
        "slow-loris": raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n", endless=b"X", interval=0.1
        ),
        "slow-body": answer(b"<html>", Content_Length="1000", endless=b".", interval=0.1),
        "stalled-body": answer(b"<html>", Content_Length="1000", then=HANG),
        "slow-chunks": answer(b"", **CHUNKED, endless=b"1\r\n.\r\n", interval=0.1),
        "endless-chunk-extension": answer(b"5;", **CHUNKED, endless=b"x" * 1000, interval=0.05),
        "endless-continue": raw(b"", endless=b"HTTP/1.1 100 Continue\r\n\r\n" * 100, interval=0.05),
        "takes-no-connection": silent,
        "slow-redirects": redirect("{path}x", wait=1),
    },
    "too_large": {
        "endless-body": answer(
            b"<html>", Content_Length="", Connection="close", endless=b"more " * 1000
        ),
        "large-content-length": answer(b"<html>", Content_Length="1000000000", then=HANG),
        "gzip-bomb": answer(gzip.compress(b"<html>" + bytes(20_000_000)), Content_Encoding="gzip"),
        "nested-gzip-bomb": answer(
            gzip.compress(gzip.compress(bytes(50_000_000))), Content_Encoding="gzip, gzip"
        ),
        "brotli-bomb": answer(BROTLI_BOMB, Content_Encoding="br"),
        "zstd-bomb": answer(
            zstandard.compress(b"<html>" + bytes(20_000_000)), Content_Encoding="zstd"
        ),
    },
    "bad_response": {
        "chunked-with-a-length": answer(CHUNK, Content_Length="5", Transfer_Encoding="chunked"),
        "identity-with-a-length": answer(Transfer_Encoding="identity"),
        "length-twice": answer(Content_Length=f"{len(PAGE)}\r\ncontent-length: {len(PAGE)}"),
        "length-as-a-list": answer(Content_Length=f"{len(PAGE)}, {len(PAGE)}"),
        "length-twice-in-folded-lines": answer(
            Content_Length=f"\r\n\t{len(PAGE)}\r\nContent-Length: {len(PAGE)},\r\n {len(PAGE)}"
        ),
        "chunked-in-a-folded-line": answer(
            CHUNK, Content_Length="5", Transfer_Encoding="\r\n chunked"
        ),
        "length-without-a-value": answer(Content_Length=" ", then="close"),
        "endless-trailers": answer(
            b"5\r\nhello\r\n0\r\n", **CHUNKED, endless=b"X-Another: trailer\r\n" * 100
        ),
        "broken-gzip": answer(b"this is no gzip at all", Content_Encoding="gzip"),
        "gzip-named-twice": answer(GZIPPED, Content_Encoding="gzip, gzip"),
        "damaged-gzip": answer(DAMAGED, Content_Encoding="gzip"),
        "redirect-to-broken-gzip": redirect(f"http://broken-gzip.{DOMAIN}/"),
        "a-thousand-encodings": answer(nested(1000), Content_Encoding=", ".join(["gzip"] * 1000)),
        "garbage": raw(b"SSH-2.0-OpenSSH_9.6\r\n\r\n", then="close"),
        "http-0-9": raw(PAGE, then="close"),
        "huge-headers": answer(X_Long="x" * 500_000),
        "endless-headers": raw(b"HTTP/1.1 200 OK\r\n", endless=b"X-Another: header\r\n" * 100),
        "another-protocol": raw(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n"),
        "negative-length": answer(Content_Length="-1"),
        "two-lengths": answer(Content_Length=f"{len(PAGE)}\r\nContent-Length: 5"),
        "header-line-without-a-colon": answer(X_Odd="a\r\nno colon"),
        "partial-content": answer(PAGE, "206 Partial Content", Content_Range="bytes 0-99/1000"),
    },
    "connect": {
        "refused": silent,
        # A body that is not complete is temporary, wherever it breaks off.
        "reset-in-body": answer(PAGE, Content_Length="5000", then="reset"),
        "reset-in-body-without-a-length": answer(
            PAGE, Content_Length="", Connection="close", then="reset"
        ),
        "short-body": answer(PAGE, Content_Length="5000", then="close"),
        "no-body": answer(b"", Content_Length="5000", then="close"),
        "cut-chunks": answer(b"64\r\nhello", **CHUNKED, then="close"),
        "no-last-chunk": answer(CHUNKS, **CHUNKED, then="close"),
        "cut-gzip": answer(GZIPPED[:-20], Content_Encoding="gzip"),
        "half-a-gzip-until-close": answer(
            GZIPPED[:50], Content_Encoding="gzip", Content_Length="", then="close"
        ),
        "cut-deflate": answer(zlib.compress(PAGE)[:-30], Content_Encoding="deflate"),
        "cut-brotli": answer(brotli.compress(PAGE)[:-5], Content_Encoding="br"),
        "cut-zstd": answer(zstandard.compress(PAGE)[:-5], Content_Encoding="zstd"),
        "reset-before-answer": raw(b"", then="reset"),
        "closed-before-head": raw(b"", then="close"),
        "closed-within-head": raw(b"HTTP/1.1 200 OK\r\nContent-Ty", then="close"),
    },
    "tls": {"self-signed": answer(), "plain-http-at-https": answer()},
}

WAYS: dict[str, tuple[Behaviour, str | None]] = {name: (way, None) for name, way in PAGES.items()}
"""By host name: its behaviour, and the reason that a user expects; None for a page."""
WAYS |= {name: (way, reason) for reason, ways in NO_PAGES.items() for name, way in ways.items()}
