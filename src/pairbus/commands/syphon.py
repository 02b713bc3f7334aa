"""The commands `syphon`, `backlog` and `provision`: run the syphon, show the backlog, create its queues.

Progress goes to stderr, results to stdout. Exit codes beside the usual ones: `syphon --drain` ends with 3 where only
messages for unavailable destinations remain, `backlog` with 4 past a limit. `cli.py` turns errors into one line.
"""

from __future__ import annotations

import json
import logging
import signal
import sys
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import closing, nullcontext, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import click

from pairbus.commands import event_loop, status_line
from pairbus.commands.engine_option import Wanted, check_engine, engine_option, resolve
from pairbus.commands.namespace_argument import NamespaceArgument, ca_file_option, namespace_option
from pairbus.commands.progress_bar import bar
from pairbus.commands.spark_options import min_partitions_option, spark_options
from pairbus.errors import for_command_line

if TYPE_CHECKING:
    from pairbus.syphon.core.progress import Report
    from pairbus.syphon.engine import Outcome
    from pairbus.syphon.inspection import Depth
    from pairbus.syphon.listing import Lister

UNAVAILABLE: Final = 3
PAST_A_LIMIT: Final = 4
INTERRUPTED: Final = 130
COUNT: Final = 10
#: How often progress is reported: to a terminal, to a log, as JSON.
SHOW_S: Final = {"terminal": 0.5, "log": 10.0, "json": 1.0}
#: `backlog` counts the destinations of so many messages of each queue.
PEEKED_MAX: Final = 10_000
DESTINATIONS_SHOWN: Final = 8
#: A message older than a lock and a little, that nobody has received and that does not move, is not being drained.
UNDRAINED_S: Final = 75.0
LOOK_AGAIN_S: Final = 2.0
F = TypeVar("F", bound=Callable[..., Any])

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON: for scripts.")


def _check_name(_context: click.Context, _parameter: click.Parameter, value: str | None) -> str | None:
    from pairbus.pairing.options import primary_label

    try:
        return None if value is None else primary_label(value)
    except ValueError:
        raise click.BadParameter(
            f"{value!r} can't name backlog queues; right are letters, digits, and . - _ between them, such as contoso"
        ) from None


_primary_name = click.option(
    "--primary-name",
    metavar="NAME",
    callback=_check_name,
    help="What the backlog queues are named after; by default the primary's host.",
)


def _count(default: int | None, text: str) -> Callable[[F], F]:
    return click.option(
        "--count", type=click.IntRange(1, 1000), metavar="N", default=default, show_default=True, help=text
    )


def _name(primary: NamespaceArgument | None, given: str | None) -> str:
    from pairbus.pairing.backlog.backlog_queues import primary_name
    from pairbus.pairing.errors import InvalidOptions

    if primary is None and given is None:
        raise click.UsageError("name the primary, with --primary, PAIRBUS_PRIMARY or --primary-name")
    try:
        return primary_name(primary.host if primary is not None else "", given)
    except InvalidOptions:
        assert primary is not None
        raise click.UsageError(
            f"the backlog queues take their name from the primary's host, and {primary.host} has none; give "
            "--primary-name (an embedded broker prints it as `namespace`)"
        ) from None


# -- syphon


