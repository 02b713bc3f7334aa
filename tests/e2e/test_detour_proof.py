"""What took the detour is what was sent (P26, P27): every body kind, every AMQP type, byte for byte.

Each message is sent twice: once to a healthy primary, once through the backlog and the syphon. Both are received from
the primary as raw bytes and compared; they may differ in what the broker says of every message, and in creation and
expiry time.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from typing import Any

from azure.servicebus import ServiceBusMessage
from azure.servicebus.amqp import AmqpAnnotatedMessage, AmqpMessageHeader, AmqpMessageProperties

from pairbus.amqp import message as encoding
from pairbus.amqp import types as amqp
from pairbus.broker.format.content import OWNED
from tests.message_view import View

from .scenarios import in_both_apis
from .world import World


def typed(kind: str, value: Any) -> dict[str, Any]:
    """A value of exactly that AMQP type, in the SDK's words."""
    return {"TYPE": kind, "VALUE": value}


ID = uuid.UUID("7d7a2e5c-9a0d-4c7e-8d5b-5a2f0e1c3b4d")
NOW = datetime(2031, 5, 17, 12, 30, 1, 250_000, tzinfo=UTC)
SCALARS: dict[str, Any] = {
    "null": None,
    "true": True,
    "false": False,
    "ubyte": typed("UBYTE", 200),
    "ushort": typed("USHORT", 60_000),
    "uint": typed("UINT", 4_000_000_000),
    "small uint": typed("UINT", 7),
    "uint 0": typed("UINT", 0),
    "ulong": typed("ULONG", 2**63 + 1),
    "small ulong": typed("ULONG", 9),
    "byte": typed("BYTE", -100),
    "short": typed("SHORT", -30_000),
    "int": typed("INT", -2_000_000_000),
    "small int": typed("INT", -3),
    "long": typed("LONG", -(2**62)),
    "small long": typed("LONG", 4),
    "float": typed("FLOAT", 1.5),
    "double": typed("DOUBLE", 0.1),
    "decimal128": typed("DECIMAL128", Decimal("123.456")),
    "timestamp": typed("TIMESTAMP", 1_900_000_000_123),
    "datetime": NOW,
    "uuid": ID,
    "string": "grüße, 世界",
    "long string": "x" * 300,
    "empty string": "",
    "symbol": typed("SYMBOL", b"a-symbol"),
}
BINARIES: dict[str, Any] = {"binary": typed("BINARY", b"\x00\xff"), "long binary": typed("BINARY", bytes(300))}
COMPOUNDS: dict[str, Any] = {
    "list": [typed("UBYTE", 1), "two", [3.0, None]],
    "map": {"a": typed("LONG", 1), "b": {"c": typed("SYMBOL", b"d")}},
    "array": typed("ARRAY", [typed("INT", 1), typed("INT", 2)]),
}


def annotated(**parts: Any) -> Callable[[str], AmqpAnnotatedMessage]:
    def make(message_id: str) -> AmqpAnnotatedMessage:
        properties = AmqpMessageProperties(**{"message_id": message_id, **parts.get("properties", {})})
        header = AmqpMessageHeader(**parts["header"]) if "header" in parts else None
        rest = {name: value for name, value in parts.items() if name not in ("properties", "header")}
        return AmqpAnnotatedMessage(
            properties=properties, header=header, **{"data_body": b"data", **rest} if not _has_body(rest) else rest
        )

    return make


def _has_body(parts: dict[str, Any]) -> bool:
    return any(name.endswith("_body") for name in parts)


def plain(body: Any = "text", **properties: Any) -> Callable[[str], ServiceBusMessage]:
    return lambda message_id: ServiceBusMessage(body, message_id=message_id, **properties)


