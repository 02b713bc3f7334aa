"""The commands `peek`, `send` and `purge`: look at, send and remove the messages of one entity.

They use the wire client, without Spark or the administration client, so that the right to listen or to send is enough.
`message_text.py` decides how a message is shown, and `_explained` what a failure means to the user.
"""

from __future__ import annotations

import json
import shutil
import sys
import time
import uuid
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final

import click

from pairbus.commands import status_line
from pairbus.commands.namespace_argument import NamespaceArgument, ca_file_option, namespace_argument
from pairbus.commands.progress_bar import bar

if TYPE_CHECKING:
    from pairbus.wire.errors import WireError
    from pairbus.wire.received import ReceivedMessage
    from pairbus.wire.sync import Receiver, Sender, WireClient

DEAD_LETTERS: Final = "$DeadLetterQueue"
#: How many messages are asked for, or sent, at once.
PEEK_COUNT: Final = 250
SEND_COUNT: Final = 500
PURGE_COUNT: Final = 500
#: An entity that delivers nothing for this long is empty.
EMPTY_S: Final = 2.0
#: Of the messages that a purge left, so many are looked at to say why.
LEFT_MAX: Final = 1000
SHOW_S: Final = {"terminal": 0.5, "log": 10.0}
_ROOT_STDIN: Final = "pairbus.stdin"

_dead_letters = click.option(
    "--dead-letters", is_flag=True, help=f"Its dead-letter queue: the same as ENTITY/{DEAD_LETTERS}."
)


def _path(entity: str, dead_letters: bool = False) -> str:
    path = entity.strip("/")
    if not path:
        raise click.UsageError("ENTITY is empty; right is a queue, or TOPIC/Subscriptions/NAME")
    if dead_letters and not path.lower().endswith(f"/{DEAD_LETTERS.lower()}"):
        path += f"/{DEAD_LETTERS}"
    return path


@contextmanager
def _client(namespace: NamespaceArgument, ca_file: Path | None, path: str, right: str) -> Iterator[WireClient]:
    from pairbus.wire.errors import WireError
    from pairbus.wire.sync import WireClient

    client = WireClient.of(namespace.endpoint("", ca_file).client())
    try:
        yield client
    except WireError as error:
        raise click.ClickException(_explained(error, namespace.host, path, right)) from None
    finally:
        client.close()


def _explained(error: WireError, host: str, path: str, right: str) -> str:
    """Return what was wrong, and the next step."""
    from pairbus.wire.errors import Busy, LinkLost, NotFound, Refused, TimedOut, Unauthorized, Unreachable

    said = error.description.rstrip(". ") or error.condition
    match error:
        case NotFound():
            form = "a queue or a topic" if right == "Send" else "a queue, or TOPIC/Subscriptions/NAME"
            return f"{host} has no {path}; check the name: {form}"
        case Unauthorized():
            return f"{host} refuses access to {path}: {said}; the key must be right, and give {right}"
        case Busy():
            return f"{host} is busy: {said}; try again in ten seconds"
        case TimedOut():
            return f"{host} did not answer in time: {said}; try again, or see whether it is up"
        case Refused():
            return f"{host} refuses it for {path}: {said}{_way_out(said, path, right)}"
        case Unreachable() if not isinstance(error, LinkLost):
            trust = "certificate" in said.lower()
            hint = "give its CA with --ca-file" if trust else "check host and port, and that it is up"
            return f"{host} can't be reached: {said}; {hint}"
        case _:
            return f"{path} in {host}: {said}; try again"


def _way_out(said: str, path: str, right: str) -> str:
    """Return what to do, by the words of the refusal, since its condition (not allowed) says too little."""
    if "session" in said and right == "Send":
        return "; give --session"
    if "subscription" in said:
        return f": {path}/Subscriptions/NAME"
    return ""


class _Progress:
    """Shows progress: one refreshing line on a terminal, a line now and then in a log, nothing beside JSON."""

    def __init__(self, word: str, quiet: bool, total: int | None = None) -> None:
        self._word = word
        self._total = total
        self._terminal = sys.stderr.isatty()
        self._quiet = quiet
        self._began = self._last = time.monotonic()

    def tell(self, count: int) -> None:
        now = time.monotonic()
        if self._quiet or now - self._last < SHOW_S["terminal" if self._terminal else "log"]:
            return
        self._last = now
        line = f"{count:,} {self._word}, {count / max(now - self._began, 0.001):,.0f}/s"
        status_line.say(bar(count, self._total) + line if self._terminal else line)


# -- peek


