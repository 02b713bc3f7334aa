from __future__ import annotations

import asyncio
import threading

import pytest

from pairbus.syphon.daemon_thread import in_daemon_thread


async def test_what_comes_back() -> None:
    assert await in_daemon_thread(lambda: 7) == 7


async def test_what_is_raised() -> None:
    with pytest.raises(OSError, match="no luck"):
        await in_daemon_thread(lambda: (_ for _ in ()).throw(OSError("no luck")))


async def test_nobody_waits_for_an_answer_that_is_not_wanted_any_more() -> None:
    begun, go_on = threading.Event(), threading.Event()

    def hang() -> None:
        begun.set()
        go_on.wait(10)
        raise OSError("too late")

    task = asyncio.create_task(in_daemon_thread(hang))
    await asyncio.to_thread(begun.wait, 5)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    (thread,) = [each for each in threading.enumerate() if each.name == "pairbus-work"]
    assert thread.daemon, "it does not hold up the end of the process"
    go_on.set()
    await asyncio.to_thread(thread.join, 5)


def test_a_loop_that_is_closed_hears_nothing() -> None:
    go_on, ended = threading.Event(), threading.Event()

    def late() -> None:
        go_on.wait(10)
        ended.set()

    async def begin() -> None:
        task = asyncio.create_task(in_daemon_thread(late))
        await asyncio.sleep(0)
        task.cancel()

    asyncio.run(begin())
    (thread,) = [each for each in threading.enumerate() if each.name == "pairbus-work"]
    go_on.set()
    thread.join(5)
    assert ended.is_set() and not thread.is_alive()
