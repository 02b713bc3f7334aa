"""Reads the private parts of the official SDK that both APIs use, in one place.

`missing()` names the private parts that an installed SDK lacks, so that a new SDK version fails one
test with a clear message rather than a send in production; it covers this module, `sync/watchdog.py`,
`aio/guarded_sender.py` and the receivers, which say in their docstrings what each is used for. Here:

    sender._running                        the link is open
    sender._handle_exception               what the SDK calls with each failed attempt: closes, raises or lets it retry
    sender._do_retryable_operation, ._open, ._backoff     opening with retries; the wait before a retry
    sender._amqp_transport                 which AMQP library: KIND, and create_servicebus_exception
    sender._config                         retry_total, custom_endpoint_address, use_tls, ssl_context, connection_verify
    sender._handler._link.state, ._connection.state     whether the peer has closed either
    sender._max_message_size_on_link       what the broker said at attach; 0 before
    sender._max_batch_size_on_link         the same for batches
    error._retryable, error._shutdown_handler   the SDK's own verdict: retry in place, close first
    client._config                         use_tls, transport_type, retry_total, retry_mode and the waits
    client._credential, ._ssl_context, ._connection_verify, ._custom_endpoint_address     how it reaches its namespace
    ServiceBusSharedKeyCredential          .policy, .key; ServiceBusSASTokenCredential: .token (sync and async)
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
import os
import ssl
import sys
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any
from urllib.parse import urlsplit

import certifi
from azure.core.credentials import AzureNamedKeyCredential, AzureSasCredential
from azure.servicebus import ServiceBusClient, ServiceBusReceiver, ServiceBusSender, TransportType, aio
from azure.servicebus import _base_handler as sync_handlers
from azure.servicebus._pyamqp import _transport, cbs, client
from azure.servicebus._pyamqp.aio._transport_async import AsyncTransport
from azure.servicebus._pyamqp.constants import ConnectionState, LinkState
from azure.servicebus._transport._pyamqp_transport import PyamqpTransport
from azure.servicebus.aio import _base_handler_async as async_handlers
from azure.servicebus.exceptions import (
    OperationTimeoutError,
    ServiceBusError,
    ServiceBusServerBusyError,
)

from pairbus.credentials import SharedKey, SharedSignature
from pairbus.pairing.errors import ForkedClientError, NotTriedError, PairingError
from pairbus.pairing.routing import budget
from pairbus.pairing.routing.budget import Retries

# The SDK's own log messages about an error, as without a pairing.
_SDK_LOG = logging.getLogger("azure.servicebus._base_handler")


class LinkLost(Exception):
    """The SDK sender's link or connection is gone: a new one must be opened before the next attempt."""

    def __init__(self, error: ServiceBusError) -> None:
        super().__init__(str(error))
        self.error = error


class EntityHalted(ServiceBusServerBusyError):
    """Raised in place of asking a broker that has just said that it is busy."""

    def __init__(self, entity: str, left_s: float) -> None:
        super().__init__(
            message=f"{entity} was told that the server is busy and is not asked again for {left_s:.1f} s, which is "
            "longer than this call may take. Call again later, or grant it more time."
        )


def forked(entity: str) -> ForkedClientError:
    """Return the error for using an async client in a forked child."""
    return ForkedClientError(
        f"The async client for {entity or 'this entity'} belongs to the process that made it, and to its event loop; "
        "this is a forked child of that process. Make the client in the child, after the fork."
    )


def is_native(sender: Any) -> bool:
    """Return whether the sender uses the SDK's own AMQP library, the only one whose sockets can be reached."""
    return bool(sender._amqp_transport.KIND == PyamqpTransport.KIND)


def is_open(sender: Any) -> bool:
    return bool(sender._running)


def is_alive(sender: Any) -> bool:
    """Return whether the link is open as far as the SDK knows: it checks every 30 s, and notifies nobody."""
    handler = sender._handler
    if not is_open(sender) or handler is None:
        return False
    if not is_native(sender):
        return True
    link, connection = handler._link, handler._connection
    return link is not None and link.state is LinkState.ATTACHED and connection.state is ConnectionState.OPENED


def sizes(sender: Any) -> tuple[int, int]:
    """Return the largest message and batch that the link takes, in bytes; 0 if it was never open."""
    return sender._max_message_size_on_link, sender._max_batch_size_on_link


def translated(sender: Any, exception: BaseException) -> ServiceBusError:
    """Return the error that the SDK would raise for this error of its AMQP library."""
    error: ServiceBusError = sender._amqp_transport.create_servicebus_exception(
        _SDK_LOG, exception, custom_endpoint_address=sender._config.custom_endpoint_address
    )
    return error


