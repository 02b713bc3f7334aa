from __future__ import annotations

from dataclasses import replace

from pairbus.amqp.events import Closed, Delivered
from pairbus.amqp.performative_types import Transfer
from tests.amqp.pair import SMALL, ConnectionPair


def test_what_a_connection_gathers_follows_the_largest_message_that_a_link_may_bring() -> None:
    """As the broker accepts links to entities: one such message, and beside it as much as any connection gathers."""
    pair = ConnectionPair(server={"limits": replace(SMALL, gathered_bytes_max=1000, incoming_window=1000)})
    large, receiver = pair.sender()
    small, _ = pair.sender("small")
    receiver.expect(50_000)
    allowed = 50_000 + 65_536

    def begun(delivery_id: int) -> bytes:
        return Transfer(handle=0, delivery_id=delivery_id, delivery_tag=b"t", more=True).encode()

    def gather(size: int) -> None:
        large.session.write_transfer(begun(0), b"")
        for start in range(0, size, 400):
            large.session.write_transfer(Transfer(handle=0, more=True).encode(), b"x" * min(400, size - start))
        pair.pump()

    gather(allowed)
    small.session.write_transfer(begun(0), b"x" * 400)
    small.session.write_transfer(Transfer(handle=0).encode(), b"x" * 400)
    pair.pump()
    (beside,) = pair.take("server", Delivered)
    assert len(beside.payload) == 800
    large.session.write_transfer(Transfer(handle=0).encode(), b"")
    pair.pump()
    (whole,) = pair.take("server", Delivered)
    assert (len(whole.payload), pair.server.gathered_bytes) == (allowed, 0)
    # beyond that the connection ends, as ever
    gather(allowed)
    for _ in range(3):
        small.session.write_transfer(begun(1), b"x" * 400)
    pair.pump()
    (closed,) = pair.take("server", Closed)
    assert closed.error is not None
    assert closed.error.condition == "amqp:resource-limit-exceeded"
