"""How scenarios are run: with both APIs, in all their cases, several at a time, since most of a scenario is waiting.

`in_both_apis` makes a test of `async def scenario(world, …)`. The first test of a file that is run sends all selected
scenarios of that file to the stage, a loop on a thread of its own; each test then waits for its own. Each run has a
lane to itself: a primary and a secondary that no other run uses at that time, so that a fault on a whole namespace is
its own, too.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import threading
from collections.abc import Callable, Coroutine, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from pairbus.broker import Broker

from .world import APIS, LANES, Api, World

Scenario = Callable[..., Coroutine[Any, Any, None]]
#: Of one run, once it has its lane.
RUN_S_MAX = 110.0


class Stage:
    def __init__(self, broker: Broker, folder: Path) -> None:
        self._broker = broker
        self._folder = folder
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="stage", daemon=True)
        self._thread.start()
        self._lanes: asyncio.Queue[int] = asyncio.Queue()
        for lane in range(LANES):
            self._lanes.put_nowait(lane)
        self._plays: dict[str, Future[None]] = {}

    def wait_for(self, item: pytest.Item) -> None:
        """Until the item's scenario is over; raises what it raised."""
        if item.nodeid not in self._plays:
            for each in item.session.items:
                play = getattr(getattr(each, "function", None), "play", None)
                if each.path == item.path and play is not None and each.nodeid not in self._plays:
                    self._plays[each.nodeid] = asyncio.run_coroutine_threadsafe(play(self), self._loop)
        self._plays[item.nodeid].result()

    async def play(self, scenario: Scenario, cases: Mapping[str, tuple[Any, ...]]) -> None:
        runs = [(api, case) for case in cases for api in APIS]
        results = await asyncio.gather(
            *(self._run(scenario, api, case, cases[case]) for api, case in runs), return_exceptions=True
        )
        errors = [result for result in results if isinstance(result, BaseException)]
        if len(errors) == 1:
            raise errors[0]
        if errors:
            raise BaseExceptionGroup(f"{len(errors)} of {len(runs)} runs failed", errors)

    async def _run(self, scenario: Scenario, api: Api, case: str, arguments: tuple[Any, ...]) -> None:
        lane = await self._lanes.get()
        try:
            async with asyncio.timeout(RUN_S_MAX), World(self._broker, api, lane, self._folder) as world:
                try:
                    queues = [await world.queue()] if "queue" in inspect.signature(scenario).parameters else []
                    await scenario(world, *queues, *arguments)
                except BaseException as error:
                    error.add_note(f"case {case!r}, {api}, {world!r}, {world.account.summary}")
                    raise
                await world.nobody_left()
        finally:
            self._lanes.put_nowait(lane)

    def close(self) -> None:
        asyncio.run_coroutine_threadsafe(_end(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()


async def _end() -> None:
    tasks = asyncio.all_tasks() - {asyncio.current_task()}
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def in_both_apis(*, each: Mapping[str, tuple[Any, ...]] | None = None) -> Callable[[Scenario], Callable[..., None]]:
    """`each` names the cases of the scenario: what it takes beside the world, and a `queue` where it asks for one."""
    cases = each or {"": ()}

    def decorate(scenario: Scenario) -> Callable[..., None]:
        @functools.wraps(scenario)
        def test(stage: Stage, request: pytest.FixtureRequest) -> None:
            stage.wait_for(request.node)

        test.play = lambda stage: stage.play(scenario, cases)  # type: ignore[attr-defined]
        test.__signature__ = inspect.signature(test, follow_wrapped=False)  # type: ignore[attr-defined]
        return test

    return decorate
