from __future__ import annotations

from pairbus.syphon.inspection import look, measure, scan
from pairbus.wire.partitions import number_of

from .pair import Pair, diverted


async def test_what_lies_there(pair: Pair) -> None:
    ((queue, _),) = await pair.backlog(0)
    await pair.divert(
        0, [diverted("orders", "m1"), diverted("news", "m2"), diverted(None, "m3"), diverted("orders", "m4")]
    )
    depth = await measure(pair.west_client, queue)
    assert (depth.messages, depth.exists, depth.is_complete) == (4, True, True)
    assert depth.destinations == {"orders": 2, "news": 1, "": 1}
    assert (depth.oldest_number, depth.oldest_deliveries) == (1, 0)
    assert depth.oldest is not None and abs(depth.oldest - pair.clock()) < 30
    assert await pair.left(0) == 4, "nothing was taken"


async def test_some_of_many(pair: Pair) -> None:
    ((queue, _),) = await pair.backlog(0)
    await pair.divert(0, [diverted("orders", f"m{number}", b"x" * 3000) for number in range(600)])
    assert (await measure(pair.west_client, queue)).messages == 600
    depth = await measure(pair.west_client, queue, 500)
    assert (depth.messages, depth.is_complete) == (500, False)


async def test_somebody_has_tried(pair: Pair) -> None:
    ((queue, _),) = await pair.backlog(0)
    await pair.divert(0, [diverted("orders", "m1")])
    receiver = await pair.west_client.receiver(queue)
    await receiver.abandon(await receiver.receive(1, 2.0))
    assert (await measure(pair.west_client, queue)).oldest_deliveries == 1


async def test_deferred_ones_are_nobody_s(pair: Pair) -> None:
    ((queue, _),) = await pair.backlog(0)
    await pair.divert(0, [diverted("orders", "m1"), diverted("orders", "m2")])
    receiver = await pair.west_client.receiver(queue)
    await receiver.defer(await receiver.receive(1, 2.0))
    found = [seen.key[1] async for seen, _ in scan(pair.west_client, queue, queue)]
    assert found == [2]


async def test_a_queue_that_does_not_exist(pair: Pair) -> None:
    depth = await measure(pair.west_client, f"{pair.name}/x-servicebus-transfer/9")
    assert (depth.exists, depth.messages) == (False, 0)


async def test_the_oldest_of_a_partitioned_queue(pair: Pair) -> None:
    """It may lie in any partition, also in one that was not looked at whole."""
    ((queue, _),) = await pair.backlog(0, enable_partitioning=True)
    sender = await pair.west_client.sender(queue)
    for number in range(40):  # in turn, from partition 0 on
        await sender.send(diverted("orders", f"m{number}"))
    receiver = await pair.west_client.receiver(queue)
    await receiver.complete(await receiver.receive(3, 2.0))
    for count_max in (None, 1, 10):
        depth = await measure(pair.west_client, queue, count_max)
        assert depth.messages == (37 if count_max is None else count_max)
        assert depth.oldest_number == number_of(3, 1), count_max
        assert depth.is_complete is (count_max is None)


async def test_looking_on_from_a_place_in_each_partition(pair: Pair) -> None:
    ((queue, _),) = await pair.backlog(0, enable_partitioning=True)
    sender = await pair.west_client.sender(queue)
    for number in range(48):
        await sender.send(diverted(f"to-{number}", f"m{number}"))
    places = {0: number_of(0, 3), 2: number_of(2, 2), 15: number_of(15, 4)}
    end = {1: number_of(1, 1), 3: number_of(3, 0)}
    found = [
        number
        async for number, _ in look(
            pair.west_client, queue, places, lambda partition: end.get(partition, number_of(partition, 1000))
        )
    ]
    expected = {0: [3], 1: [1], 2: [2, 3], 3: [], 15: []}
    assert found == [number_of(p, count) for p in range(16) for count in expected.get(p, [1, 2, 3])]
