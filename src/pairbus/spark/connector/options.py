"""Checks the options of the `servicebus` data source: their names, values and combinations. Pure.

It opens nothing and reads no environment except the mapping that it is given. Spark passes options as text, with names
in any letter case. No text or repr made here contains a key.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, Final, Literal

from pairbus import billing
from pairbus.errors import PairbusError

from .places.positions import EARLIEST, LATEST, Position, parse_position

MODES: Final = ("peek", "lock", "delete")
MESSAGES_PER_TRIGGER: Final = 10_000
PARTITIONS_MAX: Final = 1000
SEQUENCE_MAX: Final = 2**63 - 1
#: The actions of the sink for a row that is refused permanently.
FAIL: Final = "fail"
SKIP: Final = "skip"
DEAD_LETTER: Final = "deadLetter"
ON_REFUSED: Final = (FAIL, SKIP, DEAD_LETTER)
#: What the column application_properties is when it is read: a map to text, or JSON with the values' types.
TEXT: Final = "text"
JSON: Final = "json"
APPLICATION_PROPERTIES: Final = (TEXT, JSON)
#: And the column body: bytes, or a string.
BODIES: Final = ("binary", TEXT)
#: How long to wait for a destination that accepts nothing.
PATIENCE_S: Final = 300.0
#: The prefix of the options that name the namespace where the rows of a lock stream are settled.
SETTLE: Final = "settle"
#: Options that Spark itself adds to those of a read or a write.
_SPARKS_OWN: Final = ("path", "checkpointlocation", "queryname", "mergeschema", "recursivefilelookup")
#: How the options of CREATE TABLE begin, when Spark asks for the columns.
_OF_TABLE: Final = "option."
_WAYS: Final = ("connectionString", "connectionStringEnv", "fullyQualifiedNamespace")
_SECRETS: Final = ("connectionString", "settleConnectionString")
CREDENTIALS: Final = {
    "default": "DefaultAzureCredential",
    "managed-identity": "ManagedIdentityCredential",
    "environment": "EnvironmentCredential",
    "workload-identity": "WorkloadIdentityCredential",
    "azure-cli": "AzureCliCredential",
}


_NO_COLUMNS: Final = (
    " (a table of a catalog has options of its own only where CREATE TABLE names no columns, and never as the sink of "
    "a stream: give them there again, as in INSERT INTO name WITH (…) VALUES …)"
)
_NEEDS_NONE: Final = "reads by sequence number, and finds the messages of all sessions without it"
_WHOLE: Final = "a whole number of at least 1"
_Read = Callable[[Mapping[str, str], str], Any]


class InvalidOption(PairbusError, ValueError):
    pass


@dataclass(frozen=True, slots=True)
class Address:
    """How to reach a namespace: a connection string, or a host name and a credential's name. Never printed whole."""

    connection_string: str | None = field(default=None, repr=False)
    host: str | None = None
    credential: str = "default"
    ca_file: str | None = None
    #: The billing cause of its clients, as in the broker's ledger.
    cause: str = billing.SPARK


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)


def _one_of(choices: tuple[str, ...], default: str) -> _Read:
    known = {each.lower(): each for each in choices}

    def read(given: Mapping[str, str], name: str) -> str:
        text = given.get(name, default)
        if text.lower() not in known:
            raise InvalidOption(f"{name} {text!r} is not known; right are {_listed(choices)}")
        return known[text.lower()]

    return read


def _position(default: Literal["earliest", "latest"], other: str) -> _Read:
    def read(given: Mapping[str, str], name: str) -> Position | None:
        text = _text(given, name)
        if text is None:
            return None
        if other in given:
            raise InvalidOption(
                f"{name} and {other} exclude each other; {other} is for all entities, {name} says which"
            )
        try:
            position = parse_position(name, text, default, (EARLIEST, LATEST))
        except ValueError as error:
            raise InvalidOption(str(error)) from None
        return None if position == Position(default) else position

    return read


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"{name} is true or false, not {given[name]!r}")
    return text == "true"


def _above_0(kind: Callable[[str], float], what: str, default: float | None) -> _Read:
    def read(given: Mapping[str, str], name: str) -> float | None:
        text = given.get(name)
        if text is None:
            return default
        try:
            number = kind(text)
        except ValueError:
            number = 0
        if not 0 < number < float("inf"):
            raise InvalidOption(f"{name} is {what}, not {text!r}")
        return number

    return read


def _text(given: Mapping[str, str], name: str) -> str | None:
    text = given.get(name)
    if text is None:
        return None
    if not text.strip():
        raise InvalidOption(f"{name} is empty")
    return text.strip()


def _names(given: Mapping[str, str], name: str) -> tuple[str, ...] | None:
    text = _text(given, name)
    if text is None:
        return None
    names = tuple(part.strip() for part in text.split(","))
    if not all(names):
        raise InvalidOption(f"{name} {text!r} has an empty place in its list")
    return names


