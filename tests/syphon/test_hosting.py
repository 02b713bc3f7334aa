from __future__ import annotations

import asyncio
import sys
import types
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest

from pairbus.pairing.backlog.backlog_queues import path
from pairbus.pairing.errors import ClientFaultedError, PairingError
from pairbus.pairing.events import ClientFaulted, Event, SyphonStarted, SyphonStopped
from pairbus.syphon import hosting
from pairbus.syphon.core import pair_lifecycle, queue_discovery
from pairbus.syphon.endpoint import Endpoint
from pairbus.syphon.engine import SyphonEngine
from pairbus.syphon.hosting import HostedSyphon, check_engine, fault_client, maker_of
from pairbus.syphon.settings import SyphonSettings
from pairbus.wire.sync import LoopThread
from tests.waiting import soon

from .pair import Pair, diverted


class Told:
    def __init__(self) -> None:
        self.events: list[Event] = []
        self.faults: list[tuple[str, ClientFaultedError]] = []

    def of(self, kind: type[Event]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]


@pytest.fixture
def told() -> Told:
    return Told()


async def host(pair: Pair, told: Told, indexes: Sequence[int], **options: Any) -> HostedSyphon:
    settings = SyphonSettings(
        pair.primary,
        options.pop("secondary", pair.secondary),
        [(path(pair.name, index), index) for index in indexes],
    )
    made = HostedSyphon(
        settings,
        options.pop("make_engine", partial(SyphonEngine, wall=pair.clock)),
        primary_name=pair.name,
        announce=told.events.append,
        fault=lambda which, error: told.faults.append((which, error)),
        **options,
    )
    await made.start()
    return made


NOWHERE = Endpoint("127.0.0.1", 1, credential=object())  # type: ignore[arg-type]


def wrong_key(text: str, name: str) -> Endpoint:
    return Endpoint.from_connection_string(text.replace("SharedAccessKey=", "SharedAccessKey=x"), name=name)


async def test_p36_it_moves_messages_until_it_is_stopped(pair: Pair, told: Told) -> None:
    orders = await pair.destination("orders")
    await pair.backlog(0, 1)
    syphon = await host(pair, told, (0, 1))
    await pair.divert(1, [diverted(orders, "m1")])
    await soon(lambda: syphon._engine is not None and syphon._engine.progress.moved_count == 1)
    await syphon.stop()
    await syphon.stop()
    assert told.events == [SyphonStarted()]
    assert repr(syphon) == "<HostedSyphon stopped>"
    assert await pair.ids(orders) == ["m1"]
    syphon.client_closed("secondary")


async def test_p36_a_queue_that_others_make_while_it_runs_is_read_too_and_after_a_restart(
    pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hosting, "RESTART_S_FIRST", 0.05)
    monkeypatch.setattr(queue_discovery, "LIST_S", 0.05)
    orders = await pair.destination("orders")
    await pair.backlog(0)
    there, loops = [path(pair.name, 0), "orders"], list[object]()

    async def names() -> list[str]:
        loops.append(asyncio.get_running_loop())
        return there

    syphon = await host(pair, told, (0,), list_queues=names)
    await pair.backlog(7)
    there.append(path(pair.name, 7))
    await pair.divert(7, [diverted(orders, "m1")])
    await soon(lambda: syphon._engine is not None and syphon._engine.progress.moved_count == 1)
    monkeypatch.setattr(queue_discovery, "LIST_S", 600.0)
    syphon._engine._end(RuntimeError("it breaks"))
    await soon(lambda: len(told.of(SyphonStarted)) == 2)
    await pair.divert(7, [diverted(orders, "m2")])
    await soon(lambda: syphon._engine is not None and syphon._engine.progress.moved_count == 1)
    await syphon.stop()
    assert await pair.ids(orders) == ["m1", "m2"]
    assert set(loops) == {asyncio.get_running_loop()}


async def test_p36_an_engine_on_another_loop_lists_on_the_hosts(pair: Pair) -> None:
    """As Spark's does; an async administration client works on the loop that it was made for only."""
    loops = list[object]()

    async def names() -> list[str]:
        loops.append(asyncio.get_running_loop())
        return [path(pair.name, 3).upper(), f"{pair.name}/other"]

    await pair.backlog(0)
    syphon = await host(pair, Told(), (0,), list_queues=names)
    thread = LoopThread()
    found = await asyncio.to_thread(lambda: thread.run(syphon._find()))
    thread.stop()
    await syphon.stop()
    assert [each.number for each in found] == [3]
    assert loops == [asyncio.get_running_loop()]


