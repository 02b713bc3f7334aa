"""The sync clients are what `scripts/generate_sync.py` makes of the async ones; their tests are made of the async tests
and not committed."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest
from scripts.generate_sync import ROOT, SOURCES, TESTS, generate, target_of, translate, write_tests


@pytest.mark.parametrize("source", SOURCES)
def test_a_generated_file_is_up_to_date(source: str) -> None:
    assert target_of(source).read_text() == generate(source), "run `python scripts/generate_sync.py`"


def test_every_file_that_says_so_is_generated() -> None:
    marked = {
        path
        for folder in ("src", "tests")
        for path in (ROOT / folder).rglob("*.py")
        if path.read_text().startswith("# Generated from ")
    }
    assert marked == {target_of(source) for source in (*SOURCES, *TESTS)}


def test_generated_tests_are_not_committed() -> None:
    paths = [str(target_of(source).relative_to(ROOT)) for source in TESTS]
    ignored = subprocess.run(["git", "check-ignore", "--no-index", *paths], cwd=ROOT, capture_output=True, text=True)
    assert ignored.stdout.split() == paths, "list it in .gitignore"


def test_generated_tests_are_written_where_they_differ_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("scripts.generate_sync.ROOT", tmp_path)
    for source in TESTS:
        (tmp_path / source).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / source).write_text("async def test_it() -> None:\n    await it()\n")
    folder = tmp_path / "tests" / "sync"
    folder.mkdir()
    (folder / "gone.py").write_text("# Generated from tests/aio/gone.py by scripts/generate_sync.py; do not edit.\n")
    (folder / "background.py").write_text("by hand\n")
    write_tests()
    stale, *others = [target_of(source) for source in TESTS]
    stale.write_text("old")
    written_at = [each.stat().st_mtime_ns for each in others]
    write_tests()
    assert stale.read_text() == translate(TESTS[0])
    assert stale.read_text().endswith("\ndef test_it() -> None:\n    it()\n")
    assert [each.stat().st_mtime_ns for each in others] == written_at
    assert {path.name for path in folder.iterdir()} == {"background.py", *(target_of(each).name for each in TESTS)}
