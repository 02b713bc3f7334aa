"""The commands `broker` and `fault`: run namespaces until a signal, and cause faults in them."""

from __future__ import annotations

import contextlib
import gc
import json
import sys
import threading
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import click

from pairbus.broker.access.throttling import MEASURES
from pairbus.broker.control.faults import KINDS, Fault, unknown_kind
from pairbus.broker.operations.nodes import NODES, NODES_MAX
from pairbus.commands import event_loop, status_line
from pairbus.errors import PairbusError

_COLLECT_EVERY_S = 60.0
#: With no more blocks of memory than this allocated since then, a full collection takes some 2 ms.
_COLLECT_BLOCKS_MAX = 50_000


class CommandError(PairbusError):
    """The broker refused a command; the message is the line that the user sees."""


def _check_namespaces(_context: click.Context, _parameter: click.Parameter, specs: tuple[str, ...]) -> tuple[str, ...]:
    # Imported here and below so that other commands and `--help` don't have to (tests/test_packaging.py).
    from pairbus.broker.config.plan import parse_namespace

    try:
        names = [parse_namespace(spec)[0] for spec in specs]
    except PairbusError as error:
        raise click.BadParameter(str(error)) from None
    for name in names:
        if names.count(name) > 1:
            raise click.BadParameter(f"{name} is given more than once; give all its ports at once: {name}:5671,5672")
    return specs