def _partitions_min(given: Mapping[str, str], name: str) -> int:
    found: int = _above_0(int, _WHOLE, 1)(given, name)
    if found > PARTITIONS_MAX:
        raise InvalidOption(f"{name} is at most {PARTITIONS_MAX}, not {found}: each is a task with a receiver")
    return found


def _option(name: str, read: _Read) -> Any:
    return field(metadata={"option": name, "read": read})


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    """The options but for those of the two namespaces, a row each."""

    address: Address
    settle: Address | None
    entity: str | None = _option("entity", _text)
    mode: str = _option("mode", _one_of(MODES, "peek"))
    messages_per_trigger_max: int = _option("maxMessagesPerTrigger", _above_0(int, _WHOLE, MESSAGES_PER_TRIGGER))
    rate_max: float | None = _option("maxRate", _above_0(float, "a number of messages a second above 0", None))
    first_sequence: int = _option("fromSequenceNumber", _above_0(int, _WHOLE, 1))
    last_sequence: int = _option("toSequenceNumber", _above_0(int, _WHOLE, SEQUENCE_MAX))
    #: None: from the first message on, up to the last.
    starting: Position | None = _option("startingPosition", _position(EARLIEST, "fromSequenceNumber"))  # noqa: RUF009
    ending: Position | None = _option("endingPosition", _position(LATEST, "toSequenceNumber"))  # noqa: RUF009
    fails_on_data_loss: bool = _option("failOnDataLoss", _flag)
    push_filters: bool = _option("pushFilters", _flag)
    application_properties: str = _option("applicationProperties", _one_of(APPLICATION_PROPERTIES, TEXT))
    body: str = _option("body", _one_of(BODIES, "binary"))
    #: The columns that are produced; None for all.
    columns: tuple[str, ...] | None = _option("columns", _names)
    on_refused: str = _option("onRefused", _one_of(ON_REFUSED, FAIL))
    refused_path: str | None = _option("refusedPath", _text)
    patience_s: float = _option("maxWaitSeconds", _above_0(float, "a number of seconds above 0", PATIENCE_S))
    partitions_min: int = _option("minPartitions", _partitions_min)
    #: Of a lock stream: whether its entities have sessions.
    sessions: bool = _option("sessions", _flag)
    #: The folder in which the processes of a syphon on Spark, or of a pipeline, exchange their progress.
    mailbox: str | None = _option("board", _text)


_ROWS: Final = [each for each in fields(ConnectorOptions) if each.metadata]


def _prefixed(prefix: str, name: str) -> str:
    return prefix + name[0].upper() + name[1:] if prefix else name


_OF_ADDRESS: Final = (*_WAYS, "credential", "caFile")
NAMES: Final = (
    *_OF_ADDRESS[:-1],
    *(each.metadata["option"] for each in _ROWS[:-1]),
    "caFile",
    *(_prefixed(SETTLE, name) for name in _OF_ADDRESS),
    "board",
    "cause",
)


def as_options(address: Address) -> dict[str, str]:
    """Return the options from which `parse` reads this address."""
    return {"cause": address.cause, **_way_to(address, "")}


def as_settle_options(address: Address) -> dict[str, str]:
    """The same for `settle`, whose cause is that of the sink."""
    return _way_to(address, SETTLE)


def _way_to(address: Address, prefix: str) -> dict[str, str]:
    found = {} if address.ca_file is None else {"caFile": address.ca_file}
    if address.connection_string is not None:
        found["connectionString"] = address.connection_string
    else:
        assert address.host is not None
        found |= {"fullyQualifiedNamespace": address.host, "credential": address.credential}
    return {_prefixed(prefix, name): value for name, value in found.items()}


def parse(options: Mapping[str, str], environ: Mapping[str, str]) -> ConnectorOptions:
    """Return the options with their types and defaults. Raises InvalidOption."""
    known = {name.lower(): name for name in NAMES}
    given: dict[str, str] = {}
    for name, value in options.items():
        if name.lower() in known:
            given[known[name.lower()]] = value
        elif name.lower() not in _SPARKS_OWN and not name.lower().startswith("spark."):
            raise InvalidOption(
                f"the servicebus source has no option {name!r}{_near(name)}; right are {_listed(NAMES)}"
            )
    found = ConnectorOptions(
        _address(given, environ),
        _settle(given, environ),
        **{each.name: each.metadata["read"](given, each.metadata["option"]) for each in _ROWS},
    )
    if found.refused_path is not None and found.on_refused == FAIL:
        raise InvalidOption("refusedPath collects rows that are refused; it goes with onRefused skip or deadLetter")
    if found.on_refused == DEAD_LETTER and found.settle is None and found.refused_path is None:
        raise InvalidOption(
            "onRefused deadLetter is for rows of a lock stream, and needs settleConnectionString or one of its kind; "
            "rows of other kinds are collected by refusedPath"
        )
    first, last = found.first_sequence, found.last_sequence
    if first > last:
        raise InvalidOption(f"fromSequenceNumber {first} is above toSequenceNumber {last}: there is nothing between")
    return found


