"""Hosts whose answers are valid but no page: other types, redirects without a target, statuses."""

from __future__ import annotations

import asyncio
import gzip

from tests.owt_pipeline.fetch.bad_server import PAGE, Request
from tests.owt_pipeline.fetch.ways import WAYS, way


@way("not_html")
async def pdf(request: Request) -> None:
    await request.answer(b"%PDF-1.4", Content_Type="application/pdf", Content_Length="100000000")
    await asyncio.sleep(60)  # judged by its type, before the body is read


@way("not_html")
async def gzipped_pdf(request: Request) -> None:
    body = gzip.compress(b"%PDF-1.4" * 1000)
    await request.answer(
        body[:50], Content_Type="application/pdf", Content_Length=str(len(body)), Content_Encoding="gzip"
    )


@way("http_404")
async def missing_in_chunks(request: Request) -> None:
    await request.answer(b"400\r\n<html>Go", "404 Not Found", Content_Length="", Transfer_Encoding="chunked")
    await asyncio.sleep(60)


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


@way("not_html")
async def text_of_any_type(request: Request) -> None:
    await request.answer(b"just words", Content_Type="*/*")


@way("not_html")
async def text_after_html(request: Request) -> None:
    await request.answer(Content_Type="text/html, text/plain")


@way("empty_body")
async def empty_body(request: Request) -> None:
    await request.answer(b"")


@way("empty_body")
async def no_content(request: Request) -> None:
    await request.send(b"HTTP/1.1 204 No Content\r\n\r\n")


@way("empty_body")
async def empty_gzip(request: Request) -> None:
    await request.answer(b"", Content_Encoding="gzip")


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


@way("bad_redirect")
async def redirect_to_brackets_behind_a_name(request: Request) -> None:
    await request.redirect("http://é[::1]@")


@way("bad_redirect")
async def redirect_to_blanks(request: Request) -> None:
    await request.redirect("http://two words.example.com/")


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
