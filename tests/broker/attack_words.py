"""What attackers say: AMQP put together by hand, sound or not, with values that a seeded random picks.

Nothing here talks to anyone.
"""

from __future__ import annotations

import contextlib
import random
import struct
import time
import uuid
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pairbus.amqp import performative_types as amqp
from pairbus.amqp.encoding import encode
from pairbus.amqp.errors import EncodeError
from pairbus.amqp.message import BATCH_FORMAT, Properties, encode_message, join_batch
from pairbus.amqp.performative_types import Target as TargetNode
from pairbus.amqp.types import (
    Array,
    Byte,
    Char,
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
from pairbus.sas import make_token
from pairbus.wire import ConnectionString

SASL_HEADER: Final = b"AMQP\x03\x01\x00\x00"
AMQP_HEADER: Final = b"AMQP\x00\x01\x00\x00"
QUEUE: Final = "fuzz"
U32: Final = (0, 1, 2, 3, 255, 256, 4999, 65535, 2**31 - 1, 2**31, 2**32 - 2, 2**32 - 1)
FEW: Final = (0, 0, 0, 1, 1, 2, 3, 4, 5, 255)
ADDRESSES: Final = (
    QUEUE, QUEUE, f"{QUEUE}/$DeadLetterQueue", "$cbs", f"{QUEUE}/$management", "$management", "no-such-queue", "",
    "/", f"/{QUEUE}", f"{QUEUE.upper()}/", "$", "$$$", "a" * 5000, "\x00", "ü/\u2028",
    f"{QUEUE}/Subscriptions/x", "../..",
)  # fmt: skip


@dataclass(frozen=True)
class Target:
    """A namespace, and a key that lets in: the broker must stand what its own users do as well."""

    connection_string: str
    ca_file: str

    @property
    def parsed(self) -> ConnectionString:
        return ConnectionString.parse(self.connection_string)

    @property
    def port(self) -> int:
        assert self.parsed.endpoint_port is not None
        return self.parsed.endpoint_port

    def token(self) -> str:
        parsed = self.parsed
        assert parsed.key_name is not None and parsed.key is not None
        return make_token(f"sb://127.0.0.1:{self.port}/", parsed.key_name, parsed.key, int(time.time()) + 3600)


def frame(performative: bytes, payload: bytes = b"", *, channel: int = 0, kind: int = 0) -> bytes:
    return struct.pack(">IBBH", 8 + len(performative) + len(payload), 2, kind, channel) + performative + payload


def sasl() -> bytes:
    init = amqp.SaslInit(mechanism=Symbol("ANONYMOUS"), initial_response=b"").encode()
    return SASL_HEADER + frame(init, kind=1)


def opened(**fields: Any) -> bytes:
    return sasl() + AMQP_HEADER + frame(amqp.Open(**{"container_id": "x", "hostname": "127.0.0.1", **fields}).encode())


def begun(channel: int = 0) -> bytes:
    begin = amqp.Begin(next_outgoing_id=0, incoming_window=2**31 - 1, outgoing_window=2**31 - 1)
    return frame(begin.encode(), channel=channel)


def attach(handle: int, address: str, *, receives: bool, name: str = "", channel: int = 0, **fields: Any) -> bytes:
    link = amqp.Attach(
        name=name or f"link-{handle}",
        handle=handle,
        role=receives,
        source=amqp.Source(address=address if receives else "here"),
        target=TargetNode(address="here" if receives else address),
        initial_delivery_count=None if receives else 0,
        **fields,
    )
    return frame(link.encode(), channel=channel)


def credit(handle: int, count: int, **fields: Any) -> bytes:
    flow = amqp.Flow(
        incoming_window=2**31 - 1, next_outgoing_id=0, outgoing_window=2**31 - 1, handle=handle, delivery_count=0,
        link_credit=count, next_incoming_id=0, **fields,
    )  # fmt: skip
    return frame(flow.encode())


def transfer(handle: int, delivery_id: int, payload: bytes, **fields: Any) -> bytes:
    performative = amqp.Transfer(
        handle=handle, delivery_id=delivery_id, delivery_tag=struct.pack(">I", delivery_id & 0xFFFFFFFF), **fields
    )
    return frame(performative.encode(), payload)


def request(id: Any, properties: dict[str, Any], body: Any) -> bytes:
    return encode_message(
        properties=Properties(message_id=id, reply_to="here"), application_properties=properties, body=("value", body)
    )


def put_token(token: Any) -> bytes:
    return request(1, {"operation": "put-token", "type": "servicebus.windows.net:sastoken", "name": "sb://x/"}, token)


def let_in(target: Target) -> bytes:
    """Everything up to a connection that may do anything; `$cbs` takes handles 0 and 1, delivery 0."""
    return b"".join((
        opened(), begun(),
        attach(0, "$cbs", receives=False), attach(1, "$cbs", receives=True), credit(1, 100),
        transfer(0, 0, put_token(target.token()), settled=True),
    ))  # fmt: skip


def any_value(rng: random.Random, depth: int = 0) -> Any:
    """A value of any AMQP type."""
    kinds: list[Callable[[], Any]] = [
        lambda: None,
        lambda: rng.random() < 0.5,
        lambda: UByte(rng.randrange(256)),
        lambda: UShort(rng.choice((0, 1, 65535))),
        lambda: UInt(rng.choice(U32)),
        lambda: ULong(rng.choice((0, 1, 255, 2**64 - 1))),
        lambda: Byte(rng.randrange(-128, 128)),
        lambda: Short(-1),
        lambda: Int(rng.choice((-(2**31), -1, 0, 2**31 - 1))),
        lambda: rng.choice((-(2**63), -1, 0, 1, 2**63 - 1)),
        lambda: Float(rng.random()),
        lambda: rng.choice((0.0, float("inf"), float("nan"))),
        lambda: Char("\U0001f600"),
        lambda: Timestamp(rng.choice((-(2**63), 0, 2**63 - 1))),
        lambda: uuid.UUID(int=rng.getrandbits(128)),
        lambda: rng.randbytes(rng.choice((0, 1, 300))),
        lambda: rng.choice(ADDRESSES),
        lambda: Symbol(rng.choice(("", "a", "com.microsoft:x", "s" * 300))),
    ]
    if depth < 5:
        kinds += [
            lambda: [any_value(rng, depth + 1) for _ in range(rng.randrange(4))],
            lambda: {any_key(rng): any_value(rng, depth + 1) for _ in range(rng.randrange(4))},
            lambda: Described(
                rng.choice((ULong(0x24), ULong(rng.randrange(256)), Symbol("x"))), any_value(rng, depth + 1)
            ),
            lambda: Array.of(0x98, [uuid.UUID(int=rng.getrandbits(128)) for _ in range(rng.randrange(4))]),
        ]  # fmt: skip
    return rng.choice(kinds)()


def any_key(rng: random.Random) -> Any:
    return rng.choice((Symbol("k"), "k", 1, ULong(7), b"k", uuid.UUID(int=1), None, True, "DeadLetterReason"))


def any_encoded(rng: random.Random) -> bytes:
    for _ in range(10):
        with contextlib.suppress(EncodeError):
            return encode(any_value(rng))
    return b"\x40"


def any_fields(rng: random.Random) -> dict[Any, Any]:
    return {Symbol(rng.choice("abc")): any_value(rng, 2) for _ in range(rng.randrange(3))}


def any_error(rng: random.Random) -> amqp.Error:
    condition = rng.choice(("amqp:not-found", "com.microsoft:dead-letter", "x"))
    keys = ("DeadLetterReason", "DeadLetterErrorDescription", "x")
    return amqp.Error(Symbol(condition), rng.choice((None, "text")), {Symbol(rng.choice(keys)): any_value(rng, 2)})


def any_state(rng: random.Random) -> Any:
    return rng.choice((
        None, amqp.Accepted(), amqp.Released(), amqp.Modified(), amqp.Rejected(), amqp.Received(1, 2),
        amqp.Rejected(any_error(rng)),
        amqp.Modified(True, rng.random() < 0.3, {any_key(rng): any_value(rng, 2)}),
        amqp.Modified(rng.random() < 0.5, None, None),
        Described(ULong(rng.randrange(256)), []), Described(Symbol("x"), any_value(rng, 3)),
    ))  # fmt: skip


def any_message(rng: random.Random) -> bytes:
    """Sound, or with one wound, or of sections in any order."""
    message = encode_message(
        properties=Properties(message_id=rng.choice(("id", 1, uuid.UUID(int=5), b"x"))),
        application_properties={"a": 1, "b": "two"},
        message_annotations={Symbol("x-opt-partition-key"): "k"},
        body=rng.randbytes(rng.choice((0, 10, 1000))),
    )
    chance = rng.random()
    if chance < 0.3:
        return message
    if chance < 0.6:
        return wounded(rng, message)
    codes = [rng.choice((*range(0x70, 0x79), rng.randrange(256))) for _ in range(rng.randrange(6))]
    sections = [b"\x00\x53" + bytes((code,)) + any_encoded(rng) for code in codes]
    return b"".join(sections)


def wounded(rng: random.Random, data: bytes) -> bytes:
    """Some bytes changed, cut out, doubled or put in."""
    wound = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5))):
        at = rng.randrange(len(wound) + 1)
        kind = rng.randrange(5)
        if kind == 0 and at < len(wound):
            wound[at] = rng.choice((0, 0xFF, 0x80, rng.randrange(256)))
        elif kind == 1:
            del wound[at : at + rng.choice((1, 4, 50))]
        elif kind == 2:
            wound[at:at] = rng.randbytes(rng.choice((1, 4, 50)))
        elif kind == 3:
            wound[at:at] = wound[at : at + rng.choice((1, 8, 100))]
        else:
            wound[at : at + 4] = struct.pack(">I", rng.choice(U32))
    return bytes(wound)


