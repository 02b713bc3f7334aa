from __future__ import annotations

from typing import Any

import pytest
from azure.servicebus._pyamqp import _decode as pyamqp_decode
from azure.servicebus._pyamqp import _encode as pyamqp_encode
from azure.servicebus._pyamqp import endpoints
from azure.servicebus._pyamqp import error as pyamqp_error
from azure.servicebus._pyamqp import outcomes as pyamqp_outcomes
from azure.servicebus._pyamqp import performatives as pyamqp
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp import performative_types
from pairbus.amqp.codec import encode
from pairbus.amqp.composite import Composite, decode_composite
from pairbus.amqp.errors import AmqpError, DecodeError, EncodeError
from pairbus.amqp.performative_types import (
    Accepted,
    Attach,
    Begin,
    Close,
    Coordinator,
    Declare,
    Declared,
    Detach,
    Discharge,
    Disposition,
    End,
    Error,
    Flow,
    Modified,
    Open,
    Received,
    Rejected,
    Released,
    SaslChallenge,
    SaslInit,
    SaslMechanisms,
    SaslOutcome,
    SaslResponse,
    Source,
    Target,
    TransactionalState,
    Transfer,
)
from pairbus.amqp.performatives import (
    ACCEPTED_BYTES,
    REJECTED_EMPTY_BYTES,
    RELEASED_BYTES,
    decode_performative,
    encode_disposition,
    encode_flow,
    encode_transfer,
)
from pairbus.amqp.types import Array, Described, Int, Symbol, Timestamp, UByte, UInt, ULong, UShort

from .values import damaged, integers, symbols, typed, values

PERFORMATIVES: list[type[Composite]] = [
    Open, Begin, Attach, Flow, Transfer, Disposition, Detach, End, Close,
    SaslMechanisms, SaslInit, SaslChallenge, SaslResponse, SaslOutcome,
]  # fmt: skip
ALL = [
    *PERFORMATIVES, Source, Target, Coordinator, Accepted, Rejected, Released, Modified, Received, Error,
    Declare, Discharge, Declared, TransactionalState,
]  # fmt: skip

fields_maps = st.dictionaries(symbols, values, max_size=2)
errors = st.builds(Error, symbols, st.none() | st.text(max_size=9), st.none() | fields_maps)
outcomes = st.one_of(
    st.just(Accepted()),
    st.just(Released()),
    st.builds(Rejected, st.none() | errors),
    st.builds(Modified, st.none() | st.booleans(), st.none() | st.booleans(), st.none() | fields_maps),
)
states = st.one_of(
    outcomes,
    st.builds(Received, integers(32, False), integers(64, False)),
    st.builds(Declared, st.binary(max_size=32)),
    st.builds(TransactionalState, st.binary(max_size=32), st.none() | outcomes),
    st.builds(Described, st.just(ULong(0x99)), st.just([b"txn"])),
)
KINDS: dict[str, st.SearchStrategy[Any]] = {
    "boolean": st.booleans(),
    "ubyte": integers(8, False),
    "ushort": integers(16, False),
    "uint": integers(32, False),
    "ulong": integers(64, False),
    "binary": st.binary(max_size=32),
    "string": st.text(max_size=20),
    "symbol": symbols,
    "symbols": st.lists(symbols, min_size=1, max_size=3),
    "fields": fields_maps,
    "map": fields_maps,
    "error": errors,
    "id": st.binary(max_size=32),
    "outcome": outcomes,
    "state": states,
    "source": st.deferred(lambda: of(Source)),  # type: ignore[has-type]
    "target": st.deferred(lambda: of(Target) | of(Coordinator)),  # type: ignore[has-type]
}


@st.composite
def of(draw: st.DrawFn, cls: type[Composite]) -> Any:
    """Any instance of the class that its schema allows."""
    chosen = {}
    for field in cls.SCHEMA:
        if field.mandatory or draw(st.booleans()):
            chosen[field.name] = draw(KINDS[field.kind.name])
    return cls(**chosen)


performatives = st.sampled_from(PERFORMATIVES).flatmap(of)
flowing = st.sampled_from([Transfer, Disposition, Flow]).flatmap(of)


def listed(cls: type[Composite], items: list[Any]) -> bytes:
    return encode(Described(ULong(cls.DESCRIPTOR), items))


