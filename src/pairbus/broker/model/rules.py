"""Matches messages with the rules of a subscription, indexed so that a message is compared with all of them at once.

Pure. A message matches a subscription when at least one rule does (docs/reference/protocol.md#topics-and-rules);
without rules nothing matches. A correlation filter matches if every value that it names is equal. Filters that name the
same properties are one set of values, so a subscription with two thousand of them costs a message one look-up, and one
that matches everything costs none: no part of the message is decoded before a filter needs it. SQL filters are asked
one after the other. A rule with an action makes its own copy, and all other matching rules make one together.

Correlation filters compare AMQP values of one kind, whatever their width: numbers with numbers, text with text (string
or symbol), times, durations, uuids and binaries among themselves. A boolean is no number. NaN, lists, maps and null
equal nothing. A message-id or correlation-id that is a uuid or a number is compared as its text, which is how the
service shows it. Names of properties are compared exactly.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Hashable, Iterable
from math import inf
from typing import Any, Final, Generic, NamedTuple, TypeVar
from uuid import UUID

from pairbus.amqp.codec import decode
from pairbus.amqp.message import Properties, Sections, read_application_properties, read_properties, split
from pairbus.amqp.types import (
    Byte,
    Char,
    Decimal32,
    Decimal64,
    Decimal128,
    Described,
    Float,
    Int,
    Short,
    Symbol,
    Timestamp,
    UByte,
    UInt,
    ULong,
    UShort,
)
from pairbus.broker.format.content import SCHEDULED_TIME, Content
from pairbus.broker.format.rewriting import rewritten
from pairbus.broker.sql.actions import Draft
from pairbus.broker.sql.compiler import Predicate
from pairbus.broker.sql.kinds import TIMESPAN, EvaluationError

from .rule_description import (
    SYSTEM_FIELDS,
    CorrelationFilter,
    FalseFilter,
    Filter,
    RuleDescription,
    SqlFilter,
    TrueFilter,
    UnzonedTimestamp,
    timespan,
    timespan_seconds,
)

#: Of a subscription.
RULES_MAX: Final = 2000
#: Of a topic.
SQL_FILTERS_MAX: Final = 2000
CORRELATION_FILTERS_MAX: Final = 100_000
#: The property that tells which rule has made a copy.
RULE_NAME: Final = "RuleName"

# SQL's name of a system property → the field of the message's properties, or the annotation, that holds it.
_FIELDS: Final = {
    "MessageId": "message_id",
    "CorrelationId": "correlation_id",
    "SessionId": "group_id",
    "ReplyToSessionId": "reply_to_group_id",
    "Label": "subject",
    "ContentType": "content_type",
    "To": "to",
    "ReplyTo": "reply_to",
}
_ANNOTATIONS: Final = {
    "PartitionKey": "x-opt-partition-key",
    "ViaPartitionKey": "x-opt-via-partition-key",
    "ScheduledEnqueueTimeUtc": SCHEDULED_TIME,
}
# .NET's longest duration, and its last millisecond.
_DURATION_S_MAX: Final = 922_337_203_685.0
_DURATION_MAX: Final = Described(TIMESPAN, (1 << 63) - 1)
_TIME_MS_MAX: Final = 253_402_300_799_999

# Names of what is compared: `sys.` and AMQP's word for a system property, `user.` and the name of any other.
_AMQP_NAMES: Final = {"label": "subject", "session_id": "group_id", "reply_to_session_id": "reply_to_group_id"}
_SYSTEM: Final = "sys."
_USER: Final = "user."

# The highest cost of judging a rule, in units of a copy.
_RULE_WEIGHT: Final = 10

Signature = tuple[str, ...]


def _as_is(value: Any) -> Hashable:
    return value  # type: ignore[no-any-return]


def _float(value: float) -> Hashable:
    return value if value == value else None


def _of_its_kind(value: Any) -> Hashable:
    # Python's bool is an int, our Timestamp too, and a Char is a str.
    return type(value), value


def _time(value: int) -> Hashable:
    return Timestamp, value


def _described(value: Described) -> Hashable:
    inner = None if isinstance(value.value, Described) else comparable(value.value)
    descriptor = value.descriptor
    return None if inner is None or not isinstance(descriptor, str | int) else (Described, descriptor, inner)


_COMPARABLE: Final[dict[type, Callable[[Any], Hashable]]] = {
    **dict.fromkeys((str, Symbol, bytes, UUID), _as_is),
    **dict.fromkeys((int, UByte, UShort, UInt, ULong, Byte, Short, Int), _as_is),
    **dict.fromkeys((float, Float), _float),
    **dict.fromkeys((bool, Char, Decimal32, Decimal64, Decimal128), _of_its_kind),
    **dict.fromkeys((Timestamp, UnzonedTimestamp), _time),
    Described: _described,
}


def comparable(value: Any) -> Hashable:
    """Return a key that is equal for equal values, None for what equals nothing."""
    compare = _COMPARABLE.get(type(value))
    return None if compare is None else compare(value)


class Facts:
    """The values of one message that filters need, decoded when the first of them asks; shared by all subscriptions.

    `payload` is a whole message, or stored content whose annotation pairs stand in front of it. `lifetime` is how long
    it lives from `enqueued_at` on.
    """

    __slots__ = (
        "_application",
        "_by_name",
        "_enqueued_at",
        "_known",
        "_lifetime",
        "_new_token",
        "_pairs",
        "_payload",
        "_properties",
        "_sections",
    )

    def __init__(
        self,
        payload: bytes,
        pairs: tuple[int, int] = (0, 0),
        enqueued_at: float = 0.0,
        lifetime: float = inf,
        new_token: Callable[[], bytes] | None = None,
    ) -> None:
        self._payload = payload
        #: How many annotation pairs stand in front, and their bytes.
        self._pairs = pairs
        self._enqueued_at = enqueued_at
        self._lifetime = lifetime
        self._new_token = new_token
        self._sections: Sections | None = None
        self._properties: Properties | None = None
        self._application: dict[str, Any] | None = None
        self._by_name: dict[str, Any] | None = None
        self._known: dict[Signature, tuple[Hashable, ...] | None] = {}

    # ---- for correlation filters

    def values(self, signature: Signature) -> tuple[Hashable, ...] | None:
        """Return the values that the message has under these names; None when one is missing or equals nothing."""
        try:
            return self._known[signature]
        except KeyError:
            values = tuple(self._value(name) for name in signature)
            known = self._known[signature] = None if None in values else values
            return known

    def _value(self, name: str) -> Hashable:
        if name.startswith(_USER):
            return comparable(self.properties.get(name[len(_USER) :]))
        return self._field(name[len(_SYSTEM) :])

    def _field(self, name: str) -> str | None:
        if self._properties is None:
            self._properties = read_properties(*self._split())
        value = getattr(self._properties, name)
        return str(value) if isinstance(value, str | int | UUID) else None

    def _split(self) -> tuple[bytes, Sections]:
        start = self._pairs[1]
        bare = self._payload[start:] if start else self._payload
        if self._sections is None:
            self._sections = split(bare)
        return bare, self._sections

    @property
    def properties(self) -> dict[str, Any]:
        """The application properties."""
        if self._application is None:
            self._application = read_application_properties(*self._split())
        return self._application

    # ---- for SQL filters: a Scope

    def user(self, name: str) -> Any:
        by_name = self._by_name
        if by_name is None:
            # Of names that differ in their capitals only, the first.
            pairs = reversed(self.properties.items())
            by_name = self._by_name = {str(key).lower(): value for key, value in pairs}
        return by_name.get(name)

    def has_user(self, name: str) -> bool:
        return self.user(name) is not None or (self._by_name is not None and name in self._by_name)

    def system(self, name: str) -> Any:
        field = _FIELDS.get(name)
        if field is not None:
            return self._field(field)
        annotation = _ANNOTATIONS.get(name)
        if annotation is not None:
            return self._annotation(annotation)
        match name:
            case "TimeToLive":
                return timespan(self._lifetime) if self._lifetime < _DURATION_S_MAX else _DURATION_MAX
            case "EnqueuedTimeUtc":
                return Timestamp(self._enqueued_at * 1000)
            case "ExpiresAtUtc":
                return Timestamp(min((self._enqueued_at + self._lifetime) * 1000, _TIME_MS_MAX))
            case "DeliveryCount":
                return Int(0)
            case "Size":
                return len(self._payload)
        return None  # a SequenceNumber, which each copy gets when it is stored

    def _annotation(self, name: str) -> Any:
        at = 0
        for _ in range(self._pairs[0]):
            key, at = decode(self._payload, at)
            value, at = decode(self._payload, at)
            if key == name:
                return value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return None

    def new_id(self) -> UUID:
        assert self._new_token is not None
        return UUID(bytes=self._new_token(), version=4)


class Verdict(NamedTuple):
    """The result of a subscription's rules for a message: whether it gets the message unchanged, the message as changed
    by each action, and why a rule could not be evaluated."""

    is_match: bool
    drafts: list[Draft]
    error: str | None


class RuleSet:
    """The rules of a subscription, laid out for matching."""

    __slots__ = ("_acting", "_sql", "always", "counts", "is_plain", "wanted", "weight")

    def __init__(self, rules: Iterable[RuleDescription]) -> None:
        #: Every message matches, whatever it holds.
        self.always = False
        #: How many filters are SQL, and how many correlation.
        self.counts = [0, 0]
        wanted: dict[Signature, set[tuple[Hashable, ...]]] = {}
        acting: dict[Signature, dict[tuple[Hashable, ...], list[RuleDescription]]] = {}
        sql: list[tuple[Predicate, RuleDescription]] = []
        for rule in rules:
            filter = rule.filter
            self.counts[0] += isinstance(filter, SqlFilter)
            self.counts[1] += isinstance(filter, CorrelationFilter)
            if isinstance(filter, SqlFilter) and not isinstance(filter.predicate, bool):
                sql.append((filter.predicate, rule))
                continue
            laid_out = _layout(filter)
            if laid_out is None:
                continue
            signature, values = laid_out
            if rule.action is not None:
                acting.setdefault(signature, {}).setdefault(values, []).append(rule)
            elif signature:
                wanted.setdefault(signature, set()).add(values)
            else:
                self.always = True
        #: Names of properties, and the values that one of the filters without an action wants of them.
        self.wanted = () if self.always else tuple(wanted.items())
        self._acting = tuple(acting.items())
        self._sql = tuple(sql)
        #: `matches` is enough: there are only correlation filters.
        self.is_plain = not acting and not sql
        #: The cost of a message, in units of a copy.
        self.weight = 1 + _RULE_WEIGHT * (
            len(sql) + sum(len(each) for found in acting.values() for each in found.values())
        )

    def matches(self, facts: Facts) -> bool:
        """Return whether at least one rule matches that is neither SQL nor has an action."""
        if self.always:
            return True
        for signature, wanted in self.wanted:  # noqa: SIM110 - half the time of any()
            if facts.values(signature) in wanted:
                return True
        return False

    def judge(self, facts: Facts) -> Generator[None, None, Verdict]:
        """Return what all rules make of a message; yields between two rules. That a filter without an action can't be
        evaluated is no error where another one matches: the message gets there."""
        is_match = self.matches(facts)
        acting = [
            rule
            for signature, wanted in self._acting
            if (values := facts.values(signature)) is not None
            for rule in wanted.get(values, ())
        ]
        unclear: str | None = None
        failed: str | None = None
        for predicate, rule in self._sql:
            if is_match and rule.action is None:
                continue
            yield
            try:
                if not predicate(facts):
                    continue
            except EvaluationError as error:
                text = f"The filter of rule '{rule.name}' can't be evaluated: {error}."
                if rule.action is None:
                    unclear = unclear or text
                else:
                    failed = failed or text
                continue
            if rule.action is None:
                is_match = True
            else:
                acting.append(rule)
        drafts = []
        for rule in acting:
            yield
            draft = _changed(rule, facts)
            if isinstance(draft, str):
                failed = failed or draft
            else:
                drafts.append(draft)
        return Verdict(is_match, drafts, failed or (None if is_match else unclear))

    def __repr__(self) -> str:
        if self.always:
            return "<RuleSet: everything>"
        names = [" ".join(signature) + f" in {len(wanted)}" for signature, wanted in self.wanted]
        names += [f"{len(self._sql)} in SQL"] if self._sql else []
        return f"<RuleSet: {', '.join(names) or 'nothing'}>"


K = TypeVar("K", bound=Hashable)


class RuleIndex(Generic[K]):
    """The rules of all subscriptions of a topic: who wants which values, so that a message costs one look-up for each
    combination of properties that filters name, however many filters and subscriptions there are."""

    __slots__ = ("_always", "_known", "_own", "_snapshot", "_wanted", "special", "weight")

    def __init__(self) -> None:
        self._known: dict[K, RuleSet] = {}
        self._always: dict[K, None] = {}
        self._wanted: dict[Signature, dict[tuple[Hashable, ...], dict[K, None]]] = {}
        #: Those who are to be asked: some of their rules are SQL or have an action.
        self.special: dict[K, RuleSet] = {}
        #: The highest cost of a message, in units of a copy.
        self.weight = 0
        # What was given out, and the tables that it doesn't share.
        self._snapshot: RuleIndex[K] | None = None
        self._own: set[Signature] = set()

    def __repr__(self) -> str:
        return f"<RuleIndex: {len(self._known)} subscriptions, {len(self._wanted)} combinations of properties>"

    @property
    def keys(self) -> Iterable[K]:
        """Whose rules these are."""
        return self._known

    def snapshot(self) -> RuleIndex[K]:
        """Return the rules as they are now, which stay so whatever changes here."""
        if self._snapshot is None:
            taken = self._snapshot = RuleIndex()
            taken._always, taken._wanted, taken.special = self._always, self._wanted, self.special
            taken._known, taken.weight = self._known, self.weight
            self._own.clear()
        return self._snapshot

    def _part(self) -> None:
        """Let what was given out keep the tables as they are, and go on with copies."""
        if self._snapshot is not None:
            self._snapshot = None
            self._always, self._wanted, self.special = dict(self._always), dict(self._wanted), dict(self.special)
            self._known = dict(self._known)

    def _table(self, signature: Signature) -> dict[tuple[Hashable, ...], dict[K, None]]:
        """Return the table of these names, to be changed: a copy where a snapshot may have it. Its entries are
        replaced, never changed."""
        if signature not in self._own:
            self._wanted[signature] = dict(self._wanted.get(signature, ()))
            self._own.add(signature)
        return self._wanted[signature]

    def put(self, key: K, rules: RuleSet) -> None:
        """Replace the rules of a subscription."""
        self.drop(key)
        self._known[key] = rules
        self.weight += rules.weight
        if not rules.is_plain:
            self.special[key] = rules
        elif rules.always:
            self._always[key] = None
        else:
            for signature, wanted in rules.wanted:
                table = self._table(signature)
                for values in wanted:
                    table[values] = {**table.get(values, {}), key: None}

    def drop(self, key: K) -> None:
        """Forget the rules of a subscription."""
        self._part()
        rules = self._known.pop(key, None)
        if rules is None:
            return
        self.weight -= rules.weight
        self.special.pop(key, None)
        self._always.pop(key, None)
        for signature, wanted in rules.wanted if rules.is_plain else ():
            table = self._table(signature)
            for values in wanted:
                table[values] = {each: None for each in table[values] if each != key}
                if not table[values]:
                    del table[values]
            if not table:
                del self._wanted[signature]
                self._own.discard(signature)

    def matching(self, facts: Facts) -> Iterable[K]:
        """Return which subscriptions get a message, except the special ones."""
        if not self._wanted:
            return self._always
        found = dict(self._always)
        for signature, table in self._wanted.items():
            values = facts.values(signature)
            if values in table:
                found.update(table[values])
        return found


def _changed(rule: RuleDescription, facts: Facts) -> Draft | str:
    """Return the message as the action of a rule changes it, or why it can't."""
    assert rule.action is not None
    draft = Draft(facts, facts.properties)
    try:
        rule.action.action.apply(draft)
        draft.set_user(RULE_NAME, rule.name)
        draft.finish()
    except EvaluationError as error:
        return f"The action of rule '{rule.name}' can't be carried out: {error}."
    return draft


