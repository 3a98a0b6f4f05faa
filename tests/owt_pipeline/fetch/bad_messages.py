"""Hosts whose answers are too slow, too large, not valid, or truncated."""

from __future__ import annotations

import asyncio
import contextlib
import gzip

import zstandard

from tests.owt_pipeline.fetch.bad_server import PAGE, Request
from tests.owt_pipeline.fetch.ways import way

ZSTD_BOMB = zstandard.compress(b"<html>" + bytes(20_000_000))
BROTLI_BOMB = bytes.fromhex(  # <html> and 20 MB of zeros
    "cbffff3ff8073c64cfc1b42cd0c46d81c0d9fb3fe5abe1ffff1ffc1300715804a07bff97052d31f82700e2b00000982406"
)


# Made before they are asked for: the server would keep all other hosts waiting.
GZIP_BOMB = gzip.compress(b"<html>" + bytes(20_000_000))
NESTED_GZIP_BOMB = gzip.compress(gzip.compress(bytes(50_000_000)))


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
    await request.answer(GZIP_BOMB, Content_Encoding="gzip")


@way("too_large")
async def nested_gzip_bomb(request: Request) -> None:
    await request.answer(NESTED_GZIP_BOMB, Content_Encoding="gzip, gzip")


@way("bad_response")
async def endless_trailers(request: Request) -> None:
    await request.answer(b"5\r\nhello\r\n0\r\n", Content_Length="", Transfer_Encoding="chunked")
    with contextlib.suppress(OSError):
        while True:
            await request.send(b"X-Another: trailer\r\n" * 100)


@way("too_large")
async def brotli_bomb(request: Request) -> None:
    await request.answer(BROTLI_BOMB, Content_Encoding="br")


@way("too_large")
async def zstd_bomb(request: Request) -> None:
    await request.answer(ZSTD_BOMB, Content_Encoding="zstd")


@way("bad_response")
async def cut_zstd(request: Request) -> None:
    await request.answer(zstandard.compress(PAGE)[:-5], Content_Encoding="zstd")


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
async def a_thousand_encodings(request: Request) -> None:
    body = PAGE
    for _ in range(1000):
        body = gzip.compress(body, 1)
    await request.answer(body, Content_Encoding=", ".join(["gzip"] * 1000))


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


@way("too_large")
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
async def header_line_without_a_colon(request: Request) -> None:
    await request.answer(X_Odd="a\r\nno colon")


@way("bad_response")
async def short_body_with_more_after_it(request: Request) -> None:
    await request.answer(PAGE + b"and some more", Content_Length=str(len(PAGE)))


@way("bad_response")
async def junk_after_the_last_chunk(request: Request) -> None:
    body = b"%x\r\n%s\r\n0\r\n\r\n<!-- served by -->" % (len(PAGE), PAGE)
    await request.answer(body, Content_Length="", Transfer_Encoding="chunked")


@way("bad_response")
async def no_content_with_a_body(request: Request) -> None:
    await request.answer(PAGE, "204 No Content")


@way("bad_response")
async def partial_content(request: Request) -> None:
    await request.answer(PAGE, "206 Partial Content", Content_Range="bytes 0-99/1000")


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
