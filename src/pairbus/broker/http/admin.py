"""Serves the HTTP management API of a namespace: routes requests, checks tokens, chooses the answer's status.

See docs/reference/protocol.md#http-management-api.

A shell around the namespace, whose callbacks it awaits. atom.py reads and writes the documents, resources.py knows what
differs between queues, topics, subscriptions and rules. `AdminApi` is a handler for server.py.

Every call needs the Manage claim, even reading. Without it, and without a valid token, the answer is 401, as on the
service: the SDKs take 403 for an exhausted quota. A busy namespace answers 503 with `Retry-After`, which the JavaScript
SDK raises as ServerBusyError and both SDKs respect.
"""

from __future__ import annotations

import asyncio
import dataclasses
import ipaddress
import json
import logging
import uuid
from collections.abc import Awaitable, Callable, Collection, Generator, Mapping, Sequence
from functools import partial
from http import HTTPStatus
from typing import Any, TypeVar
from urllib.parse import parse_qs, quote, unquote, urlsplit

from pairbus import sas
from pairbus.amqp import errors as conditions
from pairbus.broker.access.authorization import complete_rule
from pairbus.broker.access.keys import random_key
from pairbus.broker.http import atom
from pairbus.broker.http.resources import (
    Missing,
    Queues,
    ResourceKind,
    ResourcePath,
    Rules,
    Subscriptions,
    Topics,
    parse_path,
)
from pairbus.broker.http.server import Request, Response
from pairbus.broker.http.xml import BadDocument
from pairbus.broker.model.bounds import InvalidDescription
from pairbus.broker.model.description import FORWARDS, IMMUTABLE
from pairbus.broker.model.partitions import PARTITIONS
from pairbus.broker.operations.forward_decisions import entity_at
from pairbus.broker.operations.namespace import Namespace
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Job, SlicesFull

log = logging.getLogger("pairbus.broker.admin_api")

PAGE_MAX = 100
RETRY_AFTER_S = 2
_FORWARD_TOKENS = {
    "forward_to": "servicebussupplementaryauthorization",
    "forward_dead_lettered_to": "servicebusdlqsupplementaryauthorization",
}

Done = Callable[[Any], None]
T = TypeVar("T")


