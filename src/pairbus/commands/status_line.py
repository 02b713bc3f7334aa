"""The one line on stderr that tells how work goes on: written over on a terminal, a line each elsewhere.

A shell of a few lines, shared by the commands: a process has one stderr, and so one such line.
"""

from __future__ import annotations

import sys
from typing import Final

import click

#: How often a log hears of work whose progress nobody watches.
LOG_EVERY_S: Final = 10.0
_shown = 0  # how wide what stands there is
_next_start_line = 0.0  # of Spark's start, in seconds after it began


def say(text: str) -> None:
    """Writes over what `say` wrote last, where that is possible."""
    global _shown
    if sys.stderr.isatty():
        click.echo("\r" + text.ljust(_shown), nl=False, err=True)
        _shown = len(text)
    else:
        click.echo(text, err=True)


def end() -> None:
    """What stands there stays, and whatever comes next begins on a line of its own."""
    global _shown
    if _shown:
        _shown = 0
        click.echo("", err=True)


def clear() -> None:
    """What stands there goes: it was of interest only while it lasted."""
    global _shown
    if _shown:
        click.echo("\r" + " " * _shown + "\r", nl=False, err=True)
        _shown = 0


def starting(seconds: float) -> None:
    """Spark's start is long enough to be told: each second on a terminal, now and then elsewhere."""
    global _next_start_line
    if not sys.stderr.isatty():
        # a later start, of another session, begins at nothing again
        if _next_start_line - LOG_EVERY_S <= seconds < _next_start_line:
            return
        _next_start_line = seconds + LOG_EVERY_S
    say(f"starting Spark, {seconds:.0f} s")
