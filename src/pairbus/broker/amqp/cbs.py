"""Answers requests to `$cbs`, where a client puts the tokens that permit what its connection does.

See docs/reference/protocol.md#tokens-over-cbs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from pairbus.amqp import errors as conditions
from pairbus.sas import SasError, is_sas, verify

from .requests import Request, Response, cbs_response

if TYPE_CHECKING:
    from pairbus.broker.model.transaction import Transaction

    from .connection import AmqpConnection


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
    return Response(202, "Accepted")
