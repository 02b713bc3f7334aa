from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest
from azure.core.exceptions import ServiceRequestError
from azure.servicebus.exceptions import MessagingEntityNotFoundError, OperationTimeoutError

from pairbus.aio import provisioning
from pairbus.aio.provisioning import look, manage
from pairbus.pairing.backlog.backlog_queues import QUEUE_PROPERTIES
from pairbus.pairing.backlog.provision import Provision, is_unavailable
from pairbus.pairing.errors import PairingFailed

from ..pairing.managers import AsyncFakeManager, Queue, http, path
from .background import sleep


@pytest.fixture(autouse=True)
def no_delay(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(provisioning, "RETRY_DELAY_S", 0.0)


async def no_queues(**limits: Any) -> AsyncIterator[Queue]:
    queues: list[Queue] = []
    for queue in queues:
        yield queue


def provision(count: int = 3) -> Provision:
    return Provision("contoso", "backup", count, give_up_after_s=60.0)


async def test_p4_missing_queues_are_made_and_p9_how() -> None:
    given, manager = provision(), AsyncFakeManager(path(1), "orders")
    await manage(given, manager, 10.0)
    assert given.queues == (0, 1, 2)
    assert [name for name, _ in manager.made] == [path(0), path(2)]
    for _, properties in manager.made:
        assert properties.items() >= QUEUE_PROPERTIES.items()
        assert properties["timeout"] == 9.0


async def test_p10_queues_that_are_there_are_left_as_they_are() -> None:
    given, manager = provision(), AsyncFakeManager()
    manager.queues = {path(index): Queue(path(index), 10) for index in range(5)}
    await manage(given, manager, 10.0)
    assert manager.made == []
    assert given.queues == (0, 1, 2)
    assert len(given.warnings) == 3


async def test_p5_a_queue_is_tried_three_times_then_left_out() -> None:
    given = provision()
    manager = AsyncFakeManager(refusals={1: [http(500), http(500)], 2: [http(500)] * 3})
    await manage(given, manager, 10.0)
    assert given.queues == (0, 1)
    assert [event.queue for event in given.left_out] == [2]
    assert manager.tries == {0: 1, 1: 3, 2: 3}


async def test_p5_another_client_may_make_the_queue_at_the_same_time(monkeypatch: pytest.MonkeyPatch) -> None:
    given, manager = provision(1), AsyncFakeManager(refusals={0: [http(409)]})
    manager.listing_error = None
    monkeypatch.setattr(manager, "list_queues", no_queues)
    manager.queues[path(0)] = Queue(path(0))
    await manage(given, manager, 10.0)
    assert given.queues == (0,)


async def test_p5_a_conflict_over_a_queue_that_is_not_there_is_tried_again() -> None:
    given, manager = provision(1), AsyncFakeManager(refusals={0: [http(409)]})
    await manage(given, manager, 10.0)
    assert given.queues == (0,)
    assert manager.tries[0] == 2


async def test_p5_queues_that_are_made_take_no_time_from_one_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(provisioning, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    given, manager = provision(10), AsyncFakeManager(refusals={8: [http(500)]})
    create = manager.create_queue

    async def slow(name: str, **properties: Any) -> None:
        clock[0] += 10.0
        await create(name, **properties)

    monkeypatch.setattr(manager, "create_queue", slow)
    await manage(given, manager, 60.0)
    assert given.queues == tuple(range(10))


async def test_p3_a_secondary_that_is_silent_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each request takes as long as it may; the queues are listed, and then nothing is said any more."""
    clock = [0.0]
    monkeypatch.setattr(provisioning, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    given, manager = provision(10), AsyncFakeManager()

    async def silent(name: str, **properties: Any) -> None:
        clock[0] += properties["timeout"] + properties["retry_backoff_max"]
        raise ServiceRequestError("silent")

    monkeypatch.setattr(manager, "create_queue", silent)
    with pytest.raises(PairingFailed) as caught:
        await manage(given, manager, 40.0)
    assert clock[0] == pytest.approx(60.0)
    assert is_unavailable(caught.value)


async def test_p3_no_right_to_manage_is_raised_without_asking_ten_times() -> None:
    given = provision(10)
    manager = AsyncFakeManager(refusals={index: [http(401)] for index in range(10)})
    with pytest.raises(PairingFailed, match="Manage") as caught:
        await manage(given, manager, 10.0)
    assert sum(manager.tries.values()) == 1
    assert not is_unavailable(caught.value)


@pytest.mark.parametrize(("error", "unavailable"), [(http(401), False), (ServiceRequestError("refused"), True)])
async def test_p3_a_listing_that_fails_is_raised(error: Exception, unavailable: bool) -> None:
    manager = AsyncFakeManager()
    manager.listing_error = error
    with pytest.raises(PairingFailed, match="queues of backup can't be listed") as caught:
        await manage(provision(), manager, 10.0)
    assert caught.value.__cause__ is error
    assert is_unavailable(caught.value) is unavailable


async def test_p4_without_a_manager_each_queue_is_looked_at() -> None:
    given = provision(20)
    at_once: list[int] = []
    now: set[int] = set()

    async def open_link(index: int) -> None:
        now.add(index)
        at_once.append(len(now))
        await sleep(0.005)
        now.discard(index)
        if index >= 17:
            raise MessagingEntityNotFoundError()

    await look(given, open_link)
    assert given.queues == tuple(range(17))
    assert [event.queue for event in given.left_out] == [17, 18, 19]
    assert max(at_once) <= provisioning.LINKS_AT_ONCE_MAX


async def test_p3_without_a_manager_a_silent_secondary_is_given_up_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    clock = [0.0]
    monkeypatch.setattr(provisioning, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    given, tried = provision(1000), []

    async def open_link(index: int) -> None:
        tried.append(index)
        clock[0] += 30.0
        raise OperationTimeoutError()

    with pytest.raises(PairingFailed):
        await look(given, open_link)
    at_once = provisioning.LINKS_AT_ONCE_MAX
    assert len(tried) <= 3 * at_once, "two rounds of thirty seconds, and who had begun by then"
    assert len(given.left_out) == 1000


async def test_p3_without_a_manager_an_absent_secondary_is_unavailable() -> None:
    async def open_link(index: int) -> None:
        raise OperationTimeoutError()

    with pytest.raises(PairingFailed) as caught:
        await look(provision(), open_link)
    assert is_unavailable(caught.value)
