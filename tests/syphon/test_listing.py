from __future__ import annotations

import asyncio
from typing import Any

import pytest
from azure.core.exceptions import ClientAuthenticationError, HttpResponseError, ServiceRequestError
from azure.servicebus.management import ServiceBusAdministrationClient

from pairbus.syphon.core import queue_discovery
from pairbus.syphon.core.queue_discovery import Listed, QueueDiscovery
from pairbus.syphon.listing import OPTIONS, Lister, ListingFailed, list_backlog, reason

from .pair import Pair, diverted


def admin(pair: Pair, text: str | None = None) -> Any:
    return ServiceBusAdministrationClient.from_connection_string(
        text or pair.west.connection_string, connection_verify=pair.west.ca_file, **OPTIONS
    )


async def test_every_backlog_queue_of_this_primary(pair: Pair) -> None:
    await pair.backlog(11, 2, 0)
    await pair.divert(2, [diverted("orders", "m1"), diverted("orders", "m2")])
    await pair.manage(pair.west, lambda client: client.create_queue(f"{pair.name}/x-servicebus-transfer/odd"))
    await pair.manage(pair.west, lambda client: client.create_queue(f"{pair.name}x/x-servicebus-transfer/0"))
    front = f"{pair.name}/x-servicebus-transfer/"
    assert await list_backlog(lambda: admin(pair), pair.name) == [
        Listed(f"{front}0", 0, 0, 0),
        Listed(f"{front}2", 2, 2, 0),
        Listed(f"{front}11", 11, 0, 0),
        Listed(f"{front}odd", None, 0, 0),
    ]


async def test_p4_without_the_right_to_manage(pair: Pair) -> None:
    wrong = pair.west.connection_string.replace("SharedAccessKey=", "SharedAccessKey=x")
    with pytest.raises(ListingFailed, match="no Manage right"):
        await list_backlog(lambda: admin(pair, wrong), pair.name)


async def test_a_certificate_that_nobody_vouches_for(pair: Pair) -> None:
    make = ServiceBusAdministrationClient.from_connection_string
    with pytest.raises(ListingFailed, match="ca_file="):
        await list_backlog(lambda: make(pair.west.connection_string, **OPTIONS), pair.name)


async def test_p36_new_queues_are_told_and_a_listing_that_fails_ends_nothing(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(queue_discovery, "LIST_S", 0.0)
    answers: list[Any] = [
        [Listed("0", 0, 0, 0)],
        ListingFailed("no Manage right"),
        ValueError("no XML"),
        [Listed("0", 0, 0, 0), Listed("1", 1, 5, 0)],
    ]

    async def find() -> list[Listed]:
        answer = answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return list(answer)

    taken: list[Listed] = []
    lister = Lister(QueueDiscovery("contoso", "backup", ["0"], count=2), find)
    assert repr(lister) == "<Lister <QueueDiscovery contoso on backup: 1 queues>>"
    await asyncio.wait_for(lister.keep_listing(taken.extend), 5)
    assert (taken, answers) == ([Listed("1", 1, 5, 0)], [])
    assert caplog.messages == [
        "backup: the backlog queues of contoso can't be listed: no Manage right; those that are known are read on",
        "the backlog queues of contoso can be listed again",
        "a new backlog queue: 1",
    ]


def response(status: int) -> HttpResponseError:
    error = HttpResponseError("the body\nof the answer")
    error.status_code = status
    return error


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ClientAuthenticationError("x"), "no Manage right"),
        (response(403), "no Manage right"),
        (response(500), "the body of the answer"),
        (ServiceRequestError("refused"), "can't be reached"),
        (OSError(), "OSError"),
    ],
)
def test_reasons(error: BaseException, text: str) -> None:
    assert text in reason(error)
