"""The commands `move`, `archive`, `ingest` and `restore`: carry messages between entities, and to and from files.

Progress goes to stderr, results to stdout. Exit codes beside the usual ones: 3 where messages remain that could not be
moved or removed, and 130 where a signal ended it early. All of them run on Spark, which is imported only when one runs,
or on request with the same readers and writers in this process.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from pairbus.commands import status_line
from pairbus.commands.engine_option import Wanted, check_engine, engine_option, resolve
from pairbus.commands.namespace_argument import (
    NamespaceArgument,
    ca_file_option,
    namespace_argument,
    namespace_option,
    parse,
)
from pairbus.commands.spark_options import min_partitions_option, spark_options
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
    from pairbus.spark.runtime.running import Runnable
    from pairbus.syphon.engine import Outcome


class _FiniteRange(click.FloatRange):
    """A range without "inf", and without "nan", which click finds in every range."""

    def convert(self, value: Any, parameter: click.Parameter | None, context: click.Context | None) -> float:
        found: float = super().convert(value, parameter, context)
        if not math.isfinite(found):
            self.fail(f"{value!r} is no finite number", parameter, context)
        return found


_where = click.option(
    "--where", metavar="SQL", help="Only messages for which this Spark SQL is true; the columns are the connector's."
)
_same_namespace = click.option(
    "--same-namespace", is_flag=True, help="The messages that are there are of NS, which had another name or host."
)
_max_rate = click.option(
    "--max-rate", type=_FiniteRange(min=0, min_open=True), metavar="N", help="Messages a second at most."
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
@engine_option
@spark_options
@click.option("--ledger", type=click.Path(path_type=Path, file_okay=False), help="Write a ledger to this folder.")
@json_option
def move(
    source: NamespaceArgument,
    destination: NamespaceArgument | None,
    entity_from: str,
    entity_to: str,
    ca_file: Path | None,
    engine: Wanted,
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
    only_spark = _only_spark(engine, options)
    with _spark_wanted(engine):
        from pairbus.spark.pipelines.move import EntityAddress, Mover
        from pairbus.spark.pipelines.preflight import count_at_most
    target = source if destination is None else destination
    addresses = (
        EntityAddress(_address(source, ca_file), entity_from, label_of(source)),
        EntityAddress(_address(target, ca_file), entity_to, label_of(target)),
    )

    def count() -> int | None:
        found, count_max = count_at_most(addresses[0].address, entity_from), options["count"]
        return count_max if found is None else min(found, count_max or found)

    in_process = _is_in_process(engine, only_spark, count)
    _run(partial(Mover, *addresses, in_process=in_process, **options), "moved", as_json, ledger)


@click.command()
@namespace_argument()
@click.argument("entity")
@click.argument("folder")
@click.option("--remove", is_flag=True, help="Take the messages away once the files that hold them are committed.")
@_where
@_same_namespace
@ca_file_option
@engine_option
@spark_options
@json_option
def archive(
    namespace: NamespaceArgument,
    entity: str,
    folder: str,
    remove: bool,
    ca_file: Path | None,
    engine: Wanted,
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
    only_spark = _only_spark(engine, options, folder)
    with _spark_wanted(engine):
        from pairbus.spark.pipelines.archive import Archiver
        from pairbus.spark.pipelines.preflight import count_at_most
    address = _address(namespace, ca_file)
    in_process = _is_in_process(engine, only_spark, lambda: count_at_most(address, entity))
    more = {"label": label_of(namespace), "in_process": in_process, **options}
    make = partial(Archiver, address, entity, folder, remove=remove, **more)
    _run(make, "archived and removed" if remove else "archived", as_json)


@click.command()
@namespace_argument()
@click.argument("entity")
@click.argument("table")
@click.option("--drain", is_flag=True, help="End when ENTITY is empty; otherwise go on until Ctrl-C.")
@_max_rate
@min_partitions_option
@click.option(
    "--every", "every_s", type=_FiniteRange(min=0), default=10.0, metavar="SECONDS", show_default=True,
    help="Between two batches once it has caught up; each makes a file.",
)  # fmt: skip
@_same_namespace
@ca_file_option
@spark_options
@json_option
def ingest(
    namespace: NamespaceArgument,
    entity: str,
    table: str,
    drain: bool,
    ca_file: Path | None,
    as_json: bool,
    **options: Any,
) -> None:
    """Take the messages of ENTITY into the Parquet TABLE, each once, and go on with those that come.

    ENTITY is a queue, a subscription or a dead-letter queue, TABLE a folder: a path, or a URL that Spark can write to.
    A message leaves ENTITY only when it is in TABLE; one that is there already, since something died before it could be
    completed, is completed and not written again. Readers see committed files only.

    The exit code of --drain is 3 when messages remain that could not be taken.

    \b
    Examples:
      pairbus ingest @contoso orders ./orders-table
      pairbus ingest @contoso 'orders/$DeadLetterQueue' abfss://lake@account.dfs.core.windows.net/dead --drain
    """
    with _spark_wanted("spark"):
        from pairbus.spark.pipelines.ingest import Ingester
    address = _address(namespace, ca_file)
    make = partial(Ingester, address, entity, table, drain=drain, label=label_of(namespace), **options)
    _run(make, "ingested", as_json, is_endless=not drain)


@click.command()
@click.argument("folder", metavar="TABLE")
@click.argument("rest", metavar="[NS] [ENTITY]", nargs=-1)
@namespace_option("to", "Where they go, instead of NS.", required=False, name="destination")
@_where
@_max_rate
@ca_file_option
@engine_option
@spark_options
@json_option
def restore(
    folder: str,
    rest: tuple[str, ...],
    destination: NamespaceArgument | None,
    ca_file: Path | None,
    engine: Wanted,
    as_json: bool,
    **options: Any,
) -> None:
    """Send the messages of an archive or a table to ENTITY, a queue or a topic; without it to where they came from.

    TABLE is the folder of `archive` or of `ingest`. Each message once, whole, and without the marks of dead-lettering.
    Run again, it sends all of them again. A busy destination slows it down.

    \b
    Examples:
      pairbus restore ./orders-archive @contoso
      pairbus restore ./dead @contoso orders --where "subject = 'invoice'" --max-rate 200
      pairbus restore ./orders-table --where "enqueued_time between '2026-11-16' and '2026-11-17'" --to @contoso orders
    """
    only_spark = _only_spark(engine, options, folder)
    with _spark_wanted(engine):
        from pairbus.spark.pipelines import local_archive
        from pairbus.spark.pipelines.archive import Restorer
        from pairbus.spark.pipelines.folder_namespace import here
    if destination is None:
        if not rest:
            raise click.UsageError("where to? Name the namespace, as NS or with --to")
        destination, rest = parse(rest[0], "NS"), rest[1:]
    if len(rest) > 1:
        raise click.UsageError(f"one ENTITY is wanted, not {len(rest)}: {' '.join(rest)}")
    entity = rest[0] if rest else None
    in_process = _is_in_process(engine, only_spark, lambda: local_archive.count(here(folder)))
    more = {"label": label_of(destination), "in_process": in_process, **options}
    make = partial(Restorer, folder, _address(destination, ca_file), entity, **more)
    _run(make, "restored", as_json)


def _only_spark(engine: Wanted, options: dict[str, Any], folder: str = ".") -> str | None:
    """Return why only Spark will do, or None. Raises UsageError where it isn't wanted."""
    given = [(f"--{name}", options.get(name)) for name in ("where", "master", "conf")]
    return check_engine(engine, [*given, (f"the URL {folder}", "://" in folder and not folder.startswith("file:"))])


