"""The subjects of the snapshots: each is a function that tells one part of what users see, as plain JSON values."""

from __future__ import annotations

import enum
import functools
import inspect
import json
import re
import tempfile
import tomllib
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from tests.cli_page import every_command, help_of

HERE = Path(__file__).parent
ROOT = HERE.parent.parent

#: What documentation and examples import from. None: the names of `__all__`; else those that are documented.
PUBLIC: dict[str, tuple[str, ...] | None] = {
    "pairbus": None,
    "pairbus.aio": None,
    "pairbus.broker": None,
    "pairbus.broker.control": ("request",),
    "pairbus.cost": None,
    "pairbus.errors": ("PairbusError", "BrokerError", "ControlError", "InvalidFault", "LedgerError"),
    "pairbus.pairing.routing.verdicts": ("AS_DESCRIBED", "DEFAULT", "Verdict"),
    "pairbus.spark": None,
    "pairbus.spark.connector.options": ("Address", "InvalidOption"),
    "pairbus.spark.reports.audit": ("Audit", "audit"),
    "pairbus.spark.reports.availability": ("Availability", "availability"),
    "pairbus.spark.reports.cost_report": ("CostReport", "cost_report"),
    "pairbus.spark.reports.effort": ("at_start",),
    "pairbus.spark.reports.ledgers": ("BadLedger", "Ledgers", "read_ledgers"),
    "pairbus.spark.reports.outage_series": ("series",),
    "pairbus.telemetry": ("TelemetryMissing", "TelemetryObserver", "instrument"),
    "pairbus.testing": None,
    "pairbus.wire": None,
    "pairbus.wire.sync": ("Receiver", "Sender", "WireClient"),
    "pyspark_servicebus": None,
}

#: What users call of classes that the product itself calls too; the rest of their members may change.
_FOR_USERS: dict[str, set[str]] = {
    "Broker": {"faults"},
    "Ledgers": {"close", "span", "to_parquet"},
    "NamespaceServer": {"ca_file", "connection_string", "host", "port", "ports"},
    "PairedSender": {
        "cancel_scheduled_messages", "close", "create_message_batch", "schedule_messages", "send_messages",
    },
    "Receiver": {
        "abandon", "close", "complete", "dead_letter", "defer", "entity", "is_open", "open", "receive", "release",
    },
    "Sender": {
        "close", "entity", "flush", "is_open", "message_bytes_max", "open", "ready", "room", "send", "send_batch",
        "send_batch_nowait", "send_grouped", "send_many", "send_nowait", "under_way",
    },
    "WireClient": {
        "close", "connect", "from_connection_string", "is_connected", "peek", "receiver", "renew", "request", "sender",
        "settle_by_token",
    },
}  # fmt: skip
#: Of options and errors, what is not for users.
_INTERNAL = {"check_free", "claim", "claimed", "forked", "found", "link_is_open", "release", "settings", "tells"}
#: Classes that users get and do not make.
_NOT_CALLED = {
    "Audit", "Availability", "Broker", "CostReport", "Ledgers", "NamespaceServer", "ReceivedMessage", "Receiver",
    "RunningSyphon", "Sender",
}  # fmt: skip


def snapshot_file(subject: str) -> Path:
    return HERE / "snapshots" / f"{subject}.json"


def text_of(value: Any) -> str:
    return json.dumps(value, indent=1, sort_keys=True, ensure_ascii=False) + "\n"


def leaves(value: Any, path: str = "") -> dict[str, str]:
    """Return every value that is neither an object nor a list, by the way that leads to it."""
    if isinstance(value, dict) and value:
        return {at: leaf for key, each in value.items() for at, leaf in leaves(each, f"{path} › {key}").items()}
    if isinstance(value, list) and value and not all(isinstance(each, str) for each in value):
        return {at: leaf for number, each in enumerate(value) for at, leaf in leaves(each, f"{path}[{number}]").items()}
    # The last digits of a sum depend on the order of its terms.
    return {path.removeprefix(" › "): f"{value:.12g}" if isinstance(value, float) else json.dumps(value)}


