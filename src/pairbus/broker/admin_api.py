"""The HTTP management API of one namespace (dialect 7): which request asks for what, who may, and the answer's code.

A shell over the namespace: it awaits what the namespace calls back. Documents are atom.py's, bounds description.py's,
tokens sas.py's. `AdminApi` is a handler for http_server.py.

Every call needs the Manage claim, reading too. Without it, and without a good token, the answer is 401, as the service
gives it: 403 means a spent quota to the SDKs. A namespace that is told to be busy answers 503 with `Retry-After`, which
the JS SDK knows as ServerBusyError and both SDKs wait for.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Protocol
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pairbus.amqp import errors as conditions
from pairbus.broker import atom, sas
from pairbus.broker.description import InvalidDescription, QueueDescription, validate, validate_update
from pairbus.broker.http_server import Request, Response
from pairbus.broker.refusal import Refusal

log = logging.getLogger(__name__)

PAGE_MAX = 100
RETRY_AFTER_S = 2

Done = Callable[[Any], None]


class QueueEntity(Protocol):
    """What is read of a queue."""

    @property
    def description(self) -> QueueDescription: ...
    @property
    def active_count(self) -> int: ...
    @property
    def dead_letter_count(self) -> int: ...
    @property
    def size_bytes(self) -> int: ...
    @property
    def accessed_at(self) -> float: ...


class Namespace(Protocol):
    """What is asked of a namespace. `done` gets None, or a Refusal or error that says why not."""

    @property
    def name(self) -> str: ...
    @property
    def queues(self) -> Mapping[str, QueueEntity]: ...
    def create_queue(self, description: QueueDescription, now: float, done: Done) -> object: ...
    def update_queue(self, description: QueueDescription, now: float, done: Done) -> object: ...
    def delete_queue(self, name: str, now: float, done: Done) -> object: ...


class _Answer(Exception):
    """An error's way out of the middle of a request."""

    def __init__(self, status: int, subcode: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.subcode = subcode
        self.text = text
        self.headers = headers or {}


_NAMES = {
    400: "Bad Request",
    401: "Unauthorized",
    403: "Forbidden",
    404: "Not Found",
    405: "Method Not Allowed",
    409: "Conflict",
    500: "Internal Error",
    503: "Server Busy",
}

# Anything else is 500: a condition nobody expected here.
_STATUS_OF = {
    conditions.NOT_FOUND: 404,
    conditions.ENTITY_NOT_FOUND: 404,
    conditions.RESOURCE_DELETED: 404,
    conditions.ENTITY_ALREADY_EXISTS: 409,
    conditions.RESOURCE_LIMIT_EXCEEDED: 403,
    conditions.QUOTA_EXCEEDED: 403,
    conditions.UNAUTHORIZED_ACCESS: 401,
    conditions.NOT_ALLOWED: 400,
    conditions.INVALID_FIELD: 400,
    conditions.ARGUMENT_ERROR: 400,
    conditions.ARGUMENT_OUT_OF_RANGE: 400,
    conditions.SERVER_BUSY: 503,
    conditions.TIMEOUT: 503,
}


@dataclasses.dataclass(frozen=True, slots=True)
class _Call:
    """A request, taken apart."""

    request: Request
    path: str
    query: dict[str, list[str]]
    base: str
    now: float

    @property
    def url(self) -> str:
        return self.base + self.request.target

    def whole(self, name: str, default: int) -> int:
        text = self.query.get(name, [str(default)])[-1]
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise _Answer(400, 40000, f"Parameter '{name[1:]}' should be a non-negative integer; it is {text[:40]!r}.")
        return int(text)


class AdminApi:
    def __init__(
        self,
        namespace: Namespace,
        authorize: Callable[[str, float], sas.Claims],
        clock: Callable[[], float],
        *,
        refusal: Callable[[str, float], Refusal | None] | None = None,
        metrics: Callable[[], str] | None = None,
        metrics_beyond_loopback: bool = False,
        trouble: Callable[[], str | None] | None = None,
        answered: Callable[[str, str, int, float], None] | None = None,
        created_at: float = 0.0,
        new_id: Callable[[], str] = lambda: str(uuid.uuid4()),
    ) -> None:
        """`authorize(token, now)` gives the claims or raises SasError. `refusal(entity path, now)` is asked before each
        call that has authority. `metrics()` gives the exposition text. `trouble()` says what ails the namespace.
        `answered(method, entity path, status, seconds)` is told of every call."""
        self._namespace = namespace
        self._authorize = authorize
        self._clock = clock
        self._refusal = refusal
        self._metrics = metrics
        self._metrics_beyond_loopback = metrics_beyond_loopback
        self._trouble = trouble
        self._answered = answered
        self._created_at = created_at
        self._new_id = new_id

    async def __call__(self, request: Request) -> Response:
        now = self._clock()
        path = ""
        try:
            call = _take_apart(request, now)
            path = call.path
            response = await self._route(call)
        except _Answer as answer:
            response = self._error(answer, path, now)
        if self._answered is not None:
            self._answered(request.method, path, response.status, self._clock() - now)
        return response

    async def _route(self, call: _Call) -> Response:
        method = "GET" if call.request.method == "HEAD" else call.request.method
        folded = call.path.lower()
        if method == "GET" and folded in ("health", "metrics") and not self._asks_for_queue(call):
            return self._health() if folded == "health" else self._exposition(call)
        if folded == "$namespaceinfo":
            routes: dict[str, Callable[[_Call], Awaitable[Response]]] = {"GET": self._get_namespace}
        elif folded == "$resources/queues":
            routes = {"GET": self._list_queues}
        elif not folded or folded.startswith("$"):
            raise _Answer(404, 40400, f"There is nothing at '/{call.path}'.")
        else:
            routes = {"GET": self._get_queue, "PUT": self._put_queue, "DELETE": self._delete_queue}
        self._admit(call)
        if method not in routes:
            allowed = ", ".join(routes)
            raise _Answer(405, 40500, f"'{method}' is not allowed here; allowed: {allowed}.", {"allow": allowed})
        return await routes[method](call)

    def _asks_for_queue(self, call: _Call) -> bool:
        """A queue may be named like a page of ours; who brings a token means the queue."""
        return "authorization" in call.request.headers and call.path.lower() in self._namespace.queues

    def _admit(self, call: _Call) -> None:
        token = call.request.headers.get("authorization", "")
        if not token:
            raise _Answer(401, 40100, "MissingToken: the Authorization header is missing.")
        # The SDK's credential for a ready-made SAS puts the scheme of another kind of token in front of it.
        scheme, _, rest = token.partition(" ")
        if scheme.lower() == "bearer" and sas.is_sas(rest):
            token = rest
        try:
            claims = self._authorize(token, call.now)
        except sas.SasError as error:
            raise _Answer(401, 40103, f"InvalidToken: {error.reason}.") from None
        # Lists and the namespace itself are beyond the scope of any one entity.
        if not claims.allows(sas.MANAGE, "" if call.path.startswith("$") else call.path):
            raise _Answer(401, 40100, f"The Manage claim is required for this operation on '{call.path}'.")
        refusal = None if self._refusal is None else self._refusal(call.path, call.now)
        if refusal is not None:
            raise _refused(refusal)

    async def _get_namespace(self, call: _Call) -> Response:
        name = self._namespace.name
        info = atom.write_namespace_info(name, created_at=self._created_at, modified_at=self._created_at)
        entry = atom.write_entry(
            info, title=name, url=call.url, author=name, published=self._created_at, updated=call.now
        )
        return Response(200, {"content-type": atom.ENTRY_TYPE}, entry.encode())

    async def _list_queues(self, call: _Call) -> Response:
        skip = call.whole("$skip", 0)
        top = min(call.whole("$top", PAGE_MAX), PAGE_MAX)
        queues = self._namespace.queues
        names = sorted(queues)
        entries = [self._entry(call, queues[name]) for name in names[skip : skip + top]]
        next_url = None
        if top and skip + top < len(names):
            version = call.query.get("api-version", [""])[-1]
            suffix = f"&api-version={quote(version)}" if version else ""
            next_url = f"{call.base}/$Resources/queues?$skip={skip + top}&$top={top}{suffix}"
        feed = atom.write_feed(entries, title=atom.QUEUE.feed_title, url=call.url, updated=call.now, next_url=next_url)
        return Response(200, {"content-type": atom.FEED_TYPE}, feed.encode())

    async def _get_queue(self, call: _Call) -> Response:
        return self._queue(200, call, self._existing(call))

    async def _put_queue(self, call: _Call) -> Response:
        """With If-Match it replaces what stands, field by field; a field that is absent gets its default, which is the
        only way to take a value away. Without, it creates."""
        try:
            _, fields = atom.read_entry(call.request.body)
            if "if-match" in call.request.headers:
                old = self._existing(call).description
                new = QueueDescription(name=old.name, created_at=old.created_at, updated_at=call.now, **fields)
                validate_update(old, new)
                status, change = 200, self._namespace.update_queue
            else:
                if call.path.lower() in self._namespace.queues:
                    raise _Answer(409, 40900, f"The queue '{call.path}' exists already.")
                new = QueueDescription(name=call.path, created_at=call.now, updated_at=call.now, **fields)
                validate(new)
                status, change = 201, self._namespace.create_queue
        except atom.BadDocument as error:
            raise _Answer(400, 40000, f"{error}.") from None
        except InvalidDescription as error:
            raise _invalid(error) from None
        await self._settled(lambda done: change(new, call.now, done))
        return self._queue(status, call, self._existing(call))

    async def _delete_queue(self, call: _Call) -> Response:
        name = self._existing(call).description.name
        await self._settled(lambda done: self._namespace.delete_queue(name, call.now, done))
        return Response(200)

    async def _settled(self, begin: Callable[[Done], object]) -> None:
        """Begin a change and wait for the namespace's word on it."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        begin(lambda error: None if answer.done() else answer.set_result(error))
        error = await answer
        if error is None:
            return
        if isinstance(error, Refusal):
            raise _refused(error)
        if isinstance(error, InvalidDescription):
            raise _invalid(error)
        log.error("a change of namespace %s failed: %r", self._namespace.name, error)
        raise _Answer(500, 50000, "The change could not be written; nothing was changed.")

    def _existing(self, call: _Call) -> QueueEntity:
        entity = self._namespace.queues.get(call.path.lower())
        if entity is None:
            raise _Answer(404, 40400, f"The queue '{call.path}' does not exist.")
        return entity

    def _entry(self, call: _Call, entity: QueueEntity) -> str:
        description = entity.description
        counts = atom.RuntimeCounts(
            active=entity.active_count,
            dead_letter=entity.dead_letter_count,
            size_bytes=entity.size_bytes,
            accessed_at=entity.accessed_at,
        )
        return atom.write_entry(
            atom.write_description(atom.QUEUE, description, counts),
            title=description.name,
            url=f"{call.base}/{quote(description.name)}",
            author=self._namespace.name,
            published=description.created_at,
            updated=description.updated_at,
        )

    def _queue(self, status: int, call: _Call, entity: QueueEntity) -> Response:
        return Response(status, {"content-type": atom.ENTRY_TYPE}, self._entry(call, entity).encode())

    def _health(self) -> Response:
        trouble = None if self._trouble is None else self._trouble()
        answer = (
            {"status": "healthy", "message": "Service is healthy."}
            if trouble is None
            else {"status": "unhealthy", "message": trouble}
        )
        status = 200 if trouble is None else 503
        return Response(status, {"content-type": "application/json"}, json.dumps(answer).encode())

    def _exposition(self, call: _Call) -> Response:
        if self._metrics is None:
            raise _Answer(404, 40400, "There is nothing at '/metrics'.")
        if not (self._metrics_beyond_loopback or _is_loopback(call.request.peer)):
            raise _Answer(403, 40300, "Metrics are given to this machine alone.")
        return Response(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, self._metrics().encode())

    def _error(self, answer: _Answer, path: str, now: float) -> Response:
        text = f"SubCode={answer.subcode}. {_NAMES[answer.status]}. {answer.text}"
        tracker = f"{self._namespace.name}:{path}"
        body = atom.write_error(answer.status, text, tracking_id=self._new_id(), tracker=tracker, now=now)
        return Response(answer.status, {"content-type": atom.ERROR_TYPE} | answer.headers, body.encode())


def _take_apart(request: Request, now: float) -> _Call:
    try:
        parts = urlsplit(request.target)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise _Answer(400, 40000, "The request's target is not a URL.") from None
    scheme = "https" if request.secure else "http"
    base = f"{scheme}://{request.headers.get('host', 'localhost')}"
    return _Call(request, unquote(parts.path).strip("/"), query, base, now)


def _invalid(error: InvalidDescription) -> _Answer:
    element = atom.QUEUE.element_of(error.field)
    value = repr(error.value)
    shown = value if len(value) <= 100 else value[:99] + "…"
    return _Answer(400, 40000, f"{element} may not be {shown}; allowed: {error.allowed}. Parameter name: {element}.")


def _refused(refusal: Refusal) -> _Answer:
    status = _STATUS_OF.get(refusal.condition, 500)
    headers = {"retry-after": str(RETRY_AFTER_S)} if status == 503 else {}
    return _Answer(status, status * 100, refusal.description, headers)


def _is_loopback(peer: str) -> bool:
    try:
        address = ipaddress.ip_address(peer.partition("%")[0])
    except ValueError:
        return False
    mapped = getattr(address, "ipv4_mapped", None)
    return (mapped or address).is_loopback
