"""Generates the sync clients from the async ones: `python scripts/generate_sync.py`.

Their tests are generated from the async tests whenever tests are collected (`write_tests`); they are not committed. The
table below turns the words of asyncio into their equivalents for threads; everything that differs by more than a
word is written by hand, under the same names, in `concurrency.py` of both packages (for the tests in `background.py`).
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = [
    *(f"src/pairbus/aio/{name}.py" for name in ("client", "guarded_sender", "provisioning", "receiver", "sender")),
    *(f"src/pairbus/aio/{name}.py" for name in ("syphon", "warm_link")),
]
TESTS = [
    "tests/aio/stage.py",
    *(f"tests/aio/test_{name}.py" for name in ("answers_proof", "client", "guarded_sender", "health_monitor")),
    *(f"tests/aio/test_{name}.py" for name in ("provisioning", "receiver", "sender", "warm_link")),
]
WORDS = [
    (r"\basync (def|for|with)\b", r"\1"),
    (r"\((await [\w.]+\([^()]*\))\)\.", r"\1."),
    (r"\bawait ", ""),
    (r"\bazure(\\?)\.servicebus\1\.aio\b", r"azure\1.servicebus"),
    (r"\b(_base_handler|_pyamqp_transport|send_messages)_async\b", r"\1"),
    (r"\bPyamqpTransportAsync\b", "PyamqpTransport"),
    (r"\bpairbus\.aio\b", "pairbus.sync"),
    (r"\b__a(enter|exit)__\b", r"__\1__"),
    (r"\b(_inner_)?a(next|iter)\b", r"\1\2"),
    (r"\bAsync(ExitStack|FakeManager|Iterator)\b", r"\1"),
    (r"\bpush_async_callback\b", "callback"),
    (r" +loop = asyncio\.get_running_loop\(\)\n", ""),
    (r"\bloop\.time\(\)", "time.monotonic()"),
    (r"\bimport asyncio\n", "import asyncio\nimport time\n"),
    (r"        # Not a coroutine of its own: .*\n", ""),
    (r"\bby another task\b", "by another thread"),
    (r"on the loop; it may be a coroutine function", "on whatever thread it comes up; it must not block"),
]


def translate(source: str) -> str:
    """Return the text of the sync file that corresponds to this async one, not formatted."""
    text = (ROOT / source).read_text()
    for pattern, replacement in WORDS:
        text = re.sub(pattern, replacement, text)
    return f"# Generated from {source} by scripts/generate_sync.py; do not edit.\n{_without_awaitables(text)}"


def generate(source: str) -> str:
    """Return the text of the sync file that corresponds to this async one, in the house's format."""
    text = translate(source)
    for command in (
        ["check", "--fix-only", "--unsafe-fixes", "--quiet", "--select", "C416,F401,I,UP028"],
        ["format", "--quiet"],
    ):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(target_of(source)), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, check=True, text=True, cwd=ROOT).stdout
    return text


def write_tests() -> None:
    """Write the generated tests that are missing or out of date, and remove those whose source is gone.

    Several processes may do so at once: what one reads is always a whole file.
    """
    wanted = {target_of(source) for source in TESTS}
    for path in set(target_of("tests/aio").glob("*.py")) - wanted:
        if path.read_text().startswith("# Generated from "):
            path.unlink(missing_ok=True)
    for source in TESTS:
        target, text = target_of(source), translate(source)
        if not target.exists() or target.read_text() != text:
            partial = target.with_suffix(f".{os.getpid()}.partial")
            partial.write_text(text)
            partial.replace(target)


def target_of(source: str) -> Path:
    return ROOT / source.replace("/aio", "/sync")


def _without_awaitables(text: str) -> str:
    """Replace `Awaitable[X]` by `X`."""
    while (found := re.search(r"\bAwaitable\[", text)) is not None:
        end, depth = found.end(), 1
        while depth:
            depth += {"[": 1, "]": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[found.end() : end - 1] + text[end:]
    return text


if __name__ == "__main__":
    for each in SOURCES:
        target_of(each).write_text(generate(each))