def shape(value: Any) -> Any:
    """Return a JSON value with a word for the type in place of each value that differs from run to run.

    A list has the shapes of its items.
    """
    if isinstance(value, dict):
        return {key: each if key in ("exit code", "kind", "outcome") else shape(each) for key, each in value.items()}
    if isinstance(value, list):
        return [json.loads(each) for each in sorted({json.dumps(shape(item), sort_keys=True) for item in value})]
    words = {bool: "boolean", int: "number", float: "number", str: "text", type(None): "null"}
    return words[type(value)]


def difference(subject: str, found: Any) -> str:
    """Return what is no longer as in the snapshot, and how to renew it; nothing where all is as it was."""
    before, now = leaves(json.loads(snapshot_file(subject).read_text())), leaves(found)
    lines = [f"removed: {at}: {before[at]}" for at in sorted(before.keys() - now.keys())]
    for at, (was, is_now) in {at: (was, now[at]) for at, was in before.items() if now.get(at, was) != was}.items():
        if was.startswith("[") and is_now.startswith("["):  # lines of a help, names: only those that differ
            old, new = json.loads(was), json.loads(is_now)
            was, is_now = str([each for each in old if each not in new]), str([each for each in new if each not in old])
        lines.append(f"changed: {at}: {was} → {is_now}")
    lines += [f"added: {at}: {now[at]}" for at in sorted(now.keys() - before.keys())]
    renew = f"On purpose? Then renew it, and say so in the changelog: python -m tests.frozen --write {subject}"
    return "\n".join([*lines, renew]) if lines else ""


# -- Python


class _Word(str):
    __repr__ = str.__str__


def _signature(found: Any) -> str:
    """The parameters with their kinds and defaults. Annotations are left out: they name modules, which may move."""
    try:
        signature = inspect.signature(found)
    except (ValueError, TypeError):
        return "(?)"

    def plain(parameter: inspect.Parameter) -> inspect.Parameter:
        default: Any = parameter.default
        if callable(default) and default is not parameter.empty:
            name = getattr(default, "__name__", "_")
            default = _Word("…" if name.startswith("_") else name)
        return parameter.replace(annotation=parameter.empty, default=default)

    parameters = [plain(each) for each in signature.parameters.values()]
    return str(signature.replace(parameters=parameters, return_annotation=signature.empty))


def _member(found: Any) -> str:
    if isinstance(found, (staticmethod, classmethod)):
        return f"{type(found).__name__} {_signature(found.__func__)}"
    if inspect.isfunction(found):
        return ("async " if inspect.iscoroutinefunction(found) else "") + f"method {_signature(found)}"
    if isinstance(found, enum.Enum):
        return f"member {found.value!r}"
    return "property" if inspect.isdatadescriptor(found) else "attribute"


def _described(found: Any, public: set[type]) -> Any:
    if not isinstance(found, type):
        return f"function {_signature(found)}" if inspect.isroutine(found) else "value"
    ours = [each for each in found.__mro__ if each.__module__.partition(".")[0] in ("pairbus", "pyspark_servicebus")]
    names = {name for each in ours for name in vars(each) if not name.startswith("_")}
    names &= _FOR_USERS.get(found.__name__, names - _INTERNAL)
    own_call = any({"__init__", "__new__"} & vars(each).keys() for each in ours if not issubclass(each, enum.Enum))
    return {
        "call": _signature(found) if own_call and found.__name__ not in _NOT_CALLED else None,
        # Bases that are not public may go and get other names.
        "bases": [each.__name__ for each in found.__mro__[1:-1] if each not in ours or each in public],
        "members": {name: _member(inspect.getattr_static(found, name)) for name in sorted(names)},
    }


def python() -> Any:
    named = {
        module: {name: getattr(import_module(module), name) for name in names or import_module(module).__all__}
        for module, names in PUBLIC.items()
    }
    public = {each for names in named.values() for each in names.values() if isinstance(each, type)}
    return {module: {name: _described(each, public) for name, each in names.items()} for module, names in named.items()}


# -- commands, plugin, loggers