@click.command()
@namespace_option("primary", "Where the messages belong.")
@namespace_option("secondary", "Where the backlog is.")
@_primary_name
@_count(None, "Read the backlog queues 0 to N-1. By default all, new ones too; without the Manage right 0 to 9.")
@ca_file_option
@click.option("--drain", is_flag=True, help="End when the backlog is empty.")
@click.option("--max-rate", type=click.FloatRange(min=0, min_open=True), metavar="N", help="Messages a second at most.")
@click.option("--orphans", is_flag=True, help="Read every backlog queue of the primary, those past --count too.")
@click.option("--dead-letters", is_flag=True, help="Send the backlog's dead letters again, after repair.")
@click.option(
    "--count-backlog-time", is_flag=True, help="A message's time to live ran on in the backlog; else it starts anew."
)
@engine_option
@spark_options
@min_partitions_option
@click.option("--checkpoint", metavar="DIR", help="spark: where the query keeps its progress, a path or a URL.")
@click.option("--ledger", type=click.Path(path_type=Path, file_okay=False), help="Write a ledger to this folder.")
@json_option
def syphon(
    primary: NamespaceArgument,
    secondary: NamespaceArgument,
    primary_name: str | None,
    count: int | None,
    ca_file: Path | None,
    orphans: bool,
    engine: Wanted,
    ledger: Path | None,
    as_json: bool,
    **settings: Any,
) -> None:
    """Move messages from the backlog to where they belong, until SIGTERM or Ctrl-C.

    A message leaves the backlog only after the primary has confirmed it. Several may run at once.

    Backlog queues that are made while it runs are found within minutes; where there is none yet, it waits for the
    first.

    With --drain the exit code is 0 when the backlog is empty, and 3 when only messages for destinations that are
    unavailable remain; these are listed.

    \b
    Examples:
      pairbus syphon --primary @primary --secondary @secondary
      pairbus syphon --primary @primary --secondary @secondary --engine in-process --drain
      pairbus syphon --primary @primary --secondary @secondary --drain --dead-letters
    """
    given = {**settings, "min_partitions": settings["min_partitions"] > 1}
    only_spark = check_engine(
        engine,
        [(f"--{name.replace('_', '-')}", given[name]) for name in ("master", "conf", "min_partitions", "checkpoint")],
    )
    if engine == "auto" and not settings["drain"]:
        only_spark = only_spark or "without --drain nobody knows how many messages will come"
    settings["on_start"] = None if as_json else status_line.starting

    def engine_for(depth: int | None) -> Callable[..., Any]:
        return _maker_of(resolve(engine, only_spark, lambda: depth))

    if engine != "auto":  # a missing package is reported before anything is asked
        engine_for(None)
    source = _Backlog(secondary, ca_file, _name(primary, primary_name), count, orphans)
    run_and_exit(lambda: _move_home(source, primary, engine_for, ledger, settings, as_json))


async def _move_home(
    backlog: _Backlog,
    primary: NamespaceArgument,
    engine_for: Callable[[int | None], Callable[..., Any]],
    ledger: Path | None,
    settings: dict[str, Any],
    as_json: bool,
) -> int:
    """Run the engine on the queues of the backlog, and return the exit code."""
    from pairbus.ledger import LedgerWriter
    from pairbus.syphon.settings import SyphonSettings

    secondary, ca_file, name, drain = backlog.secondary, backlog.ca_file, backlog.name, settings["drain"]
    queues = await backlog.queues(partial(click.echo, err=True))
    if not queues and drain:
        click.echo(f"{secondary.host} has no backlog queue of {name}: nothing to drain", err=True)
        return 0
    counts = [each.dead_letters if settings["dead_letters"] else each.messages for each in queues]
    depth = None if None in counts else sum(count or 0 for count in counts)
    make_engine = engine_for(depth)
    with nullcontext() if ledger is None else closing(LedgerWriter(ledger, "syphon")) as writer:
        given = SyphonSettings(
            primary.endpoint(name, ca_file),
            secondary.endpoint(label_of(secondary), ca_file),
            [(each.path, each.number) for each in queues],
            ledger=writer,
            lister=None if drain else backlog.lister(queues),
            **settings,
        )
        return await _run_engine(make_engine(given), depth, drain, as_json)


def _maker_of(engine: str) -> Callable[..., Any]:
    from pairbus.syphon.hosting import is_installed, maker_of

    if not is_installed(engine):
        raise click.ClickException(
            "the Spark engine is not installed: install pairbus[spark], or run it with --engine in-process"
        )
    return maker_of(engine)


def label_of(namespace: NamespaceArgument) -> str:
    return namespace.host.split(".")[0] if namespace.host.endswith(".servicebus.windows.net") else namespace.host


class _LogLine(logging.Handler):
    """Prints what the engine logs as a line of the command."""

    def emit(self, record: logging.LogRecord) -> None:
        status_line.end()
        click.echo(f"pairbus: {for_command_line(record.getMessage())}", err=True)


