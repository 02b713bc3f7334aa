"""Reads the management API's XML requests and writes its answers (docs/reference/protocol.md#http-management-api).

One table pairs the service's elements with our fields; each description kind lists its own in the service's order. It
decides nothing about entities: model/description.py has the bounds of fields; the elements' names in errors come from
here.

Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final
from xml.etree.ElementTree import Element

from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import QueueDescription, SubscriptionDescription, TopicDescription
from pairbus.broker.model.rule_description import RuleDescription

from .rule_xml import (
    read_action,
    read_authorization_rules,
    read_filter,
    read_rule,
    write_action,
    write_authorization_rules,
    write_filter,
)
from .xml import (
    INSTANCE,
    NEVER,
    SHOWN_CHARS_MAX,
    BadDocument,
    escaped,
    local_name,
    parse,
    read_duration,
    read_flag,
    read_whole,
    write_duration,
    write_time,
)

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE = "application/xml; charset=utf-8"

NEWEST = "2024-05"


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCounts:
    """The counts of an entity at this moment."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    """Those of a forwarding entity that are still there."""
    transfer_dead_letter: int = 0
    size_bytes: int = 0
    accessed_at: float = 0.0
    subscriptions: int = 0
    sql_filters: int = 0
    correlation_filters: int = 0

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled + self.transfer + self.transfer_dead_letter


@dataclass(frozen=True, slots=True)
class FieldKind:
    """Reads and writes one kind of value. `read` raises ValueError; a `None` from `write` leaves it out."""

    allowed: str
    read: Callable[[str], Any]
    write: Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Field:
    """An element that mirrors a field of the description. What a request says of the others is not read.

    `since` is the api-version that brought it: older ones neither show it nor take it."""

    element: str
    name: str
    kind: FieldKind
    read_only: bool = False
    since: str = ""


@dataclass(frozen=True, slots=True)
class Nested:
    """A field whose element holds elements; `write` returns it whole, or nothing when it is only ever read."""

    element: str
    name: str
    read: Callable[[Element], Any]
    write: Callable[[Any], str] = lambda _: ""
    since: str = ""


@dataclass(frozen=True, slots=True)
class Computed:
    """An element that is only ever written: from the description and the counts, as ready XML."""

    element: str
    write: Callable[[Any, RuntimeCounts], str]
    since: str = ""


@dataclass(frozen=True, slots=True)
class DescriptionKind:
    """The elements of one kind of description, in the service's order."""

    tag: str
    feed_title: str
    describes: type
    columns: tuple[Field | Nested | Computed, ...]

    def element_of(self, name: str) -> str:
        """Return the service's name of a field's element."""
        return next((c.element for c in self.columns if not isinstance(c, Computed) and c.name == name), name)

    def unknown_to(self, version: str) -> frozenset[str]:
        """Return the fields that a client of that api-version can't know of."""
        return frozenset(c.name for c in self.columns if not isinstance(c, Computed) and c.since > version)


def _write_counts(_: Any, counts: RuntimeCounts) -> str:
    pairs = (
        ("Active", counts.active),
        ("DeadLetter", counts.dead_letter),
        ("Scheduled", counts.scheduled),
        ("Transfer", counts.transfer),
        ("TransferDeadLetter", counts.transfer_dead_letter),
    )
    inside = "".join(f"<d2p1:{name}MessageCount>{count}</d2p1:{name}MessageCount>" for name, count in pairs)
    return f'<CountDetails xmlns:d2p1="{COUNTS}">{inside}</CountDetails>'


def _plain(element: str, read: Callable[[Any, RuntimeCounts], object], since: str = "") -> Computed:
    return Computed(element, lambda d, c: f"<{element}>{escaped(str(read(d, c)))}</{element}>", since)


def _always(element: str, text: str) -> Computed:
    return Computed(element, lambda d, c: f"<{element}>{text}</{element}>")


FLAG = FieldKind("true or false", read_flag, lambda value: "true" if value else "false")
WHOLE = FieldKind("a whole number", read_whole, str)
DURATION = FieldKind("an ISO 8601 duration such as PT1M30S", read_duration, write_duration)
TEXT = FieldKind("text", str, lambda value: None if value is None else escaped(value))
TIME = FieldKind("a time", str, write_time)