@click.command()
@namespace_argument()
@click.argument("entity")
@click.option(
    "--count", type=click.IntRange(min=1), default=10, show_default=True, metavar="N", help="At most so many."
)
@click.option(
    "--from-sequence",
    type=click.IntRange(min=0),
    default=0,
    metavar="N",
    help="Begin with this sequence number; without it, with the oldest message.",
)
@_dead_letters
@ca_file_option
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object a message, a line each: for scripts.")
def peek(
    namespace: NamespaceArgument,
    entity: str,
    count: int,
    from_sequence: int,
    dead_letters: bool,
    ca_file: Path | None,
    as_json: bool,
) -> None:
    """Look at the messages of an entity. Nothing is taken away or locked.

    NS names the namespace: a connection string, @FILE, env:NAME (a variable), - (stdin), or a host name (then
    DefaultAzureCredential). ENTITY is a queue, a subscription (news/Subscriptions/all) or a dead-letter queue
    (orders/$DeadLetterQueue). Deferred and scheduled messages are shown too, and those of every session.

    \b
    Examples:
      pairbus peek @connection orders
      pairbus peek @connection orders --dead-letters --count 100
      pairbus peek @connection news/Subscriptions/all --json | jq .body
    """
    from pairbus.commands.message_text import cut, notes, row, shown, table

    path = _path(entity, dead_letters)
    with _client(namespace, ca_file, path, "Listen") as client:
        found = _peeked(client, path, from_sequence, count)
        if as_json:
            for payload in found:
                click.echo(json.dumps(shown(payload)))
            return
        payloads = list(found)
    if not payloads:
        click.echo(f"{path}: no messages" + (f" from sequence number {from_sequence} on" if from_sequence else ""))
        return
    room = shutil.get_terminal_size().columns if sys.stdout.isatty() else None
    heading, *lines = table([row(payload) for payload in payloads], room)
    click.echo(heading)
    for line, payload in zip(lines, payloads, strict=True):
        click.echo(line)
        for note in notes(payload):
            click.echo(cut(f"    {note}", room))


def _peeked(client: WireClient, path: str, number: int, count: int) -> Iterator[bytes]:
    from pairbus.commands.message_text import sequence_number

    while count > 0:
        messages = client.peek(path, number, min(count, PEEK_COUNT))
        if not messages:
            return
        for payload in messages[:count]:
            number = max(number, sequence_number(payload) or number) + 1
            yield payload
        count -= len(messages)


# -- send


@click.command()
@namespace_argument()
@click.argument("entity")
@click.argument("body")
@click.option("--lines", is_flag=True, help="Each line of BODY is a message.")
@click.option("--id", "message_id", metavar="ID", help="The message id; without it, a random one.")
@click.option("--session", metavar="ID", help="The session id.")
@click.option("--subject", metavar="TEXT", help="The subject, also called label.")
@click.option(
    "--property",
    "properties",
    metavar="NAME=TEXT",
    multiple=True,
    help="An application property, once for each; NAME:=JSON for a number, true or false.",
)
@click.option("--content-type", metavar="TYPE", help="What the body is, such as application/json.")
@click.option(
    "--ttl",
    type=click.FloatRange(min=0, min_open=True, max=366 * 86400 * 100),
    metavar="SECONDS",
    help="Expires after so long.",
)
@click.option("--schedule", metavar="TIME", help="Enqueue it then: 2026-12-31T08:00:00Z, or +90s, +5m, +2h, +1d.")
@ca_file_option
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines: each message sent, then the result.")
@click.pass_context
def send(
    context: click.Context,
    namespace: NamespaceArgument,
    entity: str,
    body: str,
    lines: bool,
    message_id: str | None,
    session: str | None,
    subject: str | None,
    properties: tuple[str, ...],
    content_type: str | None,
    ttl: float | None,
    schedule: str | None,
    ca_file: Path | None,
    as_json: bool,
) -> None:
    """Send a message, or one a line, and print the ids of those that were confirmed.

    NS names the namespace: a connection string, @FILE, env:NAME (a variable), - (stdin), or a host name (then
    DefaultAzureCredential). ENTITY is a queue or a topic. BODY is a text, @FILE, or - for stdin; files and stdin are
    sent byte for byte.

    \b
    Examples:
      pairbus send @connection orders "one book" --subject books --property copies:=1
      pairbus send @connection orders @order.json --content-type application/json --id order-1
      seq 1000 | pairbus send @connection orders - --lines
      pairbus send @connection orders "wake up" --schedule +5m --ttl 3600
    """
    from pairbus.commands.message_text import encode, parse_property, parse_time

    path = _path(entity)
    if lines and message_id is not None:
        raise click.UsageError("--id names one message, and --lines sends many; leave one of them out")
    try:
        pairs = dict(map(parse_property, properties))
        scheduled_at = None if schedule is None else parse_time(schedule, time.time())
    except ValueError as error:
        raise click.UsageError(str(error)) from None
    bodies = _bodies(context, body, lines)

    def encoded(text: bytes) -> tuple[str, bytes]:
        made = message_id or str(uuid.uuid4())
        payload = encode(
            text, message_id=made, now=time.time(), session_id=session, subject=subject,
            content_type=content_type, properties=pairs, ttl_s=ttl, scheduled_at=scheduled_at,
        )  # fmt: skip
        return made, payload

    progress = _Progress("sent", as_json, len(bodies) if isinstance(bodies, list) else None)
    with _client(namespace, ca_file, path, "Send") as client:
        _send_all(client.sender(path), path, map(encoded, bodies), progress, as_json)