def run_and_exit(main: Callable[[], Coroutine[Any, Any, int]]) -> None:
    """Run the coroutine, which returns an exit code, and show what is logged meanwhile. Raises Exit for a code."""
    log = logging.getLogger("pairbus")
    handler = _LogLine(logging.WARNING)
    log.addHandler(handler)
    log.propagate = False  # py4j gives the root logger a handler by the way, and every line would come twice
    try:
        code = event_loop.run(main())
    finally:
        log.propagate = True
        log.removeHandler(handler)
    if code:
        raise click.exceptions.Exit(code)


class Queue(NamedTuple):
    """A backlog queue; `messages` and `dead_letters` are None where they could not be counted."""

    path: str
    number: int | None
    messages: int | None = None
    dead_letters: int | None = None


@dataclass(frozen=True, slots=True)
class _Backlog:
    """Which backlog queues a command reads: those of `name` in the secondary."""

    secondary: NamespaceArgument
    ca_file: Path | None
    name: str
    count: int | None
    orphans: bool

    def _admin(self) -> Any:
        from pairbus.syphon.listing import OPTIONS

        return self.secondary.admin(self.ca_file, **OPTIONS)

    async def queues(self, tell: Callable[[str], None]) -> list[Queue]:
        """Return the queues to read; where they can't be listed, `tell` which are assumed."""
        from pairbus.pairing.backlog import backlog_queues
        from pairbus.syphon.core.queue_discovery import QueueDiscovery
        from pairbus.syphon.listing import ListingFailed, list_backlog

        host = self.secondary.host
        try:
            listed = await list_backlog(self._admin, self.name)
        except ListingFailed as error:
            if self.orphans:
                raise click.ClickException(
                    f"--orphans finds the queues by listing those of {host}, and that failed: {error}"
                ) from None
            known = self.count or COUNT
            why = for_command_line(str(error))
            tell(f"pairbus: {host}: {why}; so the backlog queues are taken to be 0 to {known - 1}")
            return [Queue(backlog_queues.path(self.name, index), index) for index in range(known)]
        discovery = QueueDiscovery(self.name, host, count=self.count, orphans=self.orphans)
        return [Queue(*each) for each in discovery.listed(listed).queues]

    def lister(self, queues: Sequence[Queue]) -> Lister:
        """Return what finds the queues that are made while the syphon runs."""
        from pairbus.syphon.core.queue_discovery import QueueDiscovery
        from pairbus.syphon.listing import Lister, list_backlog

        discovery = QueueDiscovery(
            self.name,
            self.secondary.host,
            [each.path for each in queues],
            count=self.count,
            orphans=self.orphans,
            is_blind=any(each.messages is None for each in queues),
        )
        return Lister(discovery, partial(list_backlog, self._admin, self.name))


async def _run_engine(engine: Any, depth: int | None, drain: bool, as_json: bool) -> int:
    outcome, interrupted = await watch_engine(engine, depth, as_json)
    if as_json:
        click.echo(json.dumps({"kind": "result", **_result(outcome, interrupted)}))
    else:
        report = outcome.report
        parts = [moved_line(report)]
        if report.dead_lettered:
            parts.append(f"{report.dead_lettered:,} dead-lettered in the backlog")
        click.echo("; ".join(parts))
        tell_lost_tasks(report)
        for each in outcome.unavailable:
            click.echo(f"{each.path or '(no destination)'}: {each.messages:,} messages remain: {each.reason}")
    if outcome.unavailable:
        return UNAVAILABLE
    return INTERRUPTED if drain and interrupted else 0


def moved_line(report: Report, done: str = "moved") -> str:
    from pairbus.syphon.core.progress import duration

    noun = "message" if report.moved == 1 else "messages"
    return f"{report.moved:,} {noun} {done} ({_size(report.moved_bytes)}) in {duration(report.elapsed_s)}"


def tell_lost_tasks(report: Report) -> None:
    if report.lost_tasks:
        noun = "task" if report.lost_tasks == 1 else "tasks"
        click.echo(
            f"{report.lost_tasks:,} {noun} of Spark died and could not tell what they had moved: how many more "
            "messages have arrived is unknown"
        )


