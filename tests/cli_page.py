"""`python -m tests.cli_page` writes every command's help into docs/reference/cli.md, and leaves its prose alone."""

from __future__ import annotations

import re
from pathlib import Path

import click

from pairbus.cli import cli

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "cli.md"
WIDTH = 100
_SECTION = re.compile(r"^## (pairbus[^\n]*)\n(.*?)(?=^## |\Z)", re.DOTALL | re.MULTILINE)
_HELP = re.compile(r"^```text\nUsage: .*?^```\n", re.DOTALL | re.MULTILINE)


def every_command() -> list[tuple[click.Command, str]]:
    """Subcommands right after their group."""
    found: list[tuple[click.Command, str]] = []

    def add(command: click.Command, path: str) -> None:
        found.append((command, path))
        if isinstance(command, click.Group):
            for name, inner in sorted(command.commands.items()):
                add(inner, f"{path} {name}")

    add(cli, "pairbus")
    return found


def help_of(command: click.Command, path: str) -> str:
    command._help_option = None  # click keeps the names that it had in the first context, which may be another test's
    return command.get_help(click.Context(command, info_name=path, terminal_width=WIDTH, **cli.context_settings))


def page(text: str) -> str:
    """The page with the help as it is: a section a command, in order; sections of commands that are gone, go too."""
    before = text[: text.index("\n## pairbus") + 1]
    prose = {path: _HELP.sub("", body, count=1).strip("\n") for path, body in _SECTION.findall(text)}
    made = [before.rstrip("\n")]
    for command, path in every_command():
        section = f"## {path}\n\n```text\n{help_of(command, path)}\n```"
        made.append(f"{section}\n\n{prose[path]}" if prose.get(path) else section)
    return "\n\n".join(made) + "\n"


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