def changed_content(
    content: Content, draft: Draft, default_lifetime: float, now: float
) -> tuple[Content, float | None]:
    """Return the content of a message as an action has changed it, and how long it lives, None: as long as before."""
    system = draft.system_set
    lifetime = None
    if "TimeToLive" in system:
        given = system["TimeToLive"]
        lifetime = default_lifetime if given is None else min(timespan_seconds(given), default_lifetime)
    changed = rewritten(
        content,
        *draft.changes(),
        {field: system[name] for name, field in _FIELDS.items() if name in system},
        {annotation: system[name] for name, annotation in _ANNOTATIONS.items() if name in system},
        lifetime,
        now,
    )
    return changed, lifetime


def _layout(filter: Filter) -> tuple[Signature, tuple[Hashable, ...]] | None:
    """Return names and values that a message must have; None: no message does."""
    match filter:
        case TrueFilter():
            return (), ()
        case FalseFilter():
            return None
        case SqlFilter():
            return ((), ()) if filter.predicate else None
        case CorrelationFilter():
            return _layout_correlation(filter)


def _layout_correlation(filter: CorrelationFilter) -> tuple[Signature, tuple[Hashable, ...]] | None:
    wanted: dict[str, Hashable] = {}
    for field in SYSTEM_FIELDS:
        value = getattr(filter, field)
        if value is not None:
            wanted[_SYSTEM + _AMQP_NAMES.get(field, field)] = str(value)
    for name in sorted(filter.properties):
        wanted[_USER + name] = comparable(filter.properties[name])
    values = tuple(wanted.values())
    return None if None in values else (tuple(wanted), values)