async def watch_engine(engine: Any, depth: int | None, as_json: bool) -> tuple[Outcome, bool]:
    """Run the engine and show its progress; return its outcome and whether SIGTERM or Ctrl-C stopped it."""
    import asyncio

    loop = asyncio.get_running_loop()
    signals: list[int] = []

    def stop(number: int) -> None:
        signals.append(number)
        status_line.end()
        if len(signals) == 1:
            click.echo("pairbus: stopping after this round; again to break off", err=True)
            engine.stop()
        else:
            running.cancel()

    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop, number)
    running = loop.create_task(engine.run())
    await asyncio.sleep(0)
    if depth is not None:
        engine.progress.counted(depth)
    shown = loop.create_task(_show(engine.report, as_json))
    try:
        outcome = await running
    except asyncio.CancelledError:
        if len(signals) < 2:
            raise
        raise click.exceptions.Exit(_broken_off()) from None
    finally:
        shown.cancel()
        with suppress(asyncio.CancelledError):
            await shown
    return outcome, bool(signals)


def _broken_off() -> int:
    click.echo(
        "pairbus: broken off; what was under way may have been moved, or comes back when its locks end", err=True
    )
    return INTERRUPTED


def _result(outcome: Outcome, interrupted: bool) -> dict[str, Any]:
    ended = "unavailable" if outcome.unavailable else "stopped" if interrupted else "drained"
    unavailable = [each.as_json() for each in outcome.unavailable]
    return {"outcome": ended, **outcome.report.as_json(), "unavailable": unavailable}


async def _show(report: Callable[[], Report], as_json: bool) -> None:
    """One refreshing line on a terminal; a line now and then elsewhere; JSON lines on stdout."""
    import asyncio

    how = "json" if as_json else "terminal" if sys.stderr.isatty() else "log"
    last = ""
    try:
        while True:
            await asyncio.sleep(SHOW_S[how])
            if as_json:
                click.echo(json.dumps({"kind": "progress", **report().as_json()}))
                continue
            now = report()
            line = now.line()
            if how == "terminal":
                through = now.moved + now.dead_lettered
                line = bar(through, None if now.remaining is None else through + now.remaining) + line
            if how == "terminal" or line != last:
                status_line.say(line)
            last = line
    finally:
        status_line.end()


def _size(count: float) -> str:
    for unit in ("bytes", "KB", "MB"):
        if count < 1000:
            return f"{count:,.0f} {unit}" if unit == "bytes" else f"{count:,.1f} {unit}"
        count /= 1000
    return f"{count:,.1f} GB"


# -- backlog


@click.command()
@namespace_option("primary", "Its host names the backlog queues; it is not contacted.", required=False)
@namespace_option("secondary", "Where the backlog is.")
@_primary_name
@_count(None, "Look at the backlog queues 0 to N-1. By default all that exist; without the Manage right 0 to 9.")
@ca_file_option
@click.option(
    "--fail-depth", type=click.IntRange(min=0), metavar="N", help="Exit code 4 with more than N messages in all."
)
@click.option(
    "--fail-age",
    type=click.FloatRange(min=0),
    metavar="SECONDS",
    help="Exit code 4 with a message older than that.",
)
@json_option
def backlog(
    primary: NamespaceArgument | None,
    secondary: NamespaceArgument,
    primary_name: str | None,
    count: int | None,
    ca_file: Path | None,
    fail_depth: int | None,
    fail_age: float | None,
    as_json: bool,
) -> None:
    """Show depth, age and destinations of each backlog queue. Nothing is taken away.

    Without the Manage right it peeks. Warns when messages wait and nothing drains them. The exit code is 4 past
    --fail-depth or --fail-age, for alerting.

    \b
    Examples:
      pairbus backlog --primary contoso.servicebus.windows.net --secondary @secondary
      pairbus backlog --primary-name contoso --secondary @secondary --fail-depth 1000 --fail-age 600
    """
    from pairbus.wire.errors import Unauthorized, WireError

    name = _name(primary, primary_name)

    async def run() -> int:
        notices: list[str] = []  # not said where the next step fails too, and says why
        queues = await _Backlog(secondary, ca_file, name, count, orphans=False).queues(notices.append)
        try:
            depths, warnings = await _measure(secondary.endpoint(label_of(secondary), ca_file), queues)
        except Unauthorized as error:
            raise click.ClickException(f"{secondary.host} refuses access: {error}; peeking needs Listen") from None
        except WireError as error:
            raise click.ClickException(
                f"the backlog in {secondary.host} can't be looked at: {error}; check host and port, and that it is up"
            ) from None
        for notice in notices:
            click.echo(notice, err=True)
        _print_backlog(name, secondary, depths, warnings, as_json)
        return _past(depths, fail_depth, fail_age)

    run_and_exit(run)


