"""Finds and creates the backlog queues of a pairing; nothing here contacts the primary.

With the SDK's administration client they are listed and created; without it, a link to each is opened.

Which queues are missing, what is worth another try and what the result means are decided in
`pairing/backlog/backlog_queues.py` and `pairing/backlog/provision.py`.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import Any, Final

from azure.core.exceptions import AzureError

from pairbus.aio.concurrency import call_all, sleep
from pairbus.pairing.backlog.backlog_queues import QUEUE_PROPERTIES
from pairbus.pairing.backlog.provision import Provision, is_conflict

LINKS_AT_ONCE_MAX: Final = 8
RETRY_DELAY_S: Final = 0.2


async def manage(provision: Provision, manager: Any, timeout_s: float) -> None:
    """Lists the queues, and creates those that are missing. No request takes longer than `timeout_s`."""
    try:
        missing = provision.listed([queue async for queue in manager.list_queues(**request_limits(timeout_s))])
    except (AzureError, OSError) as error:
        raise provision.failed(f"the queues of {provision.secondary} can't be listed", error) from error
    for position, index in enumerate(missing):
        refusal = await _make(provision, manager, index, timeout_s)
        if refusal is None:
            provision.there(index)
            continue
        provision.leave_out(index, refusal)
        if provision.is_hopeless(refusal):
            for other in missing[position + 1 :]:
                provision.leave_out(other, refusal)
            break
    provision.check()


async def _make(provision: Provision, manager: Any, index: int, timeout_s: float) -> Exception | None:
    tries = 0
    while True:
        began = time.monotonic()
        limits = request_limits(min(timeout_s, provision.left_s))
        try:
            await manager.create_queue(provision.path(index), **QUEUE_PROPERTIES, **limits)
        except (AzureError, OSError) as error:
            if is_conflict(error) and await _is_there(provision, manager, index, limits):
                return None
            tries += 1
            provision.failed_for(time.monotonic() - began)
            if not provision.try_again(error, tries):
                return error
            await sleep(RETRY_DELAY_S)
        else:
            return None


async def _is_there(provision: Provision, manager: Any, index: int, limits: dict[str, float]) -> bool:
    try:
        await manager.get_queue(provision.path(index), **limits)
    except (AzureError, OSError):
        return False
    return True


async def look(provision: Provision, open_link: Callable[[int], Awaitable[None]]) -> None:
    """Without an administration client: `open_link` raises where the queue with that index can't be sent to."""
    last: Exception | None = None

    async def failure_of(index: int) -> Exception | None:
        nonlocal last
        if last is not None and provision.left_s <= 0:
            return last
        began = time.monotonic()
        try:
            await open_link(index)
        except Exception as error:
            last = error
            provision.failed_for((time.monotonic() - began) / LINKS_AT_ONCE_MAX)
            return error
        return None

    failures = await call_all([partial(failure_of, index) for index in range(provision.count)], LINKS_AT_ONCE_MAX)
    for index, error in enumerate(failures):
        if error is None:
            provision.there(index)
        else:
            provision.leave_out(index, error)
    provision.check()


def request_limits(timeout_s: float) -> dict[str, float]:
    """For one request of the administration client, whose own limits are minutes: black holes must not hold it.

    There are two attempts at one that is silent. The SDK pauses after the last attempt, too, and does not count that
    against its `timeout`.
    """
    pause_s = timeout_s / 10
    attempts_s = timeout_s - pause_s
    return {
        "timeout": attempts_s,
        "connection_timeout": attempts_s / 2,
        "read_timeout": attempts_s / 2,
        "retry_read": 1,
        "retry_backoff_max": pause_s,
    }
