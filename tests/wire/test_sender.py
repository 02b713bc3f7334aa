from __future__ import annotations

import asyncio

import pytest

from pairbus import wire
from pairbus.amqp.performative_types import Accepted, Error, Received, Rejected, Released
from pairbus.wire import sender as sender_module
from pairbus.wire import transport as transport_module
from tests.waiting import soon

from .peer import Peer, message

BUSY = Rejected(error=Error("com.microsoft:server-busy", "slow down", None))


async def test_a_send_returns_when_it_is_accepted(peer: Peer, sender: wire.Sender) -> None:
    await sender.send(message("one"))
    assert list(peer.queue("orders")) == [message("one")]
    assert repr(sender) == "<Sender orders: open, 0 of 1000 under way>"


@pytest.mark.parametrize(
    ("outcome", "kind"),
    [
        (BUSY, wire.Busy),
        (Rejected(error=Error("amqp:resource-limit-exceeded", "full", None)), wire.QuotaExceeded),
        (Rejected(), wire.Refused),
        (Released(), wire.Refused),
    ],
)
async def test_a_refused_send_says_why(peer: Peer, sender: wire.Sender, outcome: object, kind: type[Exception]) -> None:
    peer.outcome = outcome
    with pytest.raises(kind) as caught:
        await sender.send(message())
    assert not getattr(caught.value, "outcome_unknown", True)
    peer.outcome = Accepted()
    await sender.send(message())


async def test_an_unsettled_outcome_is_an_answer_and_is_settled(peer: Peer, sender: wire.Sender) -> None:
    peer.settle_sends = False
    await sender.send(message())


async def test_a_state_that_is_no_outcome_is_no_answer(peer: Peer, sender: wire.Sender) -> None:
    peer.settle_sends = False
    peer.outcome = Received(section_number=0, section_offset=0)
    with pytest.raises(wire.TimedOut):
        await sender.send(message(), timeout=0.1)


async def test_pipelined_sends_are_confirmed_by_ranges(peer: Peer, client: wire.WireClient) -> None:
    sender = await client.sender("orders", window=500)
    futures = []
    for number in range(3000):
        if not sender.room:
            await sender.ready()
        futures.append(sender.send_nowait(message(str(number))))
    await sender.flush()
    assert all(future.done() and future.exception() is None for future in futures)
    assert list(peer.queue("orders")) == [message(str(number)) for number in range(3000)]


async def test_the_window_bounds_what_is_under_way(peer: Peer, client: wire.WireClient) -> None:
    peer.hold = True
    sender = await client.sender("orders", window=3)
    for _ in range(3):
        sender.send_nowait(message())
    assert sender.room == 0
    with pytest.raises(wire.WindowFull, match="3 of 3 messages to orders are under way"):
        sender.send_nowait(message())
    waiting = asyncio.ensure_future(sender.ready())
    await soon(lambda: len(peer.queue("orders")) == 3)
    assert not waiting.done()
    peer.let_go()
    await waiting
    assert sender.room == 3
    with pytest.raises(ValueError, match="window of 0"):
        await client.sender("orders", window=0)


async def test_a_timed_out_send_is_of_unknown_outcome(peer: Peer, sender: wire.Sender) -> None:
    peer.confirm = False
    with pytest.raises(wire.TimedOut) as caught:
        await sender.send(message(), timeout=0.05)
    assert caught.value.outcome_unknown
    assert "may have been stored" in str(caught.value)
    assert sender.under_way == 0
    peer.confirm = True
    await sender.send(message())  # late answers and new ones don't mix


async def test_a_late_answer_is_nobodys(peer: Peer, sender: wire.Sender) -> None:
    peer.hold = True
    with pytest.raises(wire.TimedOut):
        await sender.send(message("first"), timeout=0.05)
    second = sender.send_nowait(message("second"))
    await soon(lambda: len(peer.queue("orders")) == 2)
    peer.let_go()
    await second


async def test_pipelined_sends_time_out_too(peer: Peer, client: wire.WireClient) -> None:
    peer.confirm = False
    sender = await client.sender("orders", timeout=0.05)
    futures = [sender.send_nowait(message()) for _ in range(3)]
    for future in futures:
        with pytest.raises(wire.TimedOut) as caught:
            await future
        assert caught.value.outcome_unknown
    assert sender.under_way == 0


async def test_without_credit_nothing_is_sent_and_that_is_known(peer: Peer, client: wire.WireClient) -> None:
    peer.grant = 0
    sender = await client.sender("orders", timeout=0.05)
    with pytest.raises(wire.TimedOut, match="was not sent") as caught:
        await sender.send(message())
    assert not caught.value.outcome_unknown
    queued = sender.send_nowait(message())
    with pytest.raises(wire.TimedOut, match="was not sent"):
        await queued
    assert sender.under_way == 0
    peer.grant_more(10)
    await sender.send(message("now"), timeout=2.0)
    assert list(peer.queue("orders")) == [message("now")]


