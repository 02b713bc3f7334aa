"""Messages, credit and settlement on a link."""

from __future__ import annotations

import tracemalloc
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pairbus.amqp.events import Closed, CreditChanged, Delivered, DeliveryTooLarge, Disposed, LinkDetached
from pairbus.amqp.performative_types import Accepted, Error, Rejected, Transfer
from pairbus.amqp.performatives import ACCEPTED_BYTES

from .pair import SMALL, ConnectionPair


@settings(deadline=None)
@given(st.lists(st.binary(max_size=3000), max_size=8), st.sampled_from([None, 1, 100]))
def test_messages_arrive_whole_and_in_order_whatever_the_frame_size(bodies: list[bytes], step: int | None) -> None:
    pair = ConnectionPair(server={"limits": SMALL}, step=step)
    sender, receiver = pair.sender(credit=100)
    for number, body in enumerate(bodies):
        assert sender.send(body, b"%d" % number, message_format=number) == number
        pair.pump()
        receiver.settle(number, number, ACCEPTED_BYTES)
        pair.pump()
    got = pair.take("server", Delivered)
    assert [event.payload for event in got] == bodies
    assert [event.tag for event in got] == [b"%d" % number for number in range(len(bodies))]
    assert [event.message_format for event in got] == list(range(len(bodies)))
    assert [event.first for event in pair.take("client", Disposed)] == list(range(len(bodies)))


def test_the_frames_of_a_message_are_not_copied_once_more_at_its_end() -> None:
    pair = ConnectionPair(server={"limits": replace(SMALL, message_bytes_max=1 << 24, gathered_bytes_max=1 << 24)})
    sender, _ = pair.sender(credit=1)
    frame, size = bytes(SMALL.frame_bytes_max // 2), 0
    tracemalloc.start()
    while size < 1 << 20:
        part = Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True, message_format=0).encode()
        sender.session.write_transfer(part, frame)
        size += len(frame)
        pair.pump()
    sender.session.write_transfer(Transfer(handle=0, more=False).encode(), b"end")
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    pair.pump()
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    (delivered,) = pair.take("server", Delivered)
    assert len(delivered.payload) == size + 3
    assert most - before < size / 4


def test_a_message_beyond_the_limit_is_discarded_and_reported_and_the_link_goes_on() -> None:
    pair = ConnectionPair(server={"limits": SMALL})
    sender, receiver = pair.sender(credit=10)
    for _ in range(4):
        sender.send(b"x" * (SMALL.message_bytes_max + 1), b"big")
        sender.send(b"small", b"small")
        pair.pump()
        for large in pair.take("server", DeliveryTooLarge):
            assert large.size == SMALL.message_bytes_max + 1
            receiver.settle(large.delivery_id, large.delivery_id, Rejected(error=Error("c", "d", None)))
        for event in pair.take("server", Delivered):
            assert event.payload == b"small"
            receiver.settle(event.delivery_id, event.delivery_id, ACCEPTED_BYTES)
        pair.pump()
    states = [type(event.state) for event in pair.take("client", Disposed)]
    assert states == [Rejected, Accepted] * 4
    assert receiver.session.unsettled == 0


def test_the_senders_window_blocks_and_opens_with_settling() -> None:
    pair = ConnectionPair(server={"limits": SMALL})
    sender, receiver = pair.sender(credit=1000)
    for _ in range(20):
        sender.send(b"x", b"t")
    pair.pump()
    assert sender.session.is_blocked
    got = pair.take("server", Delivered)
    assert len(got) == SMALL.incoming_window
    total = len(got)
    while got:
        receiver.settle(got[0].delivery_id, got[-1].delivery_id, ACCEPTED_BYTES)
        pair.pump()
        got = pair.take("server", Delivered)
        total += len(got)
    assert total == 20
    assert not sender.session.is_blocked


