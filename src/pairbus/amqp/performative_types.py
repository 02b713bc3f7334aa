"""The performatives, termini and delivery states of AMQP (2.7, 2.8, 3.4, 3.5, 4.5, 5.3.3) as classes.

One class per type with the spec's field names and defaults; `composite` reads and writes them by their schema.
Mandatory fields have no default.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pairbus.amqp.composite import Composite, Fields, schema
from pairbus.amqp.types import Described


@schema(0x10, "amqp:open:list", "string! string uint ushort uint symbols symbols symbols symbols fields")
@dataclass(slots=True, kw_only=True)
class Open(Composite):
    container_id: str
    hostname: str | None = None
    max_frame_size: int = 0xFFFFFFFF
    channel_max: int = 0xFFFF
    idle_time_out: int | None = None
    outgoing_locales: Sequence[str] | None = None
    incoming_locales: Sequence[str] | None = None
    offered_capabilities: Sequence[str] | None = None
    desired_capabilities: Sequence[str] | None = None
    properties: Fields | None = None


@schema(0x11, "amqp:begin:list", "ushort uint! uint! uint! uint symbols symbols fields")
@dataclass(slots=True, kw_only=True)
class Begin(Composite):
    remote_channel: int | None = None
    next_outgoing_id: int
    incoming_window: int
    outgoing_window: int
    handle_max: int = 0xFFFFFFFF
    offered_capabilities: Sequence[str] | None = None
    desired_capabilities: Sequence[str] | None = None
    properties: Fields | None = None


@schema(
    0x12,
    "amqp:attach:list",
    "string! uint! boolean! ubyte ubyte source target map boolean uint ulong symbols symbols fields",
)
@dataclass(slots=True, kw_only=True)
class Attach(Composite):
    name: str
    handle: int
    role: bool
    snd_settle_mode: int = 2
    rcv_settle_mode: int = 0
    source: Source | Described | None = None
    target: Target | Coordinator | Described | None = None
    unsettled: Fields | None = None
    incomplete_unsettled: bool = False
    initial_delivery_count: int | None = None
    max_message_size: int | None = None
    offered_capabilities: Sequence[str] | None = None
    desired_capabilities: Sequence[str] | None = None
    properties: Fields | None = None


@schema(0x13, "amqp:flow:list", "uint uint! uint! uint! uint uint uint uint boolean boolean fields")
@dataclass(slots=True, kw_only=True)
class Flow(Composite):
    next_incoming_id: int | None = None
    incoming_window: int
    next_outgoing_id: int
    outgoing_window: int
    handle: int | None = None
    delivery_count: int | None = None
    link_credit: int | None = None
    available: int | None = None
    drain: bool = False
    echo: bool = False
    properties: Fields | None = None


@schema(0x14, "amqp:transfer:list", "uint! uint binary uint boolean boolean ubyte state boolean boolean boolean")
@dataclass(slots=True, kw_only=True)
class Transfer(Composite):
    handle: int
    delivery_id: int | None = None
    delivery_tag: bytes | None = None
    message_format: int | None = None
    settled: bool | None = None
    more: bool = False
    rcv_settle_mode: int | None = None
    state: State | None = None
    resume: bool = False
    aborted: bool = False
    batchable: bool = False


@schema(0x15, "amqp:disposition:list", "boolean! uint! uint boolean state boolean")
@dataclass(slots=True, kw_only=True)
class Disposition(Composite):
    role: bool
    first: int
    last: int | None = None
    settled: bool = False
    state: State | None = None
    batchable: bool = False


@schema(0x16, "amqp:detach:list", "uint! boolean error")
@dataclass(slots=True, kw_only=True)
class Detach(Composite):
    handle: int
    closed: bool = False
    error: Error | None = None


@schema(0x17, "amqp:end:list", "error")
@dataclass(slots=True)
class End(Composite):
    error: Error | None = None


@schema(0x18, "amqp:close:list", "error")
@dataclass(slots=True)
class Close(Composite):
    error: Error | None = None


@schema(0x1D, "amqp:error:list", "symbol! string fields")
@dataclass(slots=True)
class Error(Composite):
    """Always written with all three fields: with fewer, pyamqp's callback dies and a send hangs
    (docs/reference/protocol.md#an-error-has-all-three-fields)."""

    condition: str
    description: str | None = None
    info: Fields | None = None


@schema(0x40, "amqp:sasl-mechanisms:list", "symbols!")
@dataclass(slots=True, kw_only=True)
class SaslMechanisms(Composite):
    sasl_server_mechanisms: Sequence[str]


@schema(0x41, "amqp:sasl-init:list", "symbol! binary string")
@dataclass(slots=True, kw_only=True)
class SaslInit(Composite):
    mechanism: str
    initial_response: bytes | None = None
    hostname: str | None = None


@schema(0x42, "amqp:sasl-challenge:list", "binary!")
@dataclass(slots=True, kw_only=True)
class SaslChallenge(Composite):
    challenge: bytes


@schema(0x43, "amqp:sasl-response:list", "binary!")
@dataclass(slots=True, kw_only=True)
class SaslResponse(Composite):
    response: bytes


@schema(0x44, "amqp:sasl-outcome:list", "ubyte! binary")
@dataclass(slots=True, kw_only=True)
class SaslOutcome(Composite):
    code: int
    additional_data: bytes | None = None


@schema(0x28, "amqp:source:list", "string uint symbol uint boolean fields symbol fields state symbols symbols")
@dataclass(slots=True, kw_only=True)
class Source(Composite):
    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool = False
    dynamic_node_properties: Fields | None = None
    distribution_mode: str | None = None
    filter: Fields | None = None
    default_outcome: State | None = None
    outcomes: Sequence[str] | None = None
    capabilities: Sequence[str] | None = None


@schema(0x29, "amqp:target:list", "string uint symbol uint boolean fields symbols")
@dataclass(slots=True, kw_only=True)
class Target(Composite):
    address: str | None = None
    durable: int | None = None
    expiry_policy: str | None = None
    timeout: int | None = None
    dynamic: bool = False
    dynamic_node_properties: Fields | None = None
    capabilities: Sequence[str] | None = None


@schema(0x30, "amqp:coordinator:list", "symbols")
@dataclass(slots=True, kw_only=True)
class Coordinator(Composite):
    capabilities: Sequence[str] | None = None


@schema(0x23, "amqp:received:list", "uint! ulong!")
@dataclass(slots=True)
class Received(Composite):
    section_number: int
    section_offset: int


@schema(0x24, "amqp:accepted:list")
@dataclass(slots=True)
class Accepted(Composite):
    pass


@schema(0x25, "amqp:rejected:list", "error")
@dataclass(slots=True)
class Rejected(Composite):
    error: Error | None = None


@schema(0x26, "amqp:released:list")
@dataclass(slots=True)
class Released(Composite):
    pass


@schema(0x27, "amqp:modified:list", "boolean boolean map")
@dataclass(slots=True)
class Modified(Composite):
    delivery_failed: bool | None = None
    undeliverable_here: bool | None = None
    message_annotations: Fields | None = None


@schema(0x31, "amqp:declare:list", "id")
@dataclass(slots=True)
class Declare(Composite):
    """The body of a message to a coordinator: it asks for a new transaction."""

    global_id: Any = None


@schema(0x32, "amqp:discharge:list", "binary! boolean")
@dataclass(slots=True)
class Discharge(Composite):
    """The body of a message to a coordinator: it commits a transaction or, with `fail`, rolls it back."""

    txn_id: bytes
    fail: bool = False


@schema(0x33, "amqp:declared:list", "binary!")
@dataclass(slots=True)
class Declared(Composite):
    """The outcome of a declare."""

    txn_id: bytes


@schema(0x34, "amqp:transactional-state:list", "binary! outcome")
@dataclass(slots=True)
class TransactionalState(Composite):
    """The state of a delivery that is sent or settled in a transaction, round its outcome."""

    txn_id: bytes
    outcome: Outcome | None = None


Outcome = Accepted | Rejected | Released | Modified | Described
State = Outcome | Received | Declared | TransactionalState