async def test_credit_lets_the_queue_go_in_order(peer: Peer, client: wire.WireClient) -> None:
    peer.grant = 1
    sender = await client.sender("orders")
    futures = [sender.send_nowait(message(str(number))) for number in range(5)]
    await futures[0]
    assert not futures[1].done()
    peer.grant_more(10)
    await asyncio.gather(*futures)
    assert list(peer.queue("orders")) == [message(str(number)) for number in range(5)]


async def test_a_send_cancelled_in_the_queue_is_never_sent(peer: Peer, client: wire.WireClient) -> None:
    peer.grant = 0
    sender = await client.sender("orders")
    sending = asyncio.ensure_future(sender.send(message("cancelled")))
    await asyncio.sleep(0)
    sending.cancel()
    with pytest.raises(asyncio.CancelledError):
        await sending
    peer.grant_more(10)
    await sender.send(message("after"))
    assert list(peer.queue("orders")) == [message("after")]


async def test_cancelling_a_send_under_way_harms_no_other(peer: Peer, sender: wire.Sender) -> None:
    peer.hold = True
    first = asyncio.ensure_future(sender.send(message("a")))
    second = asyncio.ensure_future(sender.send(message("b")))
    await soon(lambda: len(peer.queue("orders")) == 2)
    first.cancel()
    peer.let_go()
    await second
    assert first.cancelled()


async def test_queued_bytes_are_bounded(peer: Peer, client: wire.WireClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender_module, "QUEUED_BYTES_MAX", 1000)
    peer.grant = 0
    sender = await client.sender("orders")
    sender.send_nowait(message("x" * 600))
    assert sender.room > 0
    sender.send_nowait(message("x" * 600))
    assert sender.room == 0
    with pytest.raises(wire.WindowFull):
        sender.send_nowait(message())


async def test_a_peer_that_stops_reading(peer: Peer, client: wire.WireClient) -> None:
    sender = await client.sender("orders", window=100_000)
    await sender.send(message("before"))
    peer.deaf = True
    big = message("x" * 200_000)
    futures = []
    while sender.room > 0:
        futures.append(sender.send_nowait(big))
        await asyncio.sleep(0)
    buffered = client._transport._socket.get_write_buffer_size()  # type: ignore[union-attr]
    assert buffered < transport_module.WRITE_BUFFER_BYTES_MAX + transport_module.FLUSH_BYTES + 2 * len(big)
    with pytest.raises(wire.TimedOut):
        await sender.send(big, timeout=0.1)
    peer.hear_again()
    await sender.flush()
    assert len(peer.queue("orders")) == 1 + len(futures)


async def test_a_message_beyond_the_links_limit_is_not_sent(peer: Peer, client: wire.WireClient) -> None:
    peer.max_message_size = 1000
    sender = await client.sender("orders")
    with pytest.raises(wire.TooLarge, match="up to 1000 bytes; this one has"):
        await sender.send(message("x" * 1000))
    assert not peer.queue("orders")


async def test_a_message_of_many_frames(peer: Peer, client: wire.WireClient) -> None:
    peer.max_message_size = None
    sender = await client.sender("orders")
    big = message(bytes(range(256)) * 4096)
    await sender.send(big)
    assert list(peer.queue("orders")) == [big]


async def test_batches_are_cut_by_the_links_limit(peer: Peer, client: wire.WireClient) -> None:
    peer.max_message_size = 1000
    sender = await client.sender("orders")
    messages = [message(f"{number:0300}") for number in range(7)]
    await sender.send_batch(messages)
    assert peer.batches == [3, 3, 1]
    assert list(peer.queue("orders")) == messages
    await sender.send_batch([])
    with pytest.raises(wire.TooLarge):
        await sender.send_batch([message("fits"), message("x" * 1000)])
    assert peer.batches == [3, 3, 1]


async def test_batches_pipelined(peer: Peer, client: wire.WireClient) -> None:
    peer.max_message_size = 1000
    sender = await client.sender("orders")
    sent = sender.send_batch_nowait([message(f"{number:0300}") for number in range(7)])
    assert [part for part, _ in sent] == [range(3), range(3, 6), range(6, 7)]
    await asyncio.gather(*(future for _, future in sent))
    sender.window = 2
    with pytest.raises(wire.WindowFull, match="room for 2 of 3"):
        sender.send_batch_nowait([message(f"{number:0300}") for number in range(7)])


async def test_a_refused_batch_raises(peer: Peer, sender: wire.Sender) -> None:
    peer.outcome = BUSY
    with pytest.raises(wire.Busy):
        await sender.send_batch([message("a"), message("b")])


async def test_send_many_tells_the_fate_of_each(peer: Peer, client: wire.WireClient) -> None:
    peer.max_message_size = 1000
    sender = await client.sender("orders", window=4)
    results = await sender.send_many([message("a"), message("x" * 1000), *[message("b")] * 10])
    assert [result is None for result in results] == [True, False, *[True] * 10]
    assert isinstance(results[1], wire.TooLarge)
    assert len(peer.queue("orders")) == 11


