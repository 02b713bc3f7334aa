"""The engine between two embedded brokers."""

from __future__ import annotations

import asyncio
import json
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from pairbus.amqp.message import (
    Properties,
    encode_message,
    read_application_properties,
    read_header,
    read_message_annotations,
    read_properties,
    split,
)
from pairbus.amqp.types import Symbol, Timestamp, UByte
from pairbus.ledger import LedgerWriter
from pairbus.pairing.backlog.backlog_queues import path
from pairbus.syphon import backlog_reader, destination_sender, inspection
from pairbus.syphon import engine as engine_module
from pairbus.syphon.core import destinations, draining, queue_discovery
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine, SyphonFailed
from pairbus.syphon.settings import SyphonSettings
from pairbus.wire.errors import Unauthorized, Unreachable
from tests.message_view import View
from tests.waiting import soon

from .pair import Pair, diverted, message_id


@pytest.fixture(autouse=True)
def brisk(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut short what the engine waits for before it tries again, or takes something to be over."""
    monkeypatch.setattr(backlog_reader, "DRAIN_S", 0.1)
    monkeypatch.setattr(backlog_reader, "RETRY_S_FIRST", 0.1)
    monkeypatch.setattr(destinations, "AWAY_S_FIRST", 0.5)
    monkeypatch.setattr(draining, "LOOK_S", 0.2)
    monkeypatch.setattr(engine_module, "STOP_S", 0.5)


def numbered(destination: str, count: int, prefix: str = "m") -> list[bytes]:
    return [diverted(destination, f"{prefix}{number:04d}") for number in range(count)]


def names(count: int, prefix: str = "m") -> list[str]:
    return [f"{prefix}{number:04d}" for number in range(count)]


class Call(NamedTuple):
    at: float
    arguments: tuple[Any, ...]


def calls_of(monkeypatch: pytest.MonkeyPatch, owner: Any, name: str) -> list[Call]:
    """Return a list that grows with each call of the owner's function, which does what it always does."""
    calls: list[Call] = []
    function = getattr(owner, name)

    def record(*arguments: Any, **options: Any) -> Any:
        calls.append(Call(asyncio.get_running_loop().time(), arguments))
        return function(*arguments, **options)

    monkeypatch.setattr(owner, name, record)
    return calls


class TestMoving:
    async def test_p36_to_queues_and_topics_from_every_backlog_queue(self, pair: Pair) -> None:
        orders, news = await pair.destination("orders"), await pair.topic("news")
        queues = await pair.backlog(0, 1, 2)
        for index in range(3):
            await pair.divert(index, numbered(orders, 200, f"q{index}-") + numbered(news, 50, f"t{index}-"))
        outcome = await pair.engine(queues, drain=True).run()
        assert (outcome.report.moved, outcome.unavailable) == (750, [])
        assert await pair.ids(orders) == [name for index in range(3) for name in names(200, f"q{index}-")]
        assert await pair.ids(f"{news}/Subscriptions/all") == [
            name for index in range(3) for name in names(50, f"t{index}-")
        ]
        assert [await pair.left(index) for index in range(3)] == [0, 0, 0]

    async def test_p51_the_brokers_book_it_under_the_syphon(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        await pair.divert(0, numbered(orders, 10))
        await pair.engine(queues, drain=True).run()
        booked = {
            (namespace, key.operation, key.cause): tally.operations
            for namespace, entity in (("west", queues[0][0]), ("east", orders))
            for key, tally in pair.broker.metrics.namespace(namespace).meter.rows()
            if key.entity == entity and key.operation in ("send", "receive")
        }
        assert booked == {
            ("west", "send", "app"): 10,
            ("west", "receive", "syphon"): 10,
            ("east", "send", "syphon"): 10,
        }

    async def test_p27_p26_what_arrives_is_what_was_sent(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders", requires_session=True)
        in_backlog = encode_message(
            None,
            {Symbol("x-opt-mine"): UByte(7)},
            Properties(message_id="m1", correlation_id=7, subject="subject"),
            {
                "x-ms-path": orders,
                "x-ms-sessionid": "s1",
                "x-ms-timetolive": 3_600_000,
                "x-ms-scheduledenqueuetimeutc": Timestamp(int((pair.clock() + 3000) * 1000)),
                "colour": Symbol("red"),
            },
            ("value", [UByte(1), Symbol("two"), Timestamp(3)]),
        )
        await pair.divert(0, [in_backlog])
        await pair.engine(queues, drain=True).run()
        (payload,) = await pair.east_client.peek(orders)
        sections = split(payload)
        properties = read_properties(payload, sections)
        assert (properties.group_id, properties.message_id, properties.correlation_id) == ("s1", "m1", 7)
        assert read_header(payload, sections).ttl == 3_600_000
        annotations = read_message_annotations(payload, sections)
        assert annotations["x-opt-message-state"] == 2, "scheduled"
        assert type(annotations["x-opt-mine"]) is UByte
        found = read_application_properties(payload, sections)
        assert found == {"colour": "red"} and type(found["colour"]) is Symbol
        sent = split(in_backlog)
        assert sections.body is not None and sent.body is not None
        assert payload[slice(*sections.body)] == in_backlog[slice(*sent.body)]

    async def test_messages_that_come_while_it_runs(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders", backlog=(0, 1))
        async with pair.running(queues) as engine:
            for number in range(5):
                await pair.divert(number % 2, [diverted(orders, f"m{number}")])
                await soon(lambda number=number: engine.progress.moved_count == number + 1)
            await soon(lambda: engine.transfer_state.in_hand == 0)
        assert await pair.ids(orders) == [f"m{number}" for number in range(5)]
        assert await pair.left(0) == await pair.left(1) == 0

    async def test_p39_it_leaves_the_backlog_only_when_the_primary_has_confirmed(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        with pair.fault("latency", entity=orders, delay=0.5):
            async with pair.running(queues) as engine:
                await pair.divert(0, numbered(orders, 3))
                await soon(lambda: engine.transfer_state.in_hand == 3)
                assert engine.progress.moved_count == 0
                while left := await pair.left(0):
                    assert 3 - left <= engine.progress.moved_count
                await soon(lambda: engine.transfer_state.in_hand == 0)
        assert await pair.ids(orders) == names(3)

    async def test_large_messages_and_small_ones(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        sender = await pair.west_client.sender(queues[0][0])
        for number in range(12):
            size = 200_000 if number % 3 else 10
            await sender.send(diverted(orders, f"m{number:02d}", b"x" * size))
        await pair.engine(queues, drain=True).run()
        assert await pair.ids(orders) == [f"m{number:02d}" for number in range(12)]

    async def test_p39_two_at_once_move_everything_once(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders", backlog=(0, 1))
        for index in range(2):
            await pair.divert(index, numbered(orders, 1000, f"{index}-"))
        first, second = await asyncio.gather(
            pair.engine(queues, drain=True).run(), pair.engine(queues, drain=True).run()
        )
        assert first.report.moved + second.report.moved == 2000
        assert await pair.ids(orders) == [*names(1000, "0-"), *names(1000, "1-")]

    async def test_p41_the_rate_has_a_ceiling(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        await pair.divert(0, numbered(orders, 120))
        loop = asyncio.get_running_loop()
        began = loop.time()
        outcome = await pair.engine(queues, drain=True, max_rate=60.0).run()
        assert outcome.report.moved == 120
        assert loop.time() - began >= 1.0


class TestPoison:
    async def test_p40_dead_lettered_with_reason_and_description(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        nowhere = f"nowhere-{pair.name}"
        await pair.divert(
            0,
            [
                diverted(None, "no-path"),
                diverted(orders, "good"),
                diverted(Symbol("orders"), "wrong-type"),
                *(diverted(nowhere, f"gone{number}") for number in range(3)),
            ],
        )
        outcome = await pair.engine(queues, drain=True).run()
        assert (outcome.report.moved, outcome.report.dead_lettered, outcome.unavailable) == (1, 5, [])
        assert await pair.ids(orders) == ["good"]
        dead = await pair.dead(0)
        assert sorted(each["DeadLetterReason"] for each in dead) == [
            *["DestinationNotFound"] * 3, "InvalidPath", "MissingPath",
        ]  # fmt: skip
        for each in dead:
            assert each["DeadLetterErrorDescription"]
        assert any(nowhere in each["DeadLetterErrorDescription"] for each in dead)

    async def test_p40_what_a_destination_refuses_takes_no_other_with_it(self, pair: Pair) -> None:
        """No session id for an entity that requires sessions, in the same batch as good ones."""
        orders, queues = await pair.prepare("orders", requires_session=True)
        good = [diverted(orders, f"good{number}", **{"x-ms-sessionid": "s"}) for number in range(3)]
        await pair.divert(0, [diverted(orders, "bad"), *good[:2], diverted(orders, "bad2"), good[2]])
        outcome = await pair.engine(queues, drain=True).run()
        assert (outcome.report.moved, outcome.report.dead_lettered) == (3, 2)
        dead = await pair.dead(0)
        assert {each["DeadLetterReason"] for each in dead} == {"DestinationRefused"}
        assert all("session" in each["DeadLetterErrorDescription"] for each in dead)

    async def test_p41_replay_of_dead_letters_after_repair(self, pair: Pair) -> None:
        queues = await pair.backlog(0)
        later = f"later-{pair.name}"
        await pair.divert(
            0, [*(diverted(later, f"m{number}", colour="red") for number in range(3)), diverted(None, "x")]
        )
        await pair.engine(queues, drain=True).run()
        assert len(await pair.dead(0)) == 4
        await pair.destination("later")
        outcome = await pair.engine(queues, drain=True, dead_letters=True).run()
        assert outcome.report.moved == 3
        assert [(each.path, each.messages) for each in outcome.unavailable] == [("", 1)]
        assert "MissingPath" in outcome.unavailable[0].reason
        payloads = await pair.arrived(later)
        assert sorted(map(message_id, payloads)) == ["m0", "m1", "m2"]
        for payload in payloads:
            assert View(payload).application_properties == {"colour": "red"}
        assert len(await pair.dead(0)) == 1


class TestUnavailable:
    @pytest.mark.parametrize("kind", ["no-send", "throttle", "unreachable", "black-hole"])
    async def test_p40_left_to_the_lock_while_others_flow(
        self, pair: Pair, kind: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for module in (destination_sender, engine_module):
            monkeypatch.setattr(module, "OPEN_S", 1.0)
        orders, news, queues = await pair.prepare("orders", "news")
        options: dict[str, Any] = {"rate": 0.0} if kind == "throttle" else {}
        with pair.fault(kind, entity=orders, **options):
            async with pair.running(queues) as engine:
                await pair.divert(0, [diverted(orders, "o1"), diverted(news, "n1"), diverted(orders, "o2")])
                # one that hangs costs the time-out of its own connection, and of the one that it shared at first
                await soon(lambda: engine.transfer_state.left >= 2, 40.0)
                await pair.divert(0, [diverted(news, "n2"), diverted(orders, "o3")])
                trouble = engine.report().destinations[orders].trouble
                assert trouble is not None and trouble.startswith("busy" if kind == "throttle" else "unreachable")
                # the connection that they shared may have gone with orders': news waits for a lock's time, at most
                await soon(lambda: engine.can_take(news))
                pair.expire_locks()
                await soon(lambda: engine.report().moved >= 2, 20.0)
                assert engine.report().destinations[news].moved >= 2
                assert len(await pair.dead(0)) == 0
                assert await pair.left(0) >= 3
        assert set(await pair.ids(news)) == {"n1", "n2"}

    async def test_p40_one_that_is_always_busy_slows_nobody(self, pair: Pair) -> None:
        orders, news, queues = await pair.prepare("orders", "news")
        with pair.fault("throttle", entity=orders, rate=0.0):
            for number in range(5):
                await pair.divert(0, numbered(orders, 20, f"o{number}") + numbered(news, 500, f"n{number}"))
            async with pair.running(queues) as engine:
                await soon(lambda: engine.progress.moved_count == 2500)
                assert engine.rate.limit(engine.loop.time()) == float("inf")

    async def test_p40_moves_on_when_the_destination_is_back(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        async with pair.running(queues) as engine:
            with pair.fault("no-send", entity=orders):
                await pair.divert(0, numbered(orders, 20))
                await soon(lambda: engine.transfer_state.left == 20)
            await soon(lambda: engine.can_take(orders))
            pair.expire_locks()
            await soon(lambda: engine.progress.moved_count == 20)
        assert await pair.ids(orders) == names(20)

    async def test_p40_more_left_than_one_link_may_hold(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        """Destinations behind a long row of messages for one that is away are reached all the same."""
        monkeypatch.setattr(backlog_reader, "LEFT_ON_LINK_MAX", 500)
        orders, news, queues = await pair.prepare("orders", "news")
        with pair.fault("no-send", entity=orders):
            await pair.divert(0, numbered(orders, 7000))
            await pair.divert(0, numbered(news, 5))
            async with pair.running(queues) as engine:
                await soon(lambda: engine.progress.moved_count == 5, 30.0)
                assert engine.transfer_state.left == 7000
        assert await pair.ids(news) == names(5)

    async def test_p40_what_is_away_is_not_locked_without_need(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Others behind it are looked for without locking, also those that come later."""
        monkeypatch.setattr(backlog_reader, "SCOUT_S", 0.2)
        orders, news, queues = await pair.prepare("orders", "news")
        with pair.fault("throttle", entity=orders, rate=0.0):
            await pair.divert(0, numbered(orders, 3000))
            async with pair.running(queues) as engine:
                looks = calls_of(monkeypatch, inspection, "look")
                await soon(lambda: len(looks) >= 3)
                assert engine.transfer_state.left < 1500  # of 3000: how many is a matter of the machine
                await pair.divert(0, numbered(news, 5))
                await soon(lambda: engine.progress.moved_count == 5)
        assert await pair.ids(news) == names(5)

    async def test_p41_a_drain_ends_where_only_unavailable_destinations_remain(self, pair: Pair) -> None:
        orders, news, queues = await pair.prepare("orders", "news", backlog=(0, 1))
        with pair.fault("no-send", entity=orders):
            await pair.divert(0, numbered(orders, 5) + numbered(news, 5))
            await pair.divert(1, numbered(news, 5, "n"))
            outcome = await asyncio.wait_for(pair.engine(queues, drain=True).run(), 30.0)
        ((destination, messages, reason),) = outcome.unavailable
        assert (destination, messages) == (orders, 5)
        assert reason.startswith("unreachable: ") and "amqp:internal-error" in reason
        assert outcome.report.moved == 10
        receiver = await pair.west_client.receiver(queues[0][0])
        assert len(await receiver.receive(10, 2.0)) == 5, "they were released at once"
        await receiver.close()

    async def test_p41_a_drain_goes_on_when_the_destination_comes_back(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        await pair.divert(0, numbered(orders, 50))
        with pair.fault("no-send", entity=orders):
            engine = pair.engine(queues, drain=True)
            task = asyncio.create_task(engine.run())
            await soon(lambda: engine.transfer_state.left)
        outcome = await asyncio.wait_for(task, 30.0)
        assert (outcome.report.moved, outcome.unavailable) == (50, [])
        assert await pair.ids(orders) == names(50)

    async def test_p41_a_drain_waits_for_what_another_holds(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        orders, queues = await pair.prepare("orders")
        await pair.divert(0, numbered(orders, 10))
        other = await pair.west_client.receiver(queues[0][0])
        held = await other.receive(4, 2.0)
        looks = calls_of(monkeypatch, draining, "judge")
        task = asyncio.create_task(pair.engine(queues, drain=True).run())
        await soon(lambda: len(looks) >= 2)
        assert not task.done()
        await other.abandon(held)
        outcome = await asyncio.wait_for(task, 20.0)
        assert outcome.report.moved == 10


class TestOutages:
    async def test_p36_nothing_is_received_while_the_primary_is_away(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        orders, queues = await pair.prepare("orders")
        with pair.fault("unreachable"):
            await pair.divert(0, numbered(orders, 20))
            async with pair.running(queues) as engine:
                await soon(lambda: engine.report().waiting_for is not None)
                attempts = calls_of(monkeypatch, engine.primary_client, "connect")
                await soon(lambda: len(attempts) >= 2)
                assert (engine.transfer_state.in_hand, engine.transfer_state.left, engine.report().polls) == (0, 0, 0)
                (payload, *_) = await pair.west_client.peek(queues[0][0])
                assert View(payload).header.delivery_count == 0
        async with pair.running(queues) as engine:
            await soon(lambda: engine.progress.moved_count == 20)
        assert await pair.ids(orders) == names(20)

    async def test_p39_the_primary_goes_and_comes_back(self, pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
        orders, queues = await pair.prepare("orders", backlog=(0, 1))
        async with pair.running(queues) as engine:
            await pair.divert(0, numbered(orders, 10, "a"))
            await soon(lambda: engine.progress.moved_count == 10)
            with pair.fault("unreachable"):
                await pair.divert(0, numbered(orders, 10, "b"))
                await soon(lambda: engine.report().waiting_for is not None)
                await pair.divert(1, numbered(orders, 10, "c"))
                attempts = calls_of(monkeypatch, engine.primary_client, "connect")
                await soon(lambda: attempts)
            await soon(lambda: engine.report().waiting_for is None and engine.can_take(orders), 20.0)
            pair.expire_locks()
            await soon(lambda: engine.progress.moved_count == 30, 30.0)
        assert sorted(await pair.ids(orders)) == [*names(10, "a"), *names(10, "b"), *names(10, "c")]

    async def test_p39_the_secondary_goes_and_comes_back(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        with pair.fault("latency", entity=orders, delay=0.5):
            async with pair.running(queues) as engine:
                await pair.divert(0, numbered(orders, 10))
                await soon(lambda: engine.transfer_state.in_hand == 10)
                with pair.fault("unreachable", "west"):
                    await soon(lambda: engine.progress.moved_count == 10)
                    await soon(lambda: engine.report().waiting_for == "the secondary can't be reached")
                # their completions were lost with the link; by token they are done all the same
                await soon(lambda: engine.transfer_state.in_hand == 0, 20.0)
        assert await pair.left(0) == 0
        assert await pair.ids(orders) == names(10), "and nothing came twice"

    async def test_p41_in_a_drain_a_failed_connection_is_an_error(self, pair: Pair) -> None:
        queues = await pair.backlog(0)
        for namespace in ("east", "west"):
            with pair.fault("unreachable", namespace), pytest.raises(SyphonFailed) as raised:
                await asyncio.wait_for(pair.engine(queues, drain=True).run(), 20.0)
            assert isinstance(raised.value.error, Unreachable)
            assert str(raised.value).startswith(f"the {raised.value.which} {namespace} can't be reached: ")

    async def test_p43_access_that_is_refused_is_told(self, pair: Pair) -> None:
        queues = await pair.backlog(0)
        wrong = Endpoint.from_connection_string(
            pair.west.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x"), name="west"
        )
        told: list[tuple[str, Any]] = []
        settings = SyphonSettings(
            pair.primary, wrong, queues, on_access=lambda which, error: told.append((which, error))
        )
        engine = SyphonEngine(settings, wall=pair.clock)
        task = asyncio.create_task(engine.run())
        await soon(lambda: told)
        assert told[0][0] == "secondary" and isinstance(told[0][1], Unauthorized)
        engine.stop()
        await task
        with pytest.raises(SyphonFailed, match=r"the secondary west refuses access: .* needs the Listen right"):
            await SyphonEngine(SyphonSettings(pair.primary, wrong, queues, drain=True), wall=pair.clock).run()

    async def test_a_backlog_queue_that_does_not_exist(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders")
        await pair.divert(0, numbered(orders, 5))
        outcome = await pair.engine([*queues, (path(pair.name, 7), 7)], drain=True).run()
        assert outcome.report.moved == 5


class TestQueuesThatComeAndGo:
    @pytest.fixture(autouse=True)
    def often(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(queue_discovery, "LIST_S", 0.2)
        monkeypatch.setattr(queue_discovery, "FIRST_S", 0.2)

    async def test_p36_a_queue_that_is_made_while_it_runs(self, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
        orders, queues = await pair.prepare("orders")
        async with pair.running(queues, lister=pair.lister(queues)) as engine:
            await soon(lambda: engine.sources[0]._receiving is not None)
            engine.progress.counted(0)
            polling = engine.sources[0]._receiving
            await pair.backlog(3)
            await pair.divert(3, numbered(orders, 5))
            await soon(lambda: engine.progress.moved_count == 5)
            assert engine.sources[0]._receiving is polling, "what was under way goes on"
            assert [source.index for source in engine.sources] == [0, 3]
            assert engine.report().remaining == 0
            # the long poll (P37) of the new queue too
            await soon(lambda: all(source._receiving is not None for source in engine.sources))
            await pair.divert(0, [diverted(orders, "m9")])
            await soon(lambda: engine.progress.moved_count == 6 and engine.transfer_state.in_hand == 0)
        assert await pair.left(3) == 0
        assert caplog.messages.count(f"a new backlog queue: {path(pair.name, 3)}") == 1

    async def test_p36_the_first_queue_of_all(self, pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
        orders = await pair.destination("orders")
        async with pair.running([], lister=pair.lister([])) as engine:
            await soon(lambda: caplog.messages)
            assert "waiting for the first to appear (pairbus provision makes them)" in caplog.messages[0]
            assert engine.report().line().endswith(f"waiting: west has no backlog queue of {pair.name} yet")
            assert not engine.primary_client.is_connected, "nothing to do there"
            await pair.backlog(0)
            await pair.divert(0, numbered(orders, 3))
            await soon(lambda: engine.progress.moved_count == 3 and engine.transfer_state.in_hand == 0)
            assert engine.report().waiting_for is None
        async with pair.running([], lister=pair.lister([])):
            pass  # it stops while it waits

    async def test_p36_no_listing_no_news(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        orders, queues = await pair.prepare("orders")
        lister = pair.lister(queues)
        async with pair.running(queues, lister=lister) as engine:
            with pair.fault("no-manage", "west"):
                await soon(lambda: any("can't be listed" in line for line in caplog.messages))
                await pair.divert(0, numbered(orders, 3))
                await soon(lambda: engine.progress.moved_count == 3)
                failed = calls_of(monkeypatch, lister.discovery, "failed")
                await soon(lambda: len(failed) >= 2)
            await soon(lambda: any("can be listed again" in line for line in caplog.messages))
        assert sum("can't be listed" in line for line in caplog.messages) == 1

    async def test_p36_a_queue_that_is_deleted_stops_no_other(
        self, pair: Pair, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        monkeypatch.setattr(backlog_reader, "MISSING_S", 0.5)
        orders, queues = await pair.prepare("orders", backlog=(0, 1))
        gone = queues[1][0]
        async with pair.running(queues) as engine:
            await soon(lambda: all(source._receiving is not None for source in engine.sources))
            opened = calls_of(monkeypatch, engine.secondary_client, "receiver")
            await pair.manage(pair.west, lambda admin: admin.delete_queue(gone))
            await soon(lambda: engine.sources[1].is_missing)
            await pair.divert(0, numbered(orders, 3))
            await soon(lambda: engine.progress.moved_count == 3)
            assert engine.report().waiting_for is None, "nothing is wrong with the secondary"
            await soon(lambda: len(opened) >= 3)
            assert {call.arguments for call in opened} == {(gone,)}
            assert all(later.at - earlier.at >= 0.49 for earlier, later in pairwise(opened)), "once in MISSING_S"
            assert caplog.messages == [f"{gone} does not exist any more; it is looked for again"]
            await pair.backlog(1)
            await pair.divert(1, numbered(orders, 2, "n"))
            await soon(lambda: engine.progress.moved_count == 5 and engine.transfer_state.in_hand == 0)

    async def test_p39_its_queue_is_deleted_while_a_message_is_on_its_way(self, pair: Pair) -> None:
        orders, queues = await pair.prepare("orders", backlog=(0, 1))
        with pair.fault("latency", entity=orders, delay=1.0):
            async with pair.running(queues) as engine:
                await pair.divert(1, numbered(orders, 3))
                await soon(lambda: engine.transfer_state.in_hand == 3)
                await pair.manage(pair.west, lambda admin: admin.delete_queue(queues[1][0]))
                await pair.divert(0, numbered(orders, 2, "n"))
                await soon(lambda: engine.progress.moved_count == 5 and engine.transfer_state.in_hand == 0)
        assert await pair.ids(orders) == sorted([*names(3), *names(2, "n")])


class TestLocks:
    async def test_locks_of_slow_sends_are_renewed(self, pair: Pair) -> None:
        orders = await pair.destination("orders")
        queues = await pair.backlog(0, lock_duration="PT5S")
        await pair.divert(0, numbered(orders, 20))
        with pair.fault("latency", entity=orders, delay=6.5):
            async with pair.running(queues) as engine:
                await soon(lambda: engine.progress.moved_count == 20)
                await soon(lambda: engine.transfer_state.in_hand == 0)
        assert await pair.left(0) == 0
        assert await pair.ids(orders) == names(20), "and nothing came twice"


class TestStopping:
    async def test_p44_what_is_locked_goes_back_within_seconds(self, pair: Pair) -> None:
        orders, news, queues = await pair.prepare("orders", "news")
        with pair.fault("no-send", entity=orders), pair.fault("latency", entity=news, delay=30.0):
            engine = pair.engine(queues)
            task = asyncio.create_task(engine.run())
            await pair.divert(0, numbered(orders, 10) + numbered(news, 10))
            await soon(lambda: engine.transfer_state.left == 10 and engine.transfer_state.in_hand == 10)
            engine.stop()
            await asyncio.wait_for(task, 15.0)  # half of the latency
        receiver = await pair.west_client.receiver(queues[0][0])
        held = await receiver.receive(100, 2.0)
        assert len(held) == 20
        await receiver.abandon(held)
        await receiver.close()

    async def test_stopping_before_and_after(self, pair: Pair) -> None:
        queues = await pair.backlog(0)
        engine = pair.engine(queues)
        engine.stop()
        outcome = await engine.run()
        engine.stop()
        assert outcome.report.moved == 0
        assert repr(engine) == "<SyphonEngine west to east: 1 queues>"

    async def test_no_queue_at_all(self, pair: Pair) -> None:
        with pytest.raises(ValueError, match="no backlog queue"):
            pair.engine([])
        with pytest.raises(ValueError, match="no backlog queue"):
            pair.engine([], lister=pair.lister([]), drain=True)


class TestLedger:
    async def test_p51_moves_dead_letters_and_polls(self, pair: Pair, tmp_path: Path) -> None:
        orders, queues = await pair.prepare("orders", backlog=(3,))
        await pair.divert(3, [diverted(orders, "m1", b"x" * 100), diverted(None, "bad")])
        ledger = LedgerWriter(tmp_path, "syphon")
        await pair.engine(queues, drain=True, ledger=ledger).run()
        ledger.close()
        events = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()[1:-1]]
        (move,) = [event for event in events if event["kind"] == "move"]
        assert (move["ns"], move["entity"], move["mid"], move["queue"]) == ("east", orders, "m1", 3)
        assert (move["outcome"], move["cause"], move["units"], move["seq"]) == ("ok", "syphon", 1, 1)
        assert move["bytes"] > 100 and move["ms"] > 0
        received = {event["mid"]: event for event in events if event["kind"] == "receive"}
        assert received.keys() == {"m1", "bad"}
        assert (received["m1"]["ns"], received["m1"]["entity"], received["m1"]["queue"]) == ("west", queues[0][0], 3)
        assert received["m1"]["bytes"] > move["bytes"], "as it was delivered, with its aliases"
        (dead,) = [event for event in events if event["kind"] == "dead-letter"]
        assert (dead["ns"], dead["entity"], dead["mid"], dead["queue"]) == ("west", queues[0][0], "bad", 3)
        polls = [event for event in events if event["kind"] == "poll"]
        assert polls
        assert {(poll["ns"], poll["entity"], poll["cause"]) for poll in polls} == {("west", queues[0][0], "syphon")}

    async def test_p51_what_was_refused_and_what_was_not_even_tried(self, pair: Pair, tmp_path: Path) -> None:
        orders, queues = await pair.prepare("orders")
        ledger = LedgerWriter(tmp_path, "syphon")
        with pair.fault("throttle", entity=orders, rate=0.0):
            async with pair.running(queues, ledger=ledger) as engine:
                await pair.divert(0, [diverted(orders, "m1")])
                await soon(lambda: engine.transfer_state.left == 1)
                await pair.divert(0, [diverted(orders, "m2")])
                await soon(lambda: engine.transfer_state.left == 2)
        ledger.close()
        events = [json.loads(line) for file in tmp_path.iterdir() for line in file.read_text().splitlines()[1:-1]]
        told = [(event["kind"], event.get("mid"), event["outcome"]) for event in events if event["kind"] != "poll"]
        busy = "com.microsoft:server-busy"
        assert set(told) <= {("move", "m1", busy), ("receive", "m1", "ok"), ("receive", "m2", "ok")}
        assert ("receive", "m2", "ok") in told

    async def test_p24_busy_is_told_and_a_halt_of_others_is_kept(self, pair: Pair) -> None:
        orders, news, queues = await pair.prepare("orders", "news")
        told: list[str] = []
        halts = {news: asyncio.get_running_loop().time() + 3600}
        with pair.fault("throttle", entity=orders, rate=0.0):
            async with pair.running(
                queues, on_busy=told.append, halted_until=lambda path: halts.get(path, 0.0)
            ) as engine:
                await pair.divert(0, [diverted(orders, "m1"), diverted(news, "n1")])
                await soon(lambda: engine.transfer_state.left == 2)
        assert told == [orders]
        assert await pair.ids(news) == []


async def test_p50_after_hours_in_the_backlog_all_comes_home(pair: Pair) -> None:
    """By a clock that is moved: neither locks nor times to live have taken anything meanwhile."""
    orders, queues = await pair.prepare("orders")
    await pair.divert(0, [diverted(orders, f"m{i}", **{"x-ms-timetolive": 60_000}) for i in range(20)])
    pair.clock.ahead += 8 * 3600.0
    async with pair.running(queues) as engine:
        await soon(lambda: engine.progress.moved_count == 20 and not engine.transfer_state.in_hand)
    assert len(await pair.ids(orders)) == 20
