"""P18, P34: what the real SDK raises, sync and async, when a send fails in every way that can be brought about here.

The tables are about these errors, not about what the SDK's documentation says. Failures that need no fault are all
brought about at the same time, since the SDK takes a second to open a link; the async one blocks its loop for a part of
it, hence the generous timeout.
"""

from __future__ import annotations

import asyncio
import gc
import socket
import threading
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from azure.core.exceptions import ClientAuthenticationError, ServiceRequestError
from azure.servicebus import ServiceBusMessage, TransportType
from azure.servicebus import exceptions as errors
from azure.servicebus.amqp import AmqpAnnotatedMessage

from pairbus.aio.guarded_sender import GuardedSender as AsyncGuardedSender
from pairbus.broker import Broker, serve_sync
from pairbus.pairing.routing.verdicts import AS_DESCRIBED, DEFAULT, Verdict, is_of_message, is_reach
from pairbus.sync.guarded_sender import GuardedSender
from pairbus.testing import fault
from tests.broker.sdk import Bridge, Sdk
from tests.untidy_sdk import UNTIDY_SDK

pytestmark = UNTIDY_SDK

Q, B, R = Verdict.QUALIFIES, Verdict.BUSY, Verdict.REFUSED


class Expected(NamedTuple):
    error: type[BaseException]
    default: Verdict
    described: Verdict


# Exactly this class; subclasses would be another row.
WITHOUT_FAULT: dict[str, Expected] = {
    "wrong key": Expected(errors.ServiceBusAuthenticationError, R, R),
    "wrong key, custom endpoint": Expected(errors.ServiceBusConnectionError, R, R),
    "authority unknown": Expected(errors.ServiceBusConnectionError, Q, R),
    "authority's file missing": Expected(errors.ServiceBusError, R, R),
    "unknown host": Expected(errors.ServiceBusConnectionError, Q, R),
    "peer speaks HTTP": Expected(errors.ServiceBusError, Q, R),
    "peer speaks HTTP, TLS wanted": Expected(errors.ServiceBusConnectionError, Q, R),
    "peer talks nonsense": Expected(errors.ServiceBusError, Q, R),
    "peer talks nonsense after its header": Expected(errors.ServiceBusError, Q, R),
    "peer hangs up": Expected(errors.ServiceBusConnectionError, Q, R),
    "peer hangs up after its header": Expected(errors.ServiceBusConnectionError, Q, R),
    "no such entity": Expected(errors.MessagingEntityNotFoundError, R, Q),
    "disabled": Expected(errors.MessagingEntityDisabledError, R, Q),
    "dead-letter queue": Expected(errors.ServiceBusError, R, R),
    "session id missing": Expected(errors.ServiceBusError, R, R),
    "full": Expected(errors.ServiceBusQuotaExceededError, Q, Q),
    "too large": Expected(errors.MessageSizeExceededError, R, Q),
    "list too large": Expected(errors.MessageSizeExceededError, R, Q),
    "a value that no AMQP type fits": Expected(errors.ServiceBusError, R, R),
    "a number out of range": Expected(errors.ServiceBusError, R, R),
    "not a message": Expected(TypeError, R, R),
    "no credential": Expected(errors.ServiceBusError, R, R),
    "credential out of reach": Expected(errors.ServiceBusError, Q, R),
    "credential's network error": Expected(errors.ServiceBusError, Q, R),
    "credential's own mistake": Expected(errors.ServiceBusError, R, R),
    "closed sender": Expected(ValueError, R, R),
}


@pytest.fixture(scope="module")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    with serve_sync("contoso", data=tmp_path_factory.mktemp("broker")) as broker:
        yield broker
    gc.collect()  # while what the SDK left behind is not held against us


@pytest.fixture(scope="module", params=["sync", "async"])
def sdk(request: pytest.FixtureRequest, broker: Broker) -> Sdk:
    return Sdk(request.param == "async", broker.namespaces["contoso"])


class Seen(NamedTuple):
    """What came of a send. Not the error itself: its traceback would keep the SDK's sockets open."""

    error: type[BaseException] | None = None
    default: Verdict | None = None
    described: Verdict | None = None
    is_reach: bool | None = None
    is_of_message: bool | None = None
    text: str = ""


def seen(error: Exception) -> Seen:
    return Seen(type(error), DEFAULT(error), AS_DESCRIBED(error), is_reach(error), is_of_message(error), repr(error))


async def failure(client: Bridge, queue: str, message: Any = None, timeout: float = 30.0) -> Seen:
    """What a send raises; links are opened by the first send, whose timeout then holds for that too."""
    sender = client.get_queue_sender(queue)
    try:
        return await attempt(sender, message or ServiceBusMessage("x"), timeout)
    finally:
        await asyncio.wait_for(sender.close(), 5)
        await client.close()


async def attempt(sender: Bridge, message: Any, timeout: float) -> Seen:
    try:
        await sender.send_messages(message, timeout=timeout)
    except Exception as error:
        return seen(error)
    return Seen()


