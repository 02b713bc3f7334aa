"""One small story of a pair of namespaces, told by public names and commands alone.

`play` leaves a data folder and ledgers behind, and returns what the commands printed. `examine` opens such a folder and
returns what is in it. The subjects take their keys from `play`; `write_fixtures` keeps its folder.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import io
import json
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest.mock import patch

from azure.servicebus import ServiceBusClient as PlainClient
from azure.servicebus import ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus import EntityState, PingFailed, ServiceBusClient, StateChanged
from pairbus.broker import Broker, NamespaceServer, serve_sync
from pairbus.broker.control.control_socket import request
from pairbus.cli import main
from pairbus.testing import ManualClock, fault
from pairbus.wire.sync import WireClient
from tests.frozen.subjects import shape

CONFIG = Path(__file__).parent / "broker.toml"
ENTITIES = {
    "contoso": [
        "orders", "orders/$DeadLetterQueue", "carts", "once", "news/Subscriptions/all", "news/Subscriptions/sport",
        "news/Subscriptions/nothing",
    ],
    "backup": ["contoso/x-servicebus-transfer/0"],
}  # fmt: skip
CONTROL: list[dict[str, Any]] = [
    {"command": "list"},
    {"command": "status"},
    {"command": "rule", "namespace": "contoso", "name": "made", "rights": ["Send"], "entity": "once"},
    {"command": "left", "namespace": "contoso"},
    {"command": "nonsense"},
]
HOUR = 3600.0
WAIT_S = 30


def run(*arguments: str) -> dict[str, Any]:
    """Run a command in this process; return its exit code and the JSON lines of its result."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
        try:
            main([*arguments])
        except SystemExit as end:
            code = end.code
    lines = [json.loads(line) for line in out.getvalue().splitlines()]
    # How many lines of progress there are depends on the machine.
    return {"exit code": code, "lines": [each for each in lines if each.get("kind") != "progress"]}


@contextlib.contextmanager
def served(data: Path, clock: ManualClock | None, **options: Any) -> Iterator[Broker]:
    """Serve both namespaces; the commands find them in the environment."""
    arguments = options if clock is None else {**options, "clock": clock}
    with serve_sync("contoso", "backup", data=data, **arguments) as broker:
        names = {"PAIRBUS_PRIMARY": "contoso", "PAIRBUS_SECONDARY": "backup"}
        strings = {name: broker.namespaces[each].connection_string for name, each in names.items()}
        with patch.dict("os.environ", strings):
            yield broker


def peek(namespace: NamespaceServer, entity: str) -> dict[str, Any]:
    return run("peek", namespace.connection_string, entity, "--count", "100", "--json")


def take(receiver: Any, count: int) -> list[Any]:
    messages: list[Any] = []
    while len(messages) < count:
        messages += (more := receiver.receive_messages(count - len(messages), max_wait_time=WAIT_S))
        assert more, f"{count} messages were expected, {len(messages)} came"
    return messages


def play(folder: Path) -> dict[str, Any]:
    clock = ManualClock()
    with served(folder / "broker", clock, ledger=True, config=CONFIG) as broker:
        primary = broker.namespaces["contoso"]
        told: dict[str, Any] = {"commands": _pair(broker, folder)}
        with PlainClient.from_connection_string(primary.connection_string) as client:
            _fill(client, clock)
        told["commands"] |= _commands(broker)
        for _ in range(2):  # the first is counted in the second
            with urllib.request.urlopen(f"http://{primary.host}:{primary.port}/metrics") as page:
                told["metrics"] = page.read().decode()
        told["now"] = clock()
    return told