# A value of each kind that passes, as it comes from the wire.
GOOD: dict[str, Any] = {
    "boolean": True, "ubyte": UByte(1), "ushort": UShort(1), "uint": UInt(1), "ulong": ULong(1), "binary": b"x",
    "string": "x", "symbol": Symbol("x"), "symbols": Array.of(0xA3, [Symbol("x")]), "fields": {Symbol("x"): 1},
    "map": {}, "error": Described(ULong(0x1D), [Symbol("x")]), "state": Described(ULong(0x24), []),
    "id": b"x", "outcome": Described(ULong(0x24), []),
    "source": Described(ULong(0x28), []), "target": Described(ULong(0x29), []),
}  # fmt: skip


def good_fields(cls: type[Composite]) -> list[Any]:
    return [GOOD[field.kind.name] for field in cls.SCHEMA]


FIELDS = [(cls, index) for cls in ALL for index in range(len(cls.SCHEMA))]  # type: ignore[attr-defined]
FIELD_IDS = [f"{cls.__name__}.{cls.SCHEMA[index].name}" for cls, index in FIELDS]  # type: ignore[attr-defined]


def read(cls: type[Composite], wire: bytes) -> Any:
    """By schema, whether it is a performative or something inside one."""
    return decode_performative(wire)[0] if cls in PERFORMATIVES else decode_composite(cls, wire, 3)[0]


def plain(value: Any) -> Any:
    """Comparable even where a map holds NaN."""
    if isinstance(value, Composite):
        return type(value), [plain(getattr(value, field.name)) for field in value.SCHEMA]
    return typed(value) if isinstance(value, dict) else value


def test_every_class_of_the_room_is_in_the_tables_of_this_file() -> None:
    declared = {cls for cls in vars(performative_types).values() if isinstance(cls, type) and "SCHEMA" in vars(cls)}
    assert declared == set(ALL)


@given(performatives, st.binary(max_size=5), st.binary(max_size=5))
def test_what_is_written_is_read_back(performative: Any, before: bytes, after: bytes) -> None:
    wire = performative.encode()
    got, end = decode_performative(before + wire + after, len(before))
    assert plain(got) == plain(performative)
    assert end == len(before) + len(wire)
    assert wire[:2] == b"\x00\x53"


@pytest.mark.parametrize("cls", ALL, ids=lambda cls: cls.__name__)
def test_every_field_is_read(cls: type[Composite]) -> None:
    got = read(cls, listed(cls, good_fields(cls)))
    assert all(getattr(got, field.name) is not None for field in cls.SCHEMA)
    assert type(got) is cls


@pytest.mark.parametrize(("cls", "index"), FIELDS, ids=FIELD_IDS)
def test_a_field_of_the_wrong_type_is_a_decode_error_that_names_it(cls: type[Composite], index: int) -> None:
    items = good_fields(cls)
    for wrong in (1.5, Timestamp(1), [1], Array.of(0x56, [True])):
        items[index] = wrong
        with pytest.raises(DecodeError, match=rf"{cls.__name__}\.{cls.SCHEMA[index].name} must be|array of symbols"):
            read(cls, listed(cls, items))


@pytest.mark.parametrize(("cls", "index"), FIELDS, ids=FIELD_IDS)
def test_a_mandatory_field_must_be_there_and_no_other(cls: type[Composite], index: int) -> None:
    field = cls.SCHEMA[index]
    items = good_fields(cls)
    items[index] = None
    for wire in (listed(cls, items), listed(cls, items[:index])):
        if any(later.mandatory for later in cls.SCHEMA[index + 1 :]) and wire == listed(cls, items[:index]):
            continue
        if field.mandatory:
            with pytest.raises(DecodeError, match=f"{cls.__name__} lacks {field.name}"):
                read(cls, wire)
        else:
            assert getattr(read(cls, wire), field.name) == field.default


