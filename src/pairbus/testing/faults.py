"""Causes faults as `with` blocks: in force inside, gone afterwards, however the block is left.

    with fault(broker, "no-send", entity="orders"):
        ...
    async with fault(broker, "unreachable", namespace="contoso"):
        ...

`broker` is the result of `serve()` or `serve_sync()`, or the data folder of a broker in another process. The fault is
in force when the block begins, and has ended when it is left: the broker has confirmed both.
"""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pairbus.broker.control.control_commands import Commands
from pairbus.broker.control.control_socket import request
from pairbus.broker.control.faults import Fault
from pairbus.errors import InvalidFault

if TYPE_CHECKING:
    from pairbus.broker.server import Broker


class fault:
    """A fault on a namespace, which may be left out where the broker serves one only.

    With `seconds` it ends by itself after that time, at the latest with the block. A crash that is left in its first
    half, while answers are late, does not come about. With `late`, what came in a stall of the storage appears so many
    seconds after the block.
    """

    __slots__ = ("_broker", "_fault", "_namespace", "_seconds")

    def __init__(
        self,
        broker: Broker | Path | str,
        kind: str,
        *,
        entity: str | None = None,
        namespace: str | None = None,
        rate: float | None = None,
        delay: float | None = None,
        by: str | None = None,
        client: str | None = None,
        partition: int | None = None,
        node: int | None = None,
        late: float | None = None,
        seconds: float | None = None,
    ) -> None:
        self._broker: Broker | Path = Path(broker) if isinstance(broker, str) else broker
        if not isinstance(self._broker, Path) and not hasattr(self._broker, "namespaces"):
            raise InvalidFault(
                f"{type(broker).__name__} is no broker; give what serve() gave, the fixture pairbus_broker, or the "
                "data folder of a broker"
            )
        self._fault = Fault(
            kind, entity=entity, rate=rate, delay=delay, by=by, client=client, partition=partition, node=node, late=late
        )
        self._seconds = seconds
        self._namespace = namespace

    def __repr__(self) -> str:
        return f"<fault {self._fault.kind} on {self._fault.target}>"

    def __enter__(self) -> None:
        self._ask(self._begin())

    def __exit__(self, *exc: object) -> None:
        self._ask(self._end())

    async def __aenter__(self) -> None:
        await self._ask_async(self._begin())

    async def __aexit__(self, *exc: object) -> None:
        await self._ask_async(self._end())

    def _begin(self) -> dict[str, Any]:
        lasts = {} if self._seconds is None else {"for": self._seconds}
        return {"command": "fault", **self._fault.as_json(), **lasts}

    def _end(self) -> dict[str, Any]:
        # Exactly this one: a fault of the same kind on an entity outlives a block for the whole namespace.
        which = {name: value for name, value in self._fault.as_json().items() if name not in ("rate", "delay", "late")}
        return {"command": "clear", "exact": True, **which}

    def _ask(self, message: dict[str, Any]) -> None:
        broker = self._broker
        if not isinstance(broker, Path) and _runs_on_this_loop(broker):
            # The control socket is served by this very loop: waiting for it here would wait forever.
            faults = {name: broker.faults(name) for name in broker.namespaces}
            message["namespace"] = self._chosen(list(faults))
            _check(Commands(faults).answer(message, broker.clock()))
            return
        folder = broker if isinstance(broker, Path) else broker.data
        if self._namespace is None:
            self._namespace = self._chosen(list(_check(request(folder, {"command": "list"}))["namespaces"]))
        _check(request(folder, message | {"namespace": self._namespace}))

    async def _ask_async(self, message: dict[str, Any]) -> None:
        if not isinstance(self._broker, Path) and _runs_on_this_loop(self._broker):
            self._ask(message)
        else:
            await asyncio.to_thread(self._ask, message)

    def _chosen(self, names: list[str]) -> str:
        if self._namespace is not None:
            return self._namespace
        if len(names) != 1:
            raise InvalidFault(f"the broker serves {', '.join(names)}; say which with namespace={names[0]!r}")
        return names[0]


def _runs_on_this_loop(broker: Broker) -> bool:
    try:
        running = asyncio.get_running_loop()
    except RuntimeError:
        return False
    return any(server.loop is running for server in broker.namespaces.values())


def _check(answer: dict[str, Any]) -> dict[str, Any]:
    if not answer.get("ok"):
        raise InvalidFault(str(answer.get("error", "the broker gave no reason")))
    return answer