def _pair(broker: Broker, folder: Path) -> dict[str, Any]:
    """A failover and the way home, and one message that stays in the backlog."""
    primary, secondary = broker.namespaces["contoso"], broker.namespaces["backup"]
    home = ["--primary-name", "contoso", "--ca-file", primary.ca_file, "--json"]
    ledger = folder / "ledger"
    told = {"provision": run("provision", "--count", "1", *home)}
    pinged, healthy = threading.Event(), threading.Event()

    def watch(event: Any) -> None:
        if isinstance(event, PingFailed):
            pinged.set()
        elif isinstance(event, StateChanged) and event.state is EntityState.HEALTHY:
            healthy.set()

    with ServiceBusClient.paired(
        primary.connection_string, secondary.connection_string, primary_name="contoso", ca_file=primary.ca_file,
        backlog_queue_count=1, failover_interval=0, ping_primary_interval=1, mark_diverted=True,
        client_options={"retry_total": 0}, ledger=ledger,
    ) as client:  # fmt: skip
        client.subscribe(watch)
        with client.get_queue_sender("orders") as sender:
            sender.send_messages(ServiceBusMessage("at home", message_id="home"))
            with fault(broker, "no-send", namespace="contoso", entity="orders"):
                sender.send_messages(ServiceBusMessage("on a detour", message_id="detour", subject="books"))
                assert pinged.wait(WAIT_S)
            assert healthy.wait(WAIT_S)
            told["backlog"] = run("backlog", *home)
            told["backlog past a limit"] = run("backlog", "--fail-depth", "0", *home)
            told["syphon"] = run("syphon", "--engine", "in-process", "--drain", "--ledger", str(ledger), *home)
            client.force_failover("orders", hold=True)
            sender.send_messages(ServiceBusMessage("stays away", message_id="away"))
        with client.get_queue_receiver("orders") as receiver:
            first, second = take(receiver, 2)
            receiver.complete_message(first)
            receiver.dead_letter_message(second, reason="NotWanted")
            assert receiver.receive_messages(1, max_wait_time=1) == []
    return told


def _fill(client: PlainClient, clock: ManualClock) -> None:
    """A message in every state, in every kind of entity."""

    def send(sender: Any, *ids: str, **properties: Any) -> None:
        for each in ids:
            sender.send_messages(ServiceBusMessage(f"body of {each}", message_id=each, **properties))

    with client.get_queue_sender("orders") as orders:
        later = dt.datetime.fromtimestamp(clock() + HOUR, dt.UTC)
        orders.schedule_messages(ServiceBusMessage("later", message_id="scheduled"), later)
        (called_off,) = orders.schedule_messages(ServiceBusMessage("never", message_id="called off"), later)
        orders.cancel_scheduled_messages(called_off)
        send(orders, "short-lived", time_to_live=dt.timedelta(seconds=5))
        clock.advance(10)
        send(orders, "completed", "abandoned", "deferred", "dead", "locked")
        with client.get_queue_receiver("orders") as receiver:
            messages = {each.message_id: each for each in take(receiver, 5)}
            receiver.complete_message(messages["completed"])
            receiver.defer_message(messages["deferred"])
            receiver.dead_letter_message(messages["dead"], reason="TooLate", error_description="by an hour")
            receiver.abandon_message(messages["abandoned"])
        send(
            orders, "active", subject="books", content_type="text/plain", correlation_id="c", reply_to="r", to="t",
            application_properties={"copies": 2, "gift": True, "weight": 0.5, "note": "ß"},
        )  # fmt: skip
    with client.get_queue_sender("carts") as carts:
        send(carts, "cart-1", "cart-2", session_id="anna")
        send(carts, "cart-3", session_id="bob")
    with client.get_queue_receiver("carts", session_id="anna") as receiver:
        receiver.session.set_state(b"two books")
    with client.get_queue_sender("once") as once:
        send(once, "same", "same", "other")
    with client.get_topic_sender("news") as news:
        send(
            news, "football-1", subject="sport", content_type="text/plain", correlation_id="c", reply_to="r", to="t",
            session_id="s", reply_to_session_id="rs",
            application_properties={"game": "football", "live": True, "goals": 2},
        )  # fmt: skip
        send(news, "chess-1", subject="chess")
        send(news, "weather-1", subject="weather")