@pytest.mark.parametrize(
    ("wire", "told"),
    [
        (b"", "runs past the end"),
        (b"\x40", "described list"),
        (b"\x00", "runs past the end"),
        (encode(Described(ULong(0x19), [])), "unknown performative"),
        (encode(Described(Symbol("amqp:what:list"), [])), "unknown performative"),
        (encode(Described(UInt(0x10), [])), "a descriptor is a ulong or a symbol"),
        (Accepted().encode(), "unknown performative"),
        (encode(Described(ULong(0x18), {})), "Close is a list"),
        (encode(Described(ULong(0x18), [None, None])), "Close has 1 fields, not 2"),
        (listed(Close, [Described(ULong(0x28), [])]), "an error is needed"),
        (listed(Disposition, [True, UInt(1), None, None, Described(ULong(0x28), [])]), "Source can't stand where"),
        (listed(Open, ["x"] + [None] * 8 + [{1: 1}]), "must be a symbol"),
        (listed(Detach, [UInt(1)])[:-1], "runs past the end"),
        (b"\x00\x53\x16\xc0\x04\x01\x52\x01\x40", "end at byte"),
        (b"\x00\x53\x16\xc0\x00\x01", "can't even hold its count"),
    ],
)
def test_what_is_no_performative_is_a_decode_error(wire: bytes, told: str) -> None:
    with pytest.raises(DecodeError, match=told):
        decode_performative(wire)


@pytest.mark.parametrize("descriptor", [ULong(0x18), Symbol("amqp:close:list")], ids=["number", "symbol"])
def test_descriptors_are_read_in_every_form(descriptor: Any) -> None:
    assert decode_performative(encode(Described(descriptor, []))) == (Close(), len(encode(Described(descriptor, []))))
    wide = b"\x00\x80" + (0x24).to_bytes(8, "big") + b"\x45"
    assert decode_performative(
        b"\x00\x80" + (0x15).to_bytes(8, "big") + b"\xc0" + bytes((len(wide) + 5, 5)) + b"\x41\x43\x40\x40" + wide
    )[0] == Disposition(role=True, first=0, state=Accepted())


def test_unknown_termini_and_states_are_kept_as_they_came() -> None:
    odd = Described(Symbol("com.example:node:list"), [1])
    attach = Attach(name="n", handle=0, role=True, source=odd, target=Coordinator(capabilities=["amqp:local"]))
    assert decode_performative(attach.encode())[0] == attach


def test_an_empty_list_as_terminus_is_one_with_defaults() -> None:
    """rhea sends it so (docs/reference/protocol.md#tokens-over-cbs)."""
    wire = listed(Attach, ["n", UInt(0), False, None, None, Described(ULong(0x28), []), Described(ULong(0x29), [])])
    attach, _ = decode_performative(wire)
    assert (attach.source, attach.target) == (Source(), Target())


def test_an_error_is_always_written_with_three_fields() -> None:
    """docs/reference/protocol.md#an-error-has-all-three-fields."""
    assert Error("a").encode() == b"\x00\x53\x1d\xc0\x06\x03\xa3\x01a\x40\x40"
    assert (
        Rejected(Error("a", "b")).encode() == b"\x00\x53\x25\xc0\x0e\x01\x00\x53\x1d\xc0\x08\x03\xa3\x01a\xa1\x01b\x40"
    )


@given(st.sampled_from(PERFORMATIVES[:9]).flatmap(of))
def test_a_performative_is_written_with_all_its_fields(performative: Composite) -> None:
    """azure-servicebus 7.11 to 7.14 index what comes: `open[9]`, `begin[7]`, `transfer[11]` with the payload."""
    wire = performative.encode()
    count = wire[5] if wire[3] == 0xC0 else int.from_bytes(wire[8:12], "big")
    assert count == len(performative.SCHEMA)


UINTS = st.integers(0, 2**32 - 1) | st.integers(0, 256)


@given(st.none() | UINTS, st.tuples(UINTS, UINTS, UINTS), st.none() | st.tuples(UINTS, UINTS, UINTS), st.booleans())
def test_a_flow_is_encoded_as_its_performative_is(
    first: int | None, more: tuple[int, ...], of_link: tuple[int, ...] | None, drain: bool
) -> None:
    numbers, drain = (first, *more, *(of_link or ())), drain and of_link is not None
    names = list(Flow.SCHEMA)[: len(numbers)]
    slow = Flow(**{getattr(name, "name", name): n for name, n in zip(names, numbers, strict=True)})
    if drain:
        slow.drain = True
    assert encode_flow(numbers, drain) == slow.encode()
    with pytest.raises(EncodeError, match="no uints"):
        encode_flow((*numbers[:-1], 2**32), drain)