def test_credit_is_absolute_and_counts_what_is_under_way(pair: ConnectionPair) -> None:
    receiver, sender = pair.receiver(credit=5)
    assert sender.credit == 5
    (changed,) = pair.take("server", CreditChanged)
    assert changed.link is sender
    sender.send(b"1", b"1")
    sender.send(b"2", b"2")
    assert sender.credit == 3
    receiver.flow(5)  # it has seen none of the two yet
    pair.pump()
    assert sender.credit == 3
    receiver.flow(5)
    pair.pump()
    assert sender.credit == 5
    assert [event.payload for event in pair.take("client", Delivered)] == [b"1", b"2"]


def test_credit_granted_before_our_attach_is_kept() -> None:
    pair = ConnectionPair(auto_accept=False)
    session = pair.client.begin()
    link = session.attach("r", True, None, None)
    link.credit = 7
    session.write_flow(link)
    pair.pump()
    server_link = pair.server.sessions[0].links[0]
    assert server_link.credit == 7


def test_drain_gives_the_unused_credit_back(pair: ConnectionPair) -> None:
    receiver, sender = pair.receiver()
    receiver.flow(5, drain=True)
    pair.pump()
    assert sender.drain
    sender.send(b"x", b"x")
    sender.drained()  # type: ignore[union-attr]
    pair.pump()
    assert (sender.credit, receiver.credit) == (0, 0)
    assert sender.delivery_count == receiver.delivery_count == 5
    assert not sender.drain


def test_settled_transfers_need_no_disposition(pair: ConnectionPair) -> None:
    sender, receiver = pair.sender(credit=10)
    sender.send(b"x", b"x", settled=True)
    pair.pump()
    (event,) = pair.take("server", Delivered)
    assert event.settled
    assert receiver.unsettled == receiver.session.unsettled == 0


def test_a_settlement_that_the_sender_confirms_opens_the_window_again() -> None:
    pair = ConnectionPair(client={"limits": SMALL})
    receiver, sender = pair.receiver(credit=1000)
    for _ in range(5 * SMALL.incoming_window):
        delivery_id = sender.send(b"x", b"t")
        pair.pump()
        receiver.settle(delivery_id, delivery_id, ACCEPTED_BYTES, settled=False)
        pair.pump()
        sender.session.dispose(False, delivery_id, delivery_id, True, ACCEPTED_BYTES)
        pair.pump()
    assert len(pair.take("client", Delivered)) == 5 * SMALL.incoming_window
    assert receiver.session.unsettled == 0


def test_an_aborted_message_is_forgotten(pair: ConnectionPair) -> None:
    sender, _ = pair.sender(credit=10)
    session = sender.session
    session.write_transfer(Transfer(handle=0, delivery_id=0, delivery_tag=b"a", more=True).encode(), b"half")
    session.write_transfer(Transfer(handle=0, aborted=True).encode(), b"")
    session.write_transfer(Transfer(handle=0, delivery_id=1, delivery_tag=b"b").encode(), b"whole")
    pair.pump()
    assert [event.payload for event in pair.take("server", Delivered)] == [b"whole"]


