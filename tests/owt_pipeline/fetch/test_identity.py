"""A URL is requested as it was posted, and found again in the WARC file of its page."""

from __future__ import annotations

import gzip

from owt_pipeline.engine.runner import run_stage
from owt_pipeline.formats.urls import canonical_url
from owt_pipeline.stages.fetch.options import Options
from owt_pipeline.stages.fetch.stage import STAGE
from tests.owt_pipeline.fetch.conftest import Serve, Write
from tests.owt_pipeline.fetch.reading import reader, responses
from tests.owt_pipeline.fetch.test_live import fetch
from tests.servers.web import DOMAIN, PAGE, Request

# The keys are posted behind the host, and the values are requested.
POSTED = {
    "/share?u=http%3A%2F%2Fx.org%2F&t=a%20b+c": "/share?u=http%3A%2F%2Fx.org%2F&t=a%20b+c",
    "/share?u=http://y.org/": "/share?u=http://y.org/",
    "/wiki/Caf%E9_(Paris)": "/wiki/Caf%E9_(Paris)",
    "/wiki/Café": "/wiki/Caf%C3%A9",
    "/two words?q=two words": "/two%20words?q=two%20words",
    "/x?a[]=1&b={c}|d": "/x?a[]=1&b={c}|d",
    "/dir/../up/./here/": "/up/here/",
    "/?utm_source=reddit&id=1": "/?utm_source=reddit&id=1",
    "/?a=1&amp;b=2": "/?a=1&b=2",
    "/groups#!topic/42": "/groups",
    "/to-utf8": "/to-utf8",
    "/to-latin1": "/to-latin1",
    "/to-share": "/to-share",
    "/to-relative/x": "/to-relative/x",
    "/to-same?utm_source=x": "/to-same?utm_source=x",
}
LOCATIONS = {
    "/to-utf8": "/ziel-ü".encode(),
    "/to-latin1": "/ziel-ü".encode("latin-1"),
    "/to-share": b"/end?u=http%3A%2F%2Fz.org%2F",
    "/to-relative/x": b"y//z?q=%2F",
    "/to-same?utm_source=x": b"/to-same?utm_medium=y",
}


async def echo(request: Request) -> None:
    """A page that names the requested path, or a redirect."""
    if (location := LOCATIONS.get(request.path)) is not None:
        await request.send(
            b"HTTP/1.1 302 Found\r\nLocation: " + location + b"\r\nContent-Length: 0\r\n\r\n"
        )
    else:
        await request.answer(PAGE + request.path.encode())


def test_pages_are_requested_as_posted_and_found_in_their_warcs(
    serve: Serve, write_urls: Write
) -> None:
    hosts = [f"echo.{DOMAIN}", f"www.Upper.{DOMAIN.upper()}.:80"]
    urls = [f"http://{host}{path}" for host in hosts for path in POSTED]
    server = serve(dict.fromkeys(["echo", "www.upper"], echo))
    runtime = write_urls(urls)
    manifest = fetch(runtime, server)
    requested_paths = {path for host, path in server.requests if host == "echo"}
    assert (
        set(POSTED.values()) | {"/ziel-%C3%BC", "/ziel-%FC", "/end?u=http%3A%2F%2Fz.org%2F"}
        <= requested_paths
    )
    response_by_url = responses(runtime, manifest)
    assert set(response_by_url) == {canonical_url(url) for url in urls}
    later = write_urls(urls, "later")
    files = tuple(
        runtime.workdir.path(file.path) for file in reader(runtime, manifest).files("warc")
    )
    again = run_stage(STAGE, Options(pages_from=files), later)[0]
    before, after = (
        reader(*dataset).table(columns=["url", "payload_digest"]).sort_by("url")
        for dataset in ((runtime, manifest), (later, again))
    )
    assert before.equals(after)


def test_a_payload_digest_is_of_the_decoded_page(serve: Serve, write_urls: Write) -> None:
    async def answer(request: Request) -> None:
        packed = request.path == "/gzip"
        await request.answer(
            gzip.compress(PAGE) if packed else PAGE, Content_Encoding="gzip" if packed else ""
        )

    runtime = write_urls([f"http://some.{DOMAIN}/{path}" for path in ("gzip", "plain")])
    manifest = fetch(runtime, serve({"some": answer}))
    assert len(set(reader(runtime, manifest).table()["payload_digest"].to_pylist())) == 1