@pytest.mark.parametrize("settled", [True, False])
@pytest.mark.parametrize("more", [True, False])
def test_the_fast_encoders_write_all_fields(settled: bool, more: bool) -> None:
    assert encode_transfer(1, 2, b"tag", 0, settled, more)[5] == len(Transfer.SCHEMA)
    assert encode_transfer(1, 2, None, 0, settled, more)[5] == len(Transfer.SCHEMA)
    assert encode_disposition(more, 2, None, settled, ACCEPTED_BYTES)[5] == len(Disposition.SCHEMA)
    long = Rejected(Error("a", "b" * 300)).encode()
    assert encode_disposition(more, 2, None, settled, long)[8:12] == bytes((0, 0, 0, len(Disposition.SCHEMA)))


def test_the_constants_are_the_outcomes() -> None:
    assert ACCEPTED_BYTES == b"\x00\x53\x24\x45"
    assert REJECTED_EMPTY_BYTES == b"\x00\x53\x25\x45"
    assert RELEASED_BYTES == b"\x00\x53\x26\x45"


@pytest.mark.parametrize(
    ("performative", "told"),
    [
        (Transfer(handle=-1), "handle must be uint"),
        (Transfer(handle="a"), "handle must be uint"),  # type: ignore[arg-type]
        (Open(container_id=5), "container_id must be string"),  # type: ignore[arg-type]
        (Begin(remote_channel=70000, next_outgoing_id=0, incoming_window=0, outgoing_window=0), "remote_channel"),
        (Close(error="x"), "error must be error"),  # type: ignore[arg-type]
    ],
)
def test_a_field_that_cannot_be_written_is_an_encode_error(performative: Any, told: str) -> None:
    with pytest.raises(EncodeError, match=told):
        performative.encode()


@given(of(Transfer), st.booleans())
def test_encode_transfer_writes_a_transfer(t: Transfer, settled: bool) -> None:
    wire = encode_transfer(t.handle, t.delivery_id, t.delivery_tag, t.message_format, settled, t.more)
    expected = Transfer(
        handle=t.handle, delivery_id=t.delivery_id, delivery_tag=t.delivery_tag, message_format=t.message_format,
        settled=settled, more=t.more,
    )  # fmt: skip
    assert decode_performative(wire) == (expected, len(wire))


@given(of(Disposition))
def test_encode_disposition_writes_a_disposition(d: Disposition) -> None:
    state = None if d.state is None else encode(d.state) if isinstance(d.state, Described) else d.state.encode()
    wire = encode_disposition(d.role, d.first, d.last, d.settled, state)
    expected = Disposition(role=d.role, first=d.first, last=d.last, settled=d.settled, state=d.state)
    assert fast(wire) == (plain(expected), len(wire))


@pytest.mark.parametrize("number", [-1, 2**32])
def test_the_fast_encoders_refuse_what_is_no_uint(number: int) -> None:
    with pytest.raises(EncodeError):
        encode_transfer(number, 0, b"", 0, False, False)
    with pytest.raises(EncodeError):
        encode_transfer(0, number, b"", 0, False, False)
    with pytest.raises(EncodeError):
        encode_disposition(True, number, None, True, None)


def general(wire: bytes) -> Any:
    cls = {0x13: Flow, 0x14: Transfer, 0x15: Disposition}[wire[2]]
    try:
        got, end = decode_composite(cls, wire, 3)
        return plain(got), end
    except AmqpError as error:
        return type(error)


def fast(wire: bytes) -> Any:
    try:
        got, end = decode_performative(wire)
        return plain(got), end
    except AmqpError as error:
        return type(error)


@st.composite
def padded(draw: st.DrawFn) -> bytes:
    """As other peers write it: trailing nulls, booleans of two bytes, wide numbers, all of it in a small list."""
    performative = draw(flowing)
    body = bytearray()
    count = draw(st.integers(0, len(performative.SCHEMA)))
    for field in performative.SCHEMA[:count]:
        value = getattr(performative, field.name)
        if isinstance(value, bool):
            body += draw(st.sampled_from([b"\x41" if value else b"\x42", bytes((0x56, value))]))
        elif field.kind.name == "uint" and value is not None and draw(st.booleans()):
            body += b"\x70" + value.to_bytes(4, "big")
        else:
            field.encode(body, value)
    del body[250:]
    return bytes((0x00, 0x53, performative.DESCRIPTOR, 0xC0, len(body) + 1, count)) + bytes(body)


