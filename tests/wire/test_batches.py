from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.amqp.message import encode_message, join_batch
from pairbus.amqp.types import ULong
from pairbus.wire.batches import GROUP_BYTES_MAX, GROUP_MAX, WRAP_BYTES, BatchHistory, batch_bytes_max, cut, group
from pairbus.wire.errors import TooLarge

KB, MB = 1024, 1024 * 1024


@pytest.mark.parametrize(
    ("size", "properties", "expected"),
    [
        (None, None, MB),
        (0, None, MB),
        (256 * KB, None, 256 * KB),
        (MB, None, MB),
        (100 * MB, None, MB),
        (512 * KB, None, 256 * KB),
        (64 * KB, {}, 64 * KB),
        (MB, {"com.microsoft:max-message-batch-size": ULong(2 * MB)}, 2 * MB),
        (MB, {"com.microsoft:max-message-batch-size": ULong(0)}, MB),
        (MB, {"com.microsoft:max-message-batch-size": "x"}, MB),
    ],
)
def test_limit(size: int | None, properties: dict[str, object] | None, expected: int) -> None:
    assert batch_bytes_max(size, properties) == expected


@given(st.lists(st.integers(0, 60)), st.integers(68, 200), st.integers(1, 5))
def test_every_message_once_in_order_and_no_batch_too_large(sizes: list[int], limit: int, most: int) -> None:
    payloads = [b"x" * size for size in sizes]
    parts = list(cut(payloads, limit, most))
    assert [index for part in parts for index in part] == list(range(len(payloads)))
    for part in parts:
        chosen = payloads[part.start : part.stop]
        assert 1 <= len(chosen) <= most
        assert sum(len(payload) + WRAP_BYTES for payload in chosen) <= limit


@given(st.lists(st.binary(max_size=400), min_size=1, max_size=20))
def test_the_reckoning_is_never_below_the_encoded_size(bodies: list[bytes]) -> None:
    messages = [encode_message(body=body) for body in bodies]
    assert len(join_batch(messages)) <= sum(len(message) + WRAP_BYTES for message in messages)


def test_one_message_that_fits_nowhere_stops_all() -> None:
    with pytest.raises(TooLarge, match="message 1 of 2 has 100 bytes; a batch on this link holds 100"):
        cut([b"", b"x" * 100], 100)


@given(st.lists(st.tuples(st.integers(0, 300), st.sampled_from((None, "a", "b")))), st.integers(68, 400))
def test_neighbours_of_one_company_share_a_transfer(messages: list[tuple[int, str | None]], limit: int) -> None:
    payloads, companies = [b"x" * size for size, _ in messages], [company for _, company in messages]
    parts = list(group(payloads, companies, limit))
    assert [index for part in parts for index in part] == list(range(len(payloads)))
    sizes = [sum(len(payloads[index]) + WRAP_BYTES for index in part) for part in parts]
    for part, size in zip(parts, sizes, strict=True):
        assert len({companies[index] for index in part}) == 1
        assert len(part) == 1 or size <= limit
    for before, after, size in zip(parts, parts[1:], sizes, strict=False):
        is_other = companies[before.start] != companies[after.start]
        assert is_other or size + len(payloads[after.start]) + WRAP_BYTES > limit, "no more transfers than it takes"


def test_a_group_has_bounds_of_its_own() -> None:
    small, large = [b""] * (GROUP_MAX + 1), [b"x" * 1024] * 210
    assert list(group(small, [None] * len(small), 1 << 30)) == [range(GROUP_MAX), range(GROUP_MAX, GROUP_MAX + 1)]
    first = next(group(large, [None] * len(large), 1 << 30))
    assert (len(first) + 1) * (1024 + WRAP_BYTES) > GROUP_BYTES_MAX >= len(first) * (1024 + WRAP_BYTES)


@pytest.mark.parametrize(
    ("condition", "count", "answers", "singly"),
    [
        ("amqp:not-allowed", 3, [True, True, True], True),
        ("amqp:not-allowed", 3, [True, False, True], False),
        ("amqp:not-allowed", 3, [True, True], False),
        ("amqp:not-allowed", 1, [True], False),
        ("amqp:decode-error", 3, [True, True, True], False),
    ],
)
def test_when_a_destination_takes_messages_only_one_by_one(
    condition: str, count: int, answers: list[bool], singly: bool
) -> None:
    history = BatchHistory()
    history.refused(condition, count)
    for answer in answers:
        history.answered_alone(answer)
    assert history.sends_singly is singly
    history.refused("amqp:not-allowed", 2)
    history.answered_alone(False)
    assert history.sends_singly is singly, "what was learnt stays"