_CREATED_AT = Field("CreatedAt", "created_at", TIME, read_only=True)
#: The elements of entities, whichever kinds have them; a topic alone decides about its order.
_ELEMENTS: Final[Mapping[str, Field | Nested | Computed]] = {
    column.element: column
    for column in (
        _plain("AccessedAt", lambda d, c: write_time(c.accessed_at)),
        Nested("AuthorizationRules", "authorization_rules", read_authorization_rules, write_authorization_rules),
        Field("AutoDeleteOnIdle", "auto_delete_on_idle", DURATION),
        _plain("CorrelationFilterCount", lambda d, c: c.correlation_filters, since="2024-05"),
        Computed("CountDetails", _write_counts),
        _CREATED_AT,
        Field("DeadLetteringOnFilterEvaluationExceptions", "dead_letter_on_filter_errors", FLAG),
        Field("DeadLetteringOnMessageExpiration", "dead_letter_on_expiration", FLAG),
        Field("DefaultMessageTimeToLive", "default_ttl", DURATION),
        Nested("DefaultRuleDescription", "default_rule", read_rule),
        Field("DuplicateDetectionHistoryTimeWindow", "duplicate_window", DURATION),
        Field("EnableBatchedOperations", "enable_batched_operations", FLAG),
        Field("EnableExpress", "enable_express", FLAG),
        Field("EnablePartitioning", "enable_partitioning", FLAG),
        _always("EnableSubscriptionPartitioning", "false"),
        _always("EntityAvailabilityStatus", "Available"),
        _always("FilteringMessagesBeforePublishing", "false"),
        Field("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_to", TEXT),
        Field("ForwardTo", "forward_to", TEXT),
        _always("IsAnonymousAccessible", "false"),
        Field("LockDuration", "lock_duration", DURATION),
        Field("MaxDeliveryCount", "max_delivery_count", WHOLE),
        Field("MaxMessageSizeInKilobytes", "max_message_size_kb", WHOLE, since="2021-05"),
        Field("MaxSizeInMegabytes", "max_size_mb", WHOLE),
        _plain("MessageCount", lambda d, c: c.total),
        Field("RequiresDuplicateDetection", "requires_duplicate_detection", FLAG),
        Field("RequiresSession", "requires_session", FLAG),
        _plain("SizeInBytes", lambda d, c: c.size_bytes),
        _plain("SqlFilterCount", lambda d, c: c.sql_filters, since="2024-05"),
        Field("Status", "status", TEXT),
        _plain("SubscriptionCount", lambda d, c: c.subscriptions),
        _always("SupportOrdering", "true"),
        Field("UpdatedAt", "updated_at", TIME, read_only=True),
        Field("UserMetadata", "user_metadata", TEXT),
    )
}


def _columns(elements: str, **own: Field) -> tuple[Field | Nested | Computed, ...]:
    return tuple(own.get(element) or _ELEMENTS[element] for element in elements.split())


QUEUE = DescriptionKind(
    "QueueDescription",
    "Queues",
    QueueDescription,
    _columns(
        "LockDuration MaxSizeInMegabytes RequiresDuplicateDetection RequiresSession DefaultMessageTimeToLive"
        " DeadLetteringOnMessageExpiration DuplicateDetectionHistoryTimeWindow MaxDeliveryCount EnableBatchedOperations"
        " SizeInBytes MessageCount IsAnonymousAccessible AuthorizationRules Status CreatedAt UpdatedAt AccessedAt"
        " SupportOrdering CountDetails AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus EnableExpress"
        " ForwardTo UserMetadata ForwardDeadLetteredMessagesTo MaxMessageSizeInKilobytes"
    ),
)

TOPIC = DescriptionKind(
    "TopicDescription",
    "Topics",
    TopicDescription,
    _columns(
        "DefaultMessageTimeToLive MaxSizeInMegabytes RequiresDuplicateDetection DuplicateDetectionHistoryTimeWindow"
        " EnableBatchedOperations SizeInBytes FilteringMessagesBeforePublishing IsAnonymousAccessible"
        " AuthorizationRules Status CreatedAt UpdatedAt AccessedAt SupportOrdering CountDetails SubscriptionCount"
        " SqlFilterCount CorrelationFilterCount AutoDeleteOnIdle EnablePartitioning EntityAvailabilityStatus"
        " EnableSubscriptionPartitioning EnableExpress UserMetadata MaxMessageSizeInKilobytes",
        SupportOrdering=Field("SupportOrdering", "support_ordering", FLAG),
    ),
)

SUBSCRIPTION = DescriptionKind(
    "SubscriptionDescription",
    "Subscriptions",
    SubscriptionDescription,
    _columns(
        "LockDuration RequiresSession DefaultMessageTimeToLive DeadLetteringOnMessageExpiration"
        " DeadLetteringOnFilterEvaluationExceptions MessageCount MaxDeliveryCount EnableBatchedOperations Status"
        " ForwardTo CreatedAt UpdatedAt AccessedAt CountDetails ForwardDeadLetteredMessagesTo AutoDeleteOnIdle"
        " EntityAvailabilityStatus UserMetadata DefaultRuleDescription"
    ),
)

RULE = DescriptionKind(
    "RuleDescription",
    "Rules",
    RuleDescription,
    (
        Nested("Filter", "filter", read_filter, write_filter),
        Nested("Action", "action", read_action, write_action),
        _CREATED_AT,
        Field("Name", "name", TEXT, read_only=True),
    ),
)