@given(flowing.map(lambda performative: performative.encode()) | padded())
def test_the_fast_way_agrees_with_the_general_way(wire: bytes) -> None:
    assert fast(wire) == general(wire)
    assert fast(wire + b"\x00\x53\x75") == general(wire + b"\x00\x53\x75")


@given(damaged(padded()).filter(lambda wire: wire[:2] == b"\x00\x53" and wire[2:3] in (b"\x13", b"\x14", b"\x15")))
def test_the_fast_way_agrees_with_the_general_way_on_damage(wire: bytes) -> None:
    assert fast(wire) == general(wire)


@given(st.binary(max_size=40) | damaged(performatives.map(lambda performative: performative.encode())))
def test_whatever_comes_is_a_performative_or_a_decode_error(wire: bytes) -> None:
    try:
        _, end = decode_performative(wire)
    except DecodeError:
        return
    assert end <= len(wire)


def test_deep_nesting_inside_a_field_is_a_decode_error() -> None:
    deep = b"\x00\x53\x28" * 5000
    body = b"\x41\x43\x40\x40" + deep
    wire = b"\x00\x53\x15\xd0" + (len(body) + 4).to_bytes(4, "big") + (5).to_bytes(4, "big") + body
    with pytest.raises(DecodeError):
        decode_performative(wire)


def pyamqp_bytes(frame: Any) -> bytes:
    _, body = pyamqp_encode.encode_frame(frame)
    return bytes(body)


def frame(cls: Any, **given: Any) -> Any:
    return cls(**dict.fromkeys(cls._fields) | given)


pyamqp_endpoints: Any = endpoints  # whose types ask for more than the SDK itself gives
SOURCE = pyamqp_endpoints.Source(address="sender-link-x", durable=0, expiry_policy=b"session-end", timeout=0)
TARGET = pyamqp_endpoints.Target(address="amqps://here/q", durable=0, expiry_policy=b"session-end", timeout=0)


def disposition(state: Any, last: int = 5, settled: bool = False) -> Any:
    fields = {"role": True, "first": 5, "last": last, "settled": settled, "state": state, "batchable": None}
    return frame(pyamqp.DispositionFrame, **fields)


def alike(theirs: Any, ours: Any, also: dict[str, Any] | None = None, **fields: Any) -> tuple[Any, Any]:
    """The same fields on both sides; what pyamqp writes `also` is a default for us."""
    return frame(theirs, **fields, **(also or {})), ours(**fields)


