"""The documents are true: their examples run, the help that they show is the help."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from pairbus.broker.faults import KINDS
from pairbus.cli import cli

ROOT = Path(__file__).parent.parent
WIDTH = 100


def blocks(document: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (ROOT / document).read_text(), re.DOTALL | re.MULTILINE)


def python(*arguments: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], cwd=cwd, capture_output=True, text=True, timeout=100, check=False
    )


def test_the_readme_s_program_runs(tmp_path: Path) -> None:
    (program,) = blocks("README.md", "python")
    (tmp_path / "program.py").write_text(program)
    done = python("-W", "error", "program.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout in (ROOT / "README.md").read_text(), "the README shows what its program prints"


def test_the_how_to_s_tests_pass(tmp_path: Path) -> None:
    (tests,) = blocks("docs/how-to/test-your-code.md", "python")
    (tmp_path / "test_orders.py").write_text(tests)
    done = python("-m", "pytest", "-q", "-p", "no:cacheprovider", "test_orders.py", cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 passed" in done.stdout


def help_of(command: click.Command, path: str) -> str:
    return command.get_help(click.Context(command, info_name=path, terminal_width=WIDTH, **cli.context_settings))


def test_the_command_line_s_page_shows_the_help_as_it_is() -> None:
    shown = blocks("docs/reference/cli.md", "")
    commands = [(cli, "pairbus"), *((command, f"pairbus {name}") for name, command in sorted(cli.commands.items()))]
    assert [block.rstrip("\n") for block in shown] == [help_of(command, path) for command, path in commands]


def test_every_kind_of_fault_is_told() -> None:
    for document in ("docs/how-to/test-your-code.md", "docs/reference/cli.md"):
        text = (ROOT / document).read_text()
        assert [kind for kind in KINDS if kind not in text] == []


DOCUMENTS = sorted(path.relative_to(ROOT).as_posix() for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")])


@pytest.mark.parametrize("document", DOCUMENTS)
def test_links_lead_somewhere(document: str) -> None:
    targets = re.findall(r"\]\(([^)#]+)", (ROOT / document).read_text())
    local = [target for target in targets if not re.match(r"[a-z]+:", target)]
    assert [target for target in local if not ((ROOT / document).parent / target).exists()] == []


@pytest.mark.parametrize("document", DOCUMENTS)
def test_make_targets_that_are_named_exist(document: str) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = set(re.findall(r"`make ([a-z-]+)", (ROOT / document).read_text()))
    named |= set(re.findall(r"^make ([a-z-]+)", (ROOT / document).read_text(), re.MULTILINE))
    assert named - targets == set()