def read_entry(
    body: bytes, kinds: Collection[DescriptionKind] = (QUEUE, TOPIC), version: str = NEWEST
) -> tuple[DescriptionKind, dict[str, Any]]:
    """Return the kind of description in a request's entry, and the fields that it gives. No body stands for all
    defaults of the first of `kinds`. Raise BadDocument, or InvalidDescription with the service's name of the
    element."""
    if not body.strip():
        return next(iter(kinds)), {}
    root = parse(body)
    if root.tag != f"{{{ATOM}}}entry":
        raise BadDocument(f"the document is {local_name(root)}; it must be an Atom entry (namespace {ATOM})")
    content = root.find(f"{{{ATOM}}}content")
    inside = list(content) if content is not None else []
    wanted = " or ".join(kind.tag for kind in kinds)
    if len(inside) != 1:
        raise BadDocument(f"the entry's content must hold one description: {wanted}")
    found = next((k for k in kinds if inside[0].tag == f"{{{SERVICE_BUS}}}{k.tag}"), None)
    if found is None:
        raise BadDocument(f"the entry holds {local_name(inside[0])}; here it must be {wanted} in {SERVICE_BUS}")
    return found, _read_fields(inside[0], found, version)


def _read_fields(description: Element, kind: DescriptionKind, version: str) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    known: Mapping[str, Field | Nested] = {
        c.element: c for c in kind.columns if isinstance(c, Nested) or (isinstance(c, Field) and not c.read_only)
    }
    for child in description:
        namespace, _, name = child.tag.rpartition("}")
        column = known.get(name)
        if namespace != "{" + SERVICE_BUS or column is None:
            continue
        text = (child.text or "").strip()
        if isinstance(column, Field) and not text:
            continue
        if column.name in fields:
            raise BadDocument(f"{name} stands twice in {kind.tag}")
        if column.since > version:
            raise InvalidDescription(name, text[:SHOWN_CHARS_MAX], f"nothing; it came with api-version {column.since}")
        if isinstance(column, Nested):
            fields[column.name] = column.read(child)
            continue
        try:
            fields[column.name] = column.kind.read(text)
        except ValueError:
            raise InvalidDescription(name, text[:SHOWN_CHARS_MAX], column.kind.allowed) from None
    return fields


def write_description(kind: DescriptionKind, description: object, counts: RuntimeCounts, version: str = NEWEST) -> str:
    parts = [f'<{kind.tag} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">']
    for column in kind.columns:
        if column.since > version:
            continue
        if isinstance(column, Computed):
            parts.append(column.write(description, counts))
        elif isinstance(column, Nested):
            parts.append(column.write(getattr(description, column.name)))
        else:
            text = column.kind.write(getattr(description, column.name))
            if text is not None:
                parts.append(f"<{column.element}>{text}</{column.element}>")
    parts.append(f"</{kind.tag}>")
    return "".join(parts)


def write_entry(content: str, *, title: str, url: str, author: str, published: float, updated: float) -> str:
    """Return an Atom entry; `content` is ready XML. The list results of Python's SDK take the entity's name from the
    title, those of the JS one from the id."""
    return (
        f'<entry xmlns="{ATOM}"><id>{escaped(url)}</id><title type="text">{escaped(title)}</title>'
        f"<published>{write_time(published)}</published><updated>{write_time(updated)}</updated>"
        f'<author><name>{escaped(author)}</name></author><link rel="self" href="{escaped(url)}"/>'
        f'<content type="application/xml">{content}</content></entry>'
    )


def write_feed(entries: Iterable[str], *, title: str, url: str, updated: float, next_url: str | None) -> str:
    """Return an Atom feed. Python's SDK asks for the next page only when there are two links and the second is it."""
    following = f'<link rel="next" href="{escaped(next_url)}"/>' if next_url is not None else ""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escaped(title)}</title><id>{escaped(url)}</id>'
        f'<updated>{write_time(updated)}</updated><link rel="self" href="{escaped(url)}"/>{following}'
        f"{''.join(entries)}</feed>"
    )


def write_namespace_info(name: str, sku: str) -> str:
    """Return the description of a namespace; when it was created is not known."""
    return (
        f'<NamespaceInfo xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"><CreatedTime>{NEVER}</CreatedTime>'
        f"<MessagingSKU>{sku}</MessagingSKU><ModifiedTime>{NEVER}</ModifiedTime>"
        f"<Name>{escaped(name)}</Name><NamespaceType>Messaging</NamespaceType></NamespaceInfo>"
    )


def write_error(code: int, text: str, *, tracking_id: str, tracker: str, now: float) -> str:
    stamp = write_time(now)[:19]
    detail = f"{text} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{stamp}"
    return f"<Error><Code>{code}</Code><Detail>{escaped(detail)}</Detail></Error>"
