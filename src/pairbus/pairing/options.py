"""The options of a pairing: their names, defaults and bounds, and `Settings`, their checked values.

An option is one row of `_Options`: the attributes, the constructor, its checks and `Settings` follow from it, and
docs/reference/options.md is printed from it. Its type is repeated in `PairingOptions`, since type checkers need it
there for keywords. The sync and the async client use the same class. This module decides which values each option may
have, and that one options object serves one pairing.

Pure.
"""

from __future__ import annotations

import difflib
import inspect
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import Field, field, make_dataclass, replace
from datetime import timedelta
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    ClassVar,
    Final,
    Generic,
    Literal,
    Self,
    TypedDict,
    TypeVar,
    Unpack,
    get_type_hints,
    overload,
)

from pairbus.pairing.errors import AlreadyPaired, InvalidOptions
from pairbus.pairing.routing.patience import Brownout
from pairbus.pairing.routing.verdicts import DEFAULT, Classifier

ReadT = TypeVar("ReadT")
GivenT = TypeVar("GivenT")
ChoiceT = TypeVar("ChoiceT", bound=str)

Seconds = float | timedelta
#: Where the control file is, or what returns its text, or the mapping that it would hold.
ControlFile = Path | Callable[[], "str | bytes | Mapping[str, str]"]
Profile = Literal["as-described", "interactive"]
RaiseOrDegrade = Literal["raise", "degrade"]
RaiseOrDivert = Literal["raise", "divert"]
WaitOrDivert = Literal["wait", "divert"]
Probe = Literal["ping", "trial"]
Engine = Literal["spark", "in-process"]
PatienceName = Literal["half", "adaptive"]
QUEUES_MAX: Final = 1000
_SHOWN_CHARS_MAX: Final = 40
# The queue's name, `{primary}/x-servicebus-transfer/{i}`, has room for 260 characters.
PRIMARY_NAME_CHARS_MAX: Final = 230


#: What each profile sets; an option that is given itself overrides it.
PROFILES: Final[dict[str, dict[str, Any]]] = {
    "as-described": {},
    "interactive": {
        "failover_interval": 0.0,
        "primary_patience": "adaptive",
        "send_timeout": 8.0,
        "while_suspect": "divert",
        "while_throttled": "divert",
    },
}


class Check(Generic[ReadT, GivenT]):
    """The allowed values of an option, in words, and the function that converts a given value into that of `Settings`.

    It raises ValueError, TypeError or OverflowError for a value that is not allowed.
    """

    def __init__(self, allowed: str, checked: Callable[[Any], ReadT]) -> None:
        self.allowed = allowed
        self.checked = checked


