"""The options of a pairing: their names, defaults and bounds, and `Settings`, their checked values.

`OPTIONS` is the one table: the constructor checks by it and docs/reference/options.md is printed from it. The sync and
the async client take the same class. This module decides what each option may hold, and that one options object serves
one pairing.

Pure.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, fields, replace
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Generic, Literal, Never, Self, TypedDict, TypeVar, cast, overload

from pairbus.pairing.errors import AlreadyPaired, InvalidOptions
from pairbus.pairing.routing.patience import Brownout
from pairbus.pairing.routing.verdicts import DEFAULT, Classifier

Seconds = float | timedelta
#: Where the control file is, or what returns its text, or the mapping that it would hold.
ControlFile = Path | Callable[[], "str | bytes | Mapping[str, str]"]
Profile = Literal["as-described", "interactive"]
QUEUES_MAX: Final = 1000
_SHOWN_CHARS_MAX: Final = 40
# The queue's name, `{primary}/x-servicebus-transfer/{i}`, has room for 260 characters.
PRIMARY_NAME_CHARS_MAX: Final = 230


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The checked values of the options, every time as a float of seconds."""

    backlog_queue_count: int = 10
    failover_interval: float = 60.0
    enable_syphon: bool = False
    ping_primary_interval: float = 60.0
    send_timeout: float = 60.0
    backlog_retry_interval: float = 30.0
    primary_name: str | None = None
    on_secondary_unavailable: Literal["raise", "degrade"] = "raise"
    while_suspect: Literal["raise", "divert"] = "raise"
    when_unreachable: Literal["divert", "raise"] = "divert"
    while_throttled: Literal["wait", "divert"] = "wait"
    probe: Literal["ping", "trial"] = "ping"
    pings_to_return: int = 1
    classifier: Classifier = DEFAULT
    busy_failover_after: float | None = None
    assign_message_id: bool = True
    check_aliases: bool = True
    check_size: bool = True
    count_backlog_time: bool = False
    mark_diverted: bool = False
    syphon_engine: Literal["spark", "in-process"] = "spark"
    syphon_spark: Any = None
    syphon_master: str | None = None
    syphon_checkpoint: str | None = None
    fault_partner: bool = True
    ledger: Path | None = None
    return_ramp: float = 0.0
    control_file: ControlFile | None = None
    profile: Profile = "as-described"
    primary_patience: float | Literal["half", "adaptive"] = "half"
    warm_backlog: bool = True
    brownout: Brownout | None = None


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


@dataclass(frozen=True, slots=True)
class Option:
    """An option. `checked` turns a value into what `Settings` holds, or raises ValueError for what is not `allowed`."""

    name: str
    allowed: str
    checked: Callable[[Any], Any]
    meaning: str
    requirement: str

    @property
    def default(self) -> Any:
        return _DEFAULTS[self.name]


_DEFAULTS: Final = {field.name: field.default for field in fields(Settings)}


def _seconds(low: float, high: float) -> Callable[[Any], float]:
    def checked(value: Any) -> float:
        if isinstance(value, timedelta):
            value = value.total_seconds()
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError
        if not low <= value <= high:  # so NaN is refused, too
            raise ValueError
        return float(value)

    return checked


def _or_none(check: Callable[[Any], Any]) -> Callable[[Any], Any]:
    return lambda value: None if value is None else check(value)