DEAD_LETTER = pyamqp_error.AMQPError(
    condition=b"com.microsoft:dead-letter", description=None, info={b"DeadLetterReason": "r"}
)
FROM_PYAMQP: list[tuple[Any, Any]] = [
    alike(
        pyamqp.OpenFrame, Open, {"channel_max": 65535}, container_id="SBSender-1", hostname="here",
        max_frame_size=1048576, properties={"product": "azsdk"},
    ),
    alike(
        pyamqp.BeginFrame, Begin, {"handle_max": 4294967295}, next_outgoing_id=0, incoming_window=65536,
        outgoing_window=65536,
    ),
    (
        frame(
            pyamqp.AttachFrame, name="link", handle=1, role=False, send_settle_mode=0, rcv_settle_mode=1, source=SOURCE,
            target=TARGET, initial_delivery_count=0, max_message_size=0, desired_capabilities=[b"a"],
            properties={b"p": 4966},
        ),
        Attach(
            name="link", handle=1, role=False, snd_settle_mode=0, rcv_settle_mode=1, initial_delivery_count=0,
            max_message_size=0, desired_capabilities=["a"], properties={"p": Int(4966)},
            source=Source(address="sender-link-x", durable=0, expiry_policy="session-end", timeout=0),
            target=Target(address="amqps://here/q", durable=0, expiry_policy="session-end", timeout=0),
        ),
    ),
    alike(
        pyamqp.FlowFrame, Flow, next_incoming_id=5, incoming_window=65536, next_outgoing_id=0, outgoing_window=65536,
        handle=1, delivery_count=700, link_credit=100, drain=True,
    ),
    alike(
        pyamqp.TransferFrame, Transfer, {"payload": b""}, handle=1, delivery_id=1000, delivery_tag=b"\0\0\0\1",
        message_format=0x80013700, settled=False, more=True,
    ),
    (disposition(pyamqp_outcomes.Accepted(), last=6), Disposition(role=True, first=5, last=6, state=Accepted())),
    (
        disposition(pyamqp_outcomes.Released(), settled=True),
        Disposition(role=True, first=5, last=5, settled=True, state=Released()),
    ),
    (
        disposition(pyamqp_outcomes.Modified(True, False, {"a": 1})),
        Disposition(role=True, first=5, last=5, state=Modified(True, False, {"a": Int(1)})),
    ),
    (
        disposition(pyamqp_outcomes.Rejected(error=DEAD_LETTER)),
        Disposition(
            role=True, first=5, last=5,
            state=Rejected(Error("com.microsoft:dead-letter", None, {"DeadLetterReason": "r"})),
        ),
    ),
    alike(pyamqp.DetachFrame, Detach, handle=1, closed=True, error=None),
    alike(pyamqp.EndFrame, End, error=None),
    alike(pyamqp.CloseFrame, Close, error=None),
    (
        frame(pyamqp.SASLInit, mechanism=b"ANONYMOUS", initial_response=b"", hostname="here"),
        SaslInit(mechanism="ANONYMOUS", initial_response=b"", hostname="here"),
    ),
]  # fmt: skip


@pytest.mark.parametrize(("sent", "expected"), FROM_PYAMQP, ids=lambda x: type(x).__name__)
def test_what_pyamqp_writes_is_read(sent: Any, expected: Any) -> None:
    wire = pyamqp_bytes(sent)
    assert decode_performative(wire) == (expected, len(wire))


def test_a_session_filter_of_pyamqp_is_read() -> None:
    for asked, got in ((None, None), ("mine", "mine")):
        source = pyamqp_endpoints.Source(address="q", filters={b"com.microsoft:session-filter": asked})
        asking = frame(pyamqp.AttachFrame, name="n", handle=0, role=True, source=source, target=TARGET)
        attach, _ = decode_performative(pyamqp_bytes(asking))
        assert attach.source.filter == {"com.microsoft:session-filter": got}


@pytest.mark.parametrize(
    ("performative", "fields"),
    [
        (
            Open(container_id="c", max_frame_size=65536, channel_max=4999, idle_time_out=240000),
            [b"c", None, 65536, 4999],
        ),
        (Begin(remote_channel=1, next_outgoing_id=1, incoming_window=5000, outgoing_window=5000), [1, 1, 5000, 5000]),
        (
            Attach(name="n", handle=1, role=False, snd_settle_mode=0, rcv_settle_mode=1, source=Source(address="q")),
            [b"n", 1, False, 0, 1],
        ),
        (Flow(incoming_window=1, next_outgoing_id=2, outgoing_window=3, handle=4), [None, 1, 2, 3, 4]),
        (
            Disposition(role=False, first=1, last=2, settled=True, state=Accepted()),
            [False, 1, 2, True, {"accepted": []}],
        ),
        (
            Disposition(role=True, first=1, last=1, settled=True, state=Rejected(Error("c", "d"))),
            [True, 1, 1, True, {"rejected": [[b"c", b"d", None]]}],
        ),
        (SaslMechanisms(sasl_server_mechanisms=["MSSBCBS", "ANONYMOUS"]), [[b"MSSBCBS", b"ANONYMOUS"]]),
        (SaslOutcome(code=0), [0]),
        (Detach(handle=1, closed=True, error=Error("c", "d")), [1, True, [b"c", b"d", None]]),
    ],
)
def test_pyamqp_reads_what_we_write(performative: Any, fields: list[Any]) -> None:
    code, got = pyamqp_decode.decode_frame(memoryview(performative.encode()))
    assert code == performative.DESCRIPTOR
    assert got[: len(fields)] == fields
