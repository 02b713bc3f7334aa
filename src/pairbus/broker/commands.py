"""What a line on the control socket means: the answer to `fault`, `clear`, `list` and `status`.

Decides on parsed JSON objects and returns JSON objects; control.py owns the socket. An answer has `ok`; when that is
false, `error` says in one line what was wrong and what is allowed.

    {"command": "fault", "namespace": N, "kind": K, "entity"?, "rate"?, "delay"?, "for"?: seconds}
    {"command": "clear", "namespace": N, "kind"?, "entity"?, "exact"?: true}
        both -> {"ok": true, "faults": [...]}, clear also "cleared": how many
    {"command": "list", "namespace"?: N}    -> {"ok": true, "namespaces": {N: [...]}}
    {"command": "status"}                   -> the same, and what the broker adds
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pairbus.errors import InvalidFault

from .faults import Fault, Faults

FOR_S_MAX = 366 * 86_400

_FIELDS: Mapping[str, frozenset[str]] = {
    "fault": frozenset({"namespace", "kind", "entity", "rate", "delay", "for"}),
    "clear": frozenset({"namespace", "kind", "entity", "exact"}),
    "list": frozenset({"namespace"}),
    "status": frozenset(),
}


class Commands:
    """`faults` is looked into at every command, so that namespaces may come and go; `status` adds to its answer."""

    __slots__ = ("_faults", "_status")

    def __init__(self, faults: Mapping[str, Faults], status: Callable[[], dict[str, Any]] = dict) -> None:
        self._faults = faults
        self._status = status

    def answer(self, message: dict[str, Any], now: float) -> dict[str, Any]:
        try:
            return {"ok": True} | self._answer(message, now)
        except InvalidFault as error:
            return {"ok": False, "error": str(error)}

    def _answer(self, message: dict[str, Any], now: float) -> dict[str, Any]:
        command = message.get("command")
        allowed = _FIELDS.get(command) if isinstance(command, str) else None
        if allowed is None:
            raise InvalidFault(f"there is no command {command!r}; the commands are {', '.join(_FIELDS)}")
        if unknown := message.keys() - allowed - {"command"}:
            names = ", ".join(sorted(allowed)) or "nothing"
            raise InvalidFault(f"{command} knows no {', '.join(sorted(unknown))}; it takes {names}")
        for name in ("namespace", "kind", "entity"):
            if not isinstance(message.get(name, ""), str):
                raise InvalidFault(f"{name} of {command} must be a string, not {message[name]!r}")
        match command:
            case "fault":
                return self._fault(message, now)
            case "clear":
                faults = self._of(message)
                cleared = faults.clear(message.get("kind"), message.get("entity"), exact=message.get("exact") is True)
                return {"cleared": cleared, "faults": _listed(faults, now)}
            case "list":
                chosen = {message["namespace"]: self._of(message)} if "namespace" in message else self._faults
                return {"namespaces": {name: _listed(faults, now) for name, faults in chosen.items()}}
            case _:
                return self._status() | {
                    "namespaces": {name: _listed(faults, now) for name, faults in self._faults.items()}
                }

    def _fault(self, message: dict[str, Any], now: float) -> dict[str, Any]:
        faults = self._of(message)
        seconds = message.get("for")
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= FOR_S_MAX
        ):
            raise InvalidFault(f"for {seconds!r} is out of bounds: seconds, more than 0 and at most {FOR_S_MAX}")
        fault = Fault(
            kind=message.get("kind", ""),
            entity=message.get("entity"),
            rate=message.get("rate"),
            delay=message.get("delay"),
            until=None if seconds is None else now + seconds,
        )
        faults.set(fault)
        return {"faults": _listed(faults, now)}

    def _of(self, message: dict[str, Any]) -> Faults:
        name = message.get("namespace", "")
        found = self._faults.get(name)
        if found is None:
            raise InvalidFault(f"no namespace {name!r} is served here; there is {', '.join(self._faults) or 'none'}")
        return found


def _listed(faults: Faults, now: float) -> list[dict[str, Any]]:
    return [fault.as_json() for fault in faults.active(now)]