def _is_in_process(engine: Wanted, only_spark: str | None, count: Callable[[], int | None]) -> bool:
    return resolve(engine, only_spark, count) == "in-process"


@contextmanager
def _spark_wanted(engine: Wanted) -> Iterator[None]:
    """Say what to install if the imports within need a package that is missing."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("pairbus"):
            raise
        what = "on Spark" if engine == "spark" else f"with the package {error.name}"
        raise click.ClickException(f"this runs {what}, which is not installed: install pairbus[spark]") from None


def _address(namespace: NamespaceArgument, ca_file: Path | None) -> Any:
    from pairbus.spark.syphon.api import address_of_text

    return address_of_text(namespace.connection_string or namespace.host, ca_file)


def _run(
    make: Callable[..., Runnable], done: str, as_json: bool, ledger: Path | None = None, *, is_endless: bool = False
) -> None:
    """Make what runs on Spark and run it, with its progress on stderr and the result on stdout. A signal is the usual
    end of what `is_endless`."""

    async def run() -> int:
        from pairbus.ledger import LedgerWriter
        from pairbus.spark.syphon.engine import ThreadedEngine

        with nullcontext() if ledger is None else closing(LedgerWriter(ledger, "move")) as writer:
            more = {} if writer is None else {"ledger": writer}
            inner = make(on_start=None if as_json else status_line.starting, **more)
            outcome, interrupted = await watch_engine(ThreadedEngine(inner), None, as_json)
        is_early = interrupted and not is_endless
        _print(outcome, interrupted, is_early, done, as_json, inner)
        return UNAVAILABLE if outcome.unavailable else INTERRUPTED if is_early else 0

    run_and_exit(run)


def _print(outcome: Outcome, interrupted: bool, is_early: bool, done: str, as_json: bool, inner: Runnable) -> None:
    gone, already = getattr(inner, "gone", 0), getattr(inner, "already", None)
    remaining = sum(each.messages for each in outcome.unavailable)
    if as_json:
        ended = "remaining" if remaining else "stopped" if interrupted else "done"
        reasons = [{"entity": path, "messages": count, "reason": why} for path, count, why in outcome.unavailable]
        found = {**outcome.report.as_json(), "gone": gone, "not_moved": reasons}
        if already is not None:
            found["already_in_table"] = already
        click.echo(json.dumps({"kind": "result", "outcome": ended, **found}))
        return
    click.echo(moved_line(outcome.report, done) + ("; stopped early" if is_early else ""))
    if already:
        click.echo(f"{already:,} of them were in the table already, and were only completed")
    tell_lost_tasks(outcome.report)
    if gone:
        click.echo(f"{gone:,} more were no longer there when they were looked for: others took them, or they expired")
    for each in outcome.unavailable:
        remain = "message remains" if each.messages == 1 else "messages remain"
        click.echo(f"{each.path}: {each.messages:,} {remain}: {each.reason}")