def options_of_table(options: Mapping[str, str]) -> dict[str, str] | None:
    """Return the options of a table that is about to be created in a catalog; None where Spark asks for something else.
    Raises InvalidOption for a secret, which all who see the table would see."""
    found = {name.removeprefix(_OF_TABLE): value for name, value in options.items() if name.startswith(_OF_TABLE)}
    for secret in _SECRETS:
        if secret.lower() in map(str.lower, found):
            raise InvalidOption(
                f"a table of a catalog shows its options, so {secret} can't be one of them; put it into a variable of "
                f"the environment and give {secret}Env, or use CREATE TEMPORARY VIEW"
            )
    return found or None


def with_those_of_table(options: Mapping[str, str], table: Mapping[str, str]) -> dict[str, str]:
    """Return the options of a read or a write that is about a table of a catalog. They go before those of the table;
    what names a namespace is about that, wherever its rows were read."""
    given = {name.lower(): value for name, value in options.items()}
    return given if any(way.lower() in given for way in _WAYS) else {**table, **given}


def check_batch(options: ConnectorOptions) -> None:
    """Raise InvalidOption for options that `spark.read` does not support."""
    if options.mode != "peek":
        raise InvalidOption(
            f"mode={options.mode} is for streams: spark.read only peeks, and takes nothing away; use spark.readStream"
        )
    for name, position, empty in (
        ("startingPosition", options.starting, LATEST),
        ("endingPosition", options.ending, EARLIEST),
    ):
        if position is not None and position.default == empty:
            raise InvalidOption(f"{name} {empty} is for streams; spark.read would find nothing")
    if options.fails_on_data_loss:
        raise InvalidOption("failOnDataLoss is for streams with mode=peek or delete; spark.read has no offset")
    if options.sessions:
        raise InvalidOption(f"sessions is for streams with mode=lock; spark.read {_NEEDS_NONE}")


def check_stream(options: ConnectorOptions) -> None:
    """Raise InvalidOption for options that `spark.readStream` does not support in its mode."""
    if options.ending is not None:
        raise InvalidOption("endingPosition is for spark.read; a stream ends with trigger(availableNow=True)")
    if options.mode != "lock":
        if options.sessions:
            raise InvalidOption(f"sessions is for streams with mode=lock; mode={options.mode} {_NEEDS_NONE}")
        return
    if (options.first_sequence, options.last_sequence) != (1, SEQUENCE_MAX):
        raise InvalidOption(
            "fromSequenceNumber and toSequenceNumber are for the modes peek and delete; a stream with mode=lock gets "
            "what the entity gives it. To pick messages use pairbus.spark.move, or pairbus move --where"
        )
    if options.starting is not None or options.fails_on_data_loss:
        raise InvalidOption(
            "startingPosition and failOnDataLoss are for the modes peek and delete; with mode=lock the queue is the "
            "state, and there is no offset"
        )


def wanted_entity(options: ConnectorOptions) -> str:
    """Return the option entity. Raises InvalidOption where there is none."""
    if options.entity is None:
        raise InvalidOption(
            'the servicebus source needs the option entity, a list such as "orders" or "news/Subscriptions/all"'
        )
    return options.entity


def _address(given: Mapping[str, str], environ: Mapping[str, str], prefix: str = "") -> Address:
    text, variable, host, credential_name, trusted = (_prefixed(prefix, name) for name in _OF_ADDRESS)
    ways = [name for name in (text, variable, host) if name in given]
    if len(ways) != 1:
        found = f"{_listed(ways)} exclude each other" if ways else "none of them was given"
        raise InvalidOption(
            f"{found}: name the namespace by {text}, by {variable} (a variable of the environment) "
            f"or by {host} with {credential_name}{'' if given else _NO_COLUMNS}"
        )
    if credential_name in given and ways != [host]:
        raise InvalidOption(f"{credential_name} goes with {host}; a connection string has a key of its own")
    credential = given.get(credential_name, "default")
    if credential not in CREDENTIALS:
        raise InvalidOption(f"{credential_name} {credential!r} is not known; right are {_listed(tuple(CREDENTIALS))}")
    return Address(
        _connection_string(given, environ, text),
        _text(given, host),
        credential,
        _text(given, trusted),
        _one_of(billing.CAUSES, billing.SPARK)(given, "cause"),
    )


def _settle(given: Mapping[str, str], environ: Mapping[str, str]) -> Address | None:
    if not any(name.startswith(SETTLE) for name in given):
        return None
    found = _address(given, environ, SETTLE)
    return found if found.ca_file is not None else replace(found, ca_file=_text(given, "caFile"))


def _connection_string(given: Mapping[str, str], environ: Mapping[str, str], name: str) -> str | None:
    variable = _text(given, f"{name}Env")
    if variable is None:
        return _text(given, name)
    if not environ.get(variable):
        raise InvalidOption(f"{name}Env names the environment variable {variable!r}, which is not set")
    return environ[variable]


def _near(name: str) -> str:
    lower = {known.lower(): known for known in NAMES}
    found = difflib.get_close_matches(name.lower(), lower, 1)
    return f" (did you mean {lower[found[0]]}?)" if found else ""