async def _measure(endpoint: Any, queues: Sequence[Queue]) -> tuple[list[Depth], list[str]]:
    import asyncio

    from pairbus.syphon.inspection import measure

    async with endpoint.client() as client:
        depths = [await measure(client, each.path, PEEKED_MAX) for each in queues]
        for depth, queue in zip(depths, queues, strict=True):
            depth.dead_letters = queue.dead_letters
            if not depth.is_complete and queue.messages is not None and queue.messages >= depth.messages:
                depth.messages, depth.is_complete = queue.messages, True
        suspects = [each for each in depths if _may_be_undrained(each)]
        still: list[Depth] = []
        if suspects:
            await asyncio.sleep(LOOK_AGAIN_S)
            for each in suspects:
                again = await measure(client, each.queue, 1)
                if again.oldest_number == each.oldest_number and again.oldest_deliveries == 0:
                    still.append(each)
    warnings = []
    if still:
        names = ", ".join(each.queue for each in still)
        warnings.append(
            f"messages wait in {names} and nothing drains them: no syphon runs, or it can't reach the primary; "
            "start one with pairbus syphon"
        )
    return depths, warnings


def _may_be_undrained(depth: Depth) -> bool:
    return bool(depth.messages) and depth.oldest_deliveries == 0 and (_age(depth) or 0.0) > UNDRAINED_S


def _age(depth: Depth) -> float | None:
    return None if depth.oldest is None else max(0.0, time.time() - depth.oldest)


def _print_backlog(
    name: str, secondary: NamespaceArgument, depths: Sequence[Depth], warnings: Sequence[str], as_json: bool
) -> None:
    from pairbus.cost.columns import aligned
    from pairbus.syphon.core.progress import duration

    there = [each for each in depths if each.exists]
    total = sum(each.messages for each in there)
    ages = [age for each in there if (age := _age(each)) is not None]
    for warning in warnings:
        click.echo(f"pairbus: {warning}", err=True)
    if as_json:
        shown = {
            "primary_name": name,
            "secondary": secondary.host,
            "messages": total,
            "is_complete": all(each.is_complete for each in there),
            "oldest_s": round(max(ages), 1) if ages else None,
            "queues": [_as_json(each) for each in there],
            "warnings": list(warnings),
        }
        click.echo(json.dumps(shown))
        return
    if not there:
        click.echo(f"{secondary.host} has no backlog queue of {name}; pairbus provision makes them")
        return
    rows = [("QUEUE", "MESSAGES", "OLDEST", "DEAD", "DESTINATIONS")]
    for each in there:
        age, dead = _age(each), "?" if each.dead_letters is None else f"{each.dead_letters:,}"
        rows.append((each.queue, _number(each), "-" if age is None else duration(age), dead, _destinations(each)))
    if len(there) > 1:
        more = "" if all(each.is_complete for each in there) else "+"
        rows.append(("in all", f"{total:,}{more}", duration(max(ages)) if ages else "-", "", ""))
    for line in aligned(rows, left=(0, 4)):
        click.echo(line)


def _number(depth: Depth) -> str:
    return f"{depth.messages:,}{'' if depth.is_complete else '+'}"


def _destinations(depth: Depth) -> str:
    ordered = sorted(depth.destinations.items(), key=lambda item: (-item[1], item[0]))
    shown = [f"{path or '(none)'} {count:,}" for path, count in ordered[:DESTINATIONS_SHOWN]]
    if len(ordered) > DESTINATIONS_SHOWN:
        shown.append(f"and {len(ordered) - DESTINATIONS_SHOWN} more")
    looked_at = sum(depth.destinations.values())
    return ", ".join(shown) + (f" (of the first {looked_at:,})" if looked_at < depth.messages else "")


def _as_json(depth: Depth) -> dict[str, Any]:
    age = _age(depth)
    return {
        "queue": depth.queue,
        "messages": depth.messages,
        "is_complete": depth.is_complete,
        "dead_letters": depth.dead_letters,
        "oldest_s": None if age is None else round(age, 1),
        "destinations": depth.destinations,
    }


