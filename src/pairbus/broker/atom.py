"""The management API's documents (dialect 7): what is read from a request's XML, what is written in an answer.

One table per description kind pairs the service's elements with our fields, in the service's order. Decides nothing
about entities: a field's bounds are description.py's, its element name in an error is looked up here.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from pairbus.broker.description import AuthorizationRule, InvalidDescription, QueueDescription
from pairbus.errors import PairbusError

ATOM = "http://www.w3.org/2005/Atom"
SERVICE_BUS = "http://schemas.microsoft.com/netservices/2010/10/servicebus/connect"
COUNTS = "http://schemas.microsoft.com/netservices/2011/06/servicebus"
INSTANCE = "http://www.w3.org/2001/XMLSchema-instance"

ENTRY_TYPE = "application/atom+xml;type=entry;charset=utf-8"
FEED_TYPE = "application/atom+xml;type=feed;charset=utf-8"
ERROR_TYPE = "application/xml; charset=utf-8"

INFINITE = "P10675199DT2H48M5.4775807S"
NEVER = "0001-01-01T00:00:00Z"
_INFINITE_DAYS = 10675199

_ELEMENTS_MAX = 2000
_DEPTH_MAX = 16
_SHOWN_CHARS_MAX = 80


class BadDocument(PairbusError, ValueError):
    """The XML can't be read as what it should be."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RuntimeCounts:
    """What changes while an entity lives, as it stands now."""

    active: int = 0
    dead_letter: int = 0
    scheduled: int = 0
    transfer: int = 0
    transfer_dead_letter: int = 0
    size_bytes: int = 0
    accessed_at: float = 0.0

    @property
    def total(self) -> int:
        return self.active + self.dead_letter + self.scheduled


@dataclass(frozen=True, slots=True)
class Kind:
    """How one form of value is read and written. `read` raises ValueError; a `None` from `write` leaves it out."""

    allowed: str
    read: Callable[[str], Any]
    write: Callable[[Any], str | None]


@dataclass(frozen=True, slots=True)
class Field:
    """An element that mirrors a field of the description. What a request says of the others is not read."""

    element: str
    name: str
    kind: Kind
    read_only: bool = False


@dataclass(frozen=True, slots=True)
class Computed:
    """An element that is only ever written: from the description and the counts, as ready XML."""

    element: str
    write: Callable[[Any, RuntimeCounts], str]


@dataclass(frozen=True, slots=True)
class DescriptionKind:
    tag: str
    feed_title: str
    columns: tuple[Field | Computed, ...]

    def element_of(self, name: str) -> str:
        return next((c.element for c in self.columns if isinstance(c, Field) and c.name == name), name)


_DURATION = re.compile(
    r"(?P<sign>-?)P(?:(?P<years>\d{1,9})Y)?(?:(?P<months>\d{1,9})M)?(?:(?P<days>\d{1,9})D)?"
    r"(?P<time>T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d{1,9})?)S)?)?",
    re.ASCII,
)


def read_duration(text: str) -> float:
    match = _DURATION.fullmatch(text)
    if match is None or text.endswith(("P", "T")):
        raise ValueError
    part = {name: float(value) for name, value in match.groupdict().items() if value and name not in ("sign", "time")}
    # A year is 365 days and a month 30, as .NET reads them.
    days = part.get("years", 0.0) * 365 + part.get("months", 0.0) * 30 + part.get("days", 0.0)
    seconds = part.get("hours", 0.0) * 3600 + part.get("minutes", 0.0) * 60 + part.get("seconds", 0.0)
    if match["sign"]:
        return -(days * 86400 + seconds)
    # The SDKs give the service's "infinite" back with its fraction rounded, each in its own way.
    return math.inf if days >= _INFINITE_DAYS else days * 86400 + seconds


def write_duration(seconds: float) -> str:
    if seconds == math.inf or seconds >= _INFINITE_DAYS * 86400:
        return INFINITE
    ticks = round(seconds * 10_000_000)
    whole, fraction = divmod(ticks, 10_000_000)
    days, rest = divmod(whole, 86400)
    hours, rest = divmod(rest, 3600)
    minutes, rest = divmod(rest, 60)
    clock = (f"{hours}H" if hours else "") + (f"{minutes}M" if minutes else "")
    if rest or fraction:
        clock += f"{rest}.{fraction:07d}".rstrip("0").rstrip(".") + "S"
    text = (f"{days}D" if days else "") + (f"T{clock}" if clock else "")
    return "P" + (text or "T0S")


