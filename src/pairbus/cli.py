"""The command line: registers the commands, runs one, and turns its errors into one line and an exit code.

Results go to stdout, everything else to stderr. An error is one line that says what to do; `--debug` shows the
traceback instead. Exit codes: 0 success, 1 it failed, 2 it was called wrongly, 130 interrupted, 141 nobody reads the
output any more (`| head`), as for a program that SIGPIPE ends, and just as silent.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn

import click

from pairbus import __version__
from pairbus.commands.broker import broker, fault
from pairbus.commands.completion import completion
from pairbus.commands.cost import cost
from pairbus.commands.drill import drill
from pairbus.commands.entities import peek, purge, send
from pairbus.commands.ledger import ledger
from pairbus.commands.move import archive, ingest, move, restore
from pairbus.commands.reports import audit, availability
from pairbus.commands.syphon import backlog, provision, syphon
from pairbus.errors import PairbusError, file_problem, first_line, for_command_line

FAILED, USAGE, INTERRUPTED, UNREAD = 1, 2, 130, 141


class _OutputClosed(Exception):
    """Nobody reads our output. Not an OSError: click would end the process by itself, with the code of a failure."""


class _Commands(click.Group):
    def make_context(self, *arguments: Any, **options: Any) -> click.Context:
        # `--help` prints here
        with _unread():
            return super().make_context(*arguments, **options)

    def invoke(self, ctx: click.Context) -> Any:
        with _unread():
            try:
                return super().invoke(ctx)
            except click.UsageError as error:
                # click does not say of which command an option is that lacks its value
                if error.ctx is None and ctx.invoked_subcommand is not None:
                    error.ctx = click.Context(self.commands[ctx.invoked_subcommand], ctx, ctx.invoked_subcommand)
                raise


@contextmanager
def _unread() -> Iterator[None]:
    try:
        yield
    except BrokenPipeError:
        raise _OutputClosed from None


def _set_debug(context: click.Context, _parameter: click.Parameter, value: bool) -> None:
    if value:
        context.find_root().ensure_object(dict)["debug"] = True


_debug = click.option(
    "--debug", is_flag=True, expose_value=False, callback=_set_debug, help="Show the traceback of an error."
)


@click.group(cls=_Commands, no_args_is_help=False, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="pairbus")
@_debug
def cli() -> None:
    """Paired namespaces for Azure Service Bus, and the embedded broker they are proved on.

    Results go to stdout, progress to stderr. The exit code is 0 for success, 1 for a failure, 2 for a wrong call;
    where a command has others, its help says so.

    \b
    Examples:
      pairbus drill
      pairbus broker --namespace contoso --data ./data
      pairbus COMMAND --help
    """


for command in (
    archive,
    audit,
    availability,
    backlog,
    broker,
    completion,
    cost,
    drill,
    fault,
    ingest,
    ledger,
    move,
    peek,
    provision,
    purge,
    restore,
    send,
    syphon,
):
    cli.add_command(command)
    for each in (command, *(command.commands.values() if isinstance(command, click.Group) else ())):
        # The whole first sentence: click would cut it off at the end of a line.
        _debug(each).short_help = (each.help or "").partition("\n\n")[0]


def main(arguments: list[str] | None = None) -> NoReturn:
    """Run a command and turn whatever it raises into a line and an exit code; the console script."""
    state: dict[str, Any] = {}
    before = _end_on_sigterm()
    try:
        # click hands over the code of a command that asked for one, and nothing otherwise
        code = cli.main(args=arguments, prog_name="pairbus", standalone_mode=False, obj=state) or 0
    except click.exceptions.Exit as exit_request:
        code = exit_request.exit_code
    except (click.Abort, KeyboardInterrupt):
        if arguments is None:
            _end_spark()  # so that this is the last line
        click.echo("pairbus: interrupted", err=True)
        code = INTERRUPTED
    except _OutputClosed:
        code = UNREAD
    except Exception as error:
        if state.get("debug"):
            raise
        code = _report(error)
    finally:
        if before is not None:
            signal.signal(signal.SIGTERM, before)
    try:
        if sys.stdout is not None:  # our caller closed it
            sys.stdout.flush()
    except OSError as error:
        # Python would try, and say so, once more at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        if not isinstance(error, BrokenPipeError) and not code:
            code = _report(error)
        code = code or UNREAD
    if arguments is None:  # else the process goes on
        _end_spark()
    raise SystemExit(code)


def _end_on_sigterm() -> Any:
    """End a command on SIGTERM as on Ctrl-C, unless it handles the signal; return the handler that was replaced."""
    if threading.current_thread() is not threading.main_thread():
        return None
    return signal.signal(signal.SIGTERM, signal.default_int_handler)


def _end_spark() -> None:
    """End the processes of Spark, which would otherwise print after the prompt is back."""
    started = sys.modules.get("pairbus.spark.runtime.session")
    if started is not None:
        started.end()


def _report(error: Exception) -> int:
    match error:
        case click.UsageError():
            command = error.ctx.command_path if error.ctx else "pairbus"
            message = " ".join(error.format_message().split()).rstrip(".")
            click.echo(f"{command}: {message}; see `{command} --help`", err=True)
            return USAGE
        case click.ClickException():
            click.echo(f"pairbus: {for_command_line(error.format_message())}", err=True)
            return FAILED
        case PairbusError():
            click.echo(f"pairbus: {for_command_line(str(error))}", err=True)
            return FAILED
        case OSError() if error.strerror:
            click.echo(f"pairbus: {file_problem(error)}", err=True)
            return FAILED
        case _:
            is_of_spark = type(error).__module__.partition(".")[0] in ("py4j", "pyspark")
            text = first_line(error) if is_of_spark else " ".join(str(error).split()) or "no further word"
            click.echo(f"pairbus: {type(error).__name__}: {text}; run it with --debug to see where", err=True)
            return FAILED