def _send_all(
    sender: Sender, path: str, messages: Iterator[tuple[str, bytes]], progress: _Progress, as_json: bool
) -> None:
    """Send in chunks, up to the first that is not confirmed whole; print the result also when one fails."""
    sent = 0
    try:
        while chunk := list(islice(messages, SEND_COUNT)):
            confirmed = _send_chunk(sender, chunk, as_json)
            sent += confirmed
            if confirmed < len(chunk):
                break
            progress.tell(sent)
    finally:
        status_line.end()
        if as_json:
            click.echo(json.dumps({"kind": "result", "entity": path, "sent": sent}))


def _bodies(context: click.Context, body: str, lines: bool) -> Iterable[bytes]:
    if body == "-":
        taken = context.find_root().meta
        if _ROOT_STDIN in taken:
            raise click.UsageError(f"{taken[_ROOT_STDIN]} comes from stdin, so BODY can't; name one of them as @FILE")
        return _split(sys.stdin.buffer, lines)
    if body.startswith("@"):
        try:
            with Path(body[1:]).open("rb") as file:
                return list(_split(file, lines))
        except OSError as error:
            raise click.UsageError(
                f"BODY {body}: {body[1:] or 'no name'} can't be read: {error.strerror}; a text that begins with @ goes "
                "through stdin"
            ) from None
    text = body.encode("utf-8", "surrogateescape")
    return text.splitlines() if lines else [text]


def _split(file: IO[bytes], lines: bool) -> Iterator[bytes]:
    if lines:
        for line in file:
            yield line.rstrip(b"\r\n")
    else:
        yield file.read()


def _send_chunk(sender: Sender, chunk: list[tuple[str, bytes]], as_json: bool) -> int:
    """Send the messages, print the ids of those confirmed, and return how many; then raise the first failure."""
    answers = sender.send_many([payload for _, payload in chunk])
    for (made, payload), error in zip(chunk, answers, strict=True):
        if error is None:
            click.echo(json.dumps({"kind": "sent", "message_id": made, "bytes": len(payload)}) if as_json else made)
    failed = [(made, error) for (made, _), error in zip(chunk, answers, strict=True) if error is not None]
    for made, error in failed[1:]:
        click.echo(f"pairbus: {made} was not confirmed: {error}", err=True)
    if failed:
        raise failed[0][1]
    return len(chunk)


# -- purge


@click.command()
@namespace_argument()
@click.argument("entity")
@_dead_letters
@click.option("--count", type=click.IntRange(min=1), metavar="N", help="Remove at most so many, the oldest first.")
@click.option(
    "--before",
    metavar="TIME",
    help="Only what was enqueued before then: 2026-11-01T00:00:00Z. Stops at the first newer one.",
)
@click.option("--yes", is_flag=True, help="Don't ask. Needed where there is no terminal to ask on.")
@ca_file_option
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: for scripts.")
def purge(
    namespace: NamespaceArgument,
    entity: str,
    dead_letters: bool,
    count: int | None,
    before: str | None,
    yes: bool,
    ca_file: Path | None,
    as_json: bool,
) -> None:
    """Remove the messages of an entity for good. There is no way back.

    NS names the namespace: a connection string, @FILE, env:NAME (a variable), - (stdin), or a host name (then
    DefaultAzureCredential). ENTITY is a queue, a subscription (news/Subscriptions/all) or a dead-letter queue
    (orders/$DeadLetterQueue).

    Deferred and scheduled messages stay, and those that somebody has locked; it says how many. An entity with sessions
    is emptied session by session.

    \b
    Examples:
      pairbus purge @connection orders --dead-letters
      pairbus purge @connection orders --before 2026-11-01T00:00:00Z --yes
      pairbus purge @connection news/Subscriptions/all --count 1000 --yes --json
    """
    from pairbus.commands.message_text import parse_time

    path = _path(entity, dead_letters)
    try:
        limit = None if before is None else parse_time(before, time.time())
    except ValueError as error:
        raise click.UsageError(f"--before: {error}") from None
    if not yes:
        _confirm(f"{'all messages' if count is None and limit is None else 'messages'} of {path} in {namespace.host}")
    progress = _Progress("removed", as_json, count)
    removed = 0
    interrupted = False
    left: dict[str, int] = {}
    with _client(namespace, ca_file, path, "Listen") as client:
        try:
            for number in _removed(client, path, count, limit):
                removed += number
                progress.tell(removed)
        except KeyboardInterrupt:
            interrupted = True
        finally:
            status_line.end()
            if removed and not as_json:
                click.echo(f"{removed:,} message{'' if removed == 1 else 's'} removed from {path}")
        if not interrupted and limit is None and count is None:
            left = _left(client, path)
    _print_purged(path, removed, left, as_json)
    if interrupted:
        raise KeyboardInterrupt


