"""Checks the options of the `servicebus` data source: their names, values and combinations. Pure.

It opens nothing and reads no environment except the mapping that it is given. Spark passes options as text, with names
in any letter case. No text or repr made here contains a key.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, Literal, TypeVar

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
NAMES: Final = (
    "connectionString",
    "connectionStringEnv",
    "fullyQualifiedNamespace",
    "credential",
    "entity",
    "mode",
    "maxMessagesPerTrigger",
    "maxRate",
    "fromSequenceNumber",
    "toSequenceNumber",
    "startingPosition",
    "endingPosition",
    "failOnDataLoss",
    "pushFilters",
    "applicationProperties",
    "body",
    "columns",
    "onRefused",
    "refusedPath",
    "maxWaitSeconds",
    "minPartitions",
    "sessions",
    "caFile",
    "settleConnectionString",
    "settleConnectionStringEnv",
    "settleFullyQualifiedNamespace",
    "settleCredential",
    "settleCaFile",
    "board",
    "cause",
)
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
Number = TypeVar("Number", int, float)
D = TypeVar("D", int, float, None)


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


@dataclass(frozen=True, slots=True)
class ConnectorOptions:
    address: Address
    entity: str | None
    mode: str
    messages_per_trigger_max: int
    rate_max: float | None
    first_sequence: int
    last_sequence: int
    #: None: from the first message on, up to the last.
    starting: Position | None
    ending: Position | None
    fails_on_data_loss: bool
    push_filters: bool
    typed_properties: bool
    text_body: bool
    #: The columns that are produced; None for all.
    columns: tuple[str, ...] | None
    settle: Address | None
    on_refused: str
    refused_path: str | None
    patience_s: float
    partitions_min: int
    #: Of a lock stream: whether its entities have sessions.
    sessions: bool
    #: The folder in which the processes of a syphon on Spark, or of a pipeline, exchange their progress.
    mailbox: str | None


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


def _prefixed(prefix: str, name: str) -> str:
    return prefix + name[0].upper() + name[1:] if prefix else name


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
    on_refused = _one_of(given, "onRefused", ON_REFUSED, FAIL)
    settle, refused_path = _settle(given, environ), _text(given, "refusedPath")
    if refused_path is not None and on_refused == FAIL:
        raise InvalidOption("refusedPath collects rows that are refused; it goes with onRefused skip or deadLetter")
    if on_refused == DEAD_LETTER and settle is None and refused_path is None:
        raise InvalidOption(
            "onRefused deadLetter is for rows of a lock stream, and needs settleConnectionString or one of its kind; "
            "rows of other kinds are collected by refusedPath"
        )
    first = _above_0(given, "fromSequenceNumber", int, _WHOLE, 1)
    last = _above_0(given, "toSequenceNumber", int, _WHOLE, SEQUENCE_MAX)
    if first > last:
        raise InvalidOption(f"fromSequenceNumber {first} is above toSequenceNumber {last}: there is nothing between")
    return ConnectorOptions(
        address=_address(given, environ),
        entity=_text(given, "entity"),
        mode=_one_of(given, "mode", MODES, "peek"),
        messages_per_trigger_max=_above_0(given, "maxMessagesPerTrigger", int, _WHOLE, MESSAGES_PER_TRIGGER),
        rate_max=_above_0(given, "maxRate", float, "a number of messages a second above 0", None),
        first_sequence=first,
        last_sequence=last,
        starting=_position(given, "startingPosition", EARLIEST, "fromSequenceNumber"),
        ending=_position(given, "endingPosition", LATEST, "toSequenceNumber"),
        fails_on_data_loss=_flag(given, "failOnDataLoss"),
        push_filters=_flag(given, "pushFilters"),
        typed_properties=_one_of(given, "applicationProperties", APPLICATION_PROPERTIES, TEXT) == JSON,
        text_body=_one_of(given, "body", BODIES, "binary") == TEXT,
        columns=_names(given, "columns"),
        settle=settle,
        on_refused=on_refused,
        refused_path=refused_path,
        patience_s=_above_0(given, "maxWaitSeconds", float, "a number of seconds above 0", PATIENCE_S),
        partitions_min=_partitions_min(given),
        sessions=_flag(given, "sessions"),
        mailbox=_text(given, "board"),
    )


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
    text, variable, host, credential_name, trusted = (
        _prefixed(prefix, name)
        for name in ("connectionString", "connectionStringEnv", "fullyQualifiedNamespace", "credential", "caFile")
    )
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
        _one_of(given, "cause", billing.CAUSES, billing.SPARK),
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


def _one_of(given: Mapping[str, str], name: str, choices: tuple[str, ...], default: str) -> str:
    text = given.get(name, default)
    found = {each.lower(): each for each in choices}.get(text.lower())
    if found is None:
        raise InvalidOption(f"{name} {text!r} is not known; right are {_listed(choices)}")
    return found


def _position(
    given: Mapping[str, str], name: str, default: Literal["earliest", "latest"], other: str
) -> Position | None:
    text = _text(given, name)
    if text is None:
        return None
    if other in given:
        raise InvalidOption(f"{name} and {other} exclude each other; {other} is for all entities, {name} says which")
    try:
        position = parse_position(name, text, default, (EARLIEST, LATEST))
    except ValueError as error:
        raise InvalidOption(str(error)) from None
    return None if position == Position(default) else position


def _flag(given: Mapping[str, str], name: str) -> bool:
    text = given.get(name, "false").lower()
    if text not in ("true", "false"):
        raise InvalidOption(f"{name} is true or false, not {given[name]!r}")
    return text == "true"


def _above_0(given: Mapping[str, str], name: str, read: Callable[[str], Number], what: str, default: D) -> Number | D:
    text = given.get(name)
    if text is None:
        return default
    try:
        number = read(text)
    except ValueError:
        number = read("0")
    if not 0 < number < float("inf"):
        raise InvalidOption(f"{name} is {what}, not {text!r}")
    return number


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


def _partitions_min(given: Mapping[str, str]) -> int:
    found = _above_0(given, "minPartitions", int, _WHOLE, 1)
    if found > PARTITIONS_MAX:
        raise InvalidOption(f"minPartitions is at most {PARTITIONS_MAX}, not {found}: each is a task with a receiver")
    return found


def _near(name: str) -> str:
    lower = {known.lower(): known for known in NAMES}
    found = difflib.get_close_matches(name.lower(), lower, 1)
    return f" (did you mean {lower[found[0]]}?)" if found else ""


def _listed(names: tuple[str, ...] | list[str]) -> str:
    return ", ".join(names)