def test_messages_that_never_end_are_bounded_over_all_links() -> None:
    """One begun on every link would else be as many times the largest message."""
    pair = ConnectionPair(server={"limits": replace(SMALL, gathered_bytes_max=1000)})
    sender, receiver = pair.sender()
    other, _ = pair.sender("other")
    begun = Transfer(handle=0, delivery_id=0, delivery_tag=b"t", more=True).encode()
    sender.session.write_transfer(begun, b"x" * 450)
    sender.session.write_transfer(begun, b"x" * 450)
    pair.pump()
    assert pair.server.gathered_bytes == 900
    sender.session.write_transfer(Transfer(handle=0).encode(), b"x")
    pair.pump()
    (delivered,) = pair.take("server", Delivered)
    assert (len(delivered.payload), pair.server.gathered_bytes) == (901, 0)
    sender.session.write_transfer(Transfer(handle=0, delivery_id=1, delivery_tag=b"t", more=True).encode(), b"x" * 450)
    pair.pump()
    receiver.detach()
    assert pair.server.gathered_bytes == 0
    for _ in range(3):
        other.session.write_transfer(begun, b"x" * 450)
    pair.pump()
    (closed,) = pair.take("server", Closed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:resource-limit-exceeded"


def test_a_window_that_opens_is_told_to_senders_that_held_back() -> None:
    """By a flow that names no link (AMQP 2.5.6): nothing else would wake them."""
    pair = ConnectionPair(client={"limits": SMALL})
    receiver, sender = pair.receiver(credit=100)
    for _ in range(SMALL.incoming_window + 1):
        sender.send(b"x", b"t")
    pair.pump()
    assert sender.session.is_blocked
    pair.take("server", CreditChanged)
    receiver.settle(0, SMALL.incoming_window - 1, ACCEPTED_BYTES)
    pair.pump()
    assert not sender.session.is_blocked
    assert [event.link for event in pair.take("server", CreditChanged)] == [sender]


def test_a_window_that_is_just_used_up_is_shut_and_its_opening_told() -> None:
    pair = ConnectionPair(client={"limits": SMALL})
    receiver, sender = pair.receiver(credit=100)
    assert sender.session.room == SMALL.incoming_window
    for _ in range(SMALL.incoming_window):
        sender.send(b"x", b"t")
    pair.pump()
    assert sender.session.is_blocked
    pair.take("server", CreditChanged)
    receiver.settle(0, SMALL.incoming_window - 1, ACCEPTED_BYTES)
    pair.pump()
    assert sender.session.room == SMALL.incoming_window
    assert [event.link for event in pair.take("server", CreditChanged)] == [sender]


def test_detach_from_the_server_frees_its_window(pair: ConnectionPair) -> None:
    sender, receiver = pair.sender(credit=10)
    sender.send(b"x", b"x")
    pair.pump()
    assert receiver.session.unsettled == 1
    receiver.detach(Error("amqp:link:detach-forced", "idle", None))
    sender.send(b"too late", b"y")  # crosses the detach on the wire
    pair.pump()
    assert receiver.session.unsettled == 0
    (gone,) = pair.take("client", LinkDetached)
    assert gone.error is not None
    assert gone.error.condition == "amqp:link:detach-forced"
    assert len(pair.take("server", Delivered)) == 1
    assert pair.server.link_count == pair.client.link_count == 0


def test_handles_are_used_again() -> None:
    pair = ConnectionPair(server={"limits": SMALL}, client={"limits": SMALL})
    session = pair.client.begin()
    for number in range(20):
        link = session.attach(f"s{number}", False, None, None)
        pair.pump()
        assert link.handle == 0
        link.detach()
        pair.pump()
    assert pair.server.is_open


def test_delivery_ids_are_consecutive_per_session(pair: ConnectionPair) -> None:
    session = pair.client.begin()
    links = [session.attach(name, False, None, None) for name in "ab"]
    pair.pump()
    ids = [link.send(b"x", b"t") for link in links for _ in range(3)]  # type: ignore[attr-defined]
    assert ids == list(range(6))


@pytest.mark.parametrize("start", [0xFFFFFFFE])
def test_numbers_wrap_round(pair: ConnectionPair, start: int) -> None:
    sender, receiver = pair.sender(credit=10)
    sender.session.next_delivery_id = start
    ids = [sender.send(b"x", b"t") for _ in range(4)]
    assert ids == [0xFFFFFFFE, 0xFFFFFFFF, 0, 1]
    pair.pump()
    assert len(pair.take("server", Delivered)) == 4
    receiver.settle(ids[0], ids[-1], ACCEPTED_BYTES)
    pair.pump()
    (disposed,) = pair.take("client", Disposed)
    assert (disposed.first, disposed.last) == (0xFFFFFFFE, 1)
    assert receiver.session.unsettled == 0


def test_reprs_say_what_a_reader_wants_to_know(pair: ConnectionPair) -> None:
    sender, _ = pair.sender("orders", credit=3)
    assert repr(sender) == "<SenderLink 'orders' sender handle 0: attached, credit 3>"
    assert repr(sender.session) == "<Session channel 0: 1 links, 0 unsettled>"
    assert repr(pair.client) == "<Connection client 'client': open, 1 sessions>"
