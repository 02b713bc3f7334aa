"""The engine against itself: two connections joined by a function call."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pairbus.amqp import events as amqp_events
from pairbus.amqp.connection import AMQP_HEADER, EMPTY_FRAME, SASL_HEADER, Connection
from pairbus.amqp.limits import Limits
from pairbus.amqp.performative_types import Attach, Begin, Close, Error, Flow, Open, Source, Target, Transfer
from pairbus.amqp.sasl import SaslClient, SaslServer, plain_response

from .pair import SMALL, ConnectionPair


def frame(channel: int, performative: bytes, payload: bytes = b"", kind: int = 0, doff: int = 2) -> bytes:
    size = 8 + len(performative) + len(payload)
    return size.to_bytes(4, "big") + bytes([doff, kind]) + channel.to_bytes(2, "big") + performative + payload


def opened_server(limits: Limits = Limits()) -> Connection:  # noqa: B008
    server = Connection(server=True, container_id="server", limits=limits)
    server.receive(AMQP_HEADER + frame(0, Open(container_id="raw").encode()), 0.0)
    server.output()
    return server


@pytest.mark.parametrize("step", [None, 1, 7])
def test_both_sides_open_however_the_bytes_are_cut(step: int | None) -> None:
    pair = ConnectionPair(step=step)
    pair.pump()
    assert pair.client.is_open
    assert pair.server.is_open
    assert [type(event) for event in pair.server_events] == [amqp_events.SaslInitiated, amqp_events.Opened]
    assert [type(event) for event in pair.client_events] == [amqp_events.SaslDone, amqp_events.Opened]
    assert pair.server.remote_open is not None
    assert pair.server.remote_open.container_id == "client"


def test_without_sasl() -> None:
    pair = ConnectionPair(client={"sasl": None}, server={"sasl": None})
    pair.pump()
    assert pair.client.is_open
    assert pair.server.is_open


@pytest.mark.parametrize(
    ("client", "accepted", "username"),
    [
        (SaslClient("ANONYMOUS"), True, None),
        (SaslClient("EXTERNAL"), True, None),
        (SaslClient("MSSBCBS"), True, None),
        (SaslClient("PLAIN", plain_response("key", "secret")), True, "key"),
        (SaslClient("PLAIN", plain_response("key", "wrong")), False, None),
        (SaslClient("PLAIN", b"key secret"), False, None),
        (SaslClient("PLAIN", b"\0\xff\0\xff"), False, None),
        (SaslClient("SCRAM-SHA-256"), False, None),
    ],
)
def test_sasl(client: SaslClient, accepted: bool, username: str | None) -> None:
    server = SaslServer(check_plain=lambda user, password: (user, password) == ("key", "secret"))
    pair = ConnectionPair(client={"sasl": client}, server={"sasl": server})
    pair.pump()
    assert pair.server.is_open is accepted
    assert pair.client.is_closed is not accepted
    if accepted:
        assert pair.take("server", amqp_events.SaslInitiated) == [amqp_events.SaslInitiated(client.mechanism, username)]
    else:
        (closed,) = pair.take("client", amqp_events.Closed)
        assert closed.error is not None
        assert closed.error.condition == "amqp:unauthorized-access"


@pytest.mark.parametrize(("mechanisms", "accepted"), [(("PLAIN", "ANONYMOUS"), True), (("PLAIN",), False)])
def test_sasl_is_left_out_where_anonymous_would_do(mechanisms: tuple[str, ...], accepted: bool) -> None:
    server = SaslServer(mechanisms=mechanisms)
    pair = ConnectionPair(client={"sasl": None}, server={"sasl": server})
    pair.pump()
    assert pair.server.is_open is accepted
    assert pair.client.is_open is accepted


def test_plain_is_refused_where_nobody_checks_it() -> None:
    assert SaslServer().judge("PLAIN", plain_response("a", "b"))[0] != 0


def test_repr_of_a_client_hides_its_password() -> None:
    assert "secret" not in repr(SaslClient("PLAIN", plain_response("key", "secret")))


def test_sessions_begin_and_end_from_both_sides(pair: ConnectionPair) -> None:
    first, second = pair.client.begin(), pair.client.begin()
    pair.pump()
    assert [first.channel, second.channel] == [0, 1]
    assert len(pair.take("client", amqp_events.SessionBegun)) == 2
    begun = pair.take("server", amqp_events.SessionBegun)
    first.end()
    begun[1].session.end(Error("amqp:not-allowed", "enough", None))
    pair.pump()
    assert [event.error for event in pair.take("server", amqp_events.SessionEnded)] == [None, None]
    errors = {event.session.channel: event.error for event in pair.take("client", amqp_events.SessionEnded)}
    assert errors[0] is None
    assert errors[1] is not None
    assert errors[1].description == "enough"
    assert pair.client.sessions == pair.server.sessions == []
    assert pair.client.begin().channel == 0  # the number is free again


def test_close_is_answered_and_carries_the_reason(pair: ConnectionPair) -> None:
    pair.pump()
    pair.server.close(Error("amqp:connection:forced", "going down", None))
    pair.pump()
    (closed,) = pair.take("client", amqp_events.Closed)
    assert closed.error is not None
    assert (closed.error.condition, closed.error.description) == ("amqp:connection:forced", "going down")
    assert pair.take("server", amqp_events.Closed) == [amqp_events.Closed(None)]
    assert pair.client.is_closed
    assert pair.server.is_closed
    assert pair.client.receive(b"anything", 0.0) == []


def test_close_before_open_still_says_open_first() -> None:
    server = Connection(server=True, container_id="server")
    server.receive(AMQP_HEADER, 0.0)
    server.output()
    server.receive(frame(0, Begin(next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode()), 0.0)
    written = server.output()
    assert server.is_closed
    assert b"\x00\x53\x10" in written  # open
    assert b"Begin before open" in written


def test_a_refused_link_gets_both_frames() -> None:
    pair = ConnectionPair(auto_accept=False)
    link = pair.client.begin().attach("s", False, Source(address="a"), Target(address="nowhere"))
    pair.pump()
    (asked,) = pair.take("server", amqp_events.LinkAttached)
    asked.link.refuse(Error("amqp:not-found", "no such queue", None))
    pair.pump()
    (answer,) = pair.take("client", amqp_events.LinkAttached)
    assert answer.link is link
    assert link.refused
    assert answer.attach.target is None
    (detached,) = pair.take("client", amqp_events.LinkDetached)
    assert detached.closed
    assert detached.error is not None
    assert detached.error.condition == "amqp:not-found"
    assert not link.is_open
    assert pair.server.link_count == pair.client.link_count == 0


def test_links_echo_source_target_and_settle_modes(pair: ConnectionPair) -> None:
    link = pair.client.begin().attach(
        "r", True, Source(address="amqps://here:1/q"), Target(address="me"), snd_settle_mode=1, rcv_settle_mode=1
    )
    pair.pump()
    (answer,) = pair.take("client", amqp_events.LinkAttached)
    assert answer.attach.source.address == "amqps://here:1/q"
    assert answer.attach.target.address == "me"
    assert (answer.attach.snd_settle_mode, answer.attach.rcv_settle_mode) == (1, 1)
    assert answer.attach.initial_delivery_count == 0  # docs/reference/protocol.md#flow-and-attach-carry-their-counts
    assert link.is_open


def test_end_without_detach_drops_the_links(pair: ConnectionPair) -> None:
    sender, _ = pair.sender()
    sender.session.end()
    pair.pump()
    assert pair.server.link_count == 0
    assert pair.server.sessions == []


class TestKeepAlive:
    def test_empty_frames_keep_a_peer_content_that_asks_for_them(self) -> None:
        pair = ConnectionPair(client={"idle_timeout": 60.0}, server={"idle_timeout": None})
        pair.pump()
        deadline = pair.server.tick(1000.0)
        while pair.server.output():
            deadline = pair.server.tick(1000.0)
        assert deadline is not None
        assert deadline <= 1030.0
        pair.server.tick(deadline)
        assert pair.server.output() == EMPTY_FRAME
        assert pair.client.receive(EMPTY_FRAME, deadline) == []
        assert pair.client.is_open

    def test_a_silent_connection_says_something_every_half_of_the_peers_time_out(self) -> None:
        pair = ConnectionPair(client={"idle_timeout": 1.0}, server={"idle_timeout": None})
        pair.pump()
        now, written = 1000.0, [1000.0]
        while now < 1003.0:
            deadline = pair.server.tick(now)
            if pair.server.output():
                written.append(now)
            assert deadline is not None
            now = deadline
        assert max(later - earlier for earlier, later in pairwise(written)) <= 0.5

    def test_a_silent_peer_is_given_up(self) -> None:
        pair = ConnectionPair(server={"idle_timeout": 30.0})
        pair.pump()
        deadline = pair.server.tick(1000.0)
        assert pair.server.poll() == []
        assert pair.server.tick(1059.9) is not None
        assert not pair.server.is_closed
        pair.server.tick(1060.0)
        (closed,) = pair.server.poll()
        assert isinstance(closed, amqp_events.Closed)
        assert closed.error is not None
        assert "60 s" in (closed.error.description or "")
        assert deadline is not None

    def test_no_timeouts_no_deadline(self) -> None:
        pair = ConnectionPair(server={"idle_timeout": None}, client={"idle_timeout": None})
        pair.pump()
        assert pair.server.tick(1000.0) is None

    @given(st.lists(st.floats(0.1, 40.0), max_size=30))
    def test_never_silent_for_longer_than_half_of_what_the_peer_allows(self, gaps: list[float]) -> None:
        pair = ConnectionPair(client={"idle_timeout": 60.0}, server={"idle_timeout": None})
        pair.pump()
        now = last_written = 1000.0
        deadline = pair.server.tick(now)
        for gap in gaps:
            end = now + gap
            while deadline is not None and deadline <= end:
                now = deadline
                deadline = pair.server.tick(now)
                assert now - last_written <= 30.0 + 1e-6
                if pair.server.output():
                    last_written = now
            now = end
            if int(gap * 10) % 3 == 0:
                pair.server.write(0, EMPTY_FRAME[8:] or b"")
                pair.server.output()
                last_written = now


MALFORMED = {
    "garbage instead of a header": b"HTTP/1.1 200 OK\r\n",
    "the beginnings of garbage": b"GET",
    "another version": b"AMQP\x00\x02\x00\x00",
    "SASL where none is expected": SASL_HEADER,
    "a frame beyond the limit": AMQP_HEADER + b"\x7f\xff\xff\xff\x02\x00\x00\x00",
    "a frame below eight bytes": AMQP_HEADER + b"\x00\x00\x00\x07\x02\x00\x00\x00",
    "a data offset past the frame": AMQP_HEADER + b"\x00\x00\x00\x0c\x09\x00\x00\x00\x00\x53\x10\x45",
    "a data offset inside the header": AMQP_HEADER + b"\x00\x00\x00\x0c\x01\x00\x00\x00\x00\x53\x10\x45",
    "an unknown performative": AMQP_HEADER + frame(0, b"\x00\x53\x7f\x45"),
    "a SASL frame after the header": AMQP_HEADER + frame(0, Open(container_id="x").encode(), kind=1),
    "not a performative": AMQP_HEADER + frame(0, b"\xa1\x03abc"),
    "a performative past its frame": AMQP_HEADER + b"\x00\x00\x00\x0c\x02\x00\x00\x00\x00\x53\x10\xc0" + b"\x40" * 99,
    "open twice": AMQP_HEADER + frame(0, Open(container_id="x").encode()) * 2,
    "a tiny max-frame-size": AMQP_HEADER + frame(0, Open(container_id="x", max_frame_size=100).encode()),
}


@pytest.mark.parametrize("data", MALFORMED.values(), ids=MALFORMED.keys())
def test_malformed_input_closes_with_a_reason(data: bytes) -> None:
    server = Connection(server=True, container_id="server")
    events = server.receive(data, 0.0)
    assert server.is_closed
    assert isinstance(events[-1], amqp_events.Closed)
    assert events[-1].error is not None
    assert events[-1].error.description
    server.output()
    assert server.receive(data, 0.0) == []


BEGIN = Begin(next_outgoing_id=0, incoming_window=10, outgoing_window=10).encode()


def attach(handle: int = 0, name: str = "s") -> bytes:
    return Attach(
        name=name, handle=handle, role=False, source=Source(), target=Target(address="q"), initial_delivery_count=0
    ).encode()


VIOLATIONS = {
    "a channel beyond the limit": [(9, BEGIN)],
    "a channel twice": [(0, BEGIN), (0, BEGIN)],
    "an answer to nothing": [
        (0, Begin(remote_channel=7, next_outgoing_id=0, incoming_window=1, outgoing_window=1).encode())
    ],
    "a handle beyond the limit": [(0, BEGIN), (0, attach(handle=9))],
    "a handle twice": [(0, BEGIN), (0, attach()), (0, attach(name="t"))],
    "too many links": [(c, BEGIN) for c in range(2)] + [(c, attach(h, f"{c}.{h}")) for c in range(2) for h in range(3)],
    "a transfer without delivery-id": [(0, BEGIN), (0, attach()), (0, Transfer(handle=0).encode())],
    "two deliveries interleaved": [
        (0, BEGIN),
        (0, attach()),
        (0, Transfer(handle=0, delivery_id=0, delivery_tag=b"0", more=True).encode()),
        (0, Transfer(handle=0, delivery_id=1, delivery_tag=b"1").encode()),
    ],
}


@pytest.mark.parametrize("frames", VIOLATIONS.values(), ids=VIOLATIONS.keys())
def test_violations_close_with_a_reason(frames: list[tuple[int, bytes]]) -> None:
    server = opened_server(SMALL)
    events = [event for channel, body in frames for event in server.receive(frame(channel, body), 0.0)]
    assert server.is_closed
    assert isinstance(events[-1], amqp_events.Closed)
    assert events[-1].error is not None
    assert (events[-1].error.description or "").encode() in server.output()


def test_more_unsettled_deliveries_than_the_window_twice_over_end_the_connection() -> None:
    server = opened_server(SMALL)
    server.receive(frame(0, BEGIN) + frame(0, attach()), 0.0)
    events = []
    for number in range(40):
        transfer = Transfer(handle=0, delivery_id=number, delivery_tag=b"t", settled=False)
        events += server.receive(frame(0, transfer.encode(), b"x"), 0.0)
    assert server.is_closed
    assert isinstance(events[-1], amqp_events.Closed)
    assert events[-1].error is not None
    assert events[-1].error.condition == "amqp:session:window-violation"


IGNORED = {
    "a channel that never was": (2, Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1).encode()),
    "a handle that never was": (0, Transfer(handle=3, delivery_id=0, delivery_tag=b"0").encode()),
    "an empty frame": (0, b""),
    "a flow for a handle that is gone": (
        0,
        Flow(incoming_window=1, next_outgoing_id=0, outgoing_window=1, handle=2, link_credit=1).encode(),
    ),
}


@pytest.mark.parametrize(("channel", "body"), IGNORED.values(), ids=IGNORED.keys())
def test_frames_for_what_is_gone_are_ignored(channel: int, body: bytes) -> None:
    server = opened_server()
    server.receive(frame(0, BEGIN), 0.0)
    assert server.receive(frame(channel, body), 0.0) == []
    assert server.is_open


def test_after_our_close_only_the_peers_close_is_read() -> None:
    server = opened_server()
    server.close()
    assert server.receive(frame(0, BEGIN), 0.0) == []
    assert server.receive(frame(0, Close().encode()), 0.0) == [amqp_events.Closed(None)]


def test_a_flow_with_echo_is_answered(pair: ConnectionPair) -> None:
    receiver, sender = pair.receiver(credit=5)
    pair.take("server", amqp_events.CreditChanged)
    flow = Flow(
        next_incoming_id=0,
        incoming_window=10,
        next_outgoing_id=0,
        outgoing_window=10,
        handle=receiver.handle,
        delivery_count=0,
        link_credit=3,
        echo=True,
    )
    receiver.session.write(flow.encode())
    receiver.session.write(Flow(incoming_window=10, next_outgoing_id=0, outgoing_window=10, echo=True).encode())
    data = pair.client.output()
    pair.server.receive(data, 0.0)
    assert sender.credit == 3
    assert pair.server.output().count(b"\x00\x53\x13") == 2


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.lists(st.binary(max_size=200), max_size=20), st.integers(0, 3))
def test_fuzz_arbitrary_bytes_raise_nothing_and_stay_bounded(chunks: list[bytes], stage: int) -> None:
    server = Connection(server=True, container_id="server", limits=SMALL)
    good = [AMQP_HEADER, frame(0, Open(container_id="x").encode()), frame(0, BEGIN) + frame(0, attach())]
    for part in good[:stage]:
        server.receive(part, 0.0)
    for chunk in chunks:
        server.receive(chunk, 0.0)
        assert len(server._buffer) <= SMALL.frame_bytes_max + 200
        server.output()


def _mutations(data: st.DataObject, stream: bytes) -> bytes:
    changed = bytearray(stream)
    for _ in range(data.draw(st.integers(1, 6))):
        kind = data.draw(st.sampled_from(["flip", "drop", "double", "insert"]))
        at = data.draw(st.integers(8, len(changed) - 1))
        if kind == "flip":
            changed[at] = data.draw(st.integers(0, 255))
        elif kind == "drop":
            del changed[at]
        elif kind == "double":
            changed[at:at] = changed[at : at + 40]
        else:
            changed[at:at] = data.draw(st.binary(min_size=1, max_size=9))
    return bytes(changed)


@settings(max_examples=300, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(st.data())
def test_fuzz_a_valid_conversation_with_errors_in_it(data: st.DataObject) -> None:
    client = Connection(server=False, container_id="client", limits=SMALL)
    session = client.begin()
    link = session.attach("s", False, Source(address="a"), Target(address="q"))
    session.write(Transfer(handle=link.handle, delivery_id=0, delivery_tag=b"0", message_format=0).encode() + b"x" * 30)
    session.dispose(True, 0, 3, True, None)
    session.end()
    stream = client.output()
    server = Connection(server=True, container_id="server", limits=SMALL)
    mutated = _mutations(data, stream)
    step = data.draw(st.sampled_from([1, 13, 4096]))
    for start in range(0, len(mutated), step):
        for event in server.receive(mutated[start : start + step], 0.0):
            if isinstance(event, amqp_events.LinkAttached):
                event.link.accept()
            assert not isinstance(event, amqp_events.Delivered) or len(event.payload) <= SMALL.message_bytes_max
        server.output()
