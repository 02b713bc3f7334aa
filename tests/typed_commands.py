"""Lines that someone could type after a prompt, checked without running them: the command and its options exist."""

from __future__ import annotations

import re
import shlex

import click

from pairbus.cli import cli

_CALL = re.compile(r"(?:^ *|[|;&(] *|\$ )(?:\.venv/bin/)?pairbus(?= |$)([^|;&>#`)\n]*)", re.MULTILINE)


def calls(text: str) -> list[list[str]]:
    """What is typed after `pairbus`, wherever it stands in a text of lines; continued lines are joined."""
    joined = re.sub(r"\\\n\s*(?:> )?", " ", text)
    return [[word for word in shlex.split(found) if word != "…"] for found in _CALL.findall(joined)]


def check(words: list[str]) -> None:
    """Raises click.UsageError for a command or an option that does not exist, or that lacks its value."""
    command: click.Command = cli
    path = "pairbus"
    rest = list(words)
    while True:
        context = click.Context(command, info_name=path, **cli.context_settings)
        _, rest, _ = command.make_parser(context).parse_args(args=rest)
        if not isinstance(command, click.Group) or not rest:
            return
        name, inner, rest = command.resolve_command(context, rest)
        assert inner is not None
        command, path = inner, f"{path} {name}"