def _commands(broker: Broker) -> dict[str, Any]:
    namespace = broker.namespaces["contoso"]
    name, faults = namespace.connection_string, ("fault", "--data", str(broker.data), "contoso", "--json")
    return {
        "send": run("send", name, "once", "same\nnew", "--lines", "--json"),
        "peek": peek(namespace, "orders"),
        "purge": run("purge", name, "once", "--count", "1", "--yes", "--json"),
        "fault": run(*faults, "throttle", "--rate", "5", "--entity", "carts", "--for", "9"),
        "fault, all": run(*faults),
        "fault, cleared": run(*faults, "--clear"),
        "cost estimate": run("cost", "estimate", "--prices", str(CONFIG.with_name("prices.toml")), "--json"),
        "broker": _ready_line(broker.data.with_name("other")),
        "no such entity": run("peek", name, "nowhere", "--json"),
        "wrong call": run("peek", "--colour"),
        "control": {each["command"]: request(broker.data, each, WAIT_S) for each in CONTROL},
    }


def _ready_line(data: Path) -> dict[str, Any]:
    command = [sys.executable, "-m", "pairbus", "broker", "--namespace", "contoso", "--data", str(data)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdout is not None
        line = json.loads(process.stdout.readline())
        process.terminate()
        return {"exit code": process.wait(WAIT_S), "lines": [line]}


def examine(data: Path, now: float) -> dict[str, Any]:
    """Open the data folder at the time at which it was left, and return what is in it and what it still does."""
    clock = ManualClock(now)
    with served(data, clock) as broker:
        primary = broker.namespaces["contoso"]
        found: dict[str, Any] = {
            f"{name}: {each}": peek(broker.namespaces[name], each)["lines"]
            for name, entities in ENTITIES.items()
            for each in entities
        }
        with PlainClient.from_connection_string(primary.connection_string) as client:
            found |= _used(client, primary, clock)
    with served(data, None) as broker:
        primary = broker.namespaces["contoso"]
        with ServiceBusAdministrationClient.from_connection_string(
            primary.connection_string, connection_verify=primary.ca_file
        ) as admin:
            found["described"] = _plain([*admin.list_queues(), *admin.list_topics()])
            for subscription in admin.list_subscriptions("news"):
                rules = admin.list_rules("news", subscription.name)
                found[f"rules of {subscription.name}"] = _plain([subscription, *rules])
    return found


def _used(client: PlainClient, namespace: NamespaceServer, clock: ManualClock) -> dict[str, Any]:
    found: dict[str, Any] = {}

    def received(count: int) -> list[Any]:
        return [[each.message_id, each.sequence_number, each.delivery_count] for each in take(receiver, count)]

    # Without locks, which the SDK compares with the time of today.
    with (
        client.get_queue_receiver("orders", receive_mode="receiveanddelete") as receiver,
        client.get_queue_sender("orders") as sender,
    ):
        found["received"] = received(3)
        for each in peek(namespace, "orders")["lines"]:
            if each["state"] == "deferred":
                found["deferred"] = receiver.receive_deferred_messages([each["sequence_number"]])[0].message_id
        clock.advance(HOUR)
        found["received an hour later"] = received(1)
        sender.send_messages(ServiceBusMessage("next", message_id="next"))
        found["received next"] = received(1)
    with client.get_queue_sender("once") as sender:
        sender.send_messages([ServiceBusMessage(each, message_id=each) for each in ("same", "fresh")])
    found["once"] = [each["message_id"] for each in peek(namespace, "once")["lines"]]
    with WireClient.from_connection_string(namespace.connection_string) as wire:
        session = wire.receiver("carts", session_id="anna")
        found["session"] = [each.sequence_number for each in session.receive(1, WAIT_S)]
        _, state = wire.request("carts", "com.microsoft:get-session-state", {"session-id": "anna"})
        found["session state"] = bytes(state["session-state"]).decode()
    return found


# -- Spark


def archive(broker: Broker, folder: Path) -> dict[str, Any]:
    return run("archive", broker.namespaces["contoso"].connection_string, "orders", str(folder / "archive"), "--json")


def carry(broker: Broker, folder: Path, out: Path) -> dict[str, Any]:
    """Run the syphon and a stream of the connector, whose checkpoints are in `folder`; return what they carried."""
    import pyarrow.parquet

    from pairbus.spark import session

    primary = broker.namespaces["contoso"]
    home = ["--primary-name", "contoso", "--ca-file", primary.ca_file, "--json"]
    syphoned = run("syphon", "--drain", "--checkpoint", str(folder / "syphon-checkpoint"), *home)
    options = {"connectionString": primary.connection_string, "entity": "news/Subscriptions/all"}
    rows = session().readStream.format("servicebus").options(**options).load().select("message_id", "sequence_number")
    query = (
        rows.writeStream.format("parquet").option("checkpointLocation", str(folder / "stream-checkpoint"))
        .trigger(availableNow=True).start(str(out))
    )  # fmt: skip
    assert query.awaitTermination(120)
    # Not by Spark, which misses the earlier batches in a folder that is new.
    streamed = [row for file in out.glob("*.parquet") for row in pyarrow.parquet.read_table(file).to_pylist()]
    return {"syphon": syphoned, "stream": sorted(streamed, key=lambda row: row["sequence_number"])}


def examine_with_spark(folder: Path, out: Path, now: float) -> dict[str, Any]:
    """Use the checkpoints and the archive in `folder`, and run the reports on its ledgers."""
    found: dict[str, Any] = {"reports": _reports(folder, out), "archive": _columns(folder / "archive")}
    with served(folder / "broker", ManualClock(now)) as broker:
        primary = broker.namespaces["contoso"]
        name = primary.connection_string
        run("send", name, "news", "after the checkpoint", "--id", "fresh", "--json")
        found |= carry(broker, folder, out / "stream")
        found["restore"] = run("restore", str(folder / "archive"), name, "orders", "--json")
        found["move"] = run("move", "--from", name, "orders/$DeadLetterQueue", "orders", "--json")
        found["archive again"] = archive(broker, out)
        for command in ("syphon", "restore", "move", "archive again"):
            found[command] = shape(found[command])
        found["home"] = [[each["message_id"], each["body"]] for each in peek(primary, "orders")["lines"]]
    return found


def _reports(ledgers: Path, out: Path) -> dict[str, Any]:
    """What the reports on these ledgers say, and the columns of their tables."""
    from pairbus.spark import session
    from pairbus.spark.reports.ledgers import read_ledgers
    from pairbus.spark.reports.outage_series import series

    found: dict[str, Any] = {}
    for name in ("audit", "availability", "cost report"):
        found[name] = run(*name.split(), str(ledgers), "--json", "--parquet", str(out / name))
        found[f"tables of {name}"] = {each.name: _columns(each) for each in (out / name).iterdir() if each.is_dir()}
    with read_ledgers(session(), str(ledgers)) as read:
        found["series"] = sorted(series(read))
    return found


def _columns(table: Path) -> dict[str, str]:
    import pyarrow.parquet

    return {field.name: str(field.type) for field in pyarrow.parquet.read_schema(next(table.rglob("*.parquet")))}


def _plain(described: Any) -> Any:
    """Return what the SDK's administration client says of an entity or rule, as JSON."""
    if isinstance(described, list):
        return [_plain(each) for each in described]
    if not isinstance(described, dict):
        if not hasattr(described, "__dict__") or isinstance(described, str):
            return str(described)
        described = vars(described)
    return {name: _plain(each) for name, each in described.items() if not name.startswith("_")}
