"""The commands `move`, `archive` and `restore`: carry messages between entities, and to and from files, on Spark.

Progress goes to stderr, results to stdout. Exit codes beside the usual ones: 3 where messages remain that could not be
moved or removed, and 130 where a signal ended it early. All of them run on Spark, which is imported only when one runs.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pairbus.commands import status_line
from pairbus.commands.namespace_argument import (
    NamespaceArgument,
    ca_file_option,
    namespace_argument,
    namespace_option,
)
from pairbus.commands.spark_options import spark_options
from pairbus.commands.syphon import (
    INTERRUPTED,
    UNAVAILABLE,
    json_option,
    label_of,
    moved_line,
    run_and_exit,
    tell_lost_tasks,
    watch_engine,
)

if TYPE_CHECKING:
    from pairbus.spark.syphon.engine import Runnable
    from pairbus.syphon.engine import Outcome

_where = click.option(
    "--where", metavar="SQL", help="Only messages for which this Spark SQL is true; the columns are the connector's."
)
_max_rate = click.option(
    "--max-rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Messages a second at most."
)


@click.command()
@namespace_option("from", "Where the messages are.", name="source")
@namespace_option("to", "Where they go; by default the same namespace.", required=False, name="destination")
@click.argument("entity_from", metavar="ENTITY")
@click.argument("entity_to", metavar="ENTITY")
@_where
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Only the oldest N of them.")
@_max_rate
@ca_file_option
@spark_options
@click.option("--ledger", type=click.Path(path_type=Path, file_okay=False), help="Write a ledger to this folder.")
@json_option
def move(
    source: NamespaceArgument,
    destination: NamespaceArgument | None,
    entity_from: str,
    entity_to: str,
    ca_file: Path | None,
    ledger: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Move what the first ENTITY holds now to the second, and end.

    The first is a queue, a subscription (news/Subscriptions/all) or a dead-letter queue (orders/$DeadLetterQueue), the
    second a queue or a topic. A message leaves the first only after the second has confirmed it; it arrives as it was
    sent, without the marks of dead-lettering. What --where leaves out stays untouched.

    The exit code is 3 when messages remain that could not be moved; they are listed with the reason.

    \b
    Examples:
      pairbus move --from @contoso 'orders/$DeadLetterQueue' orders
      pairbus move --from @contoso 'orders/$DeadLetterQueue' orders --count 10 --where "dead_letter_reason = 'TooLate'"
      pairbus move --from @contoso --to @backup news/Subscriptions/all news-copy --max-rate 200
    """
    with _spark_wanted():
        from pairbus.spark.pipelines.move import EntityAddress, Mover
    target = source if destination is None else destination
    addresses = (
        EntityAddress(_address(source, ca_file), entity_from, label_of(source)),
        EntityAddress(_address(target, ca_file), entity_to, label_of(target)),
    )
    _run(partial(Mover, *addresses, **options), "moved", as_json, ledger)


@click.command()
@namespace_argument()
@click.argument("entity")
@click.argument("folder")
@click.option("--remove", is_flag=True, help="Take the messages away once the files that hold them are committed.")
@_where
@ca_file_option
@spark_options
@json_option
def archive(
    namespace: NamespaceArgument,
    entity: str,
    folder: str,
    remove: bool,
    ca_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Write what ENTITY holds now to Parquet files in FOLDER, beside what is there already.

    ENTITY is a queue, a subscription or a dead-letter queue, FOLDER a path or a URL that Spark can write to. The column
    `amqp` holds each message byte for byte. Without --remove nothing is taken away. Run again after an interruption, it
    archives what is still there; a message that is in FOLDER twice counts once when it is restored.

    The exit code is 3 when messages remain that could not be removed.

    \b
    Examples:
      pairbus archive @contoso orders ./orders-archive
      pairbus archive @contoso 'orders/$DeadLetterQueue' ./dead --remove --where "enqueued_time < '2026-01-01'"
    """
    with _spark_wanted():
        from pairbus.spark.pipelines.archive import Archiver
    address = _address(namespace, ca_file)
    make = partial(Archiver, address, entity, folder, remove=remove, label=label_of(namespace), **options)
    _run(make, "archived and removed" if remove else "archived", as_json)


@click.command()
@click.argument("folder")
@namespace_argument()
@click.argument("entity", required=False)
@_where
@_max_rate
@ca_file_option
@spark_options
@json_option
def restore(
    folder: str,
    namespace: NamespaceArgument,
    entity: str | None,
    ca_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Send the messages of an archive to ENTITY, a queue or a topic; without it to the queues that they came from.

    Each message once, whole, and without the marks of dead-lettering. Run again, it sends all of them again. A busy
    destination slows it down.

    \b
    Examples:
      pairbus restore ./orders-archive @contoso
      pairbus restore ./dead @contoso orders --where "subject = 'invoice'" --max-rate 200
    """
    with _spark_wanted():
        from pairbus.spark.pipelines.archive import Restorer
    make = partial(Restorer, folder, _address(namespace, ca_file), entity, label=label_of(namespace), **options)
    _run(make, "restored", as_json)


@contextmanager
def _spark_wanted() -> Iterator[None]:
    """Say what to install if the imports within need a package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pairbus"):
            raise
        raise click.ClickException("this runs on Spark, which is not installed: install pairbus[spark]") from None


def _address(namespace: NamespaceArgument, ca_file: Path | None) -> Any:
    from pairbus.spark.syphon.api import address_of_text

    return address_of_text(namespace.connection_string or namespace.host, ca_file)


def _run(make: Callable[..., Runnable], done: str, as_json: bool, ledger: Path | None = None) -> None:
    """Make what runs on Spark and run it, with its progress on stderr and the result on stdout."""

    async def run() -> int:
        from pairbus.ledger import LedgerWriter
        from pairbus.spark.syphon.engine import OnAThread

        writer = None if ledger is None else LedgerWriter(ledger, "move")
        try:
            more = {} if writer is None else {"ledger": writer}
            inner = make(on_start=None if as_json else status_line.starting, **more)
            outcome, interrupted = await watch_engine(OnAThread(inner), None, as_json)
        finally:
            if writer is not None:
                writer.close()
        _print(outcome, interrupted, done, as_json, getattr(inner, "gone", 0))
        return UNAVAILABLE if outcome.unavailable else INTERRUPTED if interrupted else 0

    run_and_exit(run)


def _print(outcome: Outcome, interrupted: bool, done: str, as_json: bool, gone: int) -> None:
    remaining = sum(each.messages for each in outcome.unavailable)
    if as_json:
        ended = "remaining" if remaining else "stopped" if interrupted else "done"
        reasons = [{"entity": path, "messages": count, "reason": why} for path, count, why in outcome.unavailable]
        found = {**outcome.report.as_json(), "gone": gone, "not_moved": reasons}
        click.echo(json.dumps({"kind": "result", "outcome": ended, **found}))
        return
    click.echo(moved_line(outcome.report, done) + ("; stopped early" if interrupted else ""))
    tell_lost_tasks(outcome.report)
    if gone:
        click.echo(f"{gone:,} more were no longer there when they were looked for: others took them, or they expired")
    for each in outcome.unavailable:
        remain = "message remains" if each.messages == 1 else "messages remain"
        click.echo(f"{each.path}: {each.messages:,} {remain}: {each.reason}")
