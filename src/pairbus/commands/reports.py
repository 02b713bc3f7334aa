"""The commands `audit` and `availability`: report from ledgers what happened to messages, and when entities worked.

Results go to stdout, progress to stderr. Exit codes beside the usual ones: `audit` ends with 1 where something is lost,
and with 3 where nothing is known to be lost but the ledgers are incomplete. `cli.py` turns errors into one line.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import click

from pairbus.commands import status_line
from pairbus.commands.spark_options import spark_options

if TYPE_CHECKING:
    from pairbus.spark.reports.ledgers import Ledgers

F = TypeVar("F", bound=Callable[..., Any])


def _of_ledgers(command: F) -> F:
    """Add the arguments and options that both commands take."""
    for add in (
        spark_options,
        click.option(
            "--parquet",
            metavar="DIR",
            help="Write the report and the events as Parquet tables, too: what it replaces is an earlier run's.",
        ),
        click.option("--json", "as_json", is_flag=True, help="Print one JSON object: for scripts."),
        click.argument("ledgers", metavar="LEDGER...", nargs=-1, required=True),
    ):
        command = add(command)
    return command


@click.command()
@_of_ledgers
@click.option(
    "--late",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    default=60.0,
    show_default=True,
    help="A message is late when it was received more than this after it was sent.",
)
@click.option(
    "--ids",
    type=click.IntRange(0, 1_000_000),
    metavar="N",
    default=100,
    show_default=True,
    help="Name the first N messages of each finding in the JSON; the table shows ten.",
)
def audit(
    ledgers: tuple[str, ...],
    late: float,
    ids: int,
    as_json: bool,
    parquet: str | None,
    master: str | None,
    conf: dict[str, str],
) -> None:
    """Tell what became of each message: lost, duplicated, late, out of order or unknown.

    LEDGER is a folder, searched for *.jsonl with all that is below it, such a file, or a folder of Parquet that
    --parquet wrote. Give all there are: of clients, syphons and brokers, of both namespaces. Runs on Spark.

    The exit code is 0 when nothing is lost, 1 when something is, and 3 when nothing is known to be lost but the ledgers
    can't tell of every message: what they can't tell is unknown, never 0.

    \b
    Examples:
      pairbus audit ./data/contoso/ledger ./data/backup/ledger ./client-ledger
      pairbus audit ./ledgers --late 5 --json
      pairbus audit ./ledgers --parquet ./audit && pairbus audit ./audit
    """
    read = read_for_report(ledgers, master, conf, as_json, parquet)
    from pairbus.spark.reports.audit import audit as examine

    say("following every message", as_json)
    report = examine(read, late_s=late, ids=ids)
    tell((report, read), as_json, parquet)
    if report.exit_code:
        raise click.exceptions.Exit(report.exit_code)


@click.command()
@_of_ledgers
def availability(
    ledgers: tuple[str, ...], as_json: bool, parquet: str | None, master: str | None, conf: dict[str, str]
) -> None:
    """Tell how well applications could send: outages, failed sends, time to fail over and to return.

    LEDGER is a folder, searched for *.jsonl with all that is below it, such a file, or a folder of Parquet that
    --parquet wrote. It is the clients' ledgers that tell. Runs on Spark.

    \b
    Examples:
      pairbus availability ./client-ledger
      pairbus availability ./ledgers --json
      pairbus availability ./ledgers --parquet ./availability
    """
    read = read_for_report(ledgers, master, conf, as_json, parquet)
    from pairbus.spark.reports.availability import availability as examine

    say("looking for outages", as_json)
    tell((examine(read), read), as_json, parquet)


def read_for_report(
    given: tuple[str, ...], master: str | None, conf: dict[str, str], as_json: bool, parquet: str | None
) -> Ledgers:
    """Starts Spark for them, as little of it as they need. What is wrong with them is said before that."""
    try:
        from pairbus.spark import session
        from pairbus.spark.reports.effort import at_start
        from pairbus.spark.reports.ledgers import check_ledgers, read_ledgers, size_of
        from pairbus.spark.runtime.locations import check_writable, local_path, located
    except ModuleNotFoundError:
        raise click.ClickException("the report runs on Spark, which is not installed: install pairbus[spark]") from None
    if parquet is not None:
        if located(parquet) in map(located, given):
            raise click.UsageError(f"--parquet {parquet} is a ledger that is read; name another folder to write to")
        folder = local_path(parquet)
        if folder is not None and folder.exists() and not folder.is_dir():
            raise click.UsageError(f"--parquet {parquet} is a file; name a folder to write to")
    check_ledgers(*given)
    # Not stopped: it ends with the process.
    spark = session(
        master,
        app_name="pairbus report",
        conf={**at_start(size_of(*given)), **conf},
        on_progress=None if as_json else status_line.starting,
    )
    if parquet is not None:
        check_writable(spark, parquet)
    say("reading the ledgers", as_json)
    return read_ledgers(spark, *given)


def say(text: str, as_json: bool) -> None:
    if not as_json:
        status_line.say(text)


def tell(found: Sequence[Any], as_json: bool, parquet: str | None, what: str = "the tables") -> None:
    """Print the report, the first of what was found; write the tables of all of it, which are `what`."""
    if parquet is not None:
        say("writing the tables", as_json)
        for each in found:
            each.to_parquet(parquet)
    status_line.clear()
    click.echo(found[0].to_json() if as_json else found[0].table())
    if parquet is not None:
        click.echo(f"{what} are in {parquet}", err=True)
