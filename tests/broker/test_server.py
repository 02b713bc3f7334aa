"""The broker as a whole: starting, stopping, restarting, its folder, its pages, its ledger."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import ssl
import stat
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage

from pairbus.amqp.message import encode_message
from pairbus.broker import Broker, serve, serve_sync
from pairbus.broker.amqp.connection import AmqpConnection
from pairbus.broker.control import control_socket
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.slices import finish
from pairbus.broker.telemetry import metering, metrics
from pairbus.connection_string import ConnectionString
from pairbus.errors import BrokerError, PairbusError
from pairbus.journal import JournalError
from pairbus.sas import make_token
from pairbus.wire import LinkLost, NotFound, WireClient
from tests.message_view import View

from .sdk import Sdk

pytestmark = [pytest.mark.filterwarnings("ignore::ResourceWarning")]


async def create(broker: Broker, queue: str) -> None:
    done: asyncio.Future[object] = asyncio.get_running_loop().create_future()
    namespace = broker.namespaces["contoso"].namespace
    namespace.registry.create(QueueDescription(name=queue), broker.clock(), done.set_result)
    assert await done is None


@pytest.mark.parametrize(
    ("data", "standby", "words"),
    [
        ("d", "d", r"the standby folder .*d is in the data folder .*d, and would stall with it"),
        ("d", "d/contoso/journal", r"is in the data folder"),
        ("d", "d/contoso", r"is in the data folder"),
        ("contoso", ".", r"is in the data folder"),
        ("d", "e/../d/x", r"is in the data folder"),
        ("link", "d/x", r"is in the data folder"),
        ("contoso/data", ".", r"the data folder .*contoso/data is in .*contoso, where the standby folder of 'contoso'"),
        ("d", "", r"the standby folder has no name"),
    ],
)
async def test_a_standby_folder_that_is_no_other_folder_than_the_data_folder_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: str, standby: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d").mkdir()
    (tmp_path / "e").mkdir()
    (tmp_path / "link").symlink_to("d")
    with pytest.raises(BrokerError, match=words):
        async with serve("contoso", data=data, standby=standby):
            pass
    assert not list(tmp_path.rglob("standby")) and not list(tmp_path.rglob("lock")), "nothing was made there"


async def test_a_standby_folder_beside_the_data_folder_is_taken_whatever_it_is_called(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    async with serve("contoso", data="data", standby="data-standby"):
        pass
    async with serve("contoso", data="data", standby=tmp_path):
        assert (tmp_path / "contoso" / "standby").exists()


async def test_everything_is_there_after_a_restart(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path) as broker:
        await create(broker, "q")
        first = broker.namespaces["contoso"].connection_string
        sdk = Sdk(True, broker.namespaces["contoso"])
        await sdk.send("q", [ServiceBusMessage(str(i), message_id=f"m{i}") for i in range(20)])
        assert [str(m) for m in await sdk.receive("q", 5)] == ["0", "1", "2", "3", "4"]
        port = broker.namespaces["contoso"].port
    async with serve(f"contoso:{port}", data=tmp_path) as broker:
        assert broker.namespaces["contoso"].connection_string == first
        sdk = Sdk(True, broker.namespaces["contoso"])
        assert await sdk.depth("q") == (15, 0)
        await sdk.send("q", ServiceBusMessage("20"))
        got = await sdk.receive("q", 16)
    assert [str(m) for m in got] == [str(i) for i in range(5, 21)]
    assert [m.sequence_number for m in got] == list(range(6, 22))


async def test_namespaces_know_nothing_of_each_other(tmp_path: Path) -> None:
    async with serve("one", "two", data=tmp_path) as broker:
        one, two = (Sdk(True, broker.namespaces[name]) for name in ("one", "two"))
        queue = await one.queue()
        async with two.admin() as admin:
            assert await admin.collect("list_queues") == []
        async with one.admin() as admin:
            assert [q.name for q in await admin.collect("list_queues")] == [queue]
        assert one.namespace.port != two.namespace.port
        key_of_one = one.namespace.connection_string.split("SharedAccessKey=")[1]
        assert key_of_one not in two.namespace.connection_string


async def test_all_namespaces_share_one_slice_a_turn(tmp_path: Path) -> None:
    async with serve("contoso", "fabrikam", data=tmp_path) as broker:
        assert all(server.namespace.store.slices is broker.slices for server in broker.namespaces.values())


async def test_time_goes_on_although_something_that_is_due_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told: list[dict[str, Any]] = []
    loop = asyncio.get_running_loop()
    loop.set_exception_handler(lambda loop, context: told.append(context))
    async with serve("contoso", data=tmp_path) as broker:
        server = broker.namespaces["contoso"]
        server._timer.cancel()
        monkeypatch.setattr(server.namespace, "tick", lambda now: {}[now])
        server._tick()
        assert 0.9 < server._timer.when() - loop.time() < 1.1
        monkeypatch.undo()
    assert [type(each["exception"]) for each in told] == [KeyError]
    assert "contoso: what is due could not all be done" in told[0]["message"]


async def test_a_folder_serves_one_broker_at_a_time(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path):
        with pytest.raises(PairbusError, match=r"contoso|another|lock"):
            async with serve("contoso", data=tmp_path):
                pass
    async with serve("contoso", data=tmp_path):
        pass


async def test_a_damaged_journal_is_refused_unless_it_is_to_be_salvaged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    bodies = [f"message {number}".encode() for number in range(4)]
    async with serve("contoso", data=tmp_path) as broker:
        await create(broker, "q")
        async with WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as wire:
            sender = await wire.sender("q")
            for body in bodies:
                await sender.send(encode_message(body=body))
    (segment,) = [path for path in (tmp_path / "contoso" / "journal").iterdir() if bodies[1] in path.read_bytes()]
    segment.write_bytes(segment.read_bytes().replace(bodies[1], b"Message 1"))
    with pytest.raises(PairbusError, match=r"damaged at offset .* \(--salvage\) to go on without"):
        async with serve("contoso", data=tmp_path):
            pass
    for _ in range(2):
        caplog.clear()
        async with (
            serve("contoso", data=tmp_path, salvage=True) as broker,
            WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as wire,
        ):
            peeked = await wire.peek("q", 1, 10)
        found = [b"".join(part for _, part in View(each).body) for each in peeked]
        assert found == [bodies[0], *bodies[2:]]
        assert "bytes of records are lost" in caplog.text


@pytest.mark.parametrize("salvage", [False, True])
def test_the_command_line_salvages_where_it_is_told_to(tmp_path: Path, salvage: bool) -> None:
    with serve_sync("contoso", data=tmp_path) as broker:
        sdk = Sdk(False, broker.namespaces["contoso"])
        asyncio.run(sdk.queue())
        asyncio.run(sdk.queue())
    (segment,) = [path for path in (tmp_path / "contoso" / "journal").iterdir() if b"queue-" in path.read_bytes()]
    segment.write_bytes(segment.read_bytes().replace(b"queue-", b"Queue-", 1))
    command = [sys.executable, "-m", "pairbus", "broker", "--namespace", "contoso", "--data", str(tmp_path)]
    with subprocess.Popen(
        [*command, *["--salvage"] * salvage], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        ready = process.stdout.readline()
        process.terminate()
        _, said = process.communicate(timeout=30)
    assert ("contoso" in ready, process.returncode) == ((True, 0) if salvage else (False, 1))
    assert ("bytes of records are lost" if salvage else "open the journal with salvage (--salvage)") in said


@pytest.mark.parametrize("names", [(), ("a", "a"), ("a", "B")])
async def test_a_broker_that_can_not_start_says_why_and_leaves_nothing_running(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(PairbusError):
        async with serve(*names, data=tmp_path):
            pass
    async with serve("a", data=tmp_path):
        pass


async def test_a_port_that_is_taken_is_named(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises((PairbusError, OSError), match=str(port)):
        async with serve(f"contoso:{port}", data=tmp_path):
            pass
    taken.close()
    async with serve(f"contoso:{port}", data=tmp_path):
        pass


async def test_a_port_that_is_taken_leaves_nothing_of_any_namespace(tmp_path: Path) -> None:
    taken = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
    port = taken.sockets[0].getsockname()[1]
    with pytest.raises(PairbusError, match=f"namespace 'second' can't be served: can't listen on port {port} of"):
        async with serve("first", f"second:0,{port}", data=tmp_path):
            pass
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ca-key.pem", "ca.pem", "server.pem"]
    taken.close()


async def test_every_port_of_a_namespace_serves_amqp_and_plain_http(tmp_path: Path) -> None:
    async with serve("contoso:0,0,0", data=tmp_path) as broker:
        namespace = broker.namespaces["contoso"]
        assert len(set(namespace.ports)) == 3 and namespace.port == namespace.ports[0]
        await create(broker, "q")
        for number, port in enumerate(namespace.ports):
            text = namespace.connection_string.replace(f":{namespace.port};", f":{port};")
            async with WireClient.from_connection_string(text) as wire:
                await (await wire.sender("q")).send(encode_message(body=b"x"))
            # as the emulator's administration clients do it: plain HTTP, and the token is for that address
            parsed = ConnectionString.parse(text)
            assert parsed.key_name is not None and parsed.key is not None
            token = make_token(f"http://127.0.0.1:{port}/q", parsed.key_name, parsed.key, time.time() + 60)
            request = urllib.request.Request(f"http://127.0.0.1:{port}/q?api-version=2021-05")
            request.add_header("Authorization", token)
            with await asyncio.to_thread(urllib.request.urlopen, request, timeout=10) as answer:
                assert f"MessageCount>{number + 1}<" in answer.read().decode()


async def test_the_metrics_of_a_namespace_are_its_own(tmp_path: Path) -> None:
    async with serve("contoso", "fabrikam", data=tmp_path) as broker:
        await create(broker, "q")
        for name, other in (("contoso", "fabrikam"), ("fabrikam", "contoso")):
            found = await asyncio.to_thread(page, broker, "/metrics", "http", name)
            assert f'namespace="{name}"' in found and other not in found
        kinds = dict(line.split()[2:4] for line in found.splitlines() if line.startswith("# TYPE"))
        assert {name for name, kind in kinds.items() if kind == "counter"} == {
            name for name in kinds if name.endswith("_total")
        }
        assert {"pairbus_pings_total", "pairbus_journal_syncs_total", "pairbus_loop_long_turns_total"} <= kinds.keys()
        assert kinds["pairbus_loop_turn_seconds_max"] == "gauge"


async def test_what_was_counted_for_deleted_entities_is_merged_in_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (metering, metrics):
        monkeypatch.setattr(module, "MERGE_MIN", 1)
    kept = ("Kept", "kept/$DeadLetterQueue", "$Resources/queues", "")
    async with serve("contoso", data=tmp_path) as broker:
        await create(broker, "kept")
        host = broker.namespaces["contoso"]
        for path in (*kept, "gone", "gone/$DeadLetterQueue"):
            host.recorder.polled(path, "app", 0.0)
        async with asyncio.timeout(20):
            while "gone" in (page := finish(broker.metrics.exposition("contoso"))):
                await asyncio.sleep(0.01)
    assert 'pairbus_empty_receives_total{namespace="contoso",entity="(other)"} 2' in page
    assert 'pairbus_operations_total{namespace="contoso",entity="(other)",operation="poll",cause="app"} 2' in page
    for path in kept:
        assert f'pairbus_empty_receives_total{{namespace="contoso",entity="{path}"}} 1' in page


async def test_the_emulator_s_key_is_in_force_and_never_on_disk(tmp_path: Path) -> None:
    async with serve("sbemulatorns:0,0", data=tmp_path, emulator=True) as broker:
        namespace = broker.namespaces["sbemulatorns"]
        assert namespace.connection_string == (
            f"Endpoint=sb://127.0.0.1:{namespace.port};SharedAccessKeyName=RootManageSharedAccessKey;"
            "SharedAccessKey=SAS_KEY_VALUE;UseDevelopmentEmulator=true;"
        )
        answer = await asyncio.to_thread(
            control_socket.request,
            tmp_path,
            {"command": "rule", "namespace": namespace.name, "name": "x", "rights": ["Send"]},
        )
        assert answer["ok"]
        sdk = Sdk(True, namespace)
        await sdk.queue()
        assert "SAS_KEY_VALUE" not in (tmp_path / namespace.name / "keys.json").read_text()
    async with serve("sbemulatorns", data=tmp_path) as broker:
        assert "SAS_KEY_VALUE" not in broker.namespaces["sbemulatorns"].connection_string
    with pytest.raises(PairbusError, match="everybody knows its key"):
        async with serve("sbemulatorns:0", data=tmp_path, emulator=True, host="0.0.0.0"):
            pass


#: As the emulator's is published: with comments, a correlation rule, and a SQL rule with an action.
EMULATOR_CONFIG = """{
  "UserConfig": {
    "Namespaces": [{
      "Name": "sbemulatorns",
      "Queues": [{"Name": "queue.1", "Properties": {"ForwardTo": "", "MaxDeliveryCount": 3, "RequiresSession": false}}],
      "Topics": [{
        "Name": "topic.1", // a topic
        "Properties": {"DefaultMessageTimeToLive": "PT1H", "RequiresDuplicateDetection": false},
        "Subscriptions": [
          {"Name": "subscription.1", "Rules": [{"Name": "app-prop-filter-1", "Properties": {
            "FilterType": "Correlation", // all of these
            "CorrelationFilter": {"ContentType": "application/json", "Label": "subject1"}}}]},
          {"Name": "subscription.3"},
          {"Name": "subscription.4", "Rules": [{"Name": "sql-filter-1", "Properties": {
            "FilterType": "Sql",
            "SqlFilter": {"SqlExpression": "sys.MessageId = '123456' AND userProp1 = 'value1'"},
            "Action": {"SqlExpression": "SET sys.To = 'Entity'"}}}]}
        ]
      }]
    }],
    "Logging": {"Type": "File"}
  }
}"""


async def test_the_emulator_s_configuration_is_served_as_it_is(tmp_path: Path) -> None:
    config = tmp_path / "Config.json"
    config.write_text(EMULATOR_CONFIG)
    async with serve("sbemulatorns:0,0", data=tmp_path / "data", config=config, emulator=True) as broker:
        sdk = Sdk(True, broker.namespaces["sbemulatorns"])
        wanted = ServiceBusMessage("one", message_id="123456", application_properties={"userProp1": "value1"})
        await sdk.publish(
            "topic.1", wanted, ServiceBusMessage("two", subject="subject1", content_type="application/json")
        )
        found = {
            name: [(str(each), each.to) for each in await sdk.read("topic.1", f"subscription.{name}", count)]
            for name, count in (("1", 1), ("3", 2), ("4", 1))
        }
        assert found == {"1": [("two", None)], "3": [("one", None), ("two", None)], "4": [("one", "Entity")]}


async def test_what_is_advertised_is_told_and_certified(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    async with serve("contoso", data="data", advertise="bus.example") as broker:
        namespace = broker.namespaces["contoso"]
        assert f"Endpoint=sb://bus.example:{namespace.port};" in namespace.connection_string
        assert Path(namespace.ca_file) == tmp_path / "data" / "ca.pem"
        context = ssl.create_default_context(cafile=namespace.ca_file)
        _, writer = await asyncio.open_connection(
            "127.0.0.1", namespace.port, ssl=context, server_hostname="bus.example"
        )
        writer.transport.abort()


async def test_only_the_owner_can_read_the_data(tmp_path: Path) -> None:
    data = tmp_path / "data"
    async with serve("contoso", data=data, ledger=True) as broker:
        await create(broker, "q")
        assert stat.S_IMODE(data.stat().st_mode) == 0o700
        for path in data.rglob("*"):
            if path.name != "ca.pem":
                assert stat.S_IMODE(path.stat().st_mode) & 0o077 == 0, path


def page(broker: Broker, path: str, scheme: str = "https", name: str = "contoso") -> str:
    namespace = broker.namespaces[name]
    context = ssl.create_default_context(cafile=namespace.ca_file) if scheme == "https" else None
    url = f"{scheme}://{namespace.host}:{namespace.port}{path}"
    with urllib.request.urlopen(url, context=context, timeout=10) as answer:
        return str(answer.read().decode())


def test_health_and_metrics_over_http_and_https(tmp_path: Path) -> None:
    with serve_sync("contoso", data=tmp_path) as broker:
        sdk = Sdk(False, broker.namespaces["contoso"])

        async def use() -> str:
            queue = await sdk.queue()
            await sdk.send(queue, [ServiceBusMessage("x")] * 3)
            await sdk.receive(queue, 2)
            return queue

        queue = asyncio.run(use())
        for scheme in ("http", "https"):
            assert json.loads(page(broker, "/health", scheme))["status"] == "healthy"
            metrics = page(broker, "/metrics", scheme)
        labels = f'{{namespace="contoso",entity="{queue}"}}'
        assert f"pairbus_messages_sent_total{labels} 3" in metrics
        assert 'outcome="complete"} 2' in metrics
        assert f'pairbus_queue_messages{{namespace="contoso",entity="{queue}",state="active"}} 1' in metrics


async def test_health_tells_what_a_send_meets_when_the_journal_is_deleted(tmp_path: Path) -> None:
    with contextlib.suppress(JournalError):  # the end can't be written either
        async with serve("contoso", data=tmp_path) as broker:
            await create(broker, "orders")
            async with WireClient.from_connection_string(broker.namespaces["contoso"].connection_string) as client:
                sender = await client.sender("orders")
                await sender.send(encode_message(body=b"kept"))
                shutil.rmtree(tmp_path / "contoso" / "journal")
                with pytest.raises(PairbusError, match="deleted, moved or replaced") as caught:
                    await sender.send(encode_message(body=b"refused"))
            with pytest.raises(urllib.error.HTTPError) as answered:
                await asyncio.to_thread(page, broker, "/health", "http")
            with answered.value as answer:
                told = json.loads(answer.read())
            assert (answered.value.code, told["status"]) == (503, "unhealthy")
            assert "restore the folder from a copy" in told["message"] and "restore the folder" in str(caught.value)


def test_a_first_start_syncs_every_file_before_its_folder_and_every_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[str] = []

    def watched(name: str) -> None:
        real = getattr(os, name)

        def call(*arguments: Any, **options: Any) -> Any:
            first = arguments[0]
            before = Path(f"/proc/self/fd/{first}").readlink() if isinstance(first, int) else Path(os.fspath(first))
            result = real(*arguments, **options)
            told = before if name in ("fsync", "mkdir") else Path(os.fspath(arguments[1]))
            if told.is_relative_to(tmp_path):
                calls.append(f"{name} {told.relative_to(tmp_path)}")
            return result

        monkeypatch.setattr(os, name, call)

    for name in ("mkdir", "fsync", "replace", "rename"):
        watched(name)
    data = tmp_path / "some" / "where"
    with serve_sync("contoso", data=data):
        pass
    home = "some/where"
    for folder in ("some", home, f"{home}/contoso", f"{home}/contoso/journal"):
        made = calls.index(f"mkdir {folder}")
        assert f"fsync {Path(folder).parent}" in calls[made:], folder
    for file in ("ca-key.pem", "ca.pem", "server.pem", "contoso/keys.json"):
        path = Path(home) / file
        named = [at for at, call in enumerate(calls) if call.split()[1] == str(path) and call.split()[0] != "fsync"]
        assert len(named) == 1, file
        assert calls[named[0] - 1] == f"fsync {path.with_suffix('.new')}"
        assert f"fsync {path.parent}" in calls[named[0] :], file


async def test_the_ledger_tells_what_happened_to_each_message(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path, ledger=True) as broker:
        await create(broker, "q")
        sdk = Sdk(True, broker.namespaces["contoso"])
        await sdk.send("q", ServiceBusMessage("one", message_id="a"), [ServiceBusMessage("two", message_id="b")])
        async with sdk.client() as client, client.get_queue_receiver("q") as receiver:
            (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
            await receiver.dead_letter_message(message, reason="r")
            (message,) = await receiver.receive_messages(max_message_count=1, max_wait_time=5)
            await receiver.complete_message(message)
    (path,) = (tmp_path / "contoso" / "ledger").glob("*.jsonl")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    seen = [(line["kind"], line.get("mid"), line.get("seq"), line["outcome"]) for line in lines if "entity" in line]
    assert ("send", "a", 1, "ok") in seen
    assert ("send", "b", 2, "ok") in seen
    assert ("receive", "a", 1, "ok") in seen
    assert ("dead-letter", "a", 1, "ok") in seen
    assert ("receive", "b", 2, "ok") in seen
    assert ("settle", "b", 2, "ok") in seen
    assert ("left", "a", 1, "ok") in seen
    assert all(line["ns"] == "contoso" for line in lines if "entity" in line)


def test_the_sync_twin_reports_a_failed_start(tmp_path: Path) -> None:
    with pytest.raises(PairbusError, match="lower-case"), serve_sync("UPPER", data=tmp_path):
        pass


async def test_the_links_to_what_was_deleted_together_are_looked_for_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with serve("contoso", data=tmp_path) as broker:
        host = broker.namespaces["contoso"]
        namespace = host.namespace

        async def change(begin: Callable[..., None], *arguments: object) -> None:
            answered: asyncio.Future[object] = asyncio.get_running_loop().create_future()
            begin(*arguments, time.time(), answered.set_result)
            assert await answered is None

        await change(namespace.registry.create, TopicDescription(name="news"))
        names = [f"s{n}" for n in range(10)]
        for name in names:
            await change(namespace.subscriptions.create, SubscriptionDescription(topic="news", name=name))
        looked: list[AmqpConnection] = []
        links = AmqpConnection.links

        def counted(connection: AmqpConnection) -> Any:
            looked.append(connection)
            return links(connection)

        async with WireClient.from_connection_string(host.connection_string) as wire:
            receivers = [await wire.receiver(f"news/Subscriptions/{name}", credit=10) for name in names]
            monkeypatch.setattr(AmqpConnection, "links", counted)
            await change(namespace.registry.delete_topic, "news")
            for name, receiver in zip(names, receivers, strict=True):
                with pytest.raises((LinkLost, NotFound), match=f"news/Subscriptions/{name}"):
                    await receiver.receive(1, 10.0)
        assert len(looked) == 1