async def test_p36_without_a_listing_it_says_which_it_reads(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    await pair.backlog(0)
    syphon = await host(pair, Told(), (0, 1))
    await syphon.stop()
    assert f"the syphon reads backlog queues 0 to 1 of {pair.name} only" in caplog.text
    assert "backlog_queue_count" in caplog.text


async def test_p43_a_client_that_is_closed_alone(pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_lifecycle, "GRACE_S", 0.3)
    await pair.backlog(0)
    syphon = await host(pair, told, (0,))
    syphon.client_closed("secondary")
    await soon(lambda: told.of(SyphonStopped))
    ((which, error),) = told.faults
    assert which == "primary"
    assert "east" in str(error) and "west" in str(error)
    (event,) = told.of(ClientFaulted)
    assert (event.namespace, event.error) == ("east", error)
    await syphon.stop()


async def test_p43_a_stop_waits_for_the_stop_that_a_fault_has_begun(
    pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else the host's loop would end under it, and connections stay open."""
    monkeypatch.setattr(pair_lifecycle, "GRACE_S", 0.1)
    await pair.backlog(0)
    may_end, ended = asyncio.Event(), list[bool]()
    run = hosting.SyphonEngine.run

    async def lingering(self: Any) -> Any:
        found = await run(self)
        await may_end.wait()
        ended.append(True)
        return found

    monkeypatch.setattr(hosting.SyphonEngine, "run", lingering)
    syphon = await host(pair, told, (0,))
    syphon.client_closed("secondary")
    await soon(lambda: told.faults)
    stopping = asyncio.create_task(syphon.stop())
    for _ in range(3):  # turns of the loop: time enough for a stop that waits for nothing
        await asyncio.sleep(0)
    assert not stopping.done()
    may_end.set()
    await stopping
    assert ended and len(told.of(SyphonStopped)) == 1


async def test_p43_access_refused_for_five_seconds(pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pair_lifecycle, "GRACE_S", 0.3)
    monkeypatch.setattr(pair_lifecycle, "REFUSED_S", 0.3)
    await pair.backlog(0)
    syphon = await host(pair, told, (0,), secondary=wrong_key(pair.west.connection_string, "west"))
    await soon(lambda: told.faults)
    assert told.faults[0][0] == "primary"
    assert "the syphon's access to it has been refused" in str(told.faults[0][1])
    await syphon.stop()


async def test_p43_without_fault_partner_it_tells_and_tries_again(
    pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pair_lifecycle, "GRACE_S", 0.2)
    monkeypatch.setattr(pair_lifecycle, "REFUSED_S", 0.2)
    monkeypatch.setattr(pair_lifecycle, "RETRY_S", 0.3)
    await pair.backlog(0)
    syphon = await host(pair, told, (0,), secondary=wrong_key(pair.west.connection_string, "west"), fault_partner=False)
    await soon(lambda: len(told.of(SyphonStarted)) >= 2 and told.of(SyphonStopped))
    assert told.faults == []
    assert isinstance(told.of(SyphonStopped)[0].error, PairingError)
    await syphon.stop()


async def test_an_engine_that_breaks_is_started_again(pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hosting, "RESTART_S_FIRST", 0.05)
    orders = await pair.destination("orders")
    await pair.backlog(0)
    broken = [True]
    run = hosting.SyphonEngine.run

    async def breaking(self: Any) -> Any:
        if broken:
            broken.pop()
            raise RuntimeError("nobody foresaw this")
        return await run(self)

    monkeypatch.setattr(hosting.SyphonEngine, "run", breaking)
    syphon = await host(pair, told, (0,))
    await pair.divert(0, [diverted(orders, "m1")])
    await soon(lambda: syphon._engine is not None and syphon._engine.progress.moved_count == 1)
    await syphon.stop()
    assert [type(event) for event in told.events] == [SyphonStarted, SyphonStopped, SyphonStarted]


async def test_p44_between_restarts_there_is_nothing_to_wait_for(
    pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def breaking(self: Any) -> Any:
        raise RuntimeError("nobody foresaw this")

    monkeypatch.setattr(hosting.SyphonEngine, "run", breaking)
    monkeypatch.setattr(hosting, "RESTART_S_FIRST", 60.0)
    syphon = await host(pair, told, (0,))
    await soon(lambda: told.of(SyphonStopped))
    async with asyncio.timeout(30):
        await syphon.stop()


async def test_p44_an_engine_that_cannot_be_stopped_is_not_waited_for(
    pair: Pair, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As in a batch that nothing interrupts. Half of a second is left for the rest of the client."""

    class Stuck:
        def __init__(self, _: SyphonSettings) -> None:
            self.is_stopped = False

        def stop(self) -> None:
            self.is_stopped = True

        async def run(self) -> Any:
            await asyncio.get_running_loop().create_future()

    waits = list[float]()
    wait = asyncio.wait

    async def noted(tasks: Any, *, timeout: float) -> Any:
        waits.append(timeout)
        return await wait(tasks, timeout=0.01)

    syphon = await host(pair, Told(), (0,), make_engine=Stuck)
    await soon(lambda: syphon._engine is not None)
    engine = syphon._engine
    monkeypatch.setattr(hosting.asyncio, "wait", noted)
    await syphon.stop()
    assert engine.is_stopped
    assert len(waits) == 1 and waits[0] <= 4.5


async def test_p44_an_engine_that_is_not_waited_for_leaves_no_connection_behind(
    pair: Pair, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its locks would stay with it, and a syphon elsewhere would wait for them."""
    await pair.backlog(0)
    await pair.close()
    servers = (pair.east, pair.west)
    await soon(lambda: not any(server.connections for server in servers))
    syphon = await host(pair, told, (0,))
    await soon(lambda: all(server.connections for server in servers))
    never: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    monkeypatch.setattr(SyphonEngine, "_wait_until", lambda *_: never)
    monkeypatch.setattr(HostedSyphon, "stop_s", 0.01)
    await syphon.stop()
    await soon(lambda: not any(server.connections for server in servers))
    left = [task for task in asyncio.all_tasks() if task is not asyncio.current_task()]
    assert left == []


async def test_p24_halts_are_shared_with_the_client(pair: Pair) -> None:
    orders, news = await pair.destination("orders"), await pair.destination("news")
    await pair.backlog(0)

    class Halts:
        def __init__(self) -> None:
            self.told: list[str] = []

        def busy(self, entity: str) -> None:
            self.told.append(entity)

        def halted_until(self, entity: str) -> float:
            return asyncio.get_running_loop().time() + 60 if entity == news else 0.0

    told, halts = Told(), Halts()
    syphon = await host(pair, told, (0,), halts=halts)
    with pair.fault("throttle", entity=orders, rate=0.0):
        await pair.divert(0, [diverted(orders, "m1"), diverted(news, "n1")])
        await soon(lambda: syphon._engine is not None and syphon._engine.transfer_state.left == 2)
    await syphon.stop()
    assert halts.told == [orders]
    assert await pair.ids(news) == []


class TestEngines:
    def test_p38_without_the_extra_it_is_named(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(hosting, "SPARK", "pairbus.nowhere.hosting")
        with pytest.raises(PairingError, match=r"pairbus\[spark\].*syphon_engine=\"in-process\""):
            check_engine("spark")
        with pytest.raises(PairingError):
            maker_of("spark")
        assert maker_of("in-process") is SyphonEngine

    def test_p38_with_the_extra_spark_s_is_made(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spark = types.SimpleNamespace(of=lambda settings: settings)
        monkeypatch.setitem(sys.modules, "pairbus.fake_spark", spark)  # type: ignore[arg-type]
        monkeypatch.setattr(hosting, "SPARK", "pairbus.fake_spark")
        monkeypatch.setattr(hosting, "_is_found", lambda name: True)
        assert maker_of("spark") is spark.of


class Engine:
    """In place of Spark's: begins to run when the test says so."""

    def __init__(self, settings: SyphonSettings, error: Exception | None = None) -> None:
        self.settings, self.error = settings, error
        self.over = asyncio.Event()

    def stop(self) -> None:
        self.over.set()

    async def run(self) -> Any:
        if self.error is not None:
            raise self.error
        await self.over.wait()


class TestSpark:
    def host(self, **options: Any) -> HostedSyphon:
        return HostedSyphon(
            SyphonSettings(NOWHERE, NOWHERE, [("q", 0)], checkpoint="s3a://x"),
            primary_name="contoso",
            announce=lambda _: None,
            fault=lambda *_: None,
            waits=True,
            **options,
        )

    async def test_it_has_started_when_its_query_runs_and_ends_in_five_seconds(self) -> None:
        made: list[Engine] = []
        hosted = self.host(make_engine=lambda settings: made.append(Engine(settings)) or made[0])
        starting = asyncio.create_task(hosted.start())
        await soon(lambda: made)
        assert not starting.done(), "the query does not run yet"
        settings = made[0].settings
        assert settings.checkpoint == "s3a://x" and settings.stop_s < hosted.stop_s < 5.0
        assert settings.on_running is not None
        settings.on_running()
        await starting
        await hosted.stop()

    async def test_p3_a_query_that_cannot_start_is_raised_by_pairing(self) -> None:
        error = ValueError("this process has a Spark session already")
        with pytest.raises(PairingError, match="can't be started: this process has a Spark session already"):
            await self.host(make_engine=lambda settings: Engine(settings, error)).start()


class TestFaulting:
    def test_p43_one_of_ours_checks_for_itself(self) -> None:
        class Ours:
            _fault: BaseException | None = None

        client, error = Ours(), ClientFaultedError("why")
        fault_client(client, error)
        assert client._fault is error

    def test_p43_one_of_the_sdk_s_makes_nothing_more(self) -> None:
        class Theirs:
            def get_queue_sender(self, name: str) -> str:
                return name

            def close(self) -> str:
                return "closed"

        client, error = Theirs(), ClientFaultedError("why")
        assert client.get_queue_sender("orders") == "orders"
        fault_client(client, error)
        with pytest.raises(ClientFaultedError):
            client.get_queue_sender("orders")
        assert client.close() == "closed"