def any_performative(rng: random.Random) -> bytes:
    """Well formed, of any kind, about anything."""
    u32 = lambda: rng.choice(U32)  # noqa: E731
    few = lambda: rng.choice(FEW)  # noqa: E731
    maybe = lambda make: make() if rng.random() < 0.6 else None  # noqa: E731
    flag = lambda: rng.random() < 0.5  # noqa: E731

    def terminus(kind: type[Any]) -> Any:
        chance = rng.random()
        if chance < 0.1:
            return None
        if chance < 0.15:
            return amqp.Coordinator() if kind is TargetNode else None
        made = kind(address=maybe(lambda: rng.choice(ADDRESSES)), dynamic=flag(), capabilities=None)
        if kind is amqp.Source and flag():
            made.filter = {Symbol("com.microsoft:session-filter"): any_value(rng, 3), **any_fields(rng)}
            made.default_outcome = any_state(rng)
        return made

    makers: list[Callable[[], Any]] = [
        lambda: amqp.Begin(
            remote_channel=rng.choice((None, None, None, 0, 65535)), next_outgoing_id=u32(), incoming_window=u32(),
            outgoing_window=u32(), handle_max=u32(), properties=any_fields(rng),
        ),
        *[lambda: amqp.Attach(
            name=rng.choice(("a", "b", "c", "", "n" * 3000)), handle=rng.randrange(4, 100), role=flag(),
            snd_settle_mode=rng.choice((0, 1, 2, 2, 3, 255)), rcv_settle_mode=rng.choice((0, 1, 1, 2, 255)),
            source=terminus(amqp.Source), target=terminus(TargetNode), unsettled=maybe(lambda: {b"tag": None}),
            incomplete_unsettled=flag(), initial_delivery_count=maybe(u32), max_message_size=maybe(u32),
            properties=any_fields(rng),
        )] * 4,
        *[lambda: amqp.Flow(
            next_incoming_id=maybe(u32), incoming_window=u32(), next_outgoing_id=u32(), outgoing_window=u32(),
            handle=maybe(few), delivery_count=maybe(u32), link_credit=maybe(u32), available=maybe(u32), drain=flag(),
            echo=flag(), properties=any_fields(rng),
        )] * 4,
        *[lambda: amqp.Disposition(
            role=flag(), first=u32(), last=maybe(u32), settled=flag(), state=any_state(rng), batchable=flag()
        )] * 4,
        lambda: amqp.Detach(handle=few(), closed=flag(), error=maybe(lambda: any_error(rng))),
        lambda: amqp.End(maybe(lambda: any_error(rng))),
        lambda: amqp.Close(maybe(lambda: any_error(rng))) if rng.random() < 0.2 else amqp.End(None),
    ]  # fmt: skip
    fatal: list[Callable[[], Any]] = [
        lambda: amqp.Open(container_id="again", max_frame_size=u32()),
        lambda: amqp.SaslOutcome(code=0),
        lambda: Described(ULong(rng.randrange(0x10, 0x19)), [any_value(rng, 2) for _ in range(rng.randrange(12))]),
    ]
    for _ in range(10):
        with contextlib.suppress(EncodeError):
            made = rng.choice(makers if rng.random() < 0.95 else fatal)()
            return encode(made) if isinstance(made, Described) else made.encode()
    return amqp.Detach(handle=0).encode()


def any_transfer(rng: random.Random) -> bytes:
    performative = amqp.Transfer(
        handle=rng.choice(FEW), delivery_id=rng.choice((None, *U32)), delivery_tag=rng.choice((None, b"", b"t" * 32)),
        message_format=rng.choice((None, 0, 0, BATCH_FORMAT, 2**32 - 1)), settled=rng.choice((None, True, False)),
        more=rng.random() < 0.3, rcv_settle_mode=rng.choice((None, 0, 1)), state=any_state(rng),
        resume=rng.random() < 0.1, aborted=rng.random() < 0.1,
    )  # fmt: skip
    payload = any_message(rng)
    if performative.message_format == BATCH_FORMAT and rng.random() < 0.7:
        payload = join_batch([any_message(rng) for _ in range(rng.randrange(5))])
    try:
        return frame(performative.encode(), payload, channel=rng.choice((0, 0, 0, 1, 9)))
    except EncodeError:
        return frame(amqp.Detach(handle=0).encode())