def _whole(low: int, high: int) -> Callable[[Any], int]:
    def checked(value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise ValueError
        return int(value)

    return checked


def _flag(value: Any) -> bool:
    if not isinstance(value, bool):
        raise ValueError
    return value


def _one_of(*choices: str) -> Callable[[Any], str]:
    def checked(value: Any) -> str:
        if not isinstance(value, str) or value not in choices:
            raise ValueError
        return value

    return checked


def _function(value: Any) -> Classifier:
    # A class is callable too, but calling it makes an object, not a verdict.
    if not callable(value) or isinstance(value, type):
        raise ValueError
    return value  # type: ignore[no-any-return]


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
    return _function(value) if callable(value) else _folder(value)  # type: ignore[return-value]


_TIME = "seconds or timedelta, "


def _text(value: Any) -> str:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError
    return str(value)


def _session_or_none(value: Any) -> Any:
    if value is not None and not hasattr(value, "sparkContext"):
        raise ValueError
    return value


def _patience(value: Any) -> float | str:
    return value if value in ("half", "adaptive") else _seconds(0.05, 3600)(value)


def _brownout(value: Any) -> Brownout:
    if not isinstance(value, tuple | list) or len(value) != 3:
        raise ValueError
    share, sends, slower_than = value
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 <= share < 1:
        raise ValueError
    return Brownout(float(share), _whole(5, 1000)(sends), _seconds(0.001, 3600)(slower_than))


OPTIONS: Final[tuple[Option, ...]] = (
    Option("backlog_queue_count", f"a whole number, 1 to {QUEUES_MAX}", _whole(1, QUEUES_MAX),
           "How many backlog queues to find or make. After pairing the options' attribute of that name is how many"
           " there are.", "P2, P5"),
    Option("failover_interval", _TIME + "0 to 3600 (60 minutes)", _seconds(0, 3600),
           "How long an entity may fail, with no send that succeeds, before it fails over. 0: at the first failure,"
           " and the message that failed goes to the backlog.", "P2, P16, P17"),
    Option("enable_syphon", "True or False", _flag,
           "Run the syphon in this process: for receiving applications. At least one process must.", "P2, P38"),
    Option("ping_primary_interval", _TIME + "1 to 1800 (30 minutes)", _seconds(1, 1800),
           "The time between pings; the first one of a failover comes after a random part of it.", "P2, P31"),
    Option("send_timeout", _TIME + "0.1 to 3600 (60 minutes)", _seconds(0.1, 3600),
           "The time that a send may take where the caller gives no `timeout`. The primary gets at most half of it.",
           "P2, P19"),
    Option("backlog_retry_interval", _TIME + "0.1 to 3600 (60 minutes)", _seconds(0.1, 3600),
           "How long a backlog queue that failed stays out of the rotation before one message tries it again.", "P13"),
    Option("primary_name",
           f"letters, digits, and . - _ between them, up to {PRIMARY_NAME_CHARS_MAX} characters, or None",
           _or_none(primary_label),
           "The first part of the backlog queues' names. None: the first label of the primary's host; must be given"
           " where that is an IP address or localhost.", "P8"),
    Option("on_secondary_unavailable", '"raise" or "degrade"', _one_of("raise", "degrade"),
           "What pairing does when the secondary can't be set up: raise, or start unprotected, go on trying and tell.",
           "P3"),
    Option("while_suspect", '"raise" or "divert"', _one_of("raise", "divert"),
           "What happens to a message that fails before the entity has failed over: the caller sees the failure, or"
           " the message goes to the backlog.", "P17"),
    Option("when_unreachable", '"divert" or "raise"', _one_of("divert", "raise"),
           "What happens to messages while the primary answers pings with a refusal (entity deleted, disabled, access"
           " lost).", "P34"),
    Option("while_throttled", '"wait" or "divert"', _one_of("wait", "divert"),
           "What happens to messages in the ten seconds after the primary said that it is busy: they wait, where their"
           " time allows, or go to the backlog. The entity does not fail over by that, and the primary is tried again"
           " afterwards.", "P24"),
    Option("probe", '"ping" or "trial"', _one_of("ping", "trial"),
           "How to find out that the primary works again: with a ping, or with one real message that has the backlog"
           " behind it.", "P31"),
    Option("pings_to_return", "a whole number, 1 to 100", _whole(1, 100),
           "How many pings in a row must succeed before messages go to the primary again.", "P35"),
    Option("classifier", "a function from an exception to a Verdict, or DEFAULT or AS_DESCRIBED", _function,
           "Which failures count towards a failover: see [verdicts](verdicts.md).", "P18"),
    Option("busy_failover_after", _TIME + "0 to 3600 (60 minutes), or None", _or_none(_seconds(0, 3600)),
           "Server busy for longer than this counts as a failure. None: never.", "P24"),
    Option("assign_message_id", "True or False", _flag,
           "Give every message without an id one before the first try, so that duplicate detection can remove"
           " further copies of a message whose outcome was unknown.", "P20"),
    Option("check_aliases", "True or False", _flag,
           "Refuse a message that carries an alias of ours (`x-ms-path` …) already, before it is sent anywhere. False:"
           " it goes to the primary as it is, and loses its own aliases on the detour.", "P29"),
    Option("check_size", "True or False", _flag,
           "Warn, at the healthy send already, of a message that would be too large for the backlog.", "P30"),
    Option("count_backlog_time", "True or False", _flag,
           "The syphon of this process takes the time spent in the backlog off a message's time to live. False: it"
           " starts anew on delivery to the primary.", "P28"),
    Option("mark_diverted", "True or False", _flag,
           "Diverted messages carry `x-pairbus-diverted-at`, which their receivers see.", "P28"),
    Option("syphon_engine", '"spark" or "in-process"', _one_of("spark", "in-process"),
           "What the syphon of this process runs on.", "P38"),
    Option("syphon_spark", "a SparkSession, or None", _session_or_none,
           "The application's Spark session, for the syphon's query: it is neither changed nor stopped. None: the one"
           " that the process has, else one of our own.", "P44"),
    Option("syphon_master", "the URL of a Spark master, or None", _or_none(_text),
           "Where a session of our own runs. None: on this machine.", "P38"),
    Option("syphon_checkpoint", "a folder or URL, or None", _or_none(_text),
           "Where the syphon's query keeps its progress. None: a folder that goes with it; nothing is lost with that.",
           "P38"),
    Option("fault_partner", "True or False", _flag,
           "When one client of the pair closes or faults, the other one is faulted within five seconds. False: the"
           " syphon stops, tells, and tries again.", "P43"),
    Option("ledger", "a folder, or None", _or_none(_folder),
           "Write what happens to a [ledger](ledger.md) in this folder.", "P51"),
    Option("return_ramp", _TIME + "0 to 3600 (60 minutes)", _seconds(0, 3600),
           "For fleets: the return to the primary is spread over this time. Each client draws its own moment for each"
           " entity, and goes on sending to the backlog until then. 0: at once.", "P21"),
    Option("control_file", "a file, or a function without arguments that returns its text or a mapping, or None",
           _or_none(_control_file),
           "Follow this file, by which an operator [pins entities](../how-to/switch-a-fleet.md) of many clients to"
           " \"failed-over\" or \"healthy\". It is looked at every 5 seconds.", "P23"),
    Option("profile", '"as-described" or "interactive"', _one_of(*PROFILES),
           "A row of options for a purpose: see [the profiles](#profiles). An option that is given itself overrides its"
           " profile.", "P2"),
    Option("primary_patience", '"half", "adaptive", or ' + _TIME + "0.05 to 3600 (60 minutes)", _patience,
           "How long the primary may be silent before a message goes to the backlog, where that is what comes next:"
           " half of the caller's time, so many seconds, or a multiple of what the entity's sends took lately (never"
           " under 0.25 s; half until 20 answers are known). With \"adaptive\" a link that must be opened is waited for"
           " four times as long as this client's openings took lately, 3 s before it knows.", "P19"),
    Option("warm_backlog", "True or False", _flag,
           "Keep one link to a backlog queue open from pairing on, so that the first diverted message need not open"
           " one.", "P19"),
    Option("brownout",
           "(share, sends, time): a share from 0 to below 1, a whole number from 5 to 1000, " + _TIME + "0.001 to 3600"
           " (60 minutes); or None", _or_none(_brownout),
           "An entity counts as failing when more than this share of its last so many sends took longer than this"
           " time, although they succeeded. It returns after pings that were faster. None: only failures count.",
           "P24"),
)  # fmt: skip

_BY_NAME: Final = {option.name: option for option in OPTIONS}


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


ReadT = TypeVar("ReadT")
GivenT = TypeVar("GivenT")


class _Attribute(Generic[ReadT, GivenT]):
    """An option as an attribute: read as `Settings` holds it, given as the constructor takes it."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, options: None, owner: type) -> Self: ...
    @overload
    def __get__(self, options: PairedNamespaceOptions, owner: type) -> ReadT: ...
    def __get__(self, options: PairedNamespaceOptions | None, owner: type) -> ReadT | Self:
        return self if options is None else getattr(options.settings, self._name)

    def __set__(self, options: PairedNamespaceOptions, value: GivenT) -> None:
        options._set(self._name, value)


class PairingOptions(TypedDict, total=False):
    """The options as keywords of `ServiceBusClient.paired`, for type checkers and editors."""

    backlog_queue_count: int
    failover_interval: Seconds
    enable_syphon: bool
    ping_primary_interval: Seconds
    send_timeout: Seconds
    backlog_retry_interval: Seconds
    primary_name: str | None
    on_secondary_unavailable: Literal["raise", "degrade"]
    while_suspect: Literal["raise", "divert"]
    when_unreachable: Literal["divert", "raise"]
    while_throttled: Literal["wait", "divert"]
    probe: Literal["ping", "trial"]
    pings_to_return: int
    classifier: Classifier
    busy_failover_after: Seconds | None
    assign_message_id: bool
    check_aliases: bool
    check_size: bool
    count_backlog_time: bool
    mark_diverted: bool
    syphon_engine: Literal["spark", "in-process"]
    syphon_spark: Any
    syphon_master: str | None
    syphon_checkpoint: str | Path | None
    fault_partner: bool
    ledger: str | Path | None
    return_ramp: Seconds
    control_file: str | ControlFile | None
    profile: Profile
    primary_patience: Seconds | Literal["half", "adaptive"]
    warm_backlog: bool
    brownout: tuple[float, int, Seconds] | None


class _ByProfile:
    """A default that a profile may replace, told from the same value given by the caller; shown as that value."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __repr__(self) -> str:
        return repr(self.value)

    def __eq__(self, other: object) -> bool:
        return bool(self.value == other)

    def __hash__(self) -> int:
        return hash(self.value)


_INTERVAL: Final = cast(Seconds, _ByProfile(60))
_PATIENCE: Final = cast(Literal["half"], _ByProfile("half"))
_SEND_TIMEOUT: Final = cast(Seconds, _ByProfile(60))
_WHILE_THROTTLED: Final = cast(Literal["wait"], _ByProfile("wait"))
_WHILE_SUSPECT: Final = cast(Literal["raise"], _ByProfile("raise"))


class PairedNamespaceOptions:
    """Options of every kind of pairing: the secondary namespace, and how long the primary may fail.

    Each option is an attribute too, which can be set until pairing begins.
    """

    failover_interval = _Attribute[float, Seconds]()

    def __init__(
        self, secondary_namespace_manager: Any, messaging_factory: Any, failover_interval: Seconds = 60
    ) -> None:
        self._take_secondary(secondary_namespace_manager, messaging_factory)
        self._given: dict[str, Any] = {"failover_interval": failover_interval}
        self._settings = settings_from(self._given)

    def _take_secondary(self, manager: Any, client: Any) -> None:
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
        """By the client that is about to pair."""
        try:
            self._unclaimed.pop()
        except IndexError:
            raise _in_use() from None
        self._asked = self._settings

    def found(self, count: int) -> None:
        """From now on the attribute is the number of backlog queues that pairing found or made."""
        self._settings = replace(self._settings, backlog_queue_count=count)

    def release(self) -> None:
        """After a pairing that failed: they can be set and used again, and are as they were."""
        if self._asked is not None:
            self._settings, self._asked = self._asked, None
        self._unclaimed = [True]

    @property
    def claimed(self) -> bool:
        return not self._unclaimed

    def __repr__(self) -> str:
        changed = [f"{name}={value!r}" for name, value in _values(self._settings).items() if value != _DEFAULTS[name]]
        used = ", in use" if self.claimed else ""
        return f"<{type(self).__name__} {', '.join(changed) or 'defaults'}{used}>"


class SendAvailabilityPairedNamespaceOptions(PairedNamespaceOptions):
    """Sends go on through an outage of the primary, into backlog queues in the secondary namespace.

    What each option means: docs/reference/options.md. They can be set as attributes until pairing begins.
    """

    backlog_queue_count = _Attribute[int, int]()
    """How many queues were asked for; after pairing, how many were found or made."""
    enable_syphon = _Attribute[bool, bool]()
    ping_primary_interval = _Attribute[float, Seconds]()
    send_timeout = _Attribute[float, Seconds]()
    backlog_retry_interval = _Attribute[float, Seconds]()
    primary_name = _Attribute[str | None, str | None]()
    on_secondary_unavailable = _Attribute[str, Literal["raise", "degrade"]]()
    while_suspect = _Attribute[str, Literal["raise", "divert"]]()
    when_unreachable = _Attribute[str, Literal["divert", "raise"]]()
    while_throttled = _Attribute[str, Literal["wait", "divert"]]()
    probe = _Attribute[str, Literal["ping", "trial"]]()
    pings_to_return = _Attribute[int, int]()
    classifier = _Attribute[Classifier, Classifier]()
    busy_failover_after = _Attribute[float | None, Seconds | None]()
    assign_message_id = _Attribute[bool, bool]()
    check_aliases = _Attribute[bool, bool]()
    check_size = _Attribute[bool, bool]()
    count_backlog_time = _Attribute[bool, bool]()
    mark_diverted = _Attribute[bool, bool]()
    syphon_engine = _Attribute[str, Literal["spark", "in-process"]]()
    syphon_spark = _Attribute[Any, Any]()
    syphon_master = _Attribute[str | None, str | None]()
    syphon_checkpoint = _Attribute[str | None, str | Path | None]()
    fault_partner = _Attribute[bool, bool]()
    ledger = _Attribute[Path | None, str | Path | None]()
    return_ramp = _Attribute[float, Seconds]()
    control_file = _Attribute[ControlFile | None, str | ControlFile | None]()
    profile = _Attribute[str, Profile]()
    primary_patience = _Attribute[float | str, Seconds | Literal["half", "adaptive"]]()
    warm_backlog = _Attribute[bool, bool]()
    brownout = _Attribute[Brownout | None, tuple[float, int, Seconds] | None]()

    def __init__(
        self,
        secondary_namespace_manager: Any,
        messaging_factory: Any,
        backlog_queue_count: int = 10,
        failover_interval: Seconds = _INTERVAL,
        enable_syphon: bool = False,
        *,
        ping_primary_interval: Seconds = 60,
        send_timeout: Seconds = _SEND_TIMEOUT,
        backlog_retry_interval: Seconds = 30,
        primary_name: str | None = None,
        on_secondary_unavailable: Literal["raise", "degrade"] = "raise",
        while_suspect: Literal["raise", "divert"] = _WHILE_SUSPECT,
        when_unreachable: Literal["divert", "raise"] = "divert",
        while_throttled: Literal["wait", "divert"] = _WHILE_THROTTLED,
        probe: Literal["ping", "trial"] = "ping",
        pings_to_return: int = 1,
        classifier: Classifier = DEFAULT,
        busy_failover_after: Seconds | None = None,
        assign_message_id: bool = True,
        check_aliases: bool = True,
        check_size: bool = True,
        count_backlog_time: bool = False,
        mark_diverted: bool = False,
        syphon_engine: Literal["spark", "in-process"] = "spark",
        syphon_spark: Any = None,
        syphon_master: str | None = None,
        syphon_checkpoint: str | Path | None = None,
        fault_partner: bool = True,
        ledger: str | Path | None = None,
        return_ramp: Seconds = 0,
        control_file: str | ControlFile | None = None,
        profile: Profile = "as-described",
        primary_patience: Seconds | Literal["half", "adaptive"] = _PATIENCE,
        warm_backlog: bool = True,
        brownout: tuple[float, int, Seconds] | None = None,
        **unknown: Never,
    ) -> None:
        given = dict(locals())  # the arguments by name, and nothing else yet
        refuse_unknown(unknown, ("secondary_namespace_manager", "messaging_factory"))
        self._take_secondary(secondary_namespace_manager, messaging_factory)
        named = {option.name: given[option.name] for option in OPTIONS}
        self._given = {name: value for name, value in named.items() if not isinstance(value, _ByProfile)}
        self._settings = settings_from(self._given)


def _in_use() -> AlreadyPaired:
    return AlreadyPaired(
        "these options are in use by another pairing (P6); make new ones, with a secondary client of their own"
    )


def _values(settings: Settings) -> dict[str, Any]:
    return {name: getattr(settings, name) for name in _DEFAULTS}
