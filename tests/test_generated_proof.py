"""The sync clients, and their tests, are what `scripts/generate_sync.py` makes of the async ones."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
spec = importlib.util.spec_from_file_location("generate_sync", ROOT / "scripts" / "generate_sync.py")
assert spec is not None and spec.loader is not None
generate_sync = importlib.util.module_from_spec(spec)
spec.loader.exec_module(generate_sync)


@pytest.mark.parametrize("source", generate_sync.SOURCES)
def test_a_generated_file_is_up_to_date(source: str) -> None:
    target = generate_sync.target_of(source)
    assert target.read_text() == generate_sync.generate(source), "run `python scripts/generate_sync.py`"


def test_every_file_that_says_so_is_generated() -> None:
    marked = {
        path
        for folder in ("src", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path.read_text().startswith("# Generated from ")
    }
    assert marked == {generate_sync.target_of(source) for source in generate_sync.SOURCES}