def _past(depths: Sequence[Depth], fail_depth: int | None, fail_age: float | None) -> int:
    problems: list[str] = []
    total = sum(each.messages for each in depths)
    oldest = max((age for each in depths if (age := _age(each)) is not None), default=0.0)
    if fail_depth is not None and total > fail_depth:
        problems.append(f"{total:,} messages, more than --fail-depth {fail_depth:,}")
    if fail_age is not None and oldest > fail_age:
        problems.append(f"the oldest is {oldest:,.0f} s old, more than --fail-age {fail_age:g}")
    for problem in problems:
        click.echo(f"pairbus: {problem}", err=True)
    return PAST_A_LIMIT if problems else 0


# -- provision


@click.command()
@click.option(
    "--primary-name",
    metavar="NAME",
    required=True,
    callback=_check_name,
    help="What the backlog queues are named after.",
)
@namespace_option("secondary", "Where the queues are made; not needed with --print.", required=False)
@_count(COUNT, "How many.")
@ca_file_option
@click.option(
    "--print", "language", type=click.Choice(["bicep", "terraform"]), help="Print the queues as code; make nothing."
)
@json_option
def provision(
    primary_name: str,
    secondary: NamespaceArgument | None,
    count: int,
    ca_file: Path | None,
    language: str | None,
    as_json: bool,
) -> None:
    """Make the backlog queues of a primary in its secondary namespace. A queue that exists stays as it is.

    \b
    Examples:
      pairbus provision --primary-name contoso --secondary @secondary
      pairbus provision --primary-name contoso --count 20 --print bicep > backlog.bicep
    """
    from pairbus.pairing.backlog import backlog_queues as queues

    if language is not None:
        text = queues.bicep(primary_name, count) if language == "bicep" else queues.terraform(primary_name, count)
        click.echo(text, nl=False)
        return
    if secondary is None:
        raise click.UsageError("name the secondary, with --secondary or PAIRBUS_SECONDARY, or give --print")
    _make_queues(primary_name, secondary, count, ca_file, as_json)


def _make_queues(name: str, secondary: NamespaceArgument, count: int, ca_file: Path | None, as_json: bool) -> None:
    from azure.core.exceptions import AzureError

    from pairbus.pairing.backlog import backlog_queues as queues
    from pairbus.pairing.backlog.provision import Provision
    from pairbus.pairing.errors import PairingFailed
    from pairbus.sync.provisioning import manage
    from pairbus.syphon.listing import OPTIONS, reason

    made = Provision(name, secondary.host, count, give_up_after_s=30.0)
    try:
        with secondary.admin(ca_file, **OPTIONS) as admin:
            plan = queues.plan(name, count, [each.name for each in admin.list_queues()])
            manage(made, admin, 30.0)
    except (AzureError, OSError) as error:
        raise click.ClickException(f"the queues of {secondary.host} can't be listed: {reason(error)}") from None
    except PairingFailed as error:
        raise click.ClickException(str(error)) from None
    created = [index for index in plan.missing if index in made.queues]
    left_out = {each.queue: str(each.error) for each in made.left_out}
    if as_json:
        shown = {
            "secondary": secondary.host,
            "made": [queues.path(name, index) for index in created],
            "existed": [queues.path(name, index) for index in plan.found],
            "failed": {queues.path(name, index): text for index, text in left_out.items()},
            "extra": [queues.path(name, index) for index in plan.extra],
        }
        click.echo(json.dumps(shown))
    else:
        for index in range(count):
            state = "made" if index in created else "existed" if index in plan.found else "could not be made"
            click.echo(f"{queues.path(name, index)}  {state}")
    for warning in made.warnings:
        click.echo(f"pairbus: {warning}", err=True)
    if plan.extra and not as_json:
        names = ", ".join(queues.path(name, index) for index in plan.extra)
        click.echo(f"pairbus: {names}: not asked for, and left alone; pairbus syphon --orphans drains them", err=True)
    if left_out:
        first = next(iter(left_out.values()))
        raise click.ClickException(f"{len(left_out)} of {count} queues could not be made: {' '.join(first.split())}")