class Peer:
    """Listens, answers whatever comes first with `words`, and hangs up."""

    def __init__(self, words: bytes) -> None:
        self._words = words
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        threading.Thread(target=self._serve, daemon=True).start()

    def _serve(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            with closing(connection), suppress(OSError):
                connection.settimeout(5)
                connection.recv(100)
                connection.sendall(self._words)
                while connection.recv(4096):  # until the client has read them and hung up
                    pass

    def close(self) -> None:
        self._listener.close()


class Credential:
    def __init__(self, error: Exception, is_async: bool) -> None:
        self._error = error
        self._is_async = is_async

    def get_token(self, *scopes: str, **options: Any) -> Any:
        if not self._is_async:
            raise self._error

        async def refuse() -> None:
            raise self._error

        return refuse()


async def closed_sender(sdk: Sdk) -> Seen:
    async with sdk.client() as client:
        sender = client.get_queue_sender("any")
        await sender.close()
        return await attempt(sender, ServiceBusMessage("x"), 1.0)


async def full_queue(sdk: Sdk) -> str:
    queue = await sdk.queue(max_size_in_megabytes=1)
    with pytest.raises(errors.ServiceBusQuotaExceededError):
        await sdk.send(queue, *[ServiceBusMessage(b"x" * 200_000) for _ in range(9)])
    return queue


async def disabled_queue(sdk: Sdk) -> str:
    queue = await sdk.queue()
    async with sdk.admin() as admin:
        description = await admin.get_queue(queue)
        description.status = "SendDisabled"
        await admin.update_queue(description)
    return queue


async def bring_about(sdk: Sdk, peers: dict[str, Peer], missing: Path) -> dict[str, Seen]:
    namespace = sdk.namespace
    plain = namespace.connection_string
    wrong = plain.replace("SharedAccessKey=", "SharedAccessKey=A")
    tls = "UseDevelopmentEmulator=true;"
    queue, with_sessions = await sdk.queue(), await sdk.queue(requires_session=True)
    full, disabled = await full_queue(sdk), await disabled_queue(sdk)

    def endpoint(port: int) -> dict[str, Any]:
        return {"custom_endpoint_address": f"sb://127.0.0.1:{port}", "transport_type": TransportType.Amqp}

    def at(name: str) -> Bridge:
        return sdk.client(plain.replace(f":{namespace.port}", f":{peers[name].port}"))

    def credential(error: Exception) -> Bridge:
        return sdk.client_with(Credential(error, sdk.is_async))

    ours, authority = endpoint(namespace.port), {"connection_verify": namespace.ca_file}
    out_of_reach = ClientAuthenticationError("no token", error=ServiceRequestError("no route"))
    big = ServiceBusMessage(b"x" * 200_000)
    attempts = {
        "wrong key": failure(sdk.client(wrong), queue),
        "wrong key, custom endpoint": failure(sdk.client(wrong.replace(tls, ""), **ours, **authority), queue),
        "authority unknown": failure(sdk.client(plain.replace(tls, ""), **ours), queue),
        "authority's file missing": failure(
            sdk.client(plain.replace(tls, ""), connection_verify=str(missing), **ours), queue
        ),
        "unknown host": failure(sdk.client(plain.replace("127.0.0.1", "no-such-host.invalid")), queue),
        "peer speaks HTTP": failure(at("http"), queue),
        "peer speaks HTTP, TLS wanted": failure(
            sdk.client(plain.replace(tls, ""), **endpoint(peers["http"].port), **authority), queue
        ),
        "peer talks nonsense": failure(at("nonsense"), queue),
        "peer talks nonsense after its header": failure(at("header and nonsense"), queue),
        "peer hangs up": failure(at("nothing"), queue),
        "peer hangs up after its header": failure(at("header"), queue),
        "no such entity": failure(sdk.client(), "no-such-queue"),
        "disabled": failure(sdk.client(), disabled),
        "dead-letter queue": failure(sdk.client(), f"{queue}/$DeadLetterQueue"),
        "session id missing": failure(sdk.client(), with_sessions),
        "full": failure(sdk.client(), full, big),
        "too large": failure(sdk.client(), queue, ServiceBusMessage(b"x" * 300_000)),
        "list too large": failure(sdk.client(), queue, [big, big]),
        "a value that no AMQP type fits": failure(sdk.client(), queue, AmqpAnnotatedMessage(value_body=object())),
        "a number out of range": failure(
            sdk.client(), queue, ServiceBusMessage("", application_properties={"n": 1 << 40})
        ),
        "not a message": failure(sdk.client(), queue, 17),
        "no credential": failure(credential(ClientAuthenticationError("no credential")), queue),
        "credential out of reach": failure(credential(out_of_reach), queue),
        "credential's network error": failure(credential(ServiceRequestError("no route")), queue),
        "credential's own mistake": failure(credential(ValueError("a mistake")), queue),
        "closed sender": closed_sender(sdk),
    }
    found = await asyncio.gather(*attempts.values())
    return dict(zip(attempts, found, strict=True))


@pytest.fixture(scope="module")
def failures(sdk: Sdk, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Seen]]:
    header = b"AMQP\x03\x01\x00\x00"
    peers = {
        "http": Peer(b"HTTP/1.1 400 Bad Request\r\n\r\n"),
        "nonsense": Peer(b"\xff\x00\x01" * 200),
        "header and nonsense": Peer(header + b"\x00\x00\x00\x0c\x02\x01\x00\x00abcd" * 3),
        "nothing": Peer(b""),
        "header": Peer(header),
    }
    yield asyncio.run(bring_about(sdk, peers, tmp_path_factory.mktemp("empty") / "ca.pem"))
    for peer in peers.values():
        peer.close()