def commands() -> Any:
    return {
        path: {
            "help": help_of(command, path).splitlines(),
            "environment": {each.name: each.envvar for each in command.params if getattr(each, "envvar", None)},
        }
        for command, path in every_command()
    }


def packaging() -> Any:
    """The distribution's scripts, plugins and extras, and the fixtures that any project's pytest has from it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    plugin = (ROOT / "src" / "pairbus" / "testing" / "fixtures.py").read_text()
    fixtures = re.findall(r"^@pytest\.fixture(?:\(scope=\"(\w+)\"\))?\ndef (pairbus_\w+)", plugin, re.MULTILINE)
    return {
        "name": project["name"],
        "packages": sorted(each.name for each in ROOT.glob("src/*")),
        "scripts": sorted(project["scripts"]),
        "extras": sorted(project["optional-dependencies"]),
        "pytest plugins": sorted(project["entry-points"]["pytest11"]),
        "fixtures": sorted(f"{name} [{scope} scope]" if scope else name for scope, name in fixtures),
    }


def loggers() -> Any:
    """The names of the loggers, of which users give some a level or a handler."""
    asked = {
        name
        for path in (ROOT / "src").rglob("*.py")
        for name in re.findall(r"\blogging\.getLogger\(\"?(.*?)\"?\)", path.read_text())
    }
    return sorted(name for name in asked if "azure" not in name and name != "pairbus")


# -- Spark's connector


def connector() -> Any:
    from pairbus.spark import InvalidOption
    from pyspark_servicebus import DefaultSource

    given = {"connectionString": "Endpoint=sb://h;SharedAccessKeyName=k;SharedAccessKey=a2V5", "entity": "orders"}
    try:
        DefaultSource({**given, "nonsense": "1"})
        options = ""
    except InvalidOption as error:
        options = str(error)
    return {
        "name": DefaultSource.name(),
        "columns": {field.name: field.dataType.simpleString() for field in DefaultSource(given).schema()},
        "options": options,
    }


# -- what a broker, a pair and the commands say while they work


@functools.cache
def _story() -> tuple[dict[str, Any], dict[str, Any]]:
    """What the commands and the broker told, and the fields of the ledgers' lines by writer and kind."""
    from tests.frozen.scenario import play

    ledger: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as folder:
        told = play(Path(folder))
        for file in Path(folder).rglob("*.jsonl"):
            kinds = ledger.setdefault(file.name.partition("-")[0], {})
            for line in map(json.loads, file.read_text().splitlines()):
                kinds.setdefault(line.get("kind", "first line"), set()).update(line)
    return told, {writer: {kind: sorted(each) for kind, each in kinds.items()} for writer, kinds in ledger.items()}


def json_keys() -> Any:
    return shape(_story()[0]["commands"])


def ledger() -> Any:
    return _story()[1]


def metrics() -> Any:
    from pairbus.telemetry import TelemetryObserver

    found: dict[str, Any] = {}
    for line in _story()[0]["metrics"].splitlines():
        if match := re.match(r"# (HELP|TYPE) (\S+) (.*)", line):
            found.setdefault(match[2], {"labels": []})[match[1].lower()] = match[3]
        else:
            name, labels = re.match(r"(\w+)(.*) ", line).groups()  # type: ignore[union-attr]
            found[name]["labels"] = sorted({*found[name]["labels"], *re.findall(r'(\w+)="', labels)})
    provider = Mock()
    TelemetryObserver("contoso", meter_provider=provider)
    made = provider.get_meter.return_value.method_calls
    telemetry = {args[0]: [kind, *(each for each in args[1:] if isinstance(each, str))] for kind, args, _ in made}
    return {"prometheus": found, "opentelemetry": telemetry}


def drill() -> Any:
    """The keys of the result, from a drill's sample; what the reports in it have is held by the fixtures in data/."""
    from tests.drill.test_verdict import found

    result = json.loads(json.dumps(found().as_json, default=str))
    return shape(result | {key: {} for key in ("audit", "availability", "cost")})


SUBJECTS: dict[str, Callable[[], Any]] = {
    each.__name__: each for each in (python, commands, packaging, loggers, connector, json_keys, ledger, metrics, drill)
}
