"""`peek`, `send` and `purge` as a user runs them, against an embedded broker."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest
from azure.servicebus import ServiceBusClient, ServiceBusMessage
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.broker import serve_sync
from pairbus.commands import entities
from pairbus.testing import fault

from .calls import Result, call


class Bus:
    def __init__(self, broker: Any, folder: Path) -> None:
        self.broker = broker
        self.namespace = broker.namespaces["contoso"]
        self.connection_string: str = self.namespace.connection_string
        self.file = folder / "connection"
        self.file.write_text(self.connection_string)
        self.key = self.connection_string.split("SharedAccessKey=")[1].split(";")[0]
        self.client = ServiceBusClient.from_connection_string(self.connection_string)
        self._handlers: list[Any] = []

    def admin(self) -> ServiceBusAdministrationClient:
        return ServiceBusAdministrationClient.from_connection_string(
            self.connection_string, connection_verify=self.namespace.ca_file
        )

    def queue(self, **options: Any) -> str:
        name = f"orders-{uuid4().hex[:8]}"
        with self.admin() as admin:
            admin.create_queue(name, **options)
        return name

    def send(self, entity: str, *messages: ServiceBusMessage) -> None:
        self._kept(self.client.get_queue_sender(entity)).send_messages(list(messages))

    def received(self, entity: str, count: int = 1, **options: Any) -> list[Any]:
        receiver = self._kept(self.client.get_queue_receiver(entity, **options))
        found = receiver.receive_messages(max_message_count=count, max_wait_time=5)
        for message in found:
            receiver.complete_message(message)
        return list(found)

    def bury(self, entity: str, **why: str) -> None:
        receiver = self._kept(self.client.get_queue_receiver(entity))
        (message,) = receiver.receive_messages(max_wait_time=5)
        receiver.dead_letter_message(message, **why)

    def _kept(self, handler: Any) -> Any:
        """Closing one takes a second: those of a test are closed at once."""
        self._handlers.append(handler)
        return handler

    def let_go(self) -> None:
        if self._handlers:
            with ThreadPoolExecutor(len(self._handlers)) as pool:
                list(pool.map(lambda handler: handler.close(), self._handlers))
            self._handlers.clear()


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    folder = tmp_path_factory.mktemp("bus")
    with serve_sync("contoso", data=folder / "data") as broker:
        made = Bus(broker, folder)
        with made.admin() as admin:
            admin.create_topic("news")
            admin.create_subscription("news", "all")
        with made.client:
            yield made


@pytest.fixture
def bus(served: Bus) -> Iterator[Bus]:
    yield served
    served.let_go()


Run = Callable[..., Result]


@pytest.fixture
def run(bus: Bus, capsys: pytest.CaptureFixture[str]) -> Run:
    def run(command: str, *arguments: str, namespace: str = "") -> Result:
        return call(capsys, command, namespace or f"@{bus.file}", *arguments, secrets=(bus.key,))

    return run


def typed(monkeypatch: pytest.MonkeyPatch, data: bytes, *, terminal: bool = False) -> None:
    stdin = io.TextIOWrapper(io.BytesIO(data))
    monkeypatch.setattr(stdin, "isatty", lambda: terminal, raising=False)
    monkeypatch.setattr("sys.stdin", stdin)


@pytest.fixture
def queue(bus: Bus) -> str:
    return bus.queue()


class TestSend:
    def test_what_is_sent_is_what_the_sdk_receives(self, bus: Bus, run: Run, queue: str) -> None:
        result = run(
            "send", queue, "one book", "--id", "m1", "--subject", "books", "--content-type", "text/plain",
            "--property", "shelf=a=b", "--property", "copies:=3", "--property", "new:=true", "--ttl", "3600",
        )  # fmt: skip
        assert (result.code, result.out, result.err) == (0, "m1\n", "")
        (message,) = bus.received(queue)
        assert (str(message), message.message_id, message.subject) == ("one book", "m1", "books")
        assert message.content_type == "text/plain"
        assert message.application_properties == {b"shelf": b"a=b", b"copies": 3, b"new": True}
        assert message.time_to_live is not None
        assert message.time_to_live.total_seconds() == 3600
        assert message.expires_at_utc is not None

    def test_files_go_byte_for_byte(self, bus: Bus, run: Run, tmp_path: Path, queue: str) -> None:
        (tmp_path / "body").write_bytes(b"\xff\x00one\r\ntwo\n")
        assert run("send", queue, f"@{tmp_path / 'body'}").code == 0
        (message,) = bus.received(queue)
        assert b"".join(message.body) == b"\xff\x00one\r\ntwo\n"

    def test_a_message_a_line(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "SEND_COUNT", 2)
        queue = bus.queue()
        typed(monkeypatch, b"one\ntwo\r\n\nfour")
        result = run("send", queue, "-", "--lines")
        ids = result.out.split()
        assert len(set(ids)) == 4
        found = bus.received(queue, 4)
        assert [str(message) for message in found] == ["one", "two", "", "four"]
        assert [message.message_id for message in found] == ids

    def test_stdin_whole_and_sessions(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = bus.queue(requires_session=True)
        typed(monkeypatch, b"one\ntwo\n")
        assert run("send", queue, "-", "--session", "s1").code == 0
        (message,) = bus.received(queue, session_id="s1")
        assert (str(message), message.session_id) == ("one\ntwo\n", "s1")

    def test_scheduled(self, bus: Bus, run: Run, queue: str) -> None:
        before = time.time()
        assert run("send", queue, "later", "--schedule", "+2h", "--ttl", "60").code == 0
        (shown,) = run("peek", queue, "--json").lines
        assert shown["state"] == "scheduled"
        due = time.mktime(time.strptime(shown["scheduled_enqueue_time_utc"][:19], "%Y-%m-%dT%H:%M:%S")) - time.timezone
        assert before + 7199 <= due <= time.time() + 7201

    def test_as_json(self, bus: Bus, run: Run, queue: str) -> None:
        sent, result = run("send", queue, "one", "--id", "m1", "--json").lines
        assert sent["bytes"] > 3
        assert (sent["kind"], sent["message_id"]) == ("sent", "m1")
        assert result == {"kind": "result", "entity": queue, "sent": 1}

    def test_to_a_topic(self, run: Run) -> None:
        assert run("send", "news", "extra", "--id", "n1").out == "n1\n"
        (shown,) = run("peek", "news/Subscriptions/all", "--json").lines
        assert (shown["message_id"], shown["body"]) == ("n1", "extra")

    def test_what_was_not_confirmed_is_no_success(self, bus: Bus, run: Run, queue: str) -> None:
        with fault(bus.broker, "throttle", namespace="contoso", entity=queue, rate=0):
            result = run("send", queue, "one", "--json")
        assert result.code == 1
        assert result.lines == [{"kind": "result", "entity": queue, "sent": 0}]
        assert "is busy" in result.err and "try again in ten seconds" in result.err

    def test_some_are_refused(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch, queue: str) -> None:
        typed(monkeypatch, b"one\n" + b"x" * 300_000 + b"\nthree\n")
        result = run("send", queue, "-", "--lines")
        assert result.code == 1
        assert len(result.out.split()) == 2, "the ids of what was confirmed"
        assert result.err.count("\n") == 1
        assert [str(message) for message in bus.received(queue, 3)] == ["one", "three"]


class TestPeek:
    def test_a_table(self, bus: Bus, run: Run, queue: str) -> None:
        bus.send(
            queue,
            ServiceBusMessage("one \x1b[2J\nbook", message_id="m1", application_properties={"shelf": 7}, subject="s"),
            ServiceBusMessage(b"\xff\xfe", message_id="m2"),
        )
        result = run("peek", queue)
        assert result.code == 0, result.err
        heading, first, subject, properties, second = result.out.splitlines()
        assert heading.split() == ["SEQUENCE", "ENQUEUED", "STATE", "ID", "SESSION", "BYTES", "BODY"]
        assert first.split()[0] == "1" and first.endswith("one  [2J book"), "nothing that moves the cursor"
        assert (subject, properties) == ("    subject: s", "    properties: shelf=7")
        assert second.endswith("(no text: base64) //4=")
        assert len(bus.received(queue, 2)) == 2, "a look takes nothing away"

    def test_count_and_from_where(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "PEEK_COUNT", 3)
        queue = bus.queue()
        bus.send(queue, *(ServiceBusMessage(str(number)) for number in range(8)))
        assert [each["body"] for each in run("peek", queue, "--count", "7", "--json").lines] == list("0123456")
        assert [each["sequence_number"] for each in run("peek", queue, "--from-sequence", "7", "--json").lines] == [
            7,
            8,
        ]
        result = run("peek", queue, "--from-sequence", "9")
        assert (result.code, result.out) == (0, f"{queue}: no messages from sequence number 9 on\n")

    def test_json_has_what_the_message_has(self, bus: Bus, run: Run, queue: str) -> None:
        bus.send(queue, ServiceBusMessage(b"\xff", message_id="m1", correlation_id="c", reply_to="r", to="t"))
        (shown,) = run("peek", queue, "--json").lines
        enqueued = shown.pop("enqueued_time")
        assert enqueued.endswith("Z")
        assert shown == {
            "sequence_number": 1, "state": "active", "delivery_count": 0, "message_id": "m1", "correlation_id": "c",
            "reply_to": "r", "to": "t", "application_properties": {}, "body": "/w==", "body_encoding": "base64",
        }  # fmt: skip

    def test_dead_letters(self, bus: Bus, run: Run, queue: str) -> None:
        bus.send(queue, ServiceBusMessage("bad", message_id="m1"))
        bus.bury(queue, reason="poison", error_description="no such book")
        for path, *options in (
            (queue, "--dead-letters"),
            (f"{queue}/$DeadLetterQueue",),
            (f"{queue}/$deadletterqueue", "--dead-letters"),
        ):
            assert "dead-lettered: poison: no such book" in run("peek", path, *options).out
        (shown,) = run("peek", queue, "--dead-letters", "--json").lines
        assert (shown["dead_letter_reason"], shown["body"]) == ("poison", "bad")

    def test_every_session_is_seen(self, bus: Bus, run: Run) -> None:
        queue = bus.queue(requires_session=True)
        bus.send(queue, ServiceBusMessage("a", session_id="s1"), ServiceBusMessage("b", session_id="s2"))
        assert [each["session_id"] for each in run("peek", queue, "--json").lines] == ["s1", "s2"]

    def test_a_terminal_s_width_is_kept(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch, queue: str) -> None:
        bus.send(queue, ServiceBusMessage("x" * 500))
        monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
        monkeypatch.setenv("COLUMNS", "100")
        lines = run("peek", queue).out.splitlines()
        assert max(map(len, lines)) == 100
        assert lines[1].endswith("x…")


class TestPurge:
    def test_everything(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "EMPTY_S", 0.3)
        monkeypatch.setattr(entities, "PURGE_COUNT", 4)
        queue = bus.queue()
        bus.send(queue, *(ServiceBusMessage(str(number)) for number in range(10)))
        run("send", queue, "later", "--schedule", "+2h")
        result = run("purge", queue, "--yes")
        assert (result.code, result.out) == (0, f"10 messages removed from {queue}\n")
        assert f"{queue} still has 1 scheduled: " in result.err
        result = run("purge", queue, "--yes", "--json")
        assert result.lines == [{"entity": queue, "removed": 0, "left": {"scheduled": 1}}]
        assert run("purge", queue, "--yes").out == f"no messages removed from {queue}\n"

    def test_some(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "PURGE_COUNT", 4)
        queue = bus.queue()
        bus.send(queue, *(ServiceBusMessage(str(number)) for number in range(10)))
        assert run("purge", queue, "--yes", "--count", "6").out == f"6 messages removed from {queue}\n"
        assert [str(each) for each in bus.received(queue, 10)] == ["6", "7", "8", "9"]

    def test_what_is_older(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "EMPTY_S", 0.3)
        queue = bus.queue()
        bus.send(queue, ServiceBusMessage("old"))
        (shown,) = run("peek", queue, "--json").lines
        while time.time() < entity_seconds(shown["enqueued_time"]) + 0.05:
            time.sleep(0.01)
        bus.send(queue, ServiceBusMessage("new"))
        newer = run("peek", queue, "--json").lines[1]["enqueued_time"]
        result = run("purge", queue, "--yes", "--before", newer)
        assert result.out == f"1 message removed from {queue}\n"
        (message,) = bus.received(queue)
        assert (str(message), message.delivery_count) == ("new", 0), "it is not counted as a failed delivery"

    def test_dead_letters(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "EMPTY_S", 0.3)
        queue = bus.queue()
        bus.send(queue, ServiceBusMessage("bad"), ServiceBusMessage("good"))
        bus.bury(queue)
        assert (
            run("purge", queue, "--dead-letters", "--yes").out == f"1 message removed from {queue}/$DeadLetterQueue\n"
        )
        assert [str(each) for each in bus.received(queue)] == ["good"]

    def test_it_asks_on_a_terminal(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "EMPTY_S", 0.3)
        queue = bus.queue()
        bus.send(queue, ServiceBusMessage("one"))
        typed(monkeypatch, b"n\n", terminal=True)
        result = run("purge", queue)
        assert (result.code, result.out) == (1, "")
        assert f"Remove all messages of {queue} in 127.0.0.1 for good? [y/N]" in result.err
        assert result.err.endswith("pairbus: nothing was removed\n")
        typed(monkeypatch, b"y\n", terminal=True)
        assert run("purge", queue).out == f"1 message removed from {queue}\n"

    def test_without_a_terminal_it_wants_to_be_told(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        queue = bus.queue()
        bus.send(queue, ServiceBusMessage("one"))
        typed(monkeypatch, b"y\n")
        result = run("purge", queue)
        assert (result.code, result.out) == (2, "")
        assert "give --yes" in result.err
        assert len(bus.received(queue)) == 1

    def test_session_by_session(self, bus: Bus, run: Run) -> None:
        queue = bus.queue(requires_session=True)
        bus.send(queue, *(ServiceBusMessage(str(number), session_id=f"s{number % 3}") for number in range(12)))
        assert run("purge", queue, "--yes", "--count", "5").out == f"5 messages removed from {queue}\n"
        with bus.client.get_queue_receiver(queue, session_id="s2"):
            result = run("purge", queue, "--yes")
        assert result.out == f"3 messages removed from {queue}\n"
        assert f"{queue} still has 4 locked or new: " in result.err, "a session that somebody holds is left to them"
        far = "2031-01-01T00:00:00Z"
        assert (
            run("purge", queue, "--yes", "--before", "2001-01-01T00:00:00Z").out
            == f"no messages removed from {queue}\n"
        )
        assert run("purge", queue, "--yes", "--before", far).out == f"4 messages removed from {queue}\n"
        assert run("peek", queue).out == f"{queue}: no messages\n"

    def test_progress(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(entities, "EMPTY_S", 0.3)
        monkeypatch.setattr(entities, "PURGE_COUNT", 2)
        monkeypatch.setitem(entities.SHOW_S, "log", 0.0)
        monkeypatch.setitem(entities.SHOW_S, "terminal", 0.0)
        queue = bus.queue()
        for terminal, mark in ((False, "\n"), (True, "\r")):
            monkeypatch.setattr("sys.stderr.isatty", lambda terminal=terminal: terminal, raising=False)
            bus.send(queue, *(ServiceBusMessage(str(number)) for number in range(4)))
            told = run("purge", queue, "--yes").err
            assert "2 removed, " in told and "/s" in told and mark in told

    def test_an_interrupt_tells_how_many(self, bus: Bus, run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
        def interrupted(*_arguments: Any) -> Iterator[int]:
            yield 3
            raise KeyboardInterrupt

        monkeypatch.setattr(entities, "_removed", interrupted)
        result = run("purge", "orders", "--yes")
        assert (result.code, result.out) == (130, "3 messages removed from orders\n")


def entity_seconds(text: str) -> float:
    from pairbus.commands.message_text import parse_time

    return parse_time(text, 0.0)


def test_a_secret_on_the_command_line_works_and_warns(bus: Bus, run: Run) -> None:
    result = run("peek", "nowhere", namespace=bus.connection_string)
    assert result.err.splitlines()[0] == (
        "pairbus: NS holds a secret, which others on this machine can see in the list of processes; "
        "@FILE, env:NAME and - keep it to yourself"
    )


def test_a_peek_that_nobody_reads_on_ends_in_silence(bus: Bus, queue: str) -> None:
    bus.send(queue, *(ServiceBusMessage("x" * 1000, message_id=f"m{number}") for number in range(200)))
    command = [sys.executable, "-m", "pairbus", "peek", f"@{bus.file}", queue, "--count", "200", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None and process.stderr is not None
        assert json.loads(process.stdout.readline())["message_id"] == "m0"
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 141