def judged(sender: Any, exception: BaseException) -> ServiceBusError:
    """Decide as the SDK's `_handle_exception` does for an open link, without closing anything in the caller's time.

    Returns the error if the SDK may try again on the same link; raises it if not, server busy included; raises
    LinkLost where the SDK would open another link first.
    """
    error = translated(sender, exception)
    if isinstance(error, ServiceBusServerBusyError) or not error._retryable:
        raise error
    if error._shutdown_handler or not is_open(sender):
        raise LinkLost(error)
    return error


def spoils(error: BaseException) -> bool:
    """Return whether a sender that raised this must not be used again."""
    if isinstance(error, NotTriedError):
        return False
    if isinstance(error, OperationTimeoutError) or not isinstance(error, Exception):
        return True
    if isinstance(error, ServiceBusError):
        return bool(error._shutdown_handler)
    # Either a message that can't be encoded, or a signal handler's, in the middle of whatever the SDK was doing.
    return not isinstance(error, TypeError | ValueError | AttributeError | ArithmeticError)


def is_interruption(exception: BaseException) -> bool:
    """Return whether the error can only come from a signal handler: neither Python nor the SDK nor its dependencies
    have such an error. The SDK would take it for a failure of the connection, and the application would never see
    it."""
    package = type(exception).__module__.partition(".")[0]
    return package not in sys.stdlib_module_names and package not in ("azure", "pairbus", "websocket")


def open_link(sender: Any, timeout_s: float, goes_on_s: float = 0.0) -> Any:
    """As entering the sender does, with the user's retries, but within a time; to be awaited for an async sender.
    `goes_on_s`: so much longer may an attempt take that was begun in time."""

    def attempt(timeout: float) -> Any:
        return sender._open(timeout=timeout + goes_on_s)

    return sender._do_retryable_operation(
        attempt, timeout=timeout_s, operation_requires_timeout=True, apply_try_timeout=True
    )


def not_open_yet(entity: str, waited_s: float, tells: bool) -> OperationTimeoutError:
    """For a caller whose time is over while its link is still being opened: nothing was sent. `tells`: it counts
    against the entity, however long it was waited for."""
    what = f"the link to {entity or 'the entity'} is not open after {waited_s:.1f} s"
    if tells or budget.opening_tells(waited_s):
        return OperationTimeoutError(message=f"Nothing was sent: {what}.")
    return NotTriedError(f"The message was not tried: {what}, and the next send goes on with it.")


def tls_context(ca_file: str | None) -> ssl.SSLContext:
    """Return a context as the SDK makes it, but once for each CA file, since reading one takes 20 ms and more."""
    name = ca_file or certifi.where()
    try:
        status = os.stat(name)
        return _loaded(name, status.st_mtime_ns, status.st_size)
    except FileNotFoundError as error:
        error.filename = {"ca_certs": name}  # by which the SDK distinguishes it from a lost connection
        raise


@functools.lru_cache(maxsize=16)
def _loaded(ca_file: str, _changed: int, _size: int) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(ca_file)
    return context


#: Set where one of our senders opens or closes a link.
_is_ours: ContextVar[bool] = ContextVar("pairbus_is_ours", default=False)


def quiet() -> None:
    """Silence the SDK's log, in this task or thread, about a link whose closing did not end in time: the send's error
    tells what happened, and the link is discarded."""
    _is_ours.set(True)


def _is_news(record: logging.LogRecord) -> bool:
    return not (_is_ours.get() and str(record.msg).startswith("Handler cleanup"))


for _name in ("aio._async_utils", "_servicebus_sender", "aio._servicebus_sender_async"):
    logging.getLogger(f"azure.servicebus.{_name}").addFilter(_is_news)


def retries(sender: Any) -> int:
    return int(sender._config.retry_total)


def retries_of(client: Any) -> Retries:
    """Return the retries of a client's senders, as its user configured them."""
    config = client._config
    is_fixed = getattr(config.retry_mode, "value", config.retry_mode) == "fixed"
    return Retries(config.retry_total, config.retry_backoff_factor, config.retry_backoff_max, is_fixed)


def back_off(sender: Any, error: ServiceBusError, deadline: float) -> Any:
    """Wait as the SDK does before its first retry, or raise the error if that would be too late (monotonic)."""
    return sender._backoff(retried_times=1, last_exception=error, abs_timeout_time=deadline)


@contextlib.contextmanager
def one_retry_less(sender: Any) -> Iterator[None]:
    config = sender._config
    config.retry_total -= 1
    try:
        yield
    finally:
        config.retry_total += 1