async def test_send_many_runs_out_of_time(peer: Peer, client: wire.WireClient) -> None:
    peer.hold = True
    sender = await client.sender("orders", window=2)
    results = await sender.send_many([message(str(number)) for number in range(4)], timeout=0.1)
    assert all(isinstance(result, wire.TimedOut) for result in results)
    assert [result.outcome_unknown for result in results if result is not None] == [True, True, False, False]
    assert sender.under_way == 0


async def test_flush_raises_the_first_failure_and_has_a_limit(peer: Peer, sender: wire.Sender) -> None:
    peer.hold = True
    peer.outcome = BUSY
    sender.send_nowait(message())
    with pytest.raises(wire.TimedOut):
        await sender.flush(timeout=0.05)
    assert sender.under_way == 1
    flushing = asyncio.ensure_future(sender.flush())
    await asyncio.sleep(0)
    peer.let_go()
    with pytest.raises(wire.Busy):
        await flushing


async def test_a_lost_connection_fails_what_is_under_way_and_sends_nothing_twice(
    peer: Peer, sender: wire.Sender
) -> None:
    peer.confirm = False
    on_the_wire = sender.send_nowait(message("unknown"))
    await soon(lambda: len(peer.queue("orders")) == 1)
    peer.drop()
    with pytest.raises(wire.Unreachable) as caught:
        await on_the_wire
    assert caught.value.outcome_unknown
    assert sender.room == 0
    with pytest.raises(wire.LinkLost, match="await ready"):
        sender.send_nowait(message())
    peer.confirm = True
    await sender.send(message("after"))
    assert list(peer.queue("orders")) == [message("unknown"), message("after")]
    assert peer.connections == 2


async def test_what_waited_for_credit_was_certainly_not_sent(peer: Peer, client: wire.WireClient) -> None:
    peer.grant = 1
    peer.confirm = False
    sender = await client.sender("orders")
    sent, queued = sender.send_nowait(message("a")), sender.send_nowait(message("b"))
    await soon(lambda: len(peer.queue("orders")) == 1)
    peer.drop()
    with pytest.raises(wire.Unreachable) as first:
        await sent
    with pytest.raises(wire.Unreachable, match="was not sent") as second:
        await queued
    assert (first.value.outcome_unknown, second.value.outcome_unknown) == (True, False)


async def test_a_detached_link_opens_again_on_the_same_connection(peer: Peer, sender: wire.Sender) -> None:
    await sender.send(message("a"))
    peer.detach("orders", Error("amqp:link:detach-forced", "idle for ten minutes", None))
    await soon(lambda: not sender.is_open)
    await sender.send(message("b"))
    assert len(peer.queue("orders")) == 2
    assert peer.connections == 1
    assert [name for name, _ in peer.attached] == ["orders", "orders"]


async def test_a_detach_in_mid_send_keeps_its_condition(peer: Peer, sender: wire.Sender) -> None:
    peer.confirm = False
    pending = sender.send_nowait(message())
    await soon(lambda: len(peer.queue("orders")) == 1)
    peer.detach("orders", Error("com.microsoft:entity-disabled", "disabled", None))
    with pytest.raises(wire.LinkLost) as caught:
        await pending
    assert (caught.value.condition, caught.value.outcome_unknown) == ("com.microsoft:entity-disabled", True)


async def test_a_refused_link(peer: Peer, client: wire.WireClient) -> None:
    peer.refuse["nope"] = Error("amqp:not-found", "The messaging entity 'nope' could not be found.", None)
    with pytest.raises(wire.NotFound, match="could not be found"):
        await client.sender("nope")
    assert client.is_connected


async def test_a_silent_peer_with_overdue_answers_is_given_up(
    peer: Peer, client: wire.WireClient, sender: wire.Sender, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(transport_module, "SILENCE_S", 0.05)
    peer.silent = True
    with pytest.raises(wire.TimedOut):
        await sender.send(message(), timeout=0.1)
    assert not client.is_connected
    peer.silent = False
    await sender.send(message())
    assert peer.connections == 2


async def test_many_tasks_share_a_sender(peer: Peer, client: wire.WireClient) -> None:
    sender = await client.sender("orders", window=10)
    await asyncio.gather(*(sender.send(message(str(number))) for number in range(200)))
    assert len(peer.queue("orders")) == 200


async def test_a_closed_sender_is_closed(peer: Peer, client: wire.WireClient, sender: wire.Sender) -> None:
    peer.confirm = False
    pending = sender.send_nowait(message())
    await sender.close()
    await sender.close()
    with pytest.raises(wire.ClientClosed):
        await pending
    with pytest.raises(wire.ClientClosed):
        await sender.send(message())
    with pytest.raises(wire.ClientClosed):
        sender.send_nowait(message())
    assert repr(sender) == "<Sender orders: closed, 0 of 1000 under way>"
    await (await client.sender("orders")).close()
