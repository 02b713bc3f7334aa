"""The drill as a person runs it: all of it on Spark, the report in a browser, a loss that is found, Ctrl-C."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.drill.browser import CHROMIUM, tab

ROOT = Path(__file__).parent.parent.parent
IMAGE = ROOT / "docs" / "images" / "drill-report.png"
#: What the picture in the documents shows: the verdict and the first charts.
IMAGE_SIZE = (1060, 1262)
#: `PAIRBUS_PICTURES=1` writes it anew.
WRITES_PICTURES = os.environ.get("PAIRBUS_PICTURES") == "1"

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]


class Held(NamedTuple):
    code: int
    stdout: str
    stderr: str
    seconds: float
    out: Path

    @property
    def result(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.stdout.splitlines()[-1])
        return shown


def hold(folder: Path, *command: str, **environ: str) -> Held:
    """Leaves a process behind? Then the next assertion says which."""
    folder.mkdir(exist_ok=True)
    mark = folder / "tmp"
    mark.mkdir()
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-m", *command], cwd=ROOT, env={**os.environ, "TMPDIR": str(mark), **environ},
        capture_output=True, text=True, timeout=360, check=False,
    )  # fmt: skip
    taken = time.monotonic() - began
    assert left_behind(mark) == []
    return Held(done.returncode, done.stdout, done.stderr, taken, folder / "out")


def left_behind(mark: Path, wait_s: float = 20.0) -> list[str]:
    """Command lines of processes with this folder in their environment; a JVM needs a moment to see it is alone."""
    deadline = time.monotonic() + wait_s
    while True:
        found = []
        for path in Path("/proc").glob("[0-9]*"):
            try:
                if f"TMPDIR={mark}".encode() in (path / "environ").read_bytes():
                    found.append((path / "cmdline").read_bytes().replace(b"\0", b" ").decode())
            except OSError:
                continue
        if not found or time.monotonic() > deadline:
            return found
        time.sleep(0.2)


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Held:
    folder = tmp_path_factory.mktemp("drill")
    return hold(
        folder, "pairbus", "drill", "--json", "--messages", "800", "--outage", "8", "--out", str(folder / "out")
    )


def test_p38_p50_p52_the_whole_story_on_spark(held: Held) -> None:
    assert held.code == 0, held.stdout[-3000:] + held.stderr
    result = held.result
    assert result["lost"] == result["doubled"] == result["unknown"] == result["raised"] == 0
    # More than planned, where the outage ends late: the traffic goes on until all entities have returned.
    assert result["audit"]["confirmed"] == result["audit"]["received"] >= 800
    assert result["audit"]["diverted"] == result["audit"]["carried_home"] > 50
    assert result["availability"]["refused"] == 0
    assert result["cost"]["detour"]["operations_per_message"] == pytest.approx(4.0, abs=0.2)
    assert [each["term"] for each in result["estimate"] if not each["agrees"]] == []
    told = [json.loads(line) for line in held.stdout.splitlines()[:-1]]
    assert [line["what"] for line in told if line["what"] in ("OUTAGE", "RETURN")] == ["OUTAGE", "RETURN"]
    assert {"start", "traffic", "state", "ping", "status", "syphon", "report"} <= {line["what"] for line in told}
    assert told[0]["t"] < 15, "something is told from the first seconds on"


def test_what_it_leaves_behind_is_a_report_ledgers_and_logs(held: Held) -> None:
    assert sorted(each.name for each in held.out.iterdir()) == [
        "ledger", "log", "report.html", "result.json", "timeline.txt"
    ]  # fmt: skip
    assert json.loads((held.out / "result.json").read_text())["lost"] == 0
    assert "OUTAGE" in (held.out / "timeline.txt").read_text()


@pytest.mark.skipif(CHROMIUM is None, reason="no chromium: apt-get install chromium")
async def test_the_report_in_a_browser(held: Held, tmp_path: Path) -> None:
    async with tab(tmp_path / "profile") as browser:
        address = (held.out / "report.html").as_uri()
        await browser.size(IMAGE_SIZE[0], 900)
        await browser.scheme("light")
        await browser.open(address)
        assert browser.complaints == []
        assert [each for each in browser.requests if not each.startswith("data:")] == [address], "it fetches nothing"
        shown = json.loads(
            await browser.value(
                "JSON.stringify(Object.fromEntries([...document.querySelectorAll('[data-figure]')]"
                ".map(e => [e.dataset.figure, e.textContent])))"
            )
        )
        audit = held.result["audit"]
        assert {key: int(text.replace(",", "")) for key, text in shown.items()} == {key: audit[key] for key in shown}
        assert {"lost", "doubled", "confirmed", "received", "unknown"} <= shown.keys()
        assert await browser.value("document.querySelector('.verdict strong').textContent") == (
            f"PASSED: lost 0 of {audit['confirmed']:,} messages"
        )
        assert await browser.value("document.querySelectorAll('svg.chart').length") == 5
        assert await browser.value("[...document.querySelectorAll('svg.chart')].every(e => e.clientHeight > 80)")
        # nothing sticks out of the page, nor of a chart
        assert await browser.value("document.documentElement.scrollWidth <= window.innerWidth")
        picture = await browser.screenshot(IMAGE_SIZE[1])
        grounds = {}
        for scheme in ("light", "dark"):
            await browser.scheme(scheme)
            grounds[scheme] = await browser.value("getComputedStyle(document.body).backgroundColor")
            (tmp_path / f"{scheme}.png").write_bytes(await browser.screenshot())
        assert grounds == {"light": "rgb(255, 255, 255)", "dark": "rgb(20, 23, 26)"}
        await browser.scheme("dark", "print")
        assert await browser.value("getComputedStyle(document.body).backgroundColor") == grounds["light"]
        pages = await browser.pdf()
        assert pages.startswith(b"%PDF")
        (tmp_path / "print.pdf").write_bytes(pages)
        assert browser.complaints == []
    if WRITES_PICTURES:
        IMAGE.parent.mkdir(exist_ok=True)
        IMAGE.write_bytes(picture)
    assert png_size(picture) == IMAGE_SIZE
    assert png_size(IMAGE.read_bytes()) == IMAGE_SIZE, "PAIRBUS_PICTURES=1 makes the picture of the documents anew"


def png_size(data: bytes) -> tuple[int, int]:
    assert data.startswith(b"\x89PNG")
    return int.from_bytes(data[16:20], "big"), int.from_bytes(data[20:24], "big")


def tools_but_java(folder: Path) -> str:
    """A PATH with everything that the machine has, but no Java."""
    folder.mkdir()
    for tool in [each for place in ("/bin", "/usr/bin") for each in Path(place).iterdir()]:
        if not tool.name.startswith("java") and not (folder / tool.name).is_symlink():
            (folder / tool.name).symlink_to(tool)
    assert shutil.which("java", path=str(folder)) is None
    return str(folder)


def test_a_message_that_the_backlog_loses_is_found_and_named_without_java_too(tmp_path: Path) -> None:
    tools = tools_but_java(tmp_path / "tools")
    held = hold(tmp_path, "tests.drill.thief", str(tmp_path / "out"), PATH=tools, JAVA_HOME="")
    assert held.code == 1 and "Traceback" not in held.stderr, held.stdout[-3000:] + held.stderr
    stolen = (tmp_path / "stolen").read_text()
    result = held.result
    assert (result["ok"], result["lost"], result["lost_ids"]) == (False, 1, [stolen])
    page = (held.out / "report.html").read_text()
    assert re.search(rf"Lost: {re.escape(stolen)}\.", page)
    assert "FAILED: lost 1 of" in page


def test_ctrl_c_ends_everything_that_was_started(tmp_path: Path) -> None:
    mark = tmp_path / "tmp"
    mark.mkdir()
    process = subprocess.Popen(
        [sys.executable, "-m", "pairbus", "drill", "--out", str(tmp_path / "out")],
        cwd=ROOT, env={**os.environ, "TMPDIR": str(mark)}, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert process.stderr is not None
        told = ""
        while "everything works" not in told:
            line = process.stderr.readline()
            assert line, told
            told += line
        assert len(left_behind(mark, 0.0)) >= 5, "brokers, sender, receiver and the drill itself"
        process.send_signal(signal.SIGINT)
        process.send_signal(signal.SIGINT)
        told += process.stderr.read()
        assert process.wait(60) == 130, told
    finally:
        process.kill()
        process.wait()
        process.stderr.close()
    assert "interrupted; everything that the drill had started is stopped" in told
    assert "Traceback" not in told
    assert left_behind(mark) == []
