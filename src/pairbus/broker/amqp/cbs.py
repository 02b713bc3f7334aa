"""Answers requests to `$cbs`, to which a client sends the tokens for its connection.

See docs/reference/protocol.md#tokens-over-cbs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.amqp import errors as conditions
from pairbus.sas import MANAGE, Claims, SasError, is_sas, scope_path, verify

from .address import parse_address
from .links import not_found
from .requests import Request, Response, cbs_response

if TYPE_CHECKING:
    from pairbus.broker.model.transaction import Transaction

    from .connection import AmqpConnection

_SAS_TYPE = "servicebus.windows.net:sastoken"
_PYTHON_SDK = "azsdk-python-"
_AUDIENCE_CHARS_SHOWN = 500


def handle(
    connection: AmqpConnection,
    request: Request,
    respond: Callable[[bytes], None],
    transaction: Transaction | None = None,
) -> None:
    """Verify the token of a put-token request and respond with the encoded answer; it is part of no transaction."""
    respond(cbs_response(request, _answer(connection, request)))


def _answer(connection: AmqpConnection, request: Request) -> Response:
    host = connection.host
    if request.operation != "put-token":
        return Response(501, f"operation {request.operation!r} is not known; $cbs takes put-token")
    if not isinstance(request.body, str):
        return Response(400, "the body of put-token is the token, as a string")
    if not is_sas(request.body):
        # an Entra token can't be verified here: there is nobody to ask
        host.recorder.unauthorized("not a shared access signature")
        return Response(401, "only shared access signatures are accepted here", conditions.UNAUTHORIZED_ACCESS)
    try:
        claims = verify(request.body, host.clock(), host.authorization_rules)
    except SasError as error:
        host.recorder.unauthorized(error.reason)
        return Response(401, f"InvalidSignature: {error.reason}", conditions.UNAUTHORIZED_ACCESS)
    connection.put_claims(claims)
    missing = _missing(connection, request, claims)
    return Response(202, "Accepted") if missing is None else Response(404, missing, conditions.NOT_FOUND)


def _missing(connection: AmqpConnection, request: Request, claims: Claims) -> str | None:
    """Return what to say of an entity that does not exist to a client that learns so from `$cbs`, as Go and .NET do.

    Python's SDK would try again for 15 s and report a failed authentication; it gets a prompt error from its link. With
    pyamqp it says `jwt` for the type, with uamqp it is known by how it introduced itself.
    """
    audience = request.properties.get("name")
    is_sastoken = request.properties.get("type") == _SAS_TYPE and not connection.product.startswith(_PYTHON_SDK)
    if not is_sastoken or not isinstance(audience, str):
        return None
    path = parse_address(scope_path(audience)).path
    if not path or not claims.allows(MANAGE, path) or connection.host.namespace.resolve(path) is not None:
        return None
    named = audience.partition("://")[2] or audience
    return not_found(f"sb://{named[:_AUDIENCE_CHARS_SHOWN]}")
