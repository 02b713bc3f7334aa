"""A real browser for tests: Chromium without a window, spoken to over its DevTools protocol."""

from __future__ import annotations

import asyncio
import base64
import json
import shutil
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
READY_S = 60.0


class Tab:
    """A page that is loaded; `complaints` is what it wrote to the console as errors or warnings, and what failed."""

    def __init__(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        self._socket = socket
        self._number = 0
        self.complaints: list[str] = []
        self.requests: list[str] = []
        self._loaded = asyncio.Event()
        self._answers: dict[int, asyncio.Future[dict[str, Any]]] = {}
        self._listening = asyncio.create_task(self._listen())

    async def call(self, method: str, **parameters: Any) -> dict[str, Any]:
        self._number += 1
        answer = self._answers[self._number] = asyncio.get_running_loop().create_future()
        await self._socket.send_str(json.dumps({"id": self._number, "method": method, "params": parameters}))
        async with asyncio.timeout(READY_S):
            return await answer

    async def open(self, address: str) -> None:
        for domain in ("Page", "Runtime", "Log", "Network"):
            await self.call(f"{domain}.enable")
        await self.call("Page.navigate", url=address)
        async with asyncio.timeout(READY_S):
            await self._loaded.wait()

    async def value(self, expression: str) -> Any:
        answer = await self.call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def scheme(self, name: str, media: str = "") -> None:
        features = [{"name": "prefers-color-scheme", "value": name}]
        await self.call("Emulation.setEmulatedMedia", media=media, features=features)

    async def size(self, width: int, height: int) -> None:
        await self.call(
            "Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=False
        )

    async def screenshot(self, height: int | None = None) -> bytes:
        """The whole page, or its first `height` pixels."""
        metrics = await self.call("Page.getLayoutMetrics")
        size = metrics["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": height or size["height"], "scale": 1}
        answer = await self.call("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        return base64.b64decode(answer["data"])

    async def pdf(self) -> bytes:
        answer = await self.call("Page.printToPDF", printBackground=True, preferCSSPageSize=True)
        return base64.b64decode(answer["data"])

    async def _listen(self) -> None:
        async for message in self._socket:
            said = json.loads(message.data)
            if "id" in said:
                answer = self._answers.pop(said["id"])
                if "error" in said:
                    answer.set_exception(AssertionError(said["error"]))
                else:
                    answer.set_result(said["result"])
            else:
                self._heard(said["method"], said["params"])

    def _heard(self, method: str, told: dict[str, Any]) -> None:
        match method:
            case "Page.loadEventFired":
                self._loaded.set()
            case "Runtime.consoleAPICalled" if told["type"] in ("error", "warning", "assert"):
                self.complaints.append(str(told["args"]))
            case "Runtime.exceptionThrown":
                self.complaints.append(str(told["exceptionDetails"]))
            case "Log.entryAdded" if told["entry"]["level"] in ("error", "warning"):
                self.complaints.append(told["entry"]["text"])
            case "Network.requestWillBeSent":
                self.requests.append(told["request"]["url"])

    async def close(self) -> None:
        self._listening.cancel()
        await asyncio.wait({self._listening})


@asynccontextmanager
async def tab(profile: Path) -> AsyncIterator[Tab]:
    """A browser of its own, with nobody's settings; it ends with the block."""
    assert CHROMIUM is not None
    process = await asyncio.create_subprocess_exec(
        CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
        "--no-first-run", "--remote-debugging-port=0", f"--user-data-dir={profile}", "about:blank",
        stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL,
    )  # fmt: skip
    try:
        port = await _port(profile)
        async with aiohttp.ClientSession() as http:
            async with http.get(f"http://127.0.0.1:{port}/json/list") as answer:
                pages = [each for each in await answer.json() if each["type"] == "page"]
            async with http.ws_connect(pages[0]["webSocketDebuggerUrl"], max_msg_size=0) as socket:
                made = Tab(socket)
                yield made
                await made.close()
    finally:
        process.terminate()
        await process.wait()


async def _port(profile: Path) -> int:
    """Chromium writes it down when it listens."""
    told = profile / "DevToolsActivePort"
    async with asyncio.timeout(READY_S):
        while not (told.exists() and told.read_text().strip()):
            await asyncio.sleep(0.05)
    return int(told.read_text().split()[0])
