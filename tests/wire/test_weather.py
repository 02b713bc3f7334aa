"""Senders and receivers through random losses: what the client says about each message is true."""

from __future__ import annotations

import asyncio
import random
from collections import Counter

import pytest

from pairbus.amqp.performative_types import Error
from pairbus.wire import WireClient, WireError

from .peer import Peer, message

FORCED = Error("amqp:link:detach-forced", "idle", None)


async def weather(peer: Peer, port: int, chance: random.Random, steps: int) -> None:
    for _ in range(steps):
        kind = chance.choice(["drop", "detach", "hold", "let go", "deaf", "hear", "silent", "fair", "down", "fair"])
        if kind == "drop":
            peer.drop()
        elif kind == "detach":
            peer.detach("orders", FORCED)
        elif kind == "hold":
            peer.hold = True
        elif kind == "let go":
            peer.hold = False
            peer.let_go()
        elif kind == "deaf":
            peer.deaf = True
        elif kind == "hear":
            peer.hear_again()
        elif kind == "silent":
            peer.silent = True
        elif kind == "down":
            await peer.stop()
            await asyncio.sleep(0.005)
            await peer.start(port)
        await asyncio.sleep(chance.random() * 0.02)
        peer.silent = False
    peer.hold = False
    peer.hear_again()
    peer.let_go()


@pytest.mark.parametrize("seed", range(6))
async def test_a_confirmed_message_is_there_once_and_no_message_twice(seed: int) -> None:
    chance = random.Random(seed)
    peer = await Peer().start()
    port = peer.port
    async with WireClient("127.0.0.1", port, tls=False, timeout=0.5, backoff=lambda: iter(())) as client:
        sender = await client.sender("orders", window=20)
        fates: dict[bytes, WireError | None] = {}

        async def send(worker: int) -> None:
            for number in range(60):
                payload = message(f"{worker}-{number}")
                try:
                    if chance.random() < 0.5:
                        await sender.send(payload, timeout=chance.choice([0.02, 0.3]))
                    else:
                        await sender.ready()
                        await sender.send_nowait(payload)
                    fates[payload] = None
                except WireError as error:
                    fates[payload] = error

        await asyncio.gather(weather(peer, port, chance, 40), *(send(worker) for worker in range(6)))
        assert sender.under_way == 0
        stored = Counter(peer.queue("orders"))
        for payload, error in fates.items():
            if error is None:
                assert stored[payload] == 1, payload
            elif error.outcome_unknown:
                assert stored[payload] <= 1, (payload, error)
            else:
                assert stored[payload] == 0, (payload, error)
        assert len(fates) == 360
        await sender.send(message("at the end, all is well"), timeout=5.0)
    await peer.stop()


@pytest.mark.parametrize("seed", range(4))
async def test_received_messages_are_settled_or_come_back(seed: int) -> None:
    chance = random.Random(seed)
    peer = await Peer().start()
    port = peer.port
    everything = {message(str(number)) for number in range(400)}
    peer.queue("orders").extend(everything)
    peer.unlock_on_loss = True
    completed: Counter[bytes] = Counter()
    unknown: set[bytes] = set()
    async with WireClient("127.0.0.1", port, tls=False, timeout=0.5, backoff=lambda: iter(())) as client:
        receiver = await client.receiver("orders", credit=chance.choice([0, 30]))
        storm = asyncio.ensure_future(weather(peer, port, chance, 25))
        idle = 0
        while idle < 2:
            try:
                messages = await receiver.receive(chance.choice([1, 7, 50]), 0.05)
                idle = idle + 1 if not messages and storm.done() else 0
            except WireError:
                continue
            try:
                await receiver.complete(messages, timeout=0.3)
                completed.update(received.payload for received in messages)
            except WireError:
                unknown.update(received.payload for received in messages)
        await storm
    # each was completed once; more only where an earlier answer was lost
    assert set(completed) | unknown == everything
    assert all(count == 1 or payload in unknown for payload, count in completed.items())
    await peer.stop()