@click.command()
@click.option(
    "--namespace",
    "namespaces",
    metavar="NAME[:PORT,PORT…]",
    callback=_check_namespaces,
    multiple=True,
    help="A namespace to serve, once for each; without a port, or with port 0, any free one. Every port serves AMQP, "
    "TLS, WebSocket and HTTP. May be left out when --config names some (then all of those), and with --emulator.",
)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The folder that everything which must survive is kept in; made if missing.",
)
@click.option(
    "--config",
    type=click.Path(path_type=Path, dir_okay=False),
    help="A TOML file, or the Config.json of Microsoft's emulator: the entities to make where they are missing.",
)
@click.option(
    "--standby",
    type=click.Path(file_okay=False),
    help="A folder, best on another disk, that takes what is sent while the data folder stalls; without it sends are "
    "refused then.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="The address to listen on; 0.0.0.0 is all.")
@click.option(
    "--advertise",
    metavar="HOST",
    help="The host name or address that clients are told and that the certificate names; by default --host, or for "
    "0.0.0.0 an address of this machine.",
)
@click.option(
    "--emulator",
    is_flag=True,
    help="Stand in for Microsoft's emulator: namespace sbemulatorns on the ports 5672 and 5300, unless others are "
    "given, and its key SAS_KEY_VALUE, which everybody knows; so on loopback only.",
)
@click.option(
    "--durability",
    type=click.Choice(["strict", "default", "none"]),
    default="default",
    show_default=True,
    help="What a power cut may undo: nothing (strict), settlements of the last 0.1 s (default), anything (none).",
)
@click.option("--ledger", is_flag=True, help="Write every message's events to DATA/NAME/ledger.")
@click.option(
    "--nodes",
    type=click.IntRange(1, NODES_MAX),
    default=NODES,
    show_default=True,
    help="Over how many nodes the entities of each namespace are spread, unless --config says so: those of one node "
    "fail together.",
)
@click.option("--salvage", is_flag=True, help="Start although stored records are damaged: those are lost, and named.")
def broker(
    namespaces: tuple[str, ...],
    config: Path | None,
    host: str,
    advertise: str | None,
    emulator: bool,
    **options: Any,
) -> None:
    """Run one or more namespaces until SIGTERM or Ctrl-C.

    When ready, prints one JSON line per namespace: namespace, host, port (the first of ports),
    ports, connection_string, ca_file.

    \b
    Examples:
      pairbus broker --namespace contoso --data ./data
      pairbus broker --namespace contoso:5671 --namespace backup --data ./data --ledger
      pairbus broker --namespace contoso --data ./data --standby /mnt/other-disk/pairbus
      pairbus broker --config broker.toml --data ./data
      pairbus broker --emulator --config Config.json --data ./data
      pairbus broker --namespace contoso:5671,443 --host 0.0.0.0 --advertise bus.example --data ./data
    """
    from pairbus.broker.net.hosts import check_reach

    try:
        check_reach(host, advertise, emulator)
    except PairbusError as error:
        raise click.UsageError(str(error)) from None
    if not namespaces and config is None and not emulator:
        raise click.UsageError("name a namespace with --namespace, or give a --config that names some")
    # Messages make few cycles and many objects: looking for garbage every 700 of them is time lost. A full collection
    # looks at all of them, while nobody is served: `collect_garbage` says when, not Python.
    gc.set_threshold(5_000, 5, 1_000_000)
    event_loop.run(_serve(*namespaces, config=config, host=host, advertise=advertise, emulator=emulator, **options))


async def _serve(*namespaces: str, host: str, **options: Any) -> None:
    """Serve until a signal comes; print the namespaces when they are ready."""
    import asyncio
    import signal

    from pairbus.broker.net.hosts import is_loopback
    from pairbus.broker.server import serve

    # Before anything can take long: a signal during the replay of a large journal is not lost either.
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    with _telling_of_a_long_start() as is_ready:
        async with serve(*namespaces, host=host, **options) as running:
            is_ready.set()
            if not is_loopback(host):
                click.echo(
                    f"pairbus: warning: others can reach this broker on {host}; what clients send with the connection "
                    "string below is not encrypted. For TLS take UseDevelopmentEmulator=true out and trust ca_file",
                    err=True,
                )
            for served in running.namespaces.values():
                ready = {
                    "namespace": served.name,
                    "host": served.host,
                    "port": served.port,
                    "ports": list(served.ports),
                    "connection_string": served.connection_string,
                    "ca_file": served.ca_file,
                }
                click.echo(json.dumps(ready))
            sys.stdout.flush()
            collecting = asyncio.create_task(collect_garbage(asyncio.sleep))
            await stop.wait()
            collecting.cancel()
            click.echo("shutting down", err=True)


async def collect_garbage(wait: Callable[[float], Awaitable[object]]) -> None:
    """Run a full collection every minute in which it is quick.

    With the thresholds above, Python makes none by itself, and until there is one it keeps every cycle that has lived
    for some time, and the memory of thousands of tuples for later. Where so much has come that it would take long, it
    is left out of collections from then on: that is the messages of deep queues, which are freed without one.
    """
    gc.freeze()  # what the start made lives on, such as the entities of a configuration
    least = sys.getallocatedblocks()
    while True:
        await wait(_COLLECT_EVERY_S)
        held = sys.getallocatedblocks()
        least = min(least, held)
        if held - least < _COLLECT_BLOCKS_MAX:
            gc.collect()
        else:
            gc.freeze()
            least = held


@contextlib.contextmanager
def _telling_of_a_long_start() -> Iterator[threading.Event]:
    """Say after two seconds, and then now and then, that the journals are being read, until the event is set."""
    is_ready = threading.Event()
    threading.Thread(target=_tell, args=(is_ready,), name="pairbus-start", daemon=True).start()
    try:
        yield is_ready
    finally:
        is_ready.set()


def _tell(is_ready: threading.Event) -> None:
    seconds = wait_s = 2.0
    while not is_ready.wait(wait_s):
        click.echo(f"reading the journals, {seconds:.0f} s", err=True)
        wait_s = status_line.LOG_EVERY_S
        seconds += wait_s


def _kinds(_context: click.Context, _parameter: click.Parameter, typed: str) -> list[str]:
    return [kind for kind in KINDS if kind.startswith(typed)]


@click.command()
@click.argument("namespace")
@click.argument("kind", required=False, shell_complete=_kinds)
@click.option(
    "--data",
    type=click.Path(path_type=Path, file_okay=False),
    required=True,
    help="The data folder of the broker.",
)
@click.option("--entity", help="Only this entity; without it, the whole namespace.")
@click.option("--client", help="unreachable, black-hole: only this client, by its address or the name of its key.")
@click.option(
    "--partition",
    type=int,
    help="unreachable, no-send, no-receive: only this partition, 0 to 15, of partitioned entities.",
)
@click.option("--node", type=int, help="crash-node: the number of the node, from 0; or give an --entity that is on it.")
@click.option("--rate", type=float, help="throttle: operations a second that pass; 0 lets none pass.")
@click.option(
    "--by",
    metavar="MEASURE",
    help=f"throttle: what --rate counts in place of operations a second: {', '.join(MEASURES)}.",
)
@click.option(
    "--delay",
    type=float,
    help="latency: seconds that every answer is late; lost-answer: until the cut; crash-entity, crash-node: seconds "
    "that answers are late before the crash, 0.5 by default.",
)
@click.option(
    "--late",
    type=float,
    help="storage-stall, with --standby: seconds after the store is back until receivers get what came meanwhile, at "
    "most 900.",
)
@click.option(
    "--for",
    "seconds",
    type=float,
    help="End by itself after so many seconds; crash-entity, crash-node: the slow half and the half in which it is "
    "down, 4 seconds by default and at most 300.",
)
@click.option("--clear", is_flag=True, help="End the fault; without KIND, all of the namespace's or entity's.")
@click.option("--json", "as_json", is_flag=True, help="Print the faults in force as one JSON object.")
def fault(
    namespace: str,
    kind: str | None,
    data: Path,
    seconds: float | None,
    clear: bool,
    as_json: bool,
    **given: Any,
) -> None:
    """Bring about a fault in a running broker, or end it; without KIND, list them.

    \b
    KIND is one of
      unreachable  connections are refused
      black-hole   connections are accepted, and nothing is said
      no-send, no-receive, no-manage
                   such operations fail with an internal error
      throttle     operations past --rate a second are refused as server busy; --by counts something else
      latency      every answer is --delay seconds late
      lost-answer  sends are stored, and in place of the answer the connection is cut
      hang         sends are neither stored nor answered; cut when the fault ends
      storage-stall  what the broker writes to its data folder does not return; with
                   --late, what is sent meanwhile appears late (clear twice: at once)
      crash-entity, crash-node
                   an entity, or all of a node, is slow, then restarts from the journal

    \b
    Examples:
      pairbus fault --data ./data contoso unreachable --for 60
      pairbus fault --data ./data contoso throttle --rate 5 --entity orders
      pairbus fault --data ./data contoso throttle --rate 1000 --by credits
      pairbus fault --data ./data contoso unreachable --client web
      pairbus fault --data ./data contoso unreachable --entity orders --partition 3
      pairbus fault --data ./data contoso crash-node --entity orders --for 10
      pairbus fault --data ./data contoso storage-stall --late 60 --for 30
      pairbus fault --data ./data contoso
      pairbus fault --data ./data contoso --clear
    """
    from pairbus.broker.control.control_commands import FOR_S_MAX

    if kind is not None and kind not in KINDS:
        raise click.UsageError(str(unknown_kind(kind)))
    chosen: dict[str, Any] = {name: value for name, value in (given | {"for": seconds}).items() if value is not None}
    if clear:
        _allow_only(chosen, {"entity", "client", "partition", "node", "by"}, "--clear")
        answer = _ask(data, {"command": "clear", "namespace": namespace, **({"kind": kind} if kind else {}), **chosen})
    elif kind is None:
        _allow_only(chosen, set(), "a list of the faults (no KIND)")
        answer = _ask(data, {"command": "list", "namespace": namespace})
        (answer["faults"],) = answer["namespaces"].values()
    else:
        if seconds is not None and not 0 < seconds <= FOR_S_MAX:
            raise click.UsageError(f"--for {seconds:g} is out of bounds: seconds, more than 0 and at most {FOR_S_MAX}")
        try:
            Fault(kind, **{name: value for name, value in chosen.items() if name != "for"})
        except ValueError as error:
            raise click.UsageError(str(error)) from None
        answer = _ask(data, {"command": "fault", "namespace": namespace, "kind": kind, **chosen})
    _show(namespace, answer, as_json)


def _allow_only(chosen: dict[str, Any], allowed: set[str], what: str) -> None:
    if extra := chosen.keys() - allowed:
        raise click.UsageError(f"{what} takes no {', '.join(f'--{name}' for name in sorted(extra))}")


def _ask(data: Path, message: dict[str, Any]) -> dict[str, Any]:
    from pairbus.broker.control.control_socket import request

    answer = request(data, message)
    if not answer.get("ok"):
        raise CommandError(str(answer.get("error", "the broker gave no reason")))
    return answer


def _limit(fault: dict[str, Any]) -> str:
    """`rate 5/s`, `at 50 links`."""
    return f"at {fault['rate']:g} {MEASURES[fault['by']].unit}" if "by" in fault else f"rate {fault['rate']:g}/s"


def _span(seconds: float) -> str:
    """`0.4 s`, `59 s`, `12 min`, `30 h`."""
    for unit, size in (("h", 3600), ("min", 60)):
        if seconds >= 2 * size:
            return f"{seconds / size:.0f} {unit}"
    return f"{seconds:.1f} s" if seconds < 10 else f"{seconds:.0f} s"


def _show(namespace: str, answer: dict[str, Any], as_json: bool) -> None:
    if "note" in answer:
        click.echo(f"pairbus: warning: {answer['note']}", err=True)
    if as_json:
        shown = {"namespace": namespace, "faults": answer["faults"]}
        if "cleared" in answer:
            shown["cleared"] = answer["cleared"]
        click.echo(json.dumps(shown))
        return
    if "cleared" in answer:
        click.echo(f"{namespace}: {answer['cleared']} cleared")
    for each in answer["faults"]:
        details = [f"on {each['entity']}"] if "entity" in each else []
        details += [f"in partition {each['partition']}"] if "partition" in each else []
        details += [f"on node {each['node']}"] if "node" in each else []
        details += [f"for the client {each['client']}"] if "client" in each else []
        details += [_limit(each)] if "rate" in each else []
        details += [f"delay {each['delay']:g} s"] if "delay" in each else []
        details += [f"{each['late']:g} s late"] if "late" in each else []
        details += ["is over, messages are late"] if "is_back" in each else []
        details += [f"for {_span(each['left_s'])} more"] if "left_s" in each else []
        details += [f"({each['late_messages']:,} late)"] if "late_messages" in each else []
        details += [f"diagnostics in {each['diagnostics']}"] if "diagnostics" in each else []
        click.echo(" ".join([f"{namespace}: {each['kind']}", *details]))
    if not answer["faults"]:
        click.echo(f"{namespace}: no faults")
