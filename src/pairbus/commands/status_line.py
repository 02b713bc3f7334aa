"""Shows the progress of a command in one line on stderr: overwritten on a terminal, a new line each time elsewhere.

The commands share it, since a process has only one stderr.
"""

from __future__ import annotations

import sys
from typing import Final

import click

#: How often a log gets a line about work that nobody watches.
LOG_EVERY_S: Final = 10.0
_shown = 0  # how wide what stands there is
_next_start_line = 0.0  # of Spark's start, in seconds after it began


def say(text: str) -> None:
    """Print the text over what `say` printed last, on a terminal; as a line of its own elsewhere."""
    global _shown
    if sys.stderr.isatty():
        click.echo("\r" + text.ljust(_shown), nl=False, err=True)
        _shown = len(text)
    else:
        click.echo(text, err=True)


def end() -> None:
    """Keep what is shown, and begin a new line."""
    global _shown
    if _shown:
        _shown = 0
        click.echo("", err=True)


def clear() -> None:
    """Remove the shown text."""
    global _shown
    if _shown:
        click.echo("\r" + " " * _shown + "\r", nl=False, err=True)
        _shown = 0


def starting(seconds: float) -> None:
    """Show that Spark is starting: each second on a terminal, every ten seconds elsewhere."""
    global _next_start_line
    if not sys.stderr.isatty():
        # a later start, of another session, begins at nothing again
        if _next_start_line - LOG_EVERY_S <= seconds < _next_start_line:
            return
        _next_start_line = seconds + LOG_EVERY_S
    say(f"starting Spark, {seconds:.0f} s")
