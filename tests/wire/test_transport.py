from __future__ import annotations

import asyncio

import pytest

from pairbus.wire.errors import ClientClosed, Refused, TimedOut
from pairbus.wire.transport import SingleFlight, before


async def test_before_gives_the_result_or_says_what_took_too_long() -> None:
    loop = asyncio.get_running_loop()

    async def quick() -> int:
        return 7

    assert await before(loop.time() + 5, "x", quick()) == 7
    with pytest.raises(TimedOut, match=r"doing things: no answer in .* s \(pairbus:timed-out\); outcome unknown"):
        await before(loop.time() + 0.01, "doing things", loop.create_future(), outcome_unknown=True)


async def test_an_attempt_is_shared_and_outlives_who_leaves() -> None:
    flight, gate = SingleFlight(), asyncio.Event()
    started = 0

    async def attempt() -> None:
        nonlocal started
        started += 1
        await gate.wait()

    far = asyncio.get_running_loop().time() + 60
    staying = asyncio.ensure_future(flight.run(attempt, far, "x"))
    leaving = asyncio.ensure_future(flight.run(attempt, far, "x"))
    await asyncio.sleep(0)
    leaving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await leaving
    with pytest.raises(TimedOut):
        await flight.run(attempt, asyncio.get_running_loop().time() + 0.01, "x")
    gate.set()
    await staying
    assert started == 1
    await flight.run(attempt, far, "x")
    assert started == 2


async def test_all_who_wait_hear_of_a_failure_and_the_next_begins_anew() -> None:
    flight = SingleFlight()
    outcomes = iter([Refused("a"), None])

    async def attempt() -> None:
        await asyncio.sleep(0)
        error = next(outcomes)
        if error is not None:
            raise error

    far = asyncio.get_running_loop().time() + 60
    results = await asyncio.gather(*(flight.run(attempt, far, "x") for _ in range(3)), return_exceptions=True)
    assert all(isinstance(result, Refused) for result in results)
    await flight.run(attempt, far, "x")


async def test_who_waits_when_it_is_called_off_is_not_cancelled_itself() -> None:
    flight = SingleFlight()

    async def attempt() -> None:
        await asyncio.Event().wait()

    waiting = asyncio.ensure_future(flight.run(attempt, asyncio.get_running_loop().time() + 60, "opening"))
    await asyncio.sleep(0)
    flight.cancel()
    with pytest.raises(ClientClosed, match="opening: closed meanwhile"):
        await waiting
    flight.cancel()
