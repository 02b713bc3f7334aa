from __future__ import annotations

import bisect
import datetime as dt

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.spark.connector.options import InvalidOption, check_batch, check_stream, parse
from pairbus.spark.connector.places.positions import Position, parse_position, search_time
from pairbus.wire.partitions import Range

NOON = dt.datetime(2026, 1, 1, 12, tzinfo=dt.UTC)
BUS = {"connectionString": "Endpoint=sb://x", "entity": "orders"}


@pytest.mark.parametrize(
    ("text", "position"),
    [
        ("latest", Position("latest")),
        (" Earliest ", Position("earliest")),
        ("2026-01-01T12:00:00Z", Position(NOON)),
        ("2026-01-01 13:00+01:00", Position(NOON)),
        ("2026-01-01T12:00:00", Position(NOON)),
        ('{"Orders": 17}', Position("earliest", {"orders": 17})),
        (
            '{"orders": {"0": 5, "3": "latest", "4": "2026-01-01T12:00:00Z"}, "$from": {"orders": 1}}',
            Position("earliest", {"orders": {0: 5, 3: "latest", 4: NOON}}),
        ),
        ("{}", Position("earliest")),
    ],
)
def test_what_a_position_says(text: str, position: Position) -> None:
    assert parse_position("startingPosition", text, "earliest", ("earliest", "latest")) == position


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("newest", "startingPosition is earliest or latest, a time such as"),
        ("17", "a sequence number for each entity.*not '17'"),
        ("20260101", "not '20260101'"),
        ("{orders: 1}", "begins like JSON and is none"),
        ('{"orders": 0}', "startingPosition of 'orders' is earliest"),
        ('{"orders": true}', "not True"),
        ('{"orders": [1]}', r"not \[1\]"),
        ('{"orders": 1, "ORDERS": 2}', "names 'ORDERS' twice: entities are known regardless of letter case"),
        ('{"orders": {"x": 1}}', "has the partition 'x'; partitions are whole numbers from 0"),
        ('{"orders": {"40000": 1}}', "has the partition '40000'"),
        ('{"orders": {"3": -2}}', "partition 3, is earliest or latest"),
        ('{"orders": 844424930131973}', r'a number of partition 3; write it as {"3": 5}'),
    ],
)
def test_a_position_that_is_not_understood_is_named(text: str, error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        parse({**BUS, "startingPosition": text}, {})


def test_the_spot_of_each_partition() -> None:
    position = Position("earliest", {"orders": {3: "latest"}, "bills": 17})
    assert [position.spot("Orders", p) for p in (0, 3)] == ["earliest", "latest"]
    assert [position.spot("bills", p) for p in (0, 3)] == [17, "earliest"]
    assert position.spot("news", 0) == "earliest"
    assert Position(NOON).spot("news", 7) == NOON
    position.check("startingPosition", ["ORDERS", "bills"])
    with pytest.raises(ValueError, match="startingPosition names 'bills', which is not read; read are orders"):
        position.check("startingPosition", ["orders"])


@pytest.mark.parametrize(
    ("given", "error"),
    [
        ({"startingPosition": "latest", "fromSequenceNumber": "3"}, "exclude each other"),
        ({"endingPosition": "2026-01-01T12:00Z", "toSequenceNumber": "3"}, "exclude each other"),
    ],
)
def test_positions_and_numbers_exclude_each_other(given: dict[str, str], error: str) -> None:
    with pytest.raises(InvalidOption, match=error):
        parse({**BUS, **given}, {})


@pytest.mark.parametrize(
    ("given", "batch", "stream"),
    [
        ({"startingPosition": "latest"}, "would find nothing", None),
        ({"startingPosition": "earliest", "endingPosition": "latest"}, None, None),
        ({"startingPosition": "2026-01-01T12:00Z"}, None, None),
        ({"endingPosition": "earliest"}, "would find nothing", "is for spark.read"),
        ({"endingPosition": "2026-01-01T12:00Z"}, None, "is for spark.read"),
        ({"failOnDataLoss": "true"}, "is for streams", None),
        ({"failOnDataLoss": "true", "mode": "lock"}, "is for streams", "there is no offset"),
        ({"startingPosition": "latest", "mode": "lock"}, "is for streams", "there is no offset"),
        ({"toSequenceNumber": "5", "mode": "lock"}, "is for streams", "are for the modes peek and delete"),
    ],
)
def test_what_goes_with_a_batch_and_what_with_a_stream(
    given: dict[str, str], batch: str | None, stream: str | None
) -> None:
    options = parse({**BUS, **given}, {})
    for check, error in ((check_batch, batch), (check_stream, stream)):
        if error is None:
            check(options)
        else:
            with pytest.raises(InvalidOption, match=error):
                check(options)


@given(st.lists(st.integers(1, 2000), min_size=1, unique=True).map(sorted), st.data())
def test_a_time_is_found_by_bisection(numbers: list[int], data: st.DataObject) -> None:
    """Enqueued times grow with the numbers, several messages may share one, and numbers may be missing."""
    times = [NOON + dt.timedelta(seconds=number // 7) for number in numbers]
    wanted = NOON + dt.timedelta(seconds=data.draw(st.integers(-5, 300)))
    asked = 0
    search = search_time(Range(numbers[0], numbers[-1]), wanted)
    try:
        number = next(search)
        while True:
            asked += 1
            at = bisect.bisect_left(numbers, number)
            number = search.send((numbers[at], times[at]) if at < len(numbers) else None)
    except StopIteration as end:
        found = end.value
    assert [n for n in numbers if n >= found] == [n for n, time in zip(numbers, times, strict=True) if time >= wanted]
    assert asked <= 12