def endpoint_of(sdk_client: Any) -> dict[str, Any]:
    """Return how an SDK client reaches its namespace, as the fields of `pairbus.syphon.endpoint.Endpoint`.

    For clients of both APIs, the SDK's and ours. A named key or signature that is exchanged later (`update()`) is not
    followed: the fields hold what was valid when they were read.
    """
    config = sdk_client._config
    namespace: str = sdk_client.fully_qualified_namespace
    if config.transport_type.value != TransportType.Amqp.value:
        raise PairingError(
            f"The client of {namespace} speaks AMQP over WebSocket or through a proxy, and the syphon does not: run it "
            "where port 5671 can be reached (`pairbus syphon`), or give the client transport_type=Amqp."
        )
    address: str | None = sdk_client._custom_endpoint_address
    at = urlsplit(f"//{namespace}" if not address else address if "//" in address else f"//{address}")
    if at.hostname is None:
        raise PairingError(f"The client of {namespace} names no host: {namespace!r}.")
    tls = bool(config.use_tls)
    context = sdk_client._ssl_context if tls else None
    return {
        "host": at.hostname,
        "port": at.port,
        "tls": tls,
        "credential": _credential(sdk_client._credential),
        "ca_file": sdk_client._connection_verify if tls and context is None else None,
        "ssl_context": context,
    }


def _credential(given: Any) -> Any:
    keys = (sync_handlers.ServiceBusSharedKeyCredential, async_handlers.ServiceBusSharedKeyCredential)
    signatures = (sync_handlers.ServiceBusSASTokenCredential, async_handlers.ServiceBusSASTokenCredential)
    if isinstance(given, keys):
        return SharedKey(given.policy, given.key)
    if isinstance(given, signatures):
        return SharedSignature(given.token)
    if isinstance(given, AzureNamedKeyCredential):
        return SharedKey(*given.named_key)
    if isinstance(given, AzureSasCredential):
        return SharedSignature(given.signature)
    return given


def missing() -> list[str]:
    """Return the names of the private parts that we use and that the installed SDK lacks."""
    lacking = []
    for owner, names in _METHODS:
        lacking += [f"{owner.__module__}.{owner.__qualname__}.{name}" for name in names if not hasattr(owner, name)]
    for where, names in _ATTRIBUTES:
        source = inspect.getsource(where)
        owner_name = f"{where.__module__}.{where.__qualname__}"
        lacking += [f"{owner_name}: {name.strip(' =')}" for name in names if name not in source]
    return lacking


# Methods and class attributes, found on the class.
_METHODS: list[tuple[Any, list[str]]] = [
    *(
        (kind, ["_handle_exception", "_backoff", "_do_retryable_operation", "_open", "_create_handler"])
        for kind in (ServiceBusSender, aio.ServiceBusSender, ServiceBusReceiver, aio.ServiceBusReceiver)
    ),
    *(
        (kind, [step, "_mgmt_request_response", "_settle_message", "_check_live"])
        for kind, step in ((ServiceBusReceiver, "_inner_next"), (aio.ServiceBusReceiver, "_inner_anext"))
    ),
    (PyamqpTransport, ["KIND", "create_servicebus_exception"]),
    (client.AMQPClient, ["open", "close"]),
]
_REACH = ("_credential", "_config", "_custom_endpoint_address", "_ssl_context", "_connection_verify")
# Attributes that a constructor or method sets, found in its source.
_ATTRIBUTES: list[tuple[Callable[..., Any], list[str]]] = [
    *(
        (kind.__init__, ["self._running = ", "self._handler", "self._amqp_transport = ", "self._config = "])
        for kind in (sync_handlers.BaseHandler, async_handlers.BaseHandler)
    ),
    *(
        (kind.__init__, ["self._max_message_size_on_link = ", "self._max_batch_size_on_link = "])
        for kind in (ServiceBusSender, aio.ServiceBusSender)
    ),
    *((kind.__init__, [f"self.{name} = " for name in _REACH]) for kind in (ServiceBusClient, aio.ServiceBusClient)),
    (ServiceBusError.__init__, ["self._retryable = ", "self._shutdown_handler = "]),
    (
        client.AMQPClient.__init__,
        ["self._link = ", "self._connection = ", "self._cbs_authenticator = ", "self._keep_alive_thread = "],
    ),
    (cbs.CBSAuthenticator.__init__, ["self._expires_on", "self._refresh_window"]),
    (_transport._AbstractTransport.__init__, ["self.sock = "]),
    (AsyncTransport.__init__, ["self.writer = "]),
]