def _seconds(low: float, high: float) -> Check[float, Seconds]:
    def checked(value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if not low <= value <= high:  # so NaN is refused, too
            raise ValueError
        return float(value)

    return Check(f"seconds or timedelta, {low:g} to {high:g} ({high / 60:g} minutes)", checked)


def _or_none(check: Check[ReadT, GivenT], words: str = ", or None") -> Check[ReadT | None, GivenT | None]:
    return Check(check.allowed + words, lambda value: None if value is None else check.checked(value))


def _whole(low: int, high: int) -> Check[int, int]:
    def checked(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return int(value)

    return Check(f"a whole number, {low} to {high}", checked)


def _true_or_false(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


_FLAG: Final[Check[bool, bool]] = Check("True or False", _true_or_false)


def _one_of(*choices: ChoiceT) -> Check[ChoiceT, ChoiceT]:
    def checked(value: Any) -> ChoiceT:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return value

    return Check(" or ".join(f'"{choice}"' for choice in choices), checked)


def _function(value: Any) -> Any:
    # A class is callable too, but calling it makes an object, not a verdict.
    if not callable(value) or isinstance(value, type):
        raise ValueError
    return value


_LABEL: Final = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", re.ASCII)


def primary_label(value: Any) -> str:
    """Return the value if it can be a `primary_name`; raise ValueError if not."""
    if not isinstance(value, str) or len(value) > PRIMARY_NAME_CHARS_MAX or not _LABEL.fullmatch(value):
        raise ValueError
    return value


def _folder(value: Any) -> Path:
    if not isinstance(value, str | Path) and not hasattr(value, "__fspath__"):
        raise ValueError
    path = Path(value)  # raises TypeError for a path of bytes
    if not value:
        raise ValueError
    return path


def _control_file(value: Any) -> ControlFile:
    return _function(value) if callable(value) else _folder(value)


def _text(value: Any) -> str:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError
    return str(value)


def _session(value: Any) -> Any:
    if not hasattr(value, "sparkContext"):
        raise ValueError
    return value


_PATIENCE_S: Final = _seconds(0.05, 3600)
_SLOWER_THAN_S: Final = _seconds(0.001, 3600)


def _patience(value: Any) -> float | PatienceName:
    return value if value in ("half", "adaptive") else _PATIENCE_S.checked(value)


def _brownout(value: Any) -> Brownout:
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise ValueError
    share, sends, slower_than = value
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ValueError
    return Brownout(float(share), _whole(5, 1000).checked(sends), _SLOWER_THAN_S.checked(slower_than))


class Option(Generic[ReadT, GivenT]):
    """A row of the options: a default, what is allowed, and what it means.

    As an attribute it is read as `Settings` holds it, and set to what the constructor takes, until pairing begins.
    """

    def __init__(self, default: GivenT, check: Check[ReadT, GivenT], meaning: str) -> None:
        self.default = default
        self.allowed = check.allowed
        self.checked = check.checked
        self.meaning = self.__doc__ = meaning

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    @overload
    def __get__(self, options: None, owner: type) -> Self: ...
    @overload
    def __get__(self, options: object, owner: type) -> ReadT: ...
    def __get__(self, options: Any, owner: type) -> ReadT | Self:
        return self if options is None else getattr(options.settings, self.name)

    def __set__(self, options: Any, value: GivenT) -> None:
        options._set(self.name, value)


class _Options:
    """The rows, in the order of the documentation and of the constructor."""

    # fmt: off
    backlog_queue_count = Option(10, _whole(1, QUEUES_MAX),
        "How many backlog queues to find or create. After pairing the attribute of that name is the number that"
        " exists.")
    failover_interval = Option(60, _seconds(0, 3600),
        "How long an entity may fail, with no send that succeeds, before it fails over. 0: at the first failure,"
        " and the message that failed goes to the backlog.")
    enable_syphon = Option(False, _FLAG,
        "Run the syphon in this process: for receiving applications. At least one process has to run it.")
    ping_primary_interval = Option(60, _seconds(1, 1800),
        "The time between pings; the first one of a failover comes after a random part of it.")
    send_timeout = Option(60, _seconds(0.1, 3600),
        "The time that a send may take if the caller gives no `timeout`. The primary gets at most half of it.")
    backlog_retry_interval = Option(30, _seconds(0.1, 3600),
        "How long a backlog queue that failed stays out of the rotation before one message tries it again.")
    primary_name = Option(None, _or_none(Check[str, str](
        f"letters, digits, and . - _ between them, up to {PRIMARY_NAME_CHARS_MAX} characters", primary_label)),
        "The first part of the backlog queues' names. None: the first label of the primary's host; must be given"
        " if that is an IP address or localhost.")
    on_secondary_unavailable = Option[RaiseOrDegrade, RaiseOrDegrade]("raise", _one_of("raise", "degrade"),
        "What pairing does when the secondary can't be set up: raise, or start unprotected, keep trying and report it.")
    while_suspect = Option[RaiseOrDivert, RaiseOrDivert]("raise", _one_of("raise", "divert"),
        "What happens to a message that fails before the entity has failed over: the caller sees the failure, or"
        " the message goes to the backlog.")
    when_unreachable = Option[RaiseOrDivert, RaiseOrDivert]("divert", _one_of("divert", "raise"),
        "What happens to messages while the primary answers pings with a refusal (entity deleted, disabled, access"
        " lost).")
    while_throttled = Option[WaitOrDivert, WaitOrDivert]("wait", _one_of("wait", "divert"),
        "What happens to messages in the ten seconds after the primary said that it is busy: they wait, if their"
        " time allows, or go to the backlog. The entity does not fail over because of that, and the primary is tried"
        " again afterwards.")
    probe = Option[Probe, Probe]("ping", _one_of("ping", "trial"),
        "How to find out that the primary works again: with a ping, or with one real message that has the backlog"
        " behind it.")
    pings_to_return = Option(1, _whole(1, 100),
        "How many pings in a row must succeed before messages go to the primary again.")
    classifier = Option[Classifier, Classifier](DEFAULT, Check(
        "a function from an exception to a Verdict, or DEFAULT or AS_DESCRIBED", _function),
        "Which failures count towards a failover: see [verdicts](verdicts.md).")
    busy_failover_after = Option(None, _or_none(_seconds(0, 3600)),
        "Server busy for longer than this counts as a failure. None: never.")
    assign_message_id = Option(True, _FLAG,
        "Give every message without an id one before the first try, so that duplicate detection can remove"
        " further copies of a message whose outcome was unknown.")
    check_aliases = Option(True, _FLAG,
        "Refuse a message that already carries one of the aliases (`x-ms-path` …), before it is sent anywhere. False:"
        " it goes to the primary as it is, and loses its own aliases on the detour.")
    check_size = Option(True, _FLAG,
        "Warn of a message that would be too large for the backlog, as early as the healthy send.")
    count_backlog_time = Option(False, _FLAG,
        "The syphon of this process deducts the time spent in the backlog from a message's time to live. False: it"
        " starts anew on delivery to the primary.")
    mark_diverted = Option(False, _FLAG,
        "Diverted messages carry `x-pairbus-diverted-at`, which their receivers see.")
    syphon_engine = Option[Engine, Engine]("spark", _one_of("spark", "in-process"),
        "The engine on which the syphon of this process runs.")
    syphon_spark = Option(None, _or_none(Check[Any, Any]("a SparkSession", _session)),
        "The application's Spark session, for the syphon's query: it is neither changed nor stopped. None: the"
        " session of the process, or a new one if there is none.")
    syphon_master = Option(None, _or_none(Check[str, str]("the URL of a Spark master", _text)),
        "The master for a new session. None: this machine.")
    syphon_checkpoint = Option(None, _or_none(Check[str, str | Path]("a folder or URL", _text)),
        "Where the syphon's query keeps its progress. None: a temporary folder, whose loss loses nothing.")
    fault_partner = Option(True, _FLAG,
        "When one client of the pair closes or faults, the other one is faulted within five seconds. False: the"
        " syphon stops, reports it, and tries again.")
    ledger = Option(None, _or_none(Check[Path, str | Path]("a folder", _folder)),
        "Write a [ledger](ledger.md) of all events into this folder.")
    return_ramp = Option(0, _seconds(0, 3600),
        "For fleets: the return to the primary is spread over this time. Each client draws a random moment for each"
        " entity, and goes on sending to the backlog until then. 0: at once.")
    control_file = Option(None, _or_none(Check[ControlFile, str | ControlFile](
        "a file, or a function without arguments that returns its text or a mapping", _control_file)),
        "Follow this file, by which an operator [pins entities](../how-to/switch-a-fleet.md) of many clients to"
        " \"failed-over\" or \"healthy\". It is checked every 5 seconds.")
    profile = Option[Profile, Profile]("as-described", _one_of("as-described", "interactive"),
        "A set of options for a purpose: see [the profiles](#profiles). An explicit option overrides its profile.")
    primary_patience = Option[float | PatienceName, Seconds | PatienceName]("half", Check(
        f'"half", "adaptive", or {_PATIENCE_S.allowed}', _patience),
        "How long the primary may be silent before a message goes to the backlog, if that is next: half of the"
        " caller's time, a number of seconds, or a multiple of how long the entity's recent sends took (never under"
        " 0.25 s; half until 20 answers are known). With \"adaptive\" a link that must be opened is waited for four"
        " times as long as this client's recent openings took, 3 s before any is known.")
    warm_backlog = Option(True, _FLAG,
        "Keep one link to a backlog queue open from pairing on, so that the first diverted message need not open"
        " one.")
    brownout = Option(None, _or_none(Check[Brownout, tuple[float, int, Seconds]](
        "(share, sends, time): a share from 0 to below 1, a whole number from 5 to 1000,"
        f" {_SLOWER_THAN_S.allowed}", _brownout), "; or None"),
        "An entity counts as failing when more than this share of its last so many sends took longer than this"
        " time, although they succeeded. It returns after pings that were faster. None: only failures count.")
    # fmt: on


OPTIONS: Final[tuple[Option[Any, Any], ...]] = tuple(
    each for each in vars(_Options).values() if isinstance(each, Option)
)
_BY_NAME: Final = {option.name: option for option in OPTIONS}

if TYPE_CHECKING:

    class Settings(_Options):
        """The checked values of the options, every time as a float of seconds."""

        __dataclass_fields__: ClassVar[dict[str, Field[Any]]]

        def __init__(self, **values: Any) -> None: ...

else:
    Settings = make_dataclass(
        "Settings",
        [(option.name, Any, field(default=option.checked(option.default))) for option in OPTIONS],
        namespace={"__doc__": "The checked values of the options, every time as a float of seconds."},
        frozen=True, slots=True, kw_only=True,
    )  # fmt: skip
    Settings.__module__ = __name__

_DEFAULTS: Final = Settings()


class _ByPosition(TypedDict, total=False):
    backlog_queue_count: int
    failover_interval: Seconds
    enable_syphon: bool


class _ByName(TypedDict, total=False):
    ping_primary_interval: Seconds
    send_timeout: Seconds
    backlog_retry_interval: Seconds
    primary_name: str | None
    on_secondary_unavailable: RaiseOrDegrade
    while_suspect: RaiseOrDivert
    when_unreachable: RaiseOrDivert
    while_throttled: WaitOrDivert
    probe: Probe
    pings_to_return: int
    classifier: Classifier
    busy_failover_after: Seconds | None
    assign_message_id: bool
    check_aliases: bool
    check_size: bool
    count_backlog_time: bool
    mark_diverted: bool
    syphon_engine: Engine
    syphon_spark: Any
    syphon_master: str | None
    syphon_checkpoint: str | Path | None
    fault_partner: bool
    ledger: str | Path | None
    return_ramp: Seconds
    control_file: str | ControlFile | None
    profile: Profile
    primary_patience: Seconds | PatienceName
    warm_backlog: bool
    brownout: tuple[float, int, Seconds] | None


class PairingOptions(_ByPosition, _ByName, total=False):
    """The options as keywords of `ServiceBusClient.paired` and of the options' class, for type checkers and editors."""


def settings_from(values: Mapping[str, Any]) -> Settings:
    """Check the options, one by one and against each other; those not named take their defaults."""
    refuse_unknown(values)
    found: dict[str, Any] = {}
    for name, value in values.items():
        option = _BY_NAME[name]
        try:
            found[name] = option.checked(value)
        except (ValueError, TypeError, OverflowError):
            raise InvalidOptions(f"{name} may not be {_shown(value)}; allowed: {option.allowed}") from None
    settings = Settings(**{**PROFILES[found.get("profile", "as-described")], **found})
    if settings.probe == "trial" and settings.pings_to_return > 1:
        raise InvalidOptions(
            f"pings_to_return={settings.pings_to_return} and probe='trial' contradict: a trial sends no pings;"
            " leave one of them out"
        )
    return settings


def _shown(value: Any) -> str:
    """Return the value as an error may show it: a long text may be a connection string, with its key."""
    if isinstance(value, str | bytes) and len(value) > _SHOWN_CHARS_MAX:
        return f"a text of {len(value)} characters"
    return repr(value)


def refuse_unknown(names: Collection[str], known: Collection[str] = ()) -> None:
    """Raise TypeError for the first name that is no option and none of `known`, with those that look like it."""
    all_known = [*_BY_NAME, *known]
    for name in names:
        if name not in all_known:
            raise TypeError(_no_option(name, all_known))


def _no_option(name: str, known: Collection[str]) -> str:
    near = difflib.get_close_matches(name, known, n=3)
    hint = f"did you mean {' or '.join(near)}?" if near else f"there are: {', '.join(sorted(known))}"
    return f"there is no option {name!r}; {hint}"


class PairedNamespaceOptions:
    """Options of every kind of pairing: the secondary namespace, and how long the primary may fail.

    Each option is an attribute too, which can be set until pairing begins.
    """

    failover_interval = _Options.failover_interval

    def __init__(
        self, secondary_namespace_manager: Any, messaging_factory: Any, failover_interval: Seconds = 60
    ) -> None:
        self._begin(secondary_namespace_manager, messaging_factory, {"failover_interval": failover_interval})

    def _begin(self, manager: Any, client: Any, given: dict[str, Any]) -> None:
        if not hasattr(client, "get_queue_sender"):
            swapped = " (is it the other argument?)" if hasattr(manager, "get_queue_sender") else ""
            raise InvalidOptions(
                f"messaging_factory may not be a {type(client).__name__}{swapped};"
                " allowed: the ServiceBusClient of the secondary namespace"
            )
        if manager is not None and not (hasattr(manager, "list_queues") and hasattr(manager, "create_queue")):
            raise InvalidOptions(
                f"secondary_namespace_manager may not be a {type(manager).__name__}; allowed: the"
                " ServiceBusAdministrationClient of the secondary namespace, or None where its backlog queues are ready"
            )
        self._manager = manager
        self._client = client
        self._given = given
        self._settings = settings_from(given)
        self._asked: Settings | None = None
        # Popped by the one pairing that may use these options; a list's pop is one step for threads, too.
        self._unclaimed = [True]

    @property
    def secondary_namespace_manager(self) -> Any:
        return self._manager

    @property
    def messaging_factory(self) -> Any:
        return self._client

    @property
    def settings(self) -> Settings:
        return self._settings

    if not TYPE_CHECKING:  # or a type checker would believe in every name

        def __setattr__(self, name: str, value: Any) -> None:
            if not name.startswith("_") and not hasattr(type(self), name):
                raise AttributeError(_no_option(name, [each for each in _BY_NAME if hasattr(type(self), each)]))
            super().__setattr__(name, value)

    def _set(self, name: str, value: Any) -> None:
        if self.claimed:
            raise AlreadyPaired(
                f"{name} can't be set any more: these options are in use by a pairing (P2); make new ones, with a"
                " secondary client of their own"
            )
        given = {**self._given, name: value}
        self._settings = settings_from(given)
        self._given = given

    def check_free(self) -> None:
        if self.claimed:
            raise _in_use()

    def claim(self) -> None:
        """Called by the client that is about to pair."""
        try:
            self._unclaimed.pop()
        except IndexError:
            raise _in_use() from None
        self._asked = self._settings

    def found(self, count: int) -> None:
        """Make the attribute the number of backlog queues that pairing found or made."""
        self._settings = replace(self._settings, backlog_queue_count=count)

    def release(self) -> None:
        """Called after a failed pairing: the options can be set and used again, and have their former values."""
        if self._asked is not None:
            self._settings, self._asked = self._asked, None
        self._unclaimed = [True]

    @property
    def claimed(self) -> bool:
        return not self._unclaimed

    def __repr__(self) -> str:
        changed = [
            f"{name}={value!r}"
            for name in _BY_NAME
            if (value := getattr(self._settings, name)) != getattr(_DEFAULTS, name)
        ]
        used = ", in use" if self.claimed else ""
        return f"<{type(self).__name__} {', '.join(changed) or 'defaults'}{used}>"


#: Of an argument that was not given: a profile may then set it.
_NOT_GIVEN: Final[Any] = object()


class SendAvailabilityPairedNamespaceOptions(_Options, PairedNamespaceOptions):
    """Options of a pairing in which sends go on through an outage, into backlog queues of the secondary namespace.

    What each option means: docs/reference/options.md. They can be set as attributes until pairing begins.
    """

    def __init__(
        self,
        secondary_namespace_manager: Any,
        messaging_factory: Any,
        backlog_queue_count: int = _NOT_GIVEN,
        failover_interval: Seconds = _NOT_GIVEN,
        enable_syphon: bool = _NOT_GIVEN,
        **options: Unpack[_ByName],
    ) -> None:
        refuse_unknown(options, ("secondary_namespace_manager", "messaging_factory"))
        first = zip(_ByPosition.__annotations__, (backlog_queue_count, failover_interval, enable_syphon), strict=True)
        given = {name: value for name, value in first if value is not _NOT_GIVEN}
        self._begin(secondary_namespace_manager, messaging_factory, {**given, **options})


def _signature() -> inspect.Signature:
    """Return the constructor's signature with every option, its type and its default, for `help` and editors."""
    of = inspect.Parameter
    fixed = list(inspect.signature(PairedNamespaceOptions.__init__).parameters.values())[:3]
    types = get_type_hints(PairingOptions)
    named = [
        of(
            option.name,
            of.POSITIONAL_OR_KEYWORD if option.name in _ByPosition.__annotations__ else of.KEYWORD_ONLY,
            default=option.default,
            annotation=types[option.name],
        )
        for option in OPTIONS
    ]
    return inspect.Signature([*fixed, *named, of("unknown", of.VAR_KEYWORD)])


SendAvailabilityPairedNamespaceOptions.__init__.__signature__ = _signature()  # type: ignore[attr-defined]


def _in_use() -> AlreadyPaired:
    return AlreadyPaired(
        "these options are in use by another pairing (P6); make new ones, with a secondary client of their own"
    )