CASES: dict[str, Callable[[str], Any]] = {
    "text": plain(),
    "bytes": plain(bytes(range(256)) * 3),
    "no body": plain(None),
    "empty body": plain(b""),
    "everything that the SDK names": plain(
        b"x",
        session_id="session",
        time_to_live=timedelta(minutes=5),
        content_type="application/json",
        correlation_id="correlation",
        subject="subject",
        partition_key="session",
        to="to",
        reply_to="reply-to",
        reply_to_session_id="reply-to-session",
        scheduled_enqueue_time_utc=NOW,
        application_properties={"int": 1, "text": "text", "bool": True, "float": 0.5, "uuid": ID},
    ),
    "session": plain(session_id="a session"),
    "time to live": plain(time_to_live=timedelta(milliseconds=86_400_123)),
    "the longest time to live that the SDK encodes": plain(time_to_live=timedelta(milliseconds=2**32 - 1)),
    "scheduled": plain(scheduled_enqueue_time_utc=NOW),
    "several data sections": annotated(data_body=[b"one", b"", b"three"]),
    "large data": annotated(data_body=bytes(100_000)),
    "sequence": annotated(sequence_body=[list(SCALARS.values()) + list(BINARIES.values()), [COMPOUNDS["list"]]]),
    "value: list": annotated(value_body=[*SCALARS.values(), *COMPOUNDS.values()]),
    # alone the SDK takes only Python's own types; a typed one would be a map with the keys TYPE and VALUE
    **{
        f"value: {name}": annotated(value_body=value)
        for name, value in (SCALARS | COMPOUNDS | {"binary": b"\x00\xff"}).items()
        if not isinstance(value, dict) or name == "map"
    },
    "application properties": annotated(application_properties=SCALARS),
    "annotations": annotated(
        annotations={f"x-{name}": value for name, value in (SCALARS | BINARIES | COMPOUNDS).items()}
    ),
    "header": annotated(header={"durable": True, "priority": 7, "first_acquirer": True, "delivery_count": 0}),
    "header with time to live": annotated(header={"time_to_live": 600_000, "priority": 1}),
    "properties": annotated(
        properties={
            "user_id": b"user",
            "to": "to",
            "subject": "subject",
            "reply_to": "reply-to",
            "correlation_id": ID,
            "content_type": "a/b",
            "content_encoding": "gzip",
            "group_sequence": 17,
            "reply_to_group_id": "group",
        }
    ),
    "group id": annotated(properties={"group_id": "group", "group_sequence": 3}),
    "delivery annotations": annotated(delivery_annotations={"x-one": 1}),
    "footer": annotated(footer={"x-sum": typed("ULONG", 12)}),
}


def facts(message: Any) -> dict[str, Any]:
    """What an application can see of its message, but for the body."""
    raw = message if isinstance(message, AmqpAnnotatedMessage) else message.raw_amqp_message
    parts = {name: getattr(raw, name) for name in ("header", "properties")}
    told = {name: dict(part) if part is not None else None for name, part in parts.items()}
    for name in ("application_properties", "annotations", "delivery_annotations"):
        told[name] = dict(getattr(raw, name) or {})
    return told


def essence(payload: bytes) -> dict[str, Any]:
    """What of a received message must not change: raw bytes wherever there are any."""
    s = encoding.split(payload)
    header = encoding.read_header(payload, s)
    if header.ttl is not None:
        # creation and expiry time go with the time to live, and are new at each send
        properties = encoding.read_properties(payload, s)
        if properties.absolute_expiry_time and properties.creation_time:
            lives = properties.absolute_expiry_time - properties.creation_time
            assert lives % 2**32 == header.ttl or lives == header.ttl or header.ttl == 2**32 - 1
        payload = encoding.with_properties(payload, s, creation_time=None, absolute_expiry_time=None)
        s = encoding.split(payload)

    def raw(span: tuple[int, int] | None) -> bytes | None:
        return None if span is None else payload[span[0] : span[1]]

    return {
        # first-acquirer and delivery-count are each broker's own to say
        "header": (header.durable, header.priority, header.ttl, header.first_acquirer),
        "annotations": {str(key): pair for key, pair in encoding.annotation_pairs(payload, s) if str(key) not in OWNED},
        "properties": raw(s.properties),
        "application properties": raw(s.application_properties),
        "body": raw(s.body),
        "footer": raw(s.footer),
        "delivery annotations": {
            key: value
            for key, value in encoding.read_delivery_annotations(payload, s).items()
            if key != "x-opt-lock-token"  # the broker's own
        },
    }


