"""Attaches links: connects a client's link with the node that it asks for, or refuses it.

See docs/reference/protocol.md#addresses and docs/reference/protocol.md#sessions.

The claims are checked before anything is said about the entity, so that a client that may not use it does not learn
whether it exists.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from pairbus.amqp import errors as conditions
from pairbus.amqp.link import Link, ReceiverLink, SenderLink
from pairbus.amqp.performative_types import Coordinator
from pairbus.amqp.types import Described, Symbol
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.sessions import SessionLock
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.refusal import Refusal
from pairbus.sas import LISTEN, SEND

from . import cbs, management
from .address import NodeKind, parse_address
from .dispatcher import Dispatcher
from .links import RequestNode, ResponseNode, SourceNode, TargetNode, address_of, not_found
from .transactions import CoordinatorNode

if TYPE_CHECKING:
    from .connection import AmqpConnection

_SESSION_FILTER = "com.microsoft:session-filter"
_LOCKED_UNTIL = "com.microsoft:locked-until-utc"
_TIMEOUT = "com.microsoft:timeout"
_DESTINATION = "com.microsoft:transfer-destination-address"
#: Limit of a declare or a discharge, which are far smaller.
_COORDINATION_BYTES_MAX = 1024
#: The longest path of an entity, in a URL, has less than half of it.
_NAME_CHARS_MAX = 1024
#: .NET's clock counts 100 ns from the year 1.
_TICKS_1970 = 621_355_968_000_000_000


def attach_link(connection: AmqpConnection, link: Link) -> Refusal | None:
    """Put the node that the address names behind the link, or return why not."""
    if isinstance(link.target, Coordinator):
        return _attach_coordinator(connection, link)
    text = address_of(link)
    if text is None:
        return Refusal(conditions.INVALID_FIELD, "the link names no address to attach to")
    other = getattr(link.target if link.is_sender else link.source, "address", None)
    for what, given in (("name of a link", link.name), ("address", text), ("client's own address", other or "")):
        if len(given) > _NAME_CHARS_MAX:
            refusal = f"the {what} has {len(given)} characters; {_NAME_CHARS_MAX} are allowed"
            return Refusal(conditions.INVALID_FIELD, refusal)
    address = parse_address(text)
    if address.node is not NodeKind.ENTITY:
        return _attach_request_node(connection, link, text, address.node, address.path)
    now = connection.host.clock()
    path = address.path
    sends = isinstance(link, ReceiverLink)
    if connection.host.faults.is_on:
        if connection.host.faults.unreachable(path, now):
            connection.abort()
            return None
        if connection.host.faults.black_hole(path, now):
            connection.silence(True)
    target = _find(connection, SEND if sends else LISTEN, path, text, now)
    if isinstance(target, Refusal):
        return target
    if isinstance(link, ReceiverLink):
        return _attach_sender(connection, link, target, now)
    assert isinstance(link, SenderLink)
    if not isinstance(target, MessageQueue):
        return Refusal(conditions.NOT_ALLOWED, f"'{path}' is a topic; receive from one of its subscriptions")
    return _attach_receiver(connection, link, target, now)


def _find(connection: AmqpConnection, right: str, path: str, text: str, now: float) -> MessageQueue | Topic | Refusal:
    """Return the entity at a path on which the client has this right, or why not; `text` is how the client named it."""
    if not connection.authorization.allows(right, path, now):
        return Refusal(
            conditions.UNAUTHORIZED_ACCESS,
            f"Unauthorized access. '{right}' claim(s) are required to perform this operation. Resource: '{text}'.",
        )
    target = connection.host.namespace.resolve(path)
    if target is None:
        return Refusal(conditions.NOT_FOUND, not_found(text))
    return target if target.entity.suspended is None else target.entity.suspended


def _attach_sender(
    connection: AmqpConnection, link: ReceiverLink, attached: MessageQueue | Topic, now: float
) -> Refusal | None:
    target, via = attached, None
    destination = {str(key): value for key, value in (link.properties or {}).items()}.get(_DESTINATION)
    if destination is not None:
        if not isinstance(destination, str) or len(destination) > _NAME_CHARS_MAX:
            text = f"{_DESTINATION} is the address of an entity, a string of up to {_NAME_CHARS_MAX} characters"
            return Refusal(conditions.INVALID_FIELD, text)
        found = _find(connection, SEND, parse_address(destination).path, destination, now)
        if isinstance(found, Refusal):
            return found
        target, via = found, attached
    for each in (attached, target):
        if isinstance(each, MessageQueue) and (each.is_dead_letter or isinstance(each.entity, Subscription)):
            text = f"messages can't be sent to '{each.path}'; send to its queue or topic"
            return Refusal(conditions.NOT_ALLOWED, text)
    if attached.entity.refuses_sends is not None:
        return attached.entity.refuses_sends
    if connection.host.faults.is_on:
        refusal = connection.host.faults.link_refusal(target.path, connection.host.clock())
        if refusal is not None:
            return refusal
    link.accept(max_message_size=target.message_bytes_max)
    connection.put_node(link, TargetNode(connection, link, target, via))
    return None


def _attach_coordinator(connection: AmqpConnection, link: Link) -> Refusal | None:
    if not isinstance(link, ReceiverLink):
        return Refusal(conditions.NOT_ALLOWED, "a coordinator is the target of a link, not its source")
    # Java and .NET declare before they show a token; what goes into a transaction comes over links that have the rights
    quotas = connection.host.namespace.registry.quotas
    if not quotas.has_all_features:
        return Refusal(conditions.NOT_ALLOWED, f"{quotas.lacks('Transactions')}.")
    link.accept(max_message_size=_COORDINATION_BYTES_MAX)
    connection.put_node(link, CoordinatorNode(connection, link))
    return None


def _attach_receiver(connection: AmqpConnection, link: SenderLink, queue: MessageQueue, now: float) -> Refusal | None:
    path = queue.path
    refusal = queue.refuses_receives
    if refusal is None and connection.host.faults.is_on:
        refusal = connection.host.faults.refusal("receive", path, now, 0)
    if refusal is None:
        entity = queue.entity
        # of a topic's subscriptions together
        counted = entity.topic if isinstance(entity, Subscription) and entity.topic is not None else entity
        refusal = connection.host.faults.link_refusal(path, now, counted.receivers)
    if refusal is not None:
        return refusal
    filters = {str(key): value for key, value in (getattr(link.source, "filter", None) or {}).items()}
    unknown = next((name for name in filters if name != _SESSION_FILTER), None)
    if unknown is not None:
        # AMQP (3.5.1) would allow leaving it out of the answer, but few clients look: they'd get all messages.
        text = f"The filter {unknown[:100]!r} is not supported; '{path}' takes {_SESSION_FILTER} alone, or none."
        return Refusal(conditions.NOT_IMPLEMENTED, text)
    mode = getattr(link.source, "distribution_mode", None)
    if mode not in (None, "move"):
        # A browser accepts what it has looked at, which would complete it.
        text = f"The distribution mode {str(mode)[:100]!r} is not supported; peek at the messages of '{path}' instead."
        return Refusal(conditions.NOT_IMPLEMENTED, text)
    if queue.requires_session:
        if _SESSION_FILTER not in filters:
            return Refusal(
                conditions.NOT_ALLOWED,
                f"It is not possible for an entity that requires sessions to create a non-sessionful message "
                f"receiver: '{path}' needs a session id, or the next available session.",
            )
        return _attach_session(connection, link, queue, filters[_SESSION_FILTER], now)
    if _SESSION_FILTER in filters:
        return Refusal(conditions.NOT_ALLOWED, f"the entity '{path}' has no sessions; receive without a session id")
    link.accept(max_message_size=queue.message_bytes_max)
    dispatcher = connection.host.dispatcher(queue)
    connection.put_node(link, SourceNode(connection, link, queue, dispatcher))
    if link.credit > 0:
        dispatcher.wake()
    return None


def _attach_session(
    connection: AmqpConnection, link: SenderLink, queue: MessageQueue, wanted: Any, now: float
) -> Refusal | None:
    session_id = wanted.value if isinstance(wanted, Described) else wanted
    if session_id is not None and not isinstance(session_id, str):
        return Refusal(conditions.INVALID_FIELD, f"a session id is a string, not {type(session_id).__name__}")
    if session_id is None:
        timeout_ms = {str(key): value for key, value in (link.properties or {}).items()}.get(_TIMEOUT)
        seconds = timeout_ms / 1000 if isinstance(timeout_ms, int) else None
        return connection.host.session_waiters(queue).wait(connection, link, seconds)
    accepted = connection.host.namespace.sessions.accept(queue, session_id, now)
    if not isinstance(accepted, SessionLock):
        return accepted
    open_session(connection, link, queue, accepted)
    return None


def open_session(connection: AmqpConnection, link: SenderLink, queue: MessageQueue, lock: SessionLock) -> None:
    """Answer the attach of a receiver that got this session: it names the session and says until when it is locked
    (docs/reference/protocol.md#sessions)."""
    source = link.source
    # in the form in which it came: Go closes the connection over a bare string where it sent a described one
    ((_, wanted),) = source.filter.items()
    found = Described(wanted.descriptor, lock.session_id) if isinstance(wanted, Described) else lock.session_id
    source.filter = {Symbol(_SESSION_FILTER): found}
    ticks = int(lock.locked_until * 10_000_000) + _TICKS_1970
    link.accept(source=source, max_message_size=queue.message_bytes_max, properties={Symbol(_LOCKED_UNTIL): ticks})
    dispatcher = Dispatcher(lambda: queue.available_in(lock), connection.loop, connection.host.runs)
    lock.on_available = dispatcher.wake
    node = SourceNode(connection, link, queue, dispatcher, lock)
    lock.on_lost = node.session_lost
    connection.put_node(link, node)
    link.forget_terms()
    if link.credit > 0:
        dispatcher.wake()
    connection.flush_soon()


def _attach_request_node(
    connection: AmqpConnection, link: Link, text: str, node: NodeKind, path: str
) -> Refusal | None:
    if node is NodeKind.MANAGEMENT:
        now = connection.host.clock()
        # JS puts a token for the node itself, and maybe no other
        node_path = f"{path}/$management"
        if not any(connection.authorization.allows(right, node_path, now) for right in (SEND, LISTEN)):
            return Refusal(
                conditions.UNAUTHORIZED_ACCESS,
                f"Unauthorized access. 'Listen' claim(s) are required for this operation. Resource: '{text}'.",
            )
        if connection.host.namespace.resolve(path) is None:
            return Refusal(conditions.NOT_FOUND, f"The messaging entity '{text}' could not be found.")
    link.accept()
    if isinstance(link, ReceiverLink):
        is_cbs = node is NodeKind.CBS
        handle = partial(cbs.handle, connection) if is_cbs else partial(management.handle, connection, path)
        connection.put_node(link, RequestNode(connection, link, text.lower(), handle))
    else:
        assert isinstance(link, SenderLink)
        connection.put_node(link, ResponseNode(connection, link, text.lower()))
    return None
