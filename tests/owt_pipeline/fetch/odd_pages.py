"""Hosts whose odd answers are pages all the same, and hosts whose robots.txt forbids everything."""

from __future__ import annotations

import asyncio
import contextlib
import gzip
import zlib

import brotli
import zstandard

from tests.owt_pipeline.fetch.bad_server import DOMAIN, PAGE, Request
from tests.owt_pipeline.fetch.ways import way


@way(None)
async def page(request: Request) -> None:
    await request.answer()


@way(None)
async def gzipped(request: Request) -> None:
    await request.answer(gzip.compress(PAGE), Content_Encoding="gzip")


@way(None)
async def in_zstd(request: Request) -> None:
    await request.answer(zstandard.compress(PAGE), Content_Encoding="zstd")


@way(None)
async def in_brotli(request: Request) -> None:
    await request.answer(brotli.compress(PAGE), Content_Encoding="br")


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
async def two_content_types(request: Request) -> None:  # as in browsers, the last one counts
    await request.answer(Content_Type="text/plain\r\nContent-Type: text/html")


@way(None)
async def list_of_content_types(request: Request) -> None:
    await request.answer(Content_Type="text/plain, text/html; charset=utf-8")


@way(None)
async def no_type_after_one(request: Request) -> None:
    await request.answer(Content_Type="text/html\r\nContent-Type: html")


@way(None)
async def half_a_type(request: Request) -> None:
    await request.answer(Content_Type="html")


@way(None)
async def type_in_quotes(request: Request) -> None:
    await request.answer(Content_Type='"text/html"')


@way(None)
async def type_without_semicolon(request: Request) -> None:
    await request.answer(Content_Type="text/html charset=utf-8")


@way(None)
async def any_type(request: Request) -> None:
    await request.answer(Content_Type="*/*")


@way(None)
async def early_hints(request: Request) -> None:
    await request.send(b"HTTP/1.1 103 Early Hints\r\nLink: </style.css>\r\n\r\n")
    await request.answer()


@way(None)
async def odd_header_lines(request: Request) -> None:
    lines = b"X-Folded: a\r\n b\r\nX-Odd: \x01\xe9\r\nContent-Length: %d\r\n" % len(PAGE)
    await request.send(b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\n" + lines + b"\r\n" + PAGE)


@way(None)
async def cookie_wall(request: Request) -> None:
    if "seen=pâté".encode().decode("latin-1").lower() in request.headers.get("cookie", ""):
        assert "other" not in request.headers["cookie"]
        await request.answer()
    else:
        cookies = "seen=pâté; Path=/\r\nSet-Cookie: other=x; Domain=example.com"
        await request.answer(b"", "302 Found", Location=request.path, Set_Cookie=cookies)


@way(None)
async def lines_end_in_lf(request: Request) -> None:
    await request.send(b"HTTP/1.1 200 OK\nContent-Type: text/html\nContent-Length: %d\n\n%s" % (len(PAGE), PAGE))


@way(None)
async def body_longer_than_it_says(request: Request) -> None:
    await request.answer()
    await asyncio.sleep(0.05)
    await request.send(b"and some more")


@way(None)
async def gzip_of_two_members(request: Request) -> None:
    await request.answer(gzip.compress(PAGE[:100]) + gzip.compress(PAGE[100:]), Content_Encoding="gzip")


@way(None)
async def gzip_without_trailer(request: Request) -> None:
    await request.answer(gzip.compress(PAGE)[:-8], Content_Encoding="gzip")


@way(None)
async def gzip_with_a_wrong_trailer(request: Request) -> None:
    await request.answer(gzip.compress(PAGE)[:-8] + bytes(8), Content_Encoding="gzip")


@way(None)
async def gzip_as_deflate(request: Request) -> None:
    await request.answer(gzip.compress(PAGE), Content_Encoding="deflate")


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


@way("robots")
async def robots_bans(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"User-agent: *\nDisallow: /\n", Content_Type="text/plain")


@way("robots")
async def robots_bans_us(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"User-agent: *\nAllow: /\n\nUser-agent: TestBot\nDisallow: /\n", Content_Type="text/plain")


@way("robots_unreachable")
async def robots_fails(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"", "500 Internal Server Error")


@way("robots_unreachable")
async def robots_busy(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"", "503 Service Unavailable")


@way("robots_unreachable")
async def robots_times_out(request: Request) -> None:
    assert request.path == "/robots.txt"
    await asyncio.sleep(60)


@way("http_429")
async def robots_asks_for_patience(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.answer(b"", "429 Too Many Requests")


@way("blocked_address")
async def robots_leads_inside(request: Request) -> None:
    assert request.path == "/robots.txt"
    await request.redirect("http://10.0.0.1/robots.txt")