def check(found: Seen, expected: Expected) -> None:
    assert found[:3] == expected, found.text
    assert found.is_reach is (expected.default is not R), found.text


@pytest.mark.parametrize("name", WITHOUT_FAULT)
def test_p18_a_send_that_fails(failures: dict[str, Seen], name: str) -> None:
    check(failures[name], WITHOUT_FAULT[name])


OF_MESSAGE = {"too large", "list too large", "a value that no AMQP type fits", "a number out of range", "not a message"}


def test_p13_only_what_is_wrong_with_the_message_is_held_against_it(failures: dict[str, Seen]) -> None:
    assert {name for name, found in failures.items() if found.is_of_message} == OF_MESSAGE | {"closed sender"}


def test_p18_no_failure_is_left_out(failures: dict[str, Seen]) -> None:
    assert failures.keys() == WITHOUT_FAULT.keys()


@asynccontextmanager
async def open_sender(sdk: Sdk) -> AsyncIterator[tuple[str, Bridge]]:
    queue = await sdk.queue()
    async with sdk.client() as client, client.get_queue_sender(queue) as sender:
        await sender.send_messages(ServiceBusMessage("good"))
        yield queue, sender


# With the link open.
FAULTS: list[tuple[str, dict[str, float], Expected]] = [
    ("no-send", {}, Expected(errors.ServiceBusError, Q, R)),
    ("throttle", {"rate": 0.0}, Expected(errors.ServiceBusServerBusyError, B, B)),
    ("latency", {"delay": 2.0}, Expected(errors.OperationTimeoutError, Q, Q)),
    ("lost-answer", {}, Expected(errors.ServiceBusConnectionError, Q, R)),
    ("unreachable", {}, Expected(errors.ServiceBusConnectionError, Q, R)),
]


@pytest.mark.parametrize(("kind", "options", "expected"), FAULTS, ids=[row[0] for row in FAULTS])
async def test_p18_a_fault_on_an_open_link(
    sdk: Sdk, broker: Broker, kind: str, options: dict[str, float], expected: Expected
) -> None:
    async with open_sender(sdk) as (_, sender), fault(broker, kind, **options):  # type: ignore[arg-type]
        check(await attempt(sender, ServiceBusMessage("x"), 1.0), expected)


async def test_p18_a_primary_that_refuses_when_the_link_is_to_be_opened(sdk: Sdk, broker: Broker) -> None:
    async with fault(broker, "unreachable"):
        check(await failure(sdk.client(), "any"), Expected(errors.ServiceBusConnectionError, Q, R))


@pytest.mark.parametrize("is_open", [True, False], ids=["open link", "new link"])
@pytest.mark.parametrize("kind", ["black-hole", "hang"])
async def test_p18_a_primary_that_says_nothing(sdk: Sdk, broker: Broker, kind: str, is_open: bool) -> None:
    """The sync SDK would hang, whatever its timeout; so both go through the sender that bounds it (P19)."""
    client = sdk.client()
    inner: Any = (AsyncGuardedSender if sdk.is_async else GuardedSender)(
        lambda: client.target.get_queue_sender(queue), "primary"
    )
    sender = Bridge(inner, sdk.is_async)
    queue = await sdk.queue()
    if is_open:
        await sender.send(ServiceBusMessage("good"), 30.0)
    async with fault(broker, kind):
        try:
            await sender.send(ServiceBusMessage("x"), 1.0)
            found = Seen()
        except Exception as error:
            found = seen(error)
        check(found, Expected(errors.OperationTimeoutError, Q, Q))
    await sender.close()
    await client.close()


async def test_p18_an_entity_deleted_under_an_open_link_is_first_a_lost_link_then_gone(sdk: Sdk) -> None:
    """So with the SDK's own retries, which open a new link, the caller sees that it is gone."""
    async with open_sender(sdk) as (queue, sender):
        async with sdk.admin() as admin:
            await admin.delete_queue(queue)
        check(await attempt(sender, ServiceBusMessage("x"), 1.0), Expected(errors.ServiceBusConnectionError, Q, R))
        check(await attempt(sender, ServiceBusMessage("x"), 30.0), Expected(errors.MessagingEntityNotFoundError, R, Q))
