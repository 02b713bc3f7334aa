"""The same over TLS and over WebSocket, where a silent peer hangs the SDK in other places: in a handshake."""

from __future__ import annotations

import contextlib
from typing import Any

from azure.servicebus import TransportType

from .account import ids
from .scenarios import in_both_apis
from .world import SHORT, Pair, World

#: The transport, and whether the namespace has a name, as behind a private link, or only its address.
TRANSPORTS = {
    "tls": (TransportType.Amqp, False),
    "tls, by name": (TransportType.Amqp, True),
    "websocket, by name": (TransportType.AmqpOverWebsocket, True),
}


def secured(namespace: Any, transport: TransportType, named: bool) -> tuple[str, dict[str, Any]]:
    """A connection string that is not the emulator's, and what the SDK needs to find our port and believe our CA."""
    address = f"sb://{namespace.host}:{namespace.port}"
    text = namespace.connection_string.replace("UseDevelopmentEmulator=true;", "")
    if named:
        text = text.replace(address, f"sb://{namespace.name}/")
    options = {"custom_endpoint_address": address, "connection_verify": namespace.ca_file, "transport_type": transport}
    return text, options


@in_both_apis(each=TRANSPORTS)
async def test_p19_over_tls_and_websocket_no_caller_hangs_or_sees_it(
    world: World, transport: TransportType, named: bool
) -> None:
    known, new = await world.queue(), await world.queue()
    async with contextlib.AsyncExitStack() as stack:
        text, options = secured(world.primary, transport, named)
        client = await stack.enter_async_context(world.client(text, **options))
        admin = await stack.enter_async_context(world.face(world.admin()))
        text, options = secured(world.secondary, transport, named)
        secondary = world.ours.ServiceBusClient.from_connection_string(text, **options)
        await client.pair_namespace(world.options(admin.target, secondary, **SHORT))
        pair = Pair(world, client, SHORT["send_timeout"])
        await pair.deliver(known, world.message())
        async with world.fault("black-hole"):
            await pair.deliver(known, world.message())
            await pair.deliver(new, world.message())  # its connection hangs in the handshake
            await pair.deliver(new, world.message())
            assert [pair.state(known), pair.state(new)] == ["FAILED_OVER", "FAILED_OVER"]
            assert len(await world.in_backlog()) == 3
        for queue in (known, new):
            await pair.until_state(queue, "HEALTHY")
            await pair.deliver(queue, world.message())
    tally = await world.restore_message()
    assert set(ids(tally.home)) == world.account.confirmed
