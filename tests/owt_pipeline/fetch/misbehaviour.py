"""Ways to misbehave: a function each, the answer of the host of its name (`_` for `-`) below `bad.test`."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib
from collections.abc import Callable

from owt_pipeline.fetch.http_message import brotli_available
from tests.owt_pipeline.fetch.bad_server import DOMAIN, PAGE, Request, Way

BROTLI_BOMB = bytes.fromhex(  # <html> and 20 MB of zeros
    "cbffff3ff8073c64cfc1b42cd0c46d81c0d9fb3fe5abe1ffff1ffc1300715804a07bff97052d31f82700e2b00000982406"
)

WAYS: dict[str, tuple[Way, str | None]] = {}
"""By host name: how it answers, and the reason that a user would expect; None for a page."""


def way(reason: str | None) -> Callable[[Way], Way]:
    def register(answer: Way) -> Way:
        WAYS[answer.__name__.replace("_", "-")] = answer, reason
        return answer

    return register


# --- pages after all ---


@way(None)
async def page(request: Request) -> None:
    await request.answer()


@way(None)
async def gzipped(request: Request) -> None:
    await request.answer(gzip.compress(PAGE), Content_Encoding="gzip")


@way(None)
async def chunked(request: Request) -> None:
    chunks = b"".join(b"%x\r\n%s\r\n" % (len(PAGE[at : at + 100]), PAGE[at : at + 100]) for at in range(0, 600, 100))
    await request.answer(chunks + b"0\r\n\r\n", Content_Length="", Transfer_Encoding="chunked")


@way(None)
async def until_close(request: Request) -> None:
    await request.answer(Content_Length="", Connection="close")
    request.writer.close()


@way(None)
async def meta_refresh(request: Request) -> None:
    await request.answer(b'<html><head><meta http-equiv="refresh" content="0;url=/elsewhere"></head></html>')


@way(None)
async def charset_lie(request: Request) -> None:
    await request.answer("<html><p>Привет</p></html>".encode("koi8-r"), Content_Type="text/html; charset=utf-8")


@way(None)
async def unknown_charset(request: Request) -> None:
    await request.answer(Content_Type="text/html; charset=x-klingon")


@way(None)
async def untyped_html(request: Request) -> None:
    await request.answer(Content_Type="")


@way(None)
async def early_hints(request: Request) -> None:
    await request.send(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
    await request.answer()


@way(None)
async def lines_end_in_lf(request: Request) -> None:
    await request.send(b"HTTP/1.1 200 OK\nContent-Type: text/html\nContent-Length: %d\n\n%s" % (len(PAGE), PAGE))


@way(None)
async def body_longer_than_it_says(request: Request) -> None:
    await request.answer(PAGE + b"and some more", Content_Length=str(len(PAGE)))


@way(None)
async def junk_after_the_last_chunk(request: Request) -> None:
    body = b"%x\r\n%s\r\n0\r\n\r\n<!-- served by -->" % (len(PAGE), PAGE)
    await request.answer(body, Content_Length="", Transfer_Encoding="chunked")


@way(None)
async def gzip_of_two_members(request: Request) -> None:
    await request.answer(gzip.compress(PAGE[:100]) + gzip.compress(PAGE[100:]), Content_Encoding="gzip")


@way(None)
async def deflate_without_its_head(request: Request) -> None:
    await request.answer(zlib.compress(PAGE)[2:-4], Content_Encoding="deflate")


@way(None)
async def redirected(request: Request) -> None:
    if request.path == "/":
        await request.redirect(f"http://hop.{DOMAIN}/%E4%B8%AD?a=b#part")
    else:
        await request.answer()


@way(None)
async def hop(request: Request) -> None:
    await request.answer()


@way(None)
async def too_many_requests_once(request: Request) -> None:
    if request.count == 1:
        await request.answer(b"", "429 Too Many Requests", Retry_After="1")
    else:
        await request.answer()


@way(None)
async def busy_once(request: Request) -> None:
    if request.count == 1:
        await request.answer(b"", "503 Service Unavailable")
    else:
        await request.answer()


@way(None)
async def reset_once(request: Request) -> None:
    if request.count == 1:
        request.reset()
    else:
        await request.answer()


@way(None)
async def robots_forbidden(request: Request) -> None:  # RFC 9309: 4xx means that there are no rules
    if request.path == "/robots.txt":
        await request.answer(b"go away", "403 Forbidden")
    else:
        await request.answer()


@way(None)
async def robots_for_others(request: Request) -> None:
    if request.path == "/robots.txt":
        await request.answer(b"User-agent: other\nDisallow: /\n\nUser-agent: *\nDisallow: /private\n")
    else:
        await request.answer()


@way(None)
async def robots_endless(request: Request) -> None:
    if request.path == "/robots.txt":
        await request.answer(b"User-agent: *\nDisallow: /private\n", Content_Length="1000000000")
        with contextlib.suppress(OSError):
            while True:
                await request.send(b"# and so on\n" * 1000)
    else:
        await request.answer()


@way(None)
async def robots_redirected(request: Request) -> None:
    if request.path == "/robots.txt":
        await request.redirect(f"http://hop.{DOMAIN}/robots.txt")
    else:
        await request.answer()


@way(None)
async def robots_loops(request: Request) -> None:  # RFC 9309: more than five redirects mean that there are no rules
    if request.path.startswith("/robots.txt"):
        await request.redirect("/robots.txt?again")
    else:
        await request.answer()


@way(None)
async def robots_binary(request: Request) -> None:
    if request.path == "/robots.txt":
        await request.answer(bytes(range(256)) * 10)
    else:
        await request.answer()


# --- robots.txt that bans ---


@way("robots")
async def robots_bans(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"User-agent: *\nDisallow: /\n", Content_Type="text/plain")


@way("robots")
async def robots_bans_us(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"User-agent: *\nAllow: /\n\nUser-agent: TestBot\nDisallow: /\n", Content_Type="text/plain")


@way("robots")
async def robots_fails(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"", "500 Internal Server Error")


@way("robots")
async def robots_busy(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"", "503 Service Unavailable")


@way("robots")
async def robots_times_out(request: Request) -> None:
    assert request.path == "/robots.txt"
    await asyncio.sleep(60)


@way("blocked_address")
async def robots_leads_inside(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.redirect("http://10.0.0.1/robots.txt")


# --- too slow ---


@way("timeout")
async def slow_first_byte(request: Request) -> None:
    await asyncio.sleep(60)


@way("timeout")
async def slow_loris(request: Request) -> None:
    for byte in b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + b"X-A: b\r\n" * 1000:
        await request.send(bytes([byte]))
        await asyncio.sleep(0.1)


@way("timeout")
async def slow_body(request: Request) -> None:
    await request.answer(b"<html>", Content_Length="1000")
    for _ in range(990):
        await request.send(b".")
        await asyncio.sleep(0.1)


@way("timeout")
async def stalled_body(request: Request) -> None:
    await request.answer(b"<html>", Content_Length="1000")
    await asyncio.sleep(60)


@way("timeout")
async def slow_chunks(request: Request) -> None:
    await request.answer(b"", Content_Length="", Transfer_Encoding="chunked")
    for _ in range(600):
        await request.send(b"1\r\n.\r\n")
        await asyncio.sleep(0.1)


@way("timeout")
async def takes_no_connection(request: Request) -> None:
    raise AssertionError("no connection, no request")


@way("timeout")
async def slow_redirects(request: Request) -> None:
    await asyncio.sleep(1)
    await request.redirect(f"{request.path}x")


# --- too large ---


@way("too_large")
async def endless_body(request: Request) -> None:
    await request.answer(b"<html>", Content_Length="", Connection="close")
    with contextlib.suppress(OSError):
        while True:
            await request.send(b"more " * 1000)


@way("too_large")
async def large_content_length(request: Request) -> None:
    await request.answer(b"<html>", Content_Length="1000000000")
    await asyncio.sleep(60)


@way("too_large")
async def gzip_bomb(request: Request) -> None:
    await request.answer(gzip.compress(b"<html>" + bytes(20_000_000)), Content_Encoding="gzip")


@way("too_large")
async def nested_gzip_bomb(request: Request) -> None:
    await request.answer(gzip.compress(gzip.compress(bytes(50_000_000))), Content_Encoding="gzip, gzip")


@way("too_large")
async def endless_trailers(request: Request) -> None:
    await request.answer(b"5\r\nhello\r\n0\r\n", Content_Length="", Transfer_Encoding="chunked")
    with contextlib.suppress(OSError):
        while True:
            await request.send(b"X-Another: trailer\r\n" * 100)


@way("too_large" if brotli_available() else "bad_response")  # it is offered only where it can be decoded
async def brotli_bomb(request: Request) -> None:
    await request.answer(BROTLI_BOMB, Content_Encoding="br")


# --- not valid ---


@way("bad_response")
async def short_body(request: Request) -> None:
    await request.answer(PAGE, Content_Length="5000")
    request.writer.close()


@way("bad_response")
async def broken_gzip(request: Request) -> None:
    await request.answer(b"this is no gzip at all", Content_Encoding="gzip")


@way("bad_response")
async def damaged_gzip(request: Request) -> None:
    body = bytearray(gzip.compress(bytes(range(256)) * 20))
    body[100:110] = b"0123456789"
    await request.answer(bytes(body), Content_Encoding="gzip")


@way("bad_response")
async def cut_gzip(request: Request) -> None:
    await request.answer(gzip.compress(PAGE)[:-20], Content_Encoding="gzip")


@way("bad_response")
async def unknown_encoding(request: Request) -> None:
    await request.answer(PAGE, Content_Encoding="x-klingon")


@way("bad_response")
async def bad_chunks(request: Request) -> None:
    await request.answer(b"5\r\nhello\r\nnonsense\r\n", Content_Length="", Transfer_Encoding="chunked")


@way("bad_response")
async def cut_chunks(request: Request) -> None:
    await request.answer(b"64\r\nhello", Content_Length="", Transfer_Encoding="chunked")
    request.writer.close()


@way("bad_response")
async def garbage(request: Request) -> None:
    await request.send(b"SSH-2.0-OpenSSH_9.6\r\n\r\n")
    request.writer.close()


@way("bad_response")
async def http_0_9(request: Request) -> None:
    await request.send(PAGE)
    request.writer.close()


@way("bad_response")
async def huge_headers(request: Request) -> None:
    await request.answer(PAGE, X_Long="x" * 500_000)


@way("bad_response")
async def endless_headers(request: Request) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\n")
    with contextlib.suppress(OSError):
        while True:
            await request.send(b"X-Another: header\r\n" * 100)


@way("bad_response")
async def endless_chunk_extension(request: Request) -> None:
    await request.answer(b"5;", Content_Length="", Transfer_Encoding="chunked")
    with contextlib.suppress(OSError):
        while True:
            await request.send(b"x" * 1000)


@way("bad_response")
async def flood_of_continue(request: Request) -> None:
    with contextlib.suppress(OSError):
        while True:
            await request.send(b"HTTP/1.1 100 Continue\r\n\r\n" * 100)


@way("bad_response")
async def another_protocol(request: Request) -> None:
    await request.send(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n")


@way("bad_response")
async def negative_length(request: Request) -> None:
    await request.answer(Content_Length="-1")


@way("bad_response")
async def two_lengths(request: Request) -> None:
    await request.answer(Content_Length=f"{len(PAGE)}\r\nContent-Length: 5")


@way("bad_response")
async def partial_content(request: Request) -> None:
    await request.answer(PAGE, "206 Partial Content", Content_Range="bytes 0-99/1000")


# --- no HTML ---


@way("not_html")
async def pdf(request: Request) -> None:
    await request.answer(b"%PDF-1.4", Content_Type="application/pdf", Content_Length="100000000")
    await asyncio.sleep(60)  # judged by its type, before the body is read


@way("not_html")
async def binary_as_html(request: Request) -> None:
    await request.answer(b"\x89PNG\r\n\x1a\n" + bytes(500))


@way("not_html")
async def gzip_file_as_html(request: Request) -> None:
    await request.answer(gzip.compress(PAGE))


@way("not_html")
async def zeros_as_html(request: Request) -> None:
    await request.answer(bytes(500))


@way("not_html")
async def untyped_text(request: Request) -> None:
    await request.answer(b"just words", Content_Type="")


@way("empty_body")
async def empty_body(request: Request) -> None:
    await request.answer(b"")


@way("empty_body")
async def no_content(request: Request) -> None:
    await request.send(b"HTTP/1.1 204 No Content\r\n\r\n")


@way("empty_body")
async def empty_gzip(request: Request) -> None:
    await request.answer(b"", Content_Encoding="gzip")


@way("empty_body")
async def no_content_with_a_body(request: Request) -> None:
    await request.answer(PAGE, "204 No Content")


# --- redirects ---


@way("redirect_loop")
async def redirect_loop(request: Request) -> None:
    await request.redirect("/b" if request.path == "/" else "/")


@way("redirect_loop")
async def redirect_to_itself(request: Request) -> None:
    await request.redirect("/")


@way("redirect_loop")
async def endless_redirects(request: Request) -> None:
    await request.redirect(f"/{request.count}{request.path}")


@way("bad_redirect")
async def redirect_to_file(request: Request) -> None:
    await request.redirect("file:///etc/passwd")


@way("bad_redirect")
async def redirect_to_javascript(request: Request) -> None:
    await request.redirect("javascript:alert(1)")


@way("bad_redirect")
async def redirect_nowhere(request: Request) -> None:
    await request.answer(b"", "301 Moved Permanently")


@way("bad_redirect")
async def redirect_to_nonsense(request: Request) -> None:
    await request.redirect("http://[::1/")


@way("blocked_address")
async def redirect_to_loopback(request: Request) -> None:
    await request.redirect("http://127.0.0.1/")


@way("blocked_address")
async def redirect_to_metadata(request: Request) -> None:
    await request.redirect("http://169.254.169.254/latest/meta-data/")


@way("blocked_address")
async def redirect_to_mapped(request: Request) -> None:
    await request.redirect("http://[::ffff:10.0.0.1]/")


@way("blocked_address")
async def redirect_to_number(request: Request) -> None:
    await request.redirect("http://2130706433/")


@way("blocked_address")
async def redirect_to_hexadecimal(request: Request) -> None:
    await request.redirect("http://0x7f.1/")


@way("blocked_address")
async def redirect_to_octal(request: Request) -> None:
    await request.redirect("http://0300.0250.1.1/")


@way("blocked_address")
async def redirect_to_nat64(request: Request) -> None:
    await request.redirect("http://[64:ff9b::7f00:1]/")


@way("blocked_address")
async def redirect_behind_a_name(request: Request) -> None:
    await request.redirect("http://www.example.com@127.0.0.1/")


@way("blocked_address")
async def redirect_without_scheme(request: Request) -> None:
    await request.redirect("//192.168.0.1/admin")


@way("blocked_address")
async def redirect_to_localhost(request: Request) -> None:
    await request.redirect("http://localhost/")


@way("blocked_address")
async def redirect_to_port(request: Request) -> None:
    await request.redirect("http://example.com:22/")


# --- broken connections ---


@way("connect")
async def refused(request: Request) -> None:
    raise AssertionError("no connection, no request")


@way("connect")
async def reset_in_body(request: Request) -> None:
    await request.answer(PAGE, Content_Length="5000")
    await asyncio.sleep(0.05)
    request.reset()


@way("connect")
async def reset_before_answer(request: Request) -> None:
    request.reset()


@way("connect")
async def closed_before_head(request: Request) -> None:
    request.writer.close()


@way("connect")
async def closed_within_head(request: Request) -> None:
    await request.send(b"HTTP/1.1 200 OK\r\nContent-Ty")
    request.writer.close()


@way("tls")
async def self_signed(request: Request) -> None:
    await request.answer()


@way("tls")
async def plain_http_at_https(request: Request) -> None:
    await request.answer()


# --- statuses ---


@way("http_other")
async def not_modified(request: Request) -> None:
    await request.send(b"HTTP/1.1 304 Not Modified\r\n\r\n")


@way("http_429")
async def too_many_requests(request: Request) -> None:
    await request.answer(b"", "429 Too Many Requests", Retry_After="0")


@way("http_429")
async def wait_for_an_hour(request: Request) -> None:
    await request.answer(b"", "429 Too Many Requests", Retry_After="3600")


@way("http_503")
async def busy(request: Request) -> None:
    await request.answer(b"", "503 Service Unavailable")


def _status(name: str, status: str, reason: str) -> None:
    async def answer(request: Request) -> None:
        await request.answer(PAGE, status)

    WAYS[name] = answer, reason


_status("unauthorized", "401 Unauthorized", "http_401")
_status("forbidden", "403 Forbidden", "http_403")
_status("not-found", "404 Not Found", "http_404")
_status("gone", "410 Gone", "http_410")
_status("teapot", "418 I'm a teapot", "http_4xx")
_status("server-error", "500 Internal Server Error", "http_5xx")
_status("odd-status", "999 Request denied", "http_other")
