from __future__ import annotations

from typing import Any
from uuid import UUID

import pytest

from pairbus.amqp.message import Header, Properties, encode_message
from pairbus.amqp.types import Int, Symbol, Timestamp
from pairbus.pairing.backlog.aliases import restore_message, sent_anew
from pairbus.syphon.core.arrival import LOCK_S_MAX, LOCK_S_UNKNOWN, arrive, bound_for, key_of, message_id_of, path_of
from pairbus.syphon.core.transfer import PendingTransfer, Rejection
from tests.message_view import View
from tests.syphon.rig import QUEUE

NOW_UNIX = 1_700_000_000.0
TOKEN = UUID(int=7).bytes_le


def delivery(application: dict[str, Any] | None = None, **annotations: Any) -> bytes:
    stamped: dict[Any, Any] = {
        "x-opt-sequence-number": 42,
        "x-opt-enqueued-time": Timestamp(1_699_999_000_000),
        "x-opt-locked-until": Timestamp(int((NOW_UNIX + 60) * 1000)),
    }
    return encode_message(
        Header(delivery_count=1),
        stamped | {name.replace("_", "-"): value for name, value in annotations.items()},
        Properties(message_id="m1"),
        {"x-ms-path": "orders", "colour": "red"} if application is None else application,
        b"hello",
    )


def arrived(payload: bytes, **options: Any) -> PendingTransfer | Rejection:
    return arrive(QUEUE, payload, TOKEN, now=5.0, now_unix=NOW_UNIX, **options)


def test_a_message_for_a_queue() -> None:
    payload = delivery()
    transfer = arrived(payload, handle="handle")
    assert isinstance(transfer, PendingTransfer)
    assert (transfer.path, transfer.key, transfer.token) == ("orders", (QUEUE, 42, 1_699_999_000_000), TOKEN)
    assert (transfer.lock_s, transfer.locked_until, transfer.handle, transfer.alone) == (60.0, 65.0, "handle", False)
    home = restore_message(payload, now=NOW_UNIX)
    assert transfer.payload == home.payload  # type: ignore[union-attr]
    assert transfer.size == len(transfer.payload)


def test_p40_without_a_path() -> None:
    rejection = arrived(delivery({}))
    assert isinstance(rejection, Rejection)
    assert rejection.reason == "MissingPath"
    assert (rejection.transfer.path, rejection.transfer.key[1]) == ("", 42)


def test_p40_an_alias_of_the_wrong_type() -> None:
    rejection = arrived(delivery({"x-ms-path": Symbol("orders")}))
    assert isinstance(rejection, Rejection)
    assert "symbol" in rejection.description
    assert path_of(delivery({"x-ms-path": Symbol("orders")})) == ""


def test_p40_what_is_no_message() -> None:
    rejection = arrived(b"\x00\x53")
    assert isinstance(rejection, Rejection)
    assert rejection.reason == "MessageNotReadable"
    assert rejection.transfer.key == (QUEUE, None, int.from_bytes(TOKEN, "big")), "two of them are not the same"
    assert path_of(b"\x00\x53") == ""
    assert message_id_of(b"\x00\x53") is None


@pytest.mark.parametrize(
    ("until_s", "lock_s"), [(60, 60), (5, 5), (0.5, LOCK_S_UNKNOWN), (-3600, LOCK_S_UNKNOWN), (9000, LOCK_S_MAX)]
)
def test_clocks_that_differ(until_s: float, lock_s: float) -> None:
    transfer = arrived(delivery(x_opt_locked_until=Timestamp(int((NOW_UNIX + until_s) * 1000))))
    assert isinstance(transfer, PendingTransfer)
    assert transfer.lock_s == pytest.approx(lock_s)


def test_a_broker_that_says_nothing_of_its_own() -> None:
    payload = encode_message(application_properties={"x-ms-path": "orders"}, body=b"")
    transfer = arrived(payload)
    assert isinstance(transfer, PendingTransfer)
    assert (transfer.lock_s, transfer.key[1]) == (LOCK_S_UNKNOWN, None)
    assert key_of(QUEUE, {"x-opt-sequence-number": Int(3)}, b"") == (QUEUE, 3, None)


def test_sessions_and_partitions_go_alone() -> None:
    with_session = arrived(delivery({"x-ms-path": "orders", "x-ms-sessionid": "s"}))
    with_key = arrived(delivery(x_opt_partition_key="p"))
    assert isinstance(with_session, PendingTransfer) and with_session.alone
    assert isinstance(with_key, PendingTransfer) and with_key.alone


def test_p28_time_in_the_backlog_counts_where_that_is_wanted() -> None:
    payload = delivery({"x-ms-path": "orders", "x-ms-timetolive": 2_000_000})
    plain, counted = arrived(payload), arrived(payload, count_backlog_time=True)
    assert isinstance(plain, PendingTransfer) and isinstance(counted, PendingTransfer)
    assert plain.payload == restore_message(payload, now=NOW_UNIX).payload  # type: ignore[union-attr]
    assert counted.payload != plain.payload


def test_p41_a_replay_takes_off_what_dead_lettering_wrote() -> None:
    marks = {"DeadLetterReason": "why", "DeadLetterErrorDescription": "because"}
    payload = delivery({"x-ms-path": "orders", "colour": "red"} | marks)
    transfer = arrived(payload, is_replay=True)
    assert isinstance(transfer, PendingTransfer)
    assert View(transfer.payload).application_properties == {"colour": "red"}


def test_for_the_ledger() -> None:
    assert message_id_of(delivery()) == "m1"
    assert message_id_of(encode_message(body=b"")) is None
    assert path_of(delivery()) == "orders"


def test_a_message_that_goes_on_as_it_is() -> None:
    payload = delivery({"DeadLetterReason": "my own", "colour": "red"})
    transfer = bound_for("copies", QUEUE, payload, TOKEN, now=5.0, now_unix=NOW_UNIX, handle="h")
    assert isinstance(transfer, PendingTransfer)
    assert (transfer.path, transfer.key, transfer.lock_s, transfer.handle) == (
        "copies",
        (QUEUE, 42, 1_699_999_000_000),
        60.0,
        "h",
    )
    assert transfer.payload == sent_anew(payload, is_dead_letter=False) and b"DeadLetterReason" in transfer.payload
    assert not transfer.alone
    dead = bound_for("copies", QUEUE, payload, TOKEN, now=5.0, now_unix=NOW_UNIX, is_dead_letter=True)
    assert isinstance(dead, PendingTransfer) and b"DeadLetterReason" not in dead.payload and b"colour" in dead.payload


def test_what_names_a_session_or_a_partition_goes_on_alone() -> None:
    session = encode_message(None, None, Properties(message_id="m", group_id="s"), body=b"x")
    for payload in (session, delivery(x_opt_partition_key="p")):
        transfer = bound_for("copies", QUEUE, payload, TOKEN, now=5.0, now_unix=NOW_UNIX)
        assert isinstance(transfer, PendingTransfer) and transfer.alone


def test_what_can_t_be_read_does_not_go_on() -> None:
    found = bound_for("copies", QUEUE, b"\x00\x53\x70", TOKEN, now=5.0, now_unix=NOW_UNIX)
    assert isinstance(found, Rejection) and found.reason == "MessageNotReadable" and found.transfer.path == "copies"