def write_time(unix: float) -> str:
    if unix <= 0:
        return NEVER
    return datetime.fromtimestamp(round(unix, 3), UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _read_flag(text: str) -> bool:
    value = {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if value is None:
        raise ValueError
    return value


def _read_whole(text: str) -> int:
    if not re.fullmatch(r"-?[0-9]{1,18}", text, re.ASCII):
        raise ValueError
    return int(text)


def _write_rules(rules: Iterable[AuthorizationRule]) -> str:
    return "".join(
        f'<AuthorizationRule i:type="SharedAccessAuthorizationRule">'
        f"<ClaimType>SharedAccessKey</ClaimType><ClaimValue>None</ClaimValue>"
        f"<Rights>{''.join(f'<AccessRights>{escaped(right)}</AccessRights>' for right in rule.rights)}</Rights>"
        f"<CreatedTime>{write_time(rule.created_at)}</CreatedTime>"
        f"<ModifiedTime>{write_time(rule.modified_at)}</ModifiedTime><KeyName>{escaped(rule.key_name)}</KeyName>"
        f"<PrimaryKey>{escaped(rule.primary_key)}</PrimaryKey>"
        f"<SecondaryKey>{escaped(rule.secondary_key)}</SecondaryKey></AuthorizationRule>"
        for rule in rules
    )


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


def _plain(element: str, read: Callable[[Any, RuntimeCounts], object]) -> Computed:
    return Computed(element, lambda d, c: f"<{element}>{escaped(str(read(d, c)))}</{element}>")


FLAG = Kind("true or false", _read_flag, lambda value: "true" if value else "false")
WHOLE = Kind("a whole number", _read_whole, str)
DURATION = Kind("an ISO 8601 duration such as PT1M30S", read_duration, write_duration)
TEXT = Kind("text", str, lambda value: None if value is None else escaped(value))
TIME = Kind("a time", str, write_time)

QUEUE = DescriptionKind(
    "QueueDescription",
    "Queues",
    (
        Field("LockDuration", "lock_duration", DURATION),
        Field("MaxSizeInMegabytes", "max_size_mb", WHOLE),
        Field("RequiresDuplicateDetection", "requires_duplicate_detection", FLAG),
        Field("RequiresSession", "requires_session", FLAG),
        Field("DefaultMessageTimeToLive", "default_ttl", DURATION),
        Field("DeadLetteringOnMessageExpiration", "dead_letter_on_expiration", FLAG),
        Field("DuplicateDetectionHistoryTimeWindow", "duplicate_window", DURATION),
        Field("MaxDeliveryCount", "max_delivery_count", WHOLE),
        Field("EnableBatchedOperations", "enable_batched_operations", FLAG),
        _plain("SizeInBytes", lambda d, c: c.size_bytes),
        _plain("MessageCount", lambda d, c: c.total),
        _plain("IsAnonymousAccessible", lambda d, c: "false"),
        Computed(
            "AuthorizationRules",
            lambda d, c: f"<AuthorizationRules>{_write_rules(d.authorization_rules)}</AuthorizationRules>",
        ),
        Field("Status", "status", TEXT),
        Field("CreatedAt", "created_at", TIME, read_only=True),
        Field("UpdatedAt", "updated_at", TIME, read_only=True),
        _plain("AccessedAt", lambda d, c: write_time(c.accessed_at)),
        _plain("SupportOrdering", lambda d, c: "true"),
        Computed("CountDetails", _write_counts),
        Field("AutoDeleteOnIdle", "auto_delete_on_idle", DURATION),
        Field("EnablePartitioning", "enable_partitioning", FLAG),
        _plain("EntityAvailabilityStatus", lambda d, c: "Available"),
        Field("EnableExpress", "enable_express", FLAG),
        Field("ForwardTo", "forward_to", TEXT),
        Field("UserMetadata", "user_metadata", TEXT),
        Field("ForwardDeadLetteredMessagesTo", "forward_dead_lettered_to", TEXT),
        Field("MaxMessageSizeInKilobytes", "max_message_size_kb", WHOLE),
    ),
)

KINDS: Mapping[str, DescriptionKind] = {kind.tag: kind for kind in (QUEUE,)}


def read_entry(body: bytes) -> tuple[DescriptionKind, dict[str, Any]]:
    """The kind of description in a request's entry, and those of our fields that it gives. No body: a queue, all
    defaults. Raises `BadDocument`, or `InvalidDescription` with the service's name of the element."""
    if not body.strip():
        return QUEUE, {}
    root = _parse(body)
    if root.tag != f"{{{ATOM}}}entry":
        raise BadDocument(f"the document is {_tag(root)}; it must be an Atom entry (namespace {ATOM})")
    content = root.find(f"{{{ATOM}}}content")
    inside = list(content) if content is not None else []
    if len(inside) != 1:
        raise BadDocument(f"the entry's content must hold one description: {', '.join(KINDS)}")
    kind = next((k for k in KINDS.values() if inside[0].tag == f"{{{SERVICE_BUS}}}{k.tag}"), None)
    if kind is None:
        raise BadDocument(f"the entry holds {_tag(inside[0])}; supported: {', '.join(KINDS)} in {SERVICE_BUS}")
    return kind, _read_fields(inside[0], kind)


def _read_fields(description: Element, kind: DescriptionKind) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    known = {c.element: c for c in kind.columns if isinstance(c, Field) and not c.read_only}
    for child in description:
        namespace, _, name = child.tag.rpartition("}")
        if namespace != "{" + SERVICE_BUS:
            continue
        if name == "AuthorizationRules" and len(child):
            raise InvalidDescription(name, f"{len(child)} rules", "none; rules of an entity are not supported yet")
        text = (child.text or "").strip()
        column = known.get(name)
        if column is None or not text:
            continue
        if column.name in fields:
            raise BadDocument(f"{name} stands twice in {kind.tag}")
        try:
            fields[column.name] = column.kind.read(text)
        except ValueError:
            raise InvalidDescription(name, text[:_SHOWN_CHARS_MAX], column.kind.allowed) from None
    return fields


def _parse(body: bytes) -> Element:
    """Expat by hand: ElementTree's parser can't be told to refuse a DOCTYPE, and with it every entity bomb."""
    builder = TreeBuilder()
    parser = expat.ParserCreate(namespace_separator="}")
    parser.buffer_text = True
    depth = elements = 0

    def start(tag: str, attributes: dict[str, str]) -> None:
        nonlocal depth, elements
        depth += 1
        elements += 1
        if depth > _DEPTH_MAX or elements > _ELEMENTS_MAX:
            raise BadDocument(f"the XML is larger than {_ELEMENTS_MAX} elements or deeper than {_DEPTH_MAX}")
        builder.start("{" + tag if "}" in tag else tag, {})

    def end(tag: str) -> None:
        nonlocal depth
        depth -= 1
        builder.end("{" + tag if "}" in tag else tag)

    def doctype(*_: object) -> None:
        raise BadDocument("the XML has a DOCTYPE; send it without: neither it nor entities are read")

    parser.StartElementHandler = start
    parser.EndElementHandler = end
    parser.CharacterDataHandler = builder.data
    parser.StartDoctypeDeclHandler = doctype
    parser.EntityDeclHandler = doctype
    try:
        parser.Parse(body, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        if isinstance(error, BadDocument):
            raise
        raise BadDocument(f"the body is not well-formed XML: {error}") from None
    return builder.close()


def _tag(element: Element) -> str:
    return element.tag.rpartition("}")[2][:_SHOWN_CHARS_MAX]


_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def escaped(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace('"', "&quot;")
    return _NOT_XML.sub("�", text).replace("\r", "&#13;")


def write_description(kind: DescriptionKind, description: QueueDescription, counts: RuntimeCounts) -> str:
    parts = [f'<{kind.tag} xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}">']
    for column in kind.columns:
        if isinstance(column, Computed):
            parts.append(column.write(description, counts))
        else:
            text = column.kind.write(getattr(description, column.name))
            if text is not None:
                parts.append(f"<{column.element}>{text}</{column.element}>")
    parts.append(f"</{kind.tag}>")
    return "".join(parts)


def write_entry(content: str, *, title: str, url: str, author: str, published: float, updated: float) -> str:
    """`content` is ready XML. The list results of the SDKs take the entity's name from the title."""
    return (
        f'<entry xmlns="{ATOM}"><id>{escaped(url)}</id><title type="text">{escaped(title)}</title>'
        f"<published>{write_time(published)}</published><updated>{write_time(updated)}</updated>"
        f'<author><name>{escaped(author)}</name></author><link rel="self" href="{escaped(url)}"/>'
        f'<content type="application/xml">{content}</content></entry>'
    )


def write_feed(entries: Iterable[str], *, title: str, url: str, updated: float, next_url: str | None) -> str:
    """Python's SDK goes on to the next page only when there are two links and the second is it."""
    following = f'<link rel="next" href="{escaped(next_url)}"/>' if next_url is not None else ""
    return (
        f'<feed xmlns="{ATOM}"><title type="text">{escaped(title)}</title><id>{escaped(url)}</id>'
        f'<updated>{write_time(updated)}</updated><link rel="self" href="{escaped(url)}"/>{following}'
        f"{''.join(entries)}</feed>"
    )


def write_namespace_info(name: str, *, created_at: float, modified_at: float) -> str:
    return (
        f'<NamespaceInfo xmlns="{SERVICE_BUS}" xmlns:i="{INSTANCE}"><CreatedTime>{write_time(created_at)}</CreatedTime>'
        f"<MessagingSKU>Standard</MessagingSKU><ModifiedTime>{write_time(modified_at)}</ModifiedTime>"
        f"<Name>{escaped(name)}</Name><NamespaceType>Messaging</NamespaceType></NamespaceInfo>"
    )


def write_error(code: int, text: str, *, tracking_id: str, tracker: str, now: float) -> str:
    stamp = write_time(now)[:19]
    detail = f"{text} TrackingId:{tracking_id}, SystemTracker:{tracker}, Timestamp:{stamp}"
    return f"<Error><Code>{code}</Code><Detail>{escaped(detail)}</Detail></Error>"
