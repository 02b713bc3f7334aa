"""Answers the commands of the control socket: `fault`, `clear`, `list`, `status`, `rule` and `left`. Pure.

It takes parsed JSON objects and returns JSON objects; control_socket.py owns the socket. An answer has `ok`; when that
is false, `error` says in one line what was wrong and what is allowed.

    {"command": "fault", "namespace": N, "kind": K, "entity"?, "client"?, "partition"?: n, "node"?: n, "by"?,
     "rate"?, "delay"?, "for"?: seconds}
    {"command": "clear", "namespace": N, "kind"?, "entity"?, "client"?, "partition"?: n, "node"?: n, "by"?,
     "exact"?: true}
        both -> {"ok": true, "faults": [...]}, clear also "cleared": how many, fault also "note": where there is no
        such entity; of a fault that ends by itself, `left_s` says in how many seconds
    {"command": "list", "namespace"?: N}    -> {"ok": true, "namespaces": {N: [...]}}
    {"command": "status"}                   -> the same, and what the broker adds
    {"command": "rule", "namespace": N, "name": K, "rights": ["Send", …], "entity"?}
        gives the namespace, or one queue or topic, a key of that name, or the key that is there those rights
        -> {"ok": true, "name", "rights", "primary_key", "secondary_key"}
    {"command": "left", "namespace": N}     writes what is still there into the ledger -> {"ok": true, "left": how many}

Keys appear only in that one answer, never in an error or a log line.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import AuthorizationRule
from pairbus.broker.refusal import Refusal
from pairbus.errors import InvalidFault, did_you_mean

from .faults import Fault, Faults, covered_names, mark_of

FOR_S_MAX = 366 * 86_400

_FIELDS: Mapping[str, frozenset[str]] = {
    "fault": frozenset(
        {"namespace", "kind", "entity", "client", "partition", "node", "by", "rate", "delay", "late", "for"}
    ),
    "clear": frozenset({"namespace", "kind", "entity", "client", "partition", "node", "by", "exact"}),
    "list": frozenset({"namespace"}),
    "status": frozenset(),
    "rule": frozenset({"namespace", "name", "rights", "entity"}),
    "left": frozenset({"namespace"}),
}


@dataclass(frozen=True, slots=True)
class RuleWanted:
    namespace: str
    name: str
    rights: tuple[str, ...]
    entity: str | None


Granted: TypeAlias = Callable[[AuthorizationRule | Refusal | Exception], None]
#: Hears how many messages are left, or why nobody can say.
Listed: TypeAlias = Callable[[int | str], None]


@dataclass(frozen=True, slots=True)
class Commands:
    """Answers commands. `faults` is looked into at every command, so that namespaces may come and go; `status` adds to
    its answer; `grant` makes a rule and gives it, or what was wrong, to its last argument; `left` writes down what a
    namespace holds and tells its last argument how much that was; `entities` gives the names of a namespace's
    entities."""

    faults: Mapping[str, Faults]
    status: Callable[[], dict[str, Any]] = dict
    grant: Callable[[RuleWanted, float, Granted], None] | None = None
    left: Callable[[str, Listed], None] | None = None
    entities: Callable[[str], Iterable[str]] | None = None

    def begin(self, message: dict[str, Any], now: float, respond: Callable[[dict[str, Any]], None]) -> None:
        """Answer any command; all but `rule` and `left`, which write to disk first, are answered before this
        returns."""
        command = message.get("command")
        try:
            if command == "left" and self.left is not None:
                _checked(message)
                self._of(message)
                self.left(message["namespace"], lambda found: respond(_counted(found)))
            elif command == "rule" and self.grant is not None:
                self.grant(self._rule_wanted(message), now, lambda result: respond(_granted(result)))
            else:
                respond(self.answer(message, now))
        except InvalidFault as error:
            respond({"ok": False, "error": str(error)})

    def answer(self, message: dict[str, Any], now: float) -> dict[str, Any]:
        try:
            return {"ok": True} | self._answer(message, now)
        except InvalidFault as error:
            return {"ok": False, "error": str(error)}

    def _answer(self, message: dict[str, Any], now: float) -> dict[str, Any]:
        command = _checked(message)
        match command:
            case "rule" | "left":
                raise InvalidFault(f"{command} is not for here: it needs a broker that writes to disk")
            case "fault":
                return self._fault(message, now)
            case "clear":
                faults = self._of(message)
                cleared = faults.clear(
                    message.get("kind"),
                    message.get("entity"),
                    which=mark_of(
                        message.get("by"), message.get("client"), message.get("partition"), message.get("node")
                    ),
                    exact=message.get("exact") is True,
                    now=now,
                )
                return {"cleared": cleared, "faults": _listed(faults, now)}
            case "list":
                chosen = {message["namespace"]: self._of(message)} if "namespace" in message else self.faults
                return {"namespaces": {name: _listed(faults, now) for name, faults in chosen.items()}}
            case _:
                return self.status() | {
                    "namespaces": {name: _listed(faults, now) for name, faults in self.faults.items()}
                }

    def _fault(self, message: dict[str, Any], now: float) -> dict[str, Any]:
        faults = self._of(message)
        seconds = message.get("for")
        if seconds is not None and (
            isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0 < seconds <= FOR_S_MAX
        ):
            raise InvalidFault(f"for {seconds!r} is out of bounds: seconds, more than 0 and at most {FOR_S_MAX}")
        said = {name: message[name] for name in _FIELDS["fault"] - {"namespace", "kind", "for"} if name in message}
        fault = Fault(message.get("kind", ""), until=None if seconds is None else now + seconds, **said)
        faults.set(fault)
        note = self._note(message["namespace"], fault.entity)
        return {"faults": _listed(faults, now)} | ({} if note is None else {"note": note})

    def _note(self, namespace: str, entity: str | None) -> str | None:
        """Return a note on an entity that does not exist: a fault may come before it, but most often the name is
        mistyped."""
        if entity is None or self.entities is None:
            return None
        names = list(self.entities(namespace))
        if {name.lower() for name in names} & set(covered_names(entity)):
            return None
        hint = did_you_mean(entity, names)
        return f"{namespace} has no {entity!r}; {hint}the fault is in force for an entity of that name once it is made"

    def _rule_wanted(self, message: dict[str, Any]) -> RuleWanted:
        _checked(message)
        self._of(message)
        rights = message.get("rights")
        if not isinstance(rights, list) or not all(isinstance(right, str) for right in rights):
            raise InvalidFault("rights of rule must be a list of Manage, Send, Listen")
        return RuleWanted(message["namespace"], message.get("name", ""), tuple(rights), message.get("entity"))

    def _of(self, message: dict[str, Any]) -> Faults:
        name = message.get("namespace", "")
        found = self.faults.get(name)
        if found is None:
            hint = did_you_mean(name, self.faults)
            there = ", ".join(self.faults) or "none"
            raise InvalidFault(f"no namespace {name!r} is served here; {hint}there is {there}")
        return found


def _checked(message: dict[str, Any]) -> str:
    command = message.get("command")
    allowed = _FIELDS.get(command) if isinstance(command, str) else None
    if allowed is None or not isinstance(command, str):
        raise InvalidFault(f"there is no command {command!r}; the commands are {', '.join(_FIELDS)}")
    if unknown := message.keys() - allowed - {"command"}:
        names = ", ".join(sorted(allowed)) or "nothing"
        raise InvalidFault(f"{command} knows no {', '.join(sorted(unknown))}; it takes {names}")
    for name in ("namespace", "kind", "entity", "client", "by", "name"):
        if not isinstance(message.get(name, ""), str):
            raise InvalidFault(f"{name} of {command} must be a string, not {message[name]!r}")
    return command


def _counted(found: int | str) -> dict[str, Any]:
    return {"ok": False, "error": found} if isinstance(found, str) else {"ok": True, "left": found}


def _granted(result: AuthorizationRule | Refusal | Exception) -> dict[str, Any]:
    match result:
        case AuthorizationRule():
            return {
                "ok": True,
                "name": result.key_name,
                "rights": list(result.rights),
                "primary_key": result.primary_key,
                "secondary_key": result.secondary_key,
            }
        case Refusal():
            return {"ok": False, "error": result.description}
        case InvalidDescription():
            return {"ok": False, "error": str(result)}
        case _:
            return {"ok": False, "error": "the rule could not be written; nothing was changed"}


def _listed(faults: Faults, now: float) -> list[dict[str, Any]]:
    return [
        fault.as_json()
        | ({} if fault.until is None else {"left_s": round(fault.until - now, 3)})
        | ({} if fault.late is None else {"late_messages": faults.late_count()})
        for fault in faults.active(now)
    ]
