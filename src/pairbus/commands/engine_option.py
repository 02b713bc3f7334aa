"""The option --engine of the commands that run on Spark or in their own process, and the choice that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import click

from pairbus.syphon.core import engine_choice

Wanted = Literal["spark", "in-process", "auto"]

engine_option = click.option(
    "--engine",
    type=click.Choice(get_args(Wanted)),
    default="spark",
    show_default=True,
    help="What it runs on: Spark; in-process, which needs no Java; or auto, which is in-process up to "
    f"{engine_choice.IN_PROCESS_MAX:,} messages.",
)


def check_engine(engine: Wanted, of_spark: Iterable[tuple[str, Any]]) -> str | None:
    """Return why only Spark will do: the first of the options `of_spark` that has a value. None where none has one.
    Raises UsageError where Spark is not wanted."""
    given = next((option for option, value in of_spark if value), None)
    if given is None:
        return None
    why = f"{given} is {'Spark SQL' if given == '--where' else 'for --engine spark'}"
    if engine == "in-process":
        raise click.UsageError(f"{why}; leave out one of the two")
    return why


def resolve(engine: Wanted, only_spark: str | None, count: Callable[[], int | None]) -> engine_choice.Engine:
    """Return the engine to run on; say which, and why, where it was left to us. `count` is asked only then."""
    if engine != "auto":
        return engine
    found = engine_choice.choose(None if only_spark else count(), only_spark)
    click.echo(f"pairbus: runs {'on Spark' if found.engine == 'spark' else 'in this process'}: {found.why}", err=True)
    return found.engine