def _confirm(what: str) -> None:
    """Ask on the terminal; raise if there is none, or if the answer is no."""
    if not sys.stdin.isatty():
        raise click.UsageError("purge removes messages for good, and there is no terminal to ask on; give --yes")
    if not click.confirm(f"Remove {what} for good?", err=True):
        raise click.ClickException("nothing was removed")


def _print_purged(path: str, removed: int, left: dict[str, int], as_json: bool) -> None:
    if as_json:
        click.echo(json.dumps({"entity": path, "removed": removed, "left": left}))
        return
    if not removed:
        click.echo(f"no messages removed from {path}")
    if left:
        stay = ", ".join(f"{number:,} {state}" for state, number in left.items())
        click.echo(f"pairbus: {path} still has {stay}: a purge takes what a receiver would be given", err=True)


def _removed(client: WireClient, path: str, count: int | None, before: float | None) -> Iterator[int]:
    """Remove messages and yield how many, batch by batch. With `before` they are locked first, to see their age."""
    from pairbus.wire.errors import Refused

    mode = "delete" if before is None else "lock"
    try:
        receiver = client.receiver(path, mode=mode)
    except Refused as error:
        if "session" not in error.description:
            raise
        yield from _removed_from_sessions(client, path, mode, count, before)
    else:
        yield from _removed_from(receiver, count, before)


def _removed_from_sessions(
    client: WireClient, path: str, mode: str, count: int | None, before: float | None
) -> Iterator[int]:
    """Remove the messages of every session that a peek finds, except sessions that somebody else has locked."""
    from pairbus.amqp.errors import SESSION_CANNOT_BE_LOCKED
    from pairbus.wire.errors import Refused

    left = count
    for session_id, there in _sessions(client, path).items():
        if left == 0:
            return
        try:
            receiver = client.receiver(path, mode=mode, session_id=session_id)
        except Refused as error:
            if error.condition != SESSION_CANNOT_BE_LOCKED:
                raise
            continue
        # no more than the look has found: then nobody waits for a message that does not come
        for number in _removed_from(receiver, there if left is None else min(left, there), before):
            yield number
            left = None if left is None else left - number
        receiver.close()


def _sessions(client: WireClient, path: str) -> dict[str, int]:
    """Return how many active messages each session has."""
    from pairbus.commands.message_text import shown

    messages = map(shown, _peeked(client, path, 0, sys.maxsize))
    return Counter(each["session_id"] for each in messages if each.get("state") == "active" and "session_id" in each)


def _removed_from(receiver: Receiver, count: int | None, before: float | None) -> Iterator[int]:
    left = count
    while left is None or left > 0:
        batch = receiver.receive(PURGE_COUNT if left is None else min(left, PURGE_COUNT), EMPTY_S)
        if not batch:
            return
        old = batch if before is None else _complete_older(receiver, batch, before)
        if old:
            yield len(old)
        if len(old) < len(batch):
            return
        if left is not None:
            left -= len(old)


def _complete_older(receiver: Receiver, batch: list[ReceivedMessage], before: float) -> list[ReceivedMessage]:
    old: list[ReceivedMessage] = []
    newer: list[ReceivedMessage] = []
    for each in batch:
        (old if each.enqueued_at is not None and each.enqueued_at < before else newer).append(each)
    if newer:
        receiver.release(newer)  # their delivery count stays as it is
    if old:
        receiver.complete(old)
    return old


def _left(client: WireClient, path: str) -> dict[str, int]:
    from pairbus.commands.message_text import shown

    states = (shown(payload).get("state", "active") for payload in _peeked(client, path, 0, LEFT_MAX))
    return Counter("locked or new" if state == "active" else str(state) for state in states)
