from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from examples import first_story

ROOT = Path(__file__).parent.parent
EXAMPLES = sorted(path.name for path in (ROOT / "examples").glob("*.py"))


def run(name: str) -> subprocess.CompletedProcess[str]:
    """As a user would."""
    return subprocess.run(
        [sys.executable, str(ROOT / "examples" / name)], capture_output=True, text=True, timeout=160, check=False
    )


@pytest.mark.timeout(180)
@pytest.mark.parametrize("name", [name for name in EXAMPLES if name != "first_story.py"])
def test_every_story_ends_well(name: str) -> None:
    done = run(name)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("PASSED\n")
    # On a slow machine the SDK logs that it could not clean up after a refused connection in time.
    assert "Traceback" not in done.stderr or "Handler cleanup did not complete" in done.stderr, done.stderr
    said = [line for line in done.stdout.splitlines() if line[:6].strip().replace(".", "").isdigit()]
    assert len(said) >= 5, "a story shows how it goes on"


def test_every_example_is_documented() -> None:
    shown = "".join(path.read_text() for path in [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
    assert [name for name in EXAMPLES if name not in shown] == []


def test_the_disk_of_an_embedded_secondary_is_warned_of() -> None:
    text = " ".join((ROOT / "examples" / "embedded_secondary.py").read_text().split())
    assert "WARNING: what is in the backlog dies with that disk" in text


def test_the_first_story_ends_well() -> None:
    done = run("first_story.py")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "kill -9: the broker is dead" in done.stdout
    assert done.stdout.endswith(
        "\nPASSED: 100 confirmed, 100 received, 0 lost, 0 duplicated, 0 changed, 0 left in the queue\n"
    )


CONFIRMED = {"a": b"1", "b": b"2"}


@pytest.mark.parametrize(
    ("received", "left", "good", "says"),
    [
        ([("a", b"1"), ("b", b"2")], 0, True, "0 lost, 0 duplicated, 0 changed, 0 left"),
        ([("b", b"2")], 0, False, "1 lost, 0 duplicated, 0 changed, 0 left in the queue (a)"),
        ([("a", b"1"), ("b", b"2"), ("a", b"1")], 0, False, "1 duplicated"),
        ([("a", b"1"), ("b", b"x")], 0, False, "1 changed"),
        ([("a", b"1"), ("b", b"2"), ("c", b"")], 0, False, "1 changed"),
        ([("a", b"1"), ("b", b"2")], 1, False, "1 left in the queue"),
    ],
)
def test_its_verdict_is_not_always_good(received: list[tuple[str, bytes]], left: int, good: bool, says: str) -> None:
    verdict, text = first_story.verdict(CONFIRMED, received, left)
    assert verdict is good
    assert says in text


def test_nothing_sent_is_no_success() -> None:
    assert not first_story.verdict({}, [], 0)[0]