async def take(world: World, queue: str, count: int) -> dict[str, bytes]:
    """What lies in the primary, scheduled messages too, by id; taken away where it can be."""
    found = {each.message_id: each.payload for each in await world.at_home(queue)}
    assert len(found) == count
    async with world.wire(world.primary) as client:
        receiver = await client.receiver(queue)
        while got := await receiver.receive(100, 0.3):
            for message in got:
                found[str(encoding.read_properties(message.payload, message.sections).message_id)] = message.payload
            await receiver.complete(got)
        await receiver.close()
    return found


@in_both_apis()
async def test_p26_p27_what_took_the_detour_is_byte_for_byte_what_was_sent(world: World) -> None:
    direct, detour = await world.queue(), await world.queue()
    makers = {f"m{number}": make for number, make in enumerate(CASES.values())}
    async with world.pair(backlog_queue_count=1, send_timeout=10) as pair:
        sender = await pair.sender(direct)
        diverted = await pair.sender(detour)
        await pair.client.force_failover(detour, hold=True)
        for message_id, make in makers.items():
            await sender.send_messages(make(message_id))
            made = make(message_id)
            before = facts(made)
            await diverted.send_messages(made)
            assert facts(made) == before, "the caller's object is his"
        assert len(await world.in_backlog()) == len(makers)
        for found in await world.in_backlog():
            header = View(found.payload).header
            properties = found.properties
            assert (header.ttl, properties.group_id) == (None, None)
            assert (properties.creation_time, properties.absolute_expiry_time) == (None, None)
            assert "x-opt-scheduled-enqueue-time" not in found.annotations
            assert found.path == detour
    await world.syphon()
    went, came = await take(world, direct, len(makers)), await take(world, detour, len(makers))
    assert went.keys() == came.keys()
    names = dict(zip(makers, CASES, strict=True))
    differing = {
        names[message_id]: (part, value, essence(came[message_id])[part])
        for message_id in went
        for part, value in essence(went[message_id]).items()
        if essence(came[message_id])[part] != value
    }
    assert differing == {}


@in_both_apis()
async def test_p9_p27_lists_and_batches_take_the_detour_whole(world: World) -> None:
    direct, detour = await world.queue(), await world.queue()
    mapping = {"body": b"as a mapping", "message_id": "mapping"}
    async with world.pair(backlog_queue_count=1) as pair:
        made = await world.manage("get_queue", world.backlog_path(0), at=world.secondary)
        assert (made.max_size_in_megabytes, made.max_delivery_count) == (5120, 2**31 - 1)
        assert made.lock_duration == timedelta(minutes=1)
        assert made.dead_lettering_on_message_expiration and not made.requires_session
        assert min(made.default_message_time_to_live, made.auto_delete_on_idle) > timedelta(days=10_000_000)
        await pair.client.force_failover(detour, hold=True)
        for queue in (direct, detour):
            sender = await pair.sender(queue)
            await sender.send_messages([CASES[name](name) for name in ("text", "session", "several data sections")])
            await sender.send_messages(dict(mapping))
            batch = await sender.create_message_batch()
            for name in ("sequence", "application properties", "time to live", "everything that the SDK names"):
                batch.add_message(CASES[name](name))
            await sender.send_messages(batch)
    await world.syphon()
    went, came = await take(world, direct, 8), await take(world, detour, 8)
    assert {key: essence(value) for key, value in went.items()} == {key: essence(value) for key, value in came.items()}