class _Answer(Exception):
    """Raised to answer a request with an error."""

    def __init__(self, status: int, subcode: int, text: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(text)
        self.status = status
        self.subcode = subcode
        self.text = text
        self.headers = headers or {}


_ROOT = b"A Service Bus namespace on pairbus.\n"
#: The service's words, where they are not those of HTTP.
_PHRASES = {500: "Internal Error", 503: "Server Busy"}

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
    """A request with its path and query parsed."""

    request: Request
    path: str
    query: dict[str, list[str]]
    base: str
    now: float

    @property
    def url(self) -> str:
        return self.base + self.request.target

    @property
    def version(self) -> str:
        return self.query.get("api-version", [atom.NEWEST])[-1]

    def whole(self, name: str, default: int) -> int:
        text = self.query.get(name, [str(default)])[-1]
        if not (text.isascii() and text.isdigit() and len(text) <= 9):
            raise _Answer(400, 40000, f"Parameter '{name[1:]}' should be a non-negative integer; it is {text[:40]!r}.")
        return int(text)


@dataclasses.dataclass(eq=False)
class AdminApi:
    """Answers the management requests of one namespace, and `/health` and `/metrics`.

    `authorize(token, now)` gives the claims or raises SasError. `refusal(entity path, now)` is asked before each call
    that has authority. `metrics()` gives the exposition text. `trouble()` says what ails the namespace.
    `answered(method, entity path, status, bytes, seconds)` is told of every call. `ports()` are the namespace's.
    """

    namespace: Namespace
    authorize: Callable[[str, float], sas.Claims]
    clock: Callable[[], float]
    _: dataclasses.KW_ONLY
    refusal: Callable[[str, float], Refusal | None] | None = None
    metrics: Callable[[], Generator[None, None, str]] | None = None
    trouble: Callable[[], Awaitable[str | None]] | None = None
    answered: Callable[[str, str, int, int, float], None] | None = None
    ports: Callable[[], Collection[int]] = tuple
    new_id: Callable[[], object] = uuid.uuid4

    def __post_init__(self) -> None:
        self._queues = Queues(self.namespace)
        self._topics = Topics(self.namespace)
        self._subscriptions = Subscriptions(self.namespace)
        self._rules = Rules(self.namespace)

    async def __call__(self, request: Request) -> Response:
        now = self.clock()
        path = ""
        try:
            call = _parse_request(request, now)
            path = call.path
            response = await self._route(call)
        except _Answer as answer:
            response = self._error(answer, path, now)
        if self.answered is not None:
            self.answered(request.method, path, response.status, len(response.body), self.clock() - now)
        return response

    async def _route(self, call: _Call) -> Response:
        method = "GET" if call.request.method == "HEAD" else call.request.method
        folded = call.path.lower()
        if method == "GET" and folded in ("health", "metrics") and not self._asks_for_entity(call):
            return await (self._health() if folded == "health" else self._exposition(call))
        if method == "GET" and not folded:
            return Response(200, {"content-type": "text/plain; charset=utf-8"}, _ROOT)
        routes = self._routes(call, folded)
        self._admit(call)
        if method not in routes:
            allowed = ", ".join(routes)
            text = f"'{method}' is not allowed here; allowed: {allowed}."
            if method == "POST" and "/messages" in folded:
                text += " Messages are sent and received over AMQP alone."
            raise _Answer(405, 40500, text, {"allow": allowed})
        try:
            return await routes[method](call)
        except Missing as missing:
            raise _Answer(404, 40400, str(missing)) from None

    def _routes(self, call: _Call, folded: str) -> dict[str, Callable[[_Call], Awaitable[Response]]]:
        if folded == "$namespaceinfo":
            return {"GET": self._get_namespace}
        if folded == "$resources/queues":
            return {"GET": partial(self._list, self._queues, ResourcePath(""))}
        if folded == "$resources/topics":
            return {"GET": partial(self._list, self._topics, ResourcePath(""))}
        path = parse_path(call.path)
        if not folded or folded.startswith("$") or path is None:
            raise _Answer(404, 40400, f"There is nothing at '/{call.path}'.")
        if path.rule is not None:
            candidates: tuple[ResourceKind, ...] = (self._rules,)
        elif path.subscription is not None:
            candidates = (self._subscriptions,)
        else:
            candidates = (self._queues, self._topics)
        if not path.name:
            return {"GET": partial(self._list, candidates[0], path)}
        return {
            "GET": partial(self._get, candidates, path),
            "PUT": partial(self._put, candidates, path),
            "DELETE": partial(self._delete, candidates, path),
        }

    def _asks_for_entity(self, call: _Call) -> bool:
        """Return whether `/health` or `/metrics` means an entity of that name: it does for who brings a token."""
        name = call.path.lower()
        return "authorization" in call.request.headers and (
            name in self.namespace.queues or name in self.namespace.topics
        )

    def _admit(self, call: _Call) -> None:
        token = call.request.headers.get("authorization", "")
        if not token:
            raise _Answer(401, 40100, "MissingToken: the Authorization header is missing.")
        # Lists and the namespace itself (`$…`) are beyond the scope of any one entity; JS signs for their very address.
        self._require_manage(token, call.path, call.now)
        refusal = None if self.refusal is None else self.refusal(call.path, call.now)
        if refusal is not None:
            raise _refused(refusal)

    def _require_manage(self, token: str, path: str, now: float) -> None:
        # The SDK's credential for a ready-made SAS puts the scheme of another kind of token in front of it.
        scheme, _, rest = token.partition(" ")
        if scheme.lower() == "bearer" and sas.is_sas(rest):
            token = rest
        try:
            claims = self.authorize(token, now)
        except sas.SasError as error:
            raise _Answer(401, 40103, f"InvalidToken: {error.reason}.") from None
        if not claims.allows(sas.MANAGE, path):
            raise _Answer(401, 40100, f"The Manage claim is required for this operation on '{path}'.")

    def _admit_forwards(self, call: _Call, new: Any, old: Any | None) -> None:
        """Check that the caller may manage what is newly forwarded to, by its own token or by that of the call."""
        headers = call.request.headers
        for field, header in _FORWARD_TOKENS.items():
            to = getattr(new, field, None)
            if to is not None and to != getattr(old, field, None):
                self._require_manage(headers.get(header) or headers.get("authorization", ""), to, call.now)

    async def _in_slices(self, work: Generator[None, None, T]) -> T:
        """Do what takes long while others are served, and return its result."""
        ended: asyncio.Future[Job[T]] = asyncio.get_running_loop().create_future()
        try:
            job = self.namespace.slices.start(work, lambda job: None if ended.done() else ended.set_result(job))
        except SlicesFull:
            text = "The broker has too much to do. Please wait 2 seconds and try again."
            raise _Answer(503, 50300, text, {"retry-after": str(RETRY_AFTER_S)}) from None
        try:
            return (await ended).result()
        finally:
            job.cancel()

    async def _get_namespace(self, call: _Call) -> Response:
        name = self.namespace.name
        info = atom.write_namespace_info(name, self.namespace.registry.quotas.sku)
        entry = atom.write_entry(info, title=name, url=call.url, author=name, published=0.0, updated=call.now)
        return Response(200, {"content-type": atom.ENTRY_TYPE}, entry.encode())

    async def _list(self, resources: ResourceKind, path: ResourcePath, call: _Call) -> Response:
        skip = call.whole("$skip", 0)
        top = min(call.whole("$top", PAGE_MAX), PAGE_MAX)
        found = resources.all(path)
        names = sorted(found)
        entries = await self._in_slices(self._entries(call, resources, path, found, names[skip : skip + top]))
        next_url = None
        if top and skip + top < len(names):
            version = f"&api-version={quote(call.version)}" if "api-version" in call.query else ""
            next_url = f"{call.base}/{quote(call.path, safe='/$')}?$skip={skip + top}&$top={top}{version}"
        title = resources.table.feed_title
        feed = atom.write_feed(entries, title=title, url=call.url, updated=call.now, next_url=next_url)
        return Response(200, {"content-type": atom.FEED_TYPE}, feed.encode())

    def _entries(
        self, call: _Call, resources: ResourceKind, path: ResourcePath, found: Mapping[str, Any], names: Sequence[str]
    ) -> Generator[None, None, list[str]]:
        """Return the entries of those that are still there when it is their turn."""
        entries: list[str] = []
        for name in names:
            if name in found:
                entries.append(self._entry(call, resources, path, found[name]))
            yield
        return entries

    async def _get(self, candidates: Sequence[ResourceKind], path: ResourcePath, call: _Call) -> Response:
        return self._answer(200, call, *_find(candidates, path), path)

    async def _put(self, candidates: Sequence[ResourceKind], path: ResourcePath, call: _Call) -> Response:
        """Create a resource, or with If-Match replace it field by field; a field that is absent gets its default, which
        is the only way to take a value away."""
        by_table = {resources.table.tag: resources for resources in candidates}
        kinds = [resources.table for resources in candidates]
        resources = candidates[0]
        try:
            kind, fields = atom.read_entry(call.request.body, kinds, call.version)
            resources = by_table[kind.tag]
            old = None
            if "if-match" in call.request.headers:
                old = resources.description(_find([resources], path)[1])
            else:
                for each in candidates:
                    if path.name.lower() in each.all(path):
                        raise _Answer(409, 40900, f"The messaging entity '{path.path}' already exists.")
            new = self._described(resources, path, fields, old, call)
            resources.check(new, old)
            self._admit_forwards(call, new, old)
        except BadDocument as error:
            raise _Answer(400, 40000, f"{error}.") from None
        except InvalidDescription as error:
            raise _invalid(error, resources) from None
        change = resources.create if old is None else resources.update
        await self._change(resources, lambda done: change(path, new, call.now, done))
        return self._answer(201 if old is None else 200, call, *_find([resources], path), path)

    def _described(
        self, resources: ResourceKind, path: ResourcePath, fields: dict[str, Any], old: Any | None, call: _Call
    ) -> Any:
        """Return the description that the fields give, with what an update of `old` keeps where they do not say."""
        for field in FORWARDS:
            if field in fields:
                to = entity_at(fields[field], urlsplit(call.base).netloc, self.ports())
                if to is None:
                    allowed = (
                        "a queue or topic of this namespace: its name, or sb://HOST/NAME with the host of the call"
                    )
                    raise InvalidDescription(field, fields[field], allowed)
                fields = fields | {field: to}
        if "authorization_rules" in fields:
            before = {} if old is None else {rule.key_name: rule for rule in old.authorization_rules}
            rules = (
                complete_rule(rule, before.get(rule.key_name), random_key, call.now)
                for rule in fields["authorization_rules"]
            )
            fields = fields | {"authorization_rules": tuple(rules)}
        if old is None:
            return resources.describe(path, fields, call.now)
        kept = {*IMMUTABLE, "authorization_rules", "default_rule"} | resources.table.unknown_to(call.version)
        kept = {name for name in kept if name not in fields and hasattr(old, name)}
        if getattr(old, "enable_partitioning", False) and fields.get("max_size_mb") == PARTITIONS * old.max_size_mb:
            fields = fields | {"max_size_mb": old.max_size_mb}  # as it was shown
        new = resources.describe(path, fields | {name: getattr(old, name) for name in kept}, call.now)
        return dataclasses.replace(new, name=old.name, created_at=old.created_at)

    async def _delete(self, candidates: Sequence[ResourceKind], path: ResourcePath, call: _Call) -> Response:
        resources, found = _find(candidates, path)
        description = resources.description(found)
        await self._change(resources, lambda done: resources.delete(path, description, call.now, done))
        return Response(200)

    async def _change(self, resources: ResourceKind, begin: Callable[[Done], object]) -> None:
        """Begin a change and wait until it is on disk; raise the answer to one that failed."""
        answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()
        begin(lambda error: None if answer.done() else answer.set_result(error))
        error = await answer
        if error is None:
            return
        if isinstance(error, Refusal):
            raise _refused(error)
        if isinstance(error, InvalidDescription):
            raise _invalid(error, resources)
        log.error("a change of namespace %s failed: %r", self.namespace.name, error)
        raise _Answer(500, 50000, "The change could not be written; nothing was changed.")

    def _entry(self, call: _Call, resources: ResourceKind, path: ResourcePath, found: Any) -> str:
        description = resources.description(found)
        host = urlsplit(call.base).netloc
        shown: dict[str, Any] = {
            field: f"sb://{host}/{to}" for field in FORWARDS if (to := getattr(description, field, None))
        }
        if getattr(description, "enable_partitioning", False):
            # the service shows the size of all partitions together
            shown["max_size_mb"] = PARTITIONS * description.max_size_mb
        if shown:
            description = dataclasses.replace(description, **shown)
        return atom.write_entry(
            atom.write_description(resources.table, description, resources.counts(found), call.version),
            title=description.name,
            # the JS SDK takes names from here as they stand
            url=f"{call.base}/{quote(resources.path(path, description), safe='/$')}",
            author=self.namespace.name,
            published=description.created_at,
            updated=getattr(description, "updated_at", description.created_at),
        )

    def _answer(self, status: int, call: _Call, resources: ResourceKind, found: Any, path: ResourcePath) -> Response:
        entry = self._entry(call, resources, path, found)
        return Response(status, {"content-type": atom.ENTRY_TYPE}, entry.encode())

    async def _health(self) -> Response:
        trouble = None if self.trouble is None else await self.trouble()
        answer = (
            {"status": "healthy", "message": "Service is healthy."}
            if trouble is None
            else {"status": "unhealthy", "message": trouble}
        )
        status = 200 if trouble is None else 503
        return Response(status, {"content-type": "application/json"}, json.dumps(answer).encode())

    async def _exposition(self, call: _Call) -> Response:
        if self.metrics is None:
            raise _Answer(404, 40400, "There is nothing at '/metrics'.")
        if not _is_loopback(call.request.peer):
            raise _Answer(403, 40300, "Metrics are given to this machine alone.")
        text = await self._in_slices(self.metrics())
        return Response(200, {"content-type": "text/plain; version=0.0.4; charset=utf-8"}, text.encode())

    def _error(self, answer: _Answer, path: str, now: float) -> Response:
        phrase = _PHRASES.get(answer.status) or HTTPStatus(answer.status).phrase
        text = f"SubCode={answer.subcode}. {phrase}. {answer.text}"
        tracker = f"{self.namespace.name}:{path}"
        body = atom.write_error(answer.status, text, tracking_id=str(self.new_id()), tracker=tracker, now=now)
        return Response(answer.status, {"content-type": atom.ERROR_TYPE} | answer.headers, body.encode())


def _parse_request(request: Request, now: float) -> _Call:
    try:
        parts = urlsplit(request.target)
        query = parse_qs(parts.query, keep_blank_values=True, max_num_fields=32)
    except ValueError:
        raise _Answer(400, 40000, "The request's target is not a URL.") from None
    scheme = "https" if request.secure else "http"
    base = f"{scheme}://{request.headers.get('host', 'localhost')}"
    return _Call(request, unquote(parts.path).strip("/"), query, base, now)


def _find(candidates: Sequence[ResourceKind], path: ResourcePath) -> tuple[ResourceKind, Any]:
    for resources in candidates:
        found = resources.all(path).get(path.name.lower())
        if found is not None:
            return resources, found
    raise Missing(" or ".join(resources.noun for resources in candidates), path.name)


def _invalid(error: InvalidDescription, resources: ResourceKind) -> _Answer:
    element = resources.table.element_of(error.field)
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
