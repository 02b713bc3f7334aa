"""P18: both tables, error by error; and the page that is printed from them."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from pathlib import Path
from typing import Any

import pytest
from azure.core import exceptions as core
from azure.servicebus import exceptions as sdk
from azure.servicebus._pyamqp import error as pyamqp
from azure.servicebus._pyamqp._decode import decode_frame
from azure.servicebus._pyamqp._encode import encode_value
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.exceptions import ServiceBusError

from pairbus.pairing import errors
from pairbus.pairing.routing.verdicts import (
    AS_DESCRIBED,
    CASES,
    DEFAULT,
    Table,
    Verdict,
    is_answer,
    is_definite,
    is_of_host,
    is_of_message,
    is_reach,
    said,
)
from tests.pairing.reference_pages import REFERENCE, in_sync, verdicts_page

Q, B, R = Verdict.QUALIFIES, Verdict.BUSY, Verdict.REFUSED


def conditioned(condition: str) -> ServiceBusError:
    return ServiceBusError("refused", condition=condition.encode())


def wrapped(error: Exception) -> ServiceBusError:
    """As the SDK wraps what it did not expect."""
    return ServiceBusError(f"Handler failed: {error}.", error=error)


def token_refused(status: Any, custom_endpoint: bool = False) -> ServiceBusError:
    return PyamqpTransport.create_servicebus_exception(
        logging.getLogger("test"),
        pyamqp.TokenAuthFailure(status, b"no"),
        custom_endpoint_address="sb://other" if custom_endpoint else None,
    )


def http(status: int, kind: type[core.HttpResponseError] = core.HttpResponseError) -> core.HttpResponseError:
    error = kind("refused")
    error.status_code = status
    return error


def out_of_time(error: ServiceBusError) -> ServiceBusError:
    """As the guarded sender hands on what the SDK raises because another attempt would come too late."""
    errors.note_time_over(error)
    return error


# error → default, as described
TABLE: list[tuple[BaseException, Verdict, Verdict]] = [
    # time-outs
    (sdk.OperationTimeoutError(), Q, Q),
    (TimeoutError(), Q, Q),
    (wrapped(TimeoutError()), Q, Q),
    (conditioned("com.microsoft:timeout"), Q, Q),
    (errors.NoTimeLeftError("over"), Q, Q),
    (errors.NotTriedError("never begun"), R, R),
    # busy
    (sdk.ServiceBusServerBusyError(), B, B),
    (conditioned("com.microsoft:server-busy"), B, B),
    (sdk.ServiceBusConnectionError(condition=b"com.microsoft:server-busy"), B, B),
    # connection, communication, DNS, TLS: transient, by the letter
    (sdk.ServiceBusConnectionError(), Q, R),
    (sdk.ServiceBusConnectionError(condition=b"amqp:socket-error"), Q, R),
    (sdk.ServiceBusConnectionError(condition=b"amqp:unknown-error"), Q, R),
    (sdk.ServiceBusCommunicationError(), Q, R),
    (sdk.ServiceBusCommunicationError(condition=b"amqp:not-found"), Q, R),
    (ConnectionRefusedError(), Q, R),
    (ConnectionResetError(), Q, R),
    (BrokenPipeError(), Q, R),
    (socket.gaierror(-2, "Name or service not known"), Q, R),
    (ssl.SSLError("handshake"), Q, R),
    (ssl.SSLCertVerificationError("unknown CA"), Q, R),
    (OSError("no route to host"), Q, R),
    (PermissionError("a firewall said no"), Q, R),
    (wrapped(ConnectionResetError()), Q, R),
    (out_of_time(sdk.ServiceBusConnectionError()), Q, Q),
    (out_of_time(sdk.ServiceBusCommunicationError()), Q, Q),
    (out_of_time(conditioned("amqp:internal-error")), Q, R),  # an answer: its verdict is the same at any time
    # the service broke down
    (conditioned("amqp:internal-error"), Q, R),
    (conditioned("com.microsoft:container-close"), Q, R),
    (conditioned("amqp:link:detach-forced"), Q, R),
    (conditioned("amqp:connection:forced"), Q, R),
    (conditioned("amqp:client-error"), Q, R),
    # full
    (sdk.ServiceBusQuotaExceededError(), Q, Q),
    (conditioned("amqp:resource-limit-exceeded"), Q, Q),
    # authentication and authorization
    (sdk.ServiceBusAuthenticationError(), R, R),
    (sdk.ServiceBusAuthorizationError(), R, R),
    (conditioned("amqp:unauthorized-access"), R, R),
    (sdk.ServiceBusConnectionError(condition=b"amqp:unauthorized-access"), R, R),
    (token_refused(401), R, R),
    (token_refused(404), R, R),
    (token_refused(401, custom_endpoint=True), R, R),
    (token_refused(500), Q, R),
    (token_refused(503, custom_endpoint=True), Q, R),
    (token_refused(408), Q, R),
    (token_refused(429), Q, R),
    (token_refused(0), Q, R),
    (token_refused(None), Q, R),
    (core.ClientAuthenticationError("no credential"), R, R),
    (wrapped(core.ClientAuthenticationError("no credential")), R, R),
    (http(401, core.ClientAuthenticationError), R, R),
    (http(500, core.ClientAuthenticationError), Q, R),
    (core.ClientAuthenticationError("no token", error=core.ServiceRequestError("no route")), Q, R),
    (wrapped(core.ClientAuthenticationError("no token", error=core.ServiceRequestError("no route"))), Q, R),
    (core.ServiceRequestError("no route"), Q, R),
    (core.ServiceRequestTimeoutError("slow"), Q, R),
    (core.ServiceResponseError("cut short"), Q, R),
    (http(503), Q, R),
    (http(400), R, R),
    (core.ResourceNotFoundError("gone"), R, R),
    # gone, disabled, too large: not transient, by the letter
    (sdk.MessagingEntityNotFoundError(), R, Q),
    (conditioned("amqp:resource-deleted"), R, Q),
    (sdk.MessagingEntityDisabledError(), R, Q),
    (sdk.MessageSizeExceededError(), R, Q),
    (conditioned("amqp:link:message-size-exceeded"), R, Q),
    (sdk.MessagingEntityAlreadyExistsError(), R, Q),
    (sdk.MessageLockLostError(), R, Q),
    (sdk.SessionLockLostError(), R, Q),
    (sdk.MessageNotFoundError(), R, Q),
    (sdk.SessionCannotBeLockedError(), R, R),
    # bad arguments
    (conditioned("amqp:not-allowed"), R, R),
    (conditioned("amqp:not-implemented"), R, R),
    (conditioned("amqp:invalid-field"), R, R),
    (conditioned("amqp:decode-error"), R, R),
    (conditioned("com.microsoft:argument-error"), R, R),
    (conditioned("com.microsoft:argument-out-of-range"), R, R),
    (conditioned("com.microsoft:never-heard-of"), R, R),
    (ValueError("closed"), R, R),
    (TypeError("not a message"), R, R),
    (sdk.MessageAlreadySettled(), R, R),
    (errors.AliasConflictError("x-ms-path"), R, R),
    (errors.BodyNotCopyableError("a generator"), R, R),
    (FileNotFoundError("ca.pem"), R, R),
    (wrapped(FileNotFoundError("ca.pem")), R, R),
    # no word on the entity
    (ServiceBusError("something"), R, R),
    (wrapped(ValueError("of the credential")), R, R),
    (ImportError("websocket"), R, R),
    (RuntimeError("Event loop is closed"), R, R),
    (asyncio.CancelledError(), R, R),
    (KeyboardInterrupt(), R, R),
]


@pytest.mark.parametrize(
    ("error", "default", "described"), TABLE, ids=lambda each: getattr(each, "name", None) or repr(each)[:60]
)
def test_p18_each_error_has_its_verdict_in_both_tables(
    error: BaseException, default: Verdict, described: Verdict
) -> None:
    assert (DEFAULT(error), AS_DESCRIBED(error)) == (default, described)


def test_p18_every_error_of_the_sdk_stands_in_the_table_by_name() -> None:
    ours = {row.errors for row in DEFAULT.rows}
    for name, kind in vars(sdk).items():
        # the SDK's two for renewing locks never come from a send
        if isinstance(kind, type) and issubclass(kind, ServiceBusError) and not name.startswith("AutoLock"):
            assert any(f"`{name}`" in text for text in ours), name


def test_p18_every_row_is_the_first_to_match_something() -> None:
    used = {id(DEFAULT.row(error)) for error, _, _ in TABLE} | {id(DEFAULT.row(garbled()))}
    assert [row.errors for row in DEFAULT.rows if id(row) not in used] == []


def garbled() -> ServiceBusError:
    """What the SDK raises when a peer talks nonsense."""
    try:
        decode_frame(memoryview(b"\x00\x53\x10\xff\xff\xff"))
    except Exception as error:
        return wrapped(error)
    raise AssertionError("nonsense was decoded")


def unencodable(value: Any = ...) -> ServiceBusError:
    try:
        encode_value(bytearray(), value)
    except Exception as error:
        return wrapped(error)
    raise AssertionError("anything was encoded")


def test_p18_a_peer_that_talks_nonsense_counts_and_a_message_that_cannot_be_encoded_does_not() -> None:
    assert DEFAULT(garbled()) is Q
    assert DEFAULT(unencodable()) is R


def test_p34_a_ping_fails_for_want_of_reach_or_because_it_is_refused() -> None:
    reach = [
        sdk.OperationTimeoutError(), sdk.ServiceBusConnectionError(), conditioned("amqp:internal-error"),
        sdk.ServiceBusServerBusyError(), sdk.ServiceBusQuotaExceededError(), errors.NotTriedError("no time"),
    ]  # fmt: skip
    refused = [
        sdk.MessagingEntityNotFoundError(), sdk.MessagingEntityDisabledError(), sdk.ServiceBusAuthorizationError(),
        sdk.ServiceBusAuthenticationError(), conditioned("amqp:not-allowed"),
    ]  # fmt: skip
    assert [is_reach(error) for error in reach] == [True] * len(reach)
    assert [is_reach(error) for error in refused] == [False] * len(refused)


def test_p13_a_message_that_cannot_be_sent_is_not_held_against_a_backlog_queue() -> None:
    of_message = [
        sdk.MessageSizeExceededError(), conditioned("amqp:link:message-size-exceeded"),
        conditioned("amqp:invalid-field"), conditioned("amqp:decode-error"),
        conditioned("com.microsoft:argument-out-of-range"), TypeError("no message"), ValueError("too long"),
        unencodable(), errors.BodyNotCopyableError("once"), errors.AliasConflictError("x-ms-path"),
        unencodable({"TYPE": "FLOAT", "VALUE": 1e300}), said(unencodable({"TYPE": "TIMESTAMP", "VALUE": 1 << 70})),
    ]  # fmt: skip
    of_queue = [
        sdk.ServiceBusQuotaExceededError(), sdk.MessagingEntityNotFoundError(), sdk.OperationTimeoutError(),
        conditioned("amqp:not-allowed"), conditioned("amqp:internal-error"), garbled(), ServiceBusError("something"),
        wrapped(ValueError("of the credential")), ssl.SSLCertVerificationError("a ValueError too"),
        sdk.ServiceBusAuthenticationError(), RuntimeError("loop closed"),
    ]  # fmt: skip
    assert [error for error in of_message if not is_of_message(error)] == []
    assert [error for error in of_queue if is_of_message(error)] == []


def lost_to(error: BaseException) -> BaseException:
    """As the SDK wraps what a socket raised."""
    lost = sdk.ServiceBusConnectionError(message="failed to initiate the connection")
    lost.__cause__ = error
    return lost


@pytest.mark.parametrize(
    ("error", "of_host"),
    [
        (ConnectionRefusedError(111, "refused"), True),
        (socket.gaierror(-2, "unknown"), True),
        (ssl.SSLCertVerificationError(1, "expired"), True),
        (ssl.SSLError(1, "wrong version"), True),
        (ssl.SSLEOFError(8, "eof"), False),
        (ConnectionResetError(104, "reset"), False),
        (OSError("Server unexpectedly closed connection"), False),
        (sdk.MessagingEntityDisabledError(message="off"), False),
    ],
)
def test_p13_p49_what_holds_for_the_host_and_what_for_one_queue(error: Exception, of_host: bool) -> None:
    for each in (error, lost_to(error)):
        assert (is_of_host(each), is_definite(each)) == (of_host, True)


def test_p18_a_refused_websocket_is_no_failed_authentication() -> None:
    """The SDK says so of one on asyncio, whatever the reason."""
    token = type("AuthenticationException", (Exception,), {"__module__": "azure.servicebus._pyamqp.error"})
    for kind in (sdk.ServiceBusAuthenticationError, sdk.ServiceBusConnectionError):
        error = kind(message="failed to authenticate", error=token(), condition="amqp:client-error")
        assert DEFAULT(error) is Verdict.REFUSED
        error = kind(message="failed to authenticate", error=token(), condition="amqp:client-error")
        error.__cause__ = ConnectionRefusedError(111, "refused")
        assert DEFAULT(error) is Verdict.QUALIFIES
        assert not is_answer(error)


def test_p18_a_wrong_key_is_refused_although_the_retry_met_silence() -> None:
    error = sdk.ServiceBusAuthenticationError(message="failed to authenticate", condition="amqp:client-error")
    error.__cause__ = sdk.OperationTimeoutError()
    error.__cause__.__cause__ = TimeoutError()
    assert DEFAULT(error) is Verdict.REFUSED
    assert is_answer(error)


def test_p18_a_table_can_be_changed_row_by_row() -> None:
    table = DEFAULT.with_rows((sdk.MessagingEntityDisabledError, Q), ("com.microsoft:never-heard-of", B), name="mine")
    assert table(sdk.MessagingEntityDisabledError()) is Q
    assert table(conditioned("com.microsoft:never-heard-of")) is B
    assert table(sdk.MessagingEntityNotFoundError()) is R
    assert DEFAULT(sdk.MessagingEntityDisabledError()) is R
    assert repr(table) == f"<Table mine: {len(DEFAULT.rows) + 2} rows>"


def test_p18_an_empty_table_refuses_everything() -> None:
    assert Table("empty", ())(TimeoutError()) is R


def test_what_is_wrapped_is_found_and_a_ring_of_wrappers_ends() -> None:
    inner = ConnectionResetError()
    assert said(wrapped(wrapped(inner))) is inner
    ring = ServiceBusError("a")
    ring.inner_exception = ring
    assert DEFAULT(ring) is R
    tail = core.ClientAuthenticationError("a")
    tail.__context__ = tail.inner_exception = tail
    assert DEFAULT(tail) is R


def test_verdicts_read_well() -> None:
    assert repr(Q) == "Verdict.QUALIFIES"
    assert repr(DEFAULT) == f"<Table DEFAULT: {len(CASES)} rows>"


def test_p18_the_page_says_what_the_tables_say() -> None:
    assert in_sync(Path(REFERENCE, "verdicts.md"), verdicts_page())
