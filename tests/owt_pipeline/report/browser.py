"""A headless Chromium, controlled over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import itertools
import time
from pathlib import Path
from typing import Any

import aiohttp


class Browser:
    """One page of a browser.

    Attributes:
      problems: what the console said of errors and warnings, what was raised and not caught, what failed to load.
      requests: every URL that was asked for.
    """

    def __init__(self, endpoint: str):
        self.problems: list[str] = []
        self.requests: list[str] = []
        self._numbers = itertools.count(1)
        self._loop = asyncio.new_event_loop()
        self._session, self._socket = self._wait(self._connect(endpoint))
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        """The result of a command of the DevTools protocol."""
        return self._wait(self._call(method, parameters))

    def evaluate(self, expression: str) -> Any:
        """The value of a JavaScript expression; of a promise, its result."""
        answer = self.call("Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def comes_to(self, condition: str, seconds: float = 30) -> bool:
        """Whether a JavaScript condition becomes true in time."""
        deadline = time.monotonic() + seconds
        while not (true := self.evaluate(condition)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return bool(true)

    def open(self, path: Path, width: int, height: int, *, dark: bool = False) -> None:
        """Open a file in a window of this size, and wait until all is drawn; what was noted before is forgotten."""
        self.call("Page.navigate", url="about:blank")
        self.problems.clear()
        self.requests.clear()
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.call("Emulation.setEmulatedMedia", media="", features=[scheme])
        self.call("Page.navigate", url=path.as_uri())
        assert self.comes_to("document.readyState === 'complete' && location.href !== 'about:blank'")
        self.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")

    def screenshot(self) -> bytes:
        """The complete page as a PNG."""
        return base64.b64decode(self.call("Page.captureScreenshot", captureBeyondViewport=True)["data"])

    def close(self) -> None:
        self._wait(self._socket.close())
        self._wait(self._session.close())
        self._loop.close()

    def _wait(self, coroutine: Any) -> Any:
        return self._loop.run_until_complete(asyncio.wait_for(coroutine, 60))

    async def _connect(self, endpoint: str) -> Any:
        session = aiohttp.ClientSession()
        async with session.get(f"{endpoint}/json") as answer:
            target = next(t for t in await answer.json() if t["type"] == "page")
        return session, await session.ws_connect(target["webSocketDebuggerUrl"], max_msg_size=0)

    async def _call(self, method: str, parameters: dict[str, Any]) -> dict[str, Any]:
        number = next(self._numbers)
        await self._socket.send_json({"id": number, "method": method, "params": parameters})
        while True:
            message = await self._socket.receive_json()
            if message.get("id") == number:
                assert "error" not in message, message
                return message["result"]
            self._note(message.get("method"), message.get("params", {}))

    def _note(self, event: str | None, said: dict[str, Any]) -> None:
        if event == "Network.requestWillBeSent":
            self.requests.append(said["request"]["url"])
        elif event == "Runtime.exceptionThrown":
            self.problems.append(str(said["exceptionDetails"]))
        elif event == "Runtime.consoleAPICalled" and said["type"] in ("error", "warning", "assert"):
            self.problems.append(str(said["args"]))
        elif event == "Log.entryAdded" and said["entry"]["level"] in ("error", "warning"):
            self.problems.append(said["entry"]["text"])