WIRE_VALUES: dict[str, Any] = {
    "null": None,
    "boolean": True,
    "ubyte": amqp.UByte(1),
    "ushort": amqp.UShort(2),
    "uint": amqp.UInt(3),
    "ulong": amqp.ULong(4),
    "byte": amqp.Byte(-1),
    "short": amqp.Short(-2),
    "int": amqp.Int(-3),
    "long": -(2**40),
    "float": amqp.Float(0.5),
    "double": 0.25,
    "decimal32": amqp.Decimal32(b"\x01\x02\x03\x04"),
    "decimal64": amqp.Decimal64(bytes(8)),
    "decimal128": amqp.Decimal128(bytes(16)),
    "char": amqp.Char("ß"),
    "timestamp": amqp.Timestamp(1_800_000_000_001),
    "uuid": ID,
    "binary": b"\x00",
    "string": "s",
    "symbol": amqp.Symbol("y"),
}
WIRE_COMPOUNDS: dict[str, Any] = {
    "list": [1, [2]],
    "map": {amqp.Symbol("k"): amqp.UInt(1), 5: "five"},
    "array": amqp.Array([amqp.UInt(1), amqp.UInt(2)]),
    "described": amqp.Described(amqp.Symbol("com.example:thing"), [1, 2]),
}


@in_both_apis()
async def test_p27_types_that_only_other_clients_send_come_home_as_they_were(world: World) -> None:
    """Put into the backlog by another paired client, in another language, with types that this SDK doesn't have."""
    queue, reference = await world.queue(), await world.queue()
    everything = WIRE_VALUES | WIRE_COMPOUNDS
    bodies: list[Any] = [("value", each) for each in everything.values()]
    bodies += [("sequence", [list(everything.values()), []]), ("data", [b"one", b"two"]), b"plain"]
    payloads = [
        encoding.encode_message(
            properties=encoding.Properties(message_id=f"w{number}", correlation_id=amqp.ULong(7), group_sequence=4),
            application_properties=WIRE_VALUES,
            message_annotations={amqp.Symbol(f"x-{name}"): value for name, value in everything.items()},
            body=body,
        )
        for number, body in enumerate(bodies)
    ]
    await world.manage("create_queue", world.backlog_path(0), at=world.secondary)
    aliases = {"x-ms-path": queue, "x-ms-sessionid": "s", "x-ms-timetolive": 600_000}
    async with world.wire(world.secondary) as client:
        sender = await client.sender(world.backlog_path(0))
        aliased = [
            encoding.with_application_properties(payload, encoding.split(payload), aliases) for payload in payloads
        ]
        assert await sender.send_many(aliased) == [None] * len(payloads)
    async with world.wire(world.primary) as client:
        sender = await client.sender(reference)
        restored = [encoding.with_properties(payload, encoding.split(payload), group_id="s") for payload in payloads]
        header = encoding.Header(ttl=600_000).encode()
        restored = [header + payload[(encoding.split(payload).header or (0, 0))[1] :] for payload in restored]
        assert await sender.send_many(restored) == [None] * len(payloads)
    await world.syphon()
    went, came = await take(world, reference, len(payloads)), await take(world, queue, len(payloads))
    assert {key: essence(value) for key, value in went.items()} == {key: essence(value) for key, value in came.items()}
    assert all("x-ms-path" not in View(p).application_properties for p in came.values())


@in_both_apis(each={"False": (False,), "True": (True,)})
async def test_p28_the_time_to_live_starts_anew_unless_the_backlog_counts(
    world: World, queue: str, counted: bool
) -> None:
    async with world.pair(count_backlog_time=counted, mark_diverted=True) as pair:
        await pair.client.force_failover(queue, hold=True)
        await pair.deliver(queue, world.message(time_to_live=timedelta(seconds=600)))
        (waiting,) = await world.in_backlog()
        marked = waiting.application_properties["x-pairbus-diverted-at"]
        assert abs(marked / 1000 - datetime.now(UTC).timestamp()) < 60
        await pair.client.mark_healthy(queue)
    await world.syphon(count_backlog_time=counted)
    (home,) = await world.at_home(queue)
    ttl = View(home.payload).header.ttl
    assert ttl is not None
    assert (540_000 < ttl < 600_000) if counted else ttl == 600_000
    assert home.application_properties["x-pairbus-diverted-at"] == marked
