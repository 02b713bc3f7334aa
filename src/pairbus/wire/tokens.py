"""Sends the tokens of one connection to `$cbs`: one for each audience before its first link, renewed on the same links.

A shell: it fetches tokens, sends them and waits. `credentials` decides what a token is and when it is renewed.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import math
from collections.abc import Callable
from dataclasses import dataclass, field

from pairbus.credentials import SCOPE, EntraToken, SharedKey, SharedSignature, Token

from . import requests
from .errors import Unauthorized, WireError
from .exchange import Exchange
from .transport import SingleFlight, Transport, before

#: The wall clock may jump: renewal looks at it at least this often.
LOOK_S_MAX = 30.0
#: Between attempts of a renewal that fails.
RETRY_S = 5.0

_log = logging.getLogger("pairbus.wire")


#: By the wall clock and by the loop's, whichever comes first: else a token would run out when the wall clock is set
#: back.
_Due = tuple[float, float]


@dataclass(repr=False, eq=False)
class Tokens:
    _transport: Transport
    _credential: SharedKey | SharedSignature | EntraToken
    _clock: Callable[[], float]
    _timeout: float
    _exchange: Exchange | None = None
    _flight: SingleFlight = field(default_factory=SingleFlight)
    _renew_at: dict[str, _Due] = field(default_factory=dict)
    _entra: tuple[Token, _Due] | None = None
    _renewal: asyncio.Task[None] | None = None

    async def authorize(self, audience: str, deadline: float) -> None:
        if audience in self._renew_at:
            return
        await self._put(audience, deadline)
        if self._renewal is None and not isinstance(self._credential, SharedSignature):
            self._renewal = self._transport.loop.create_task(self._renew())

    async def _put(self, audience: str, deadline: float) -> None:
        token, renew_at = await before(deadline, "getting a token", self._token(audience))
        if self._exchange is None or self._exchange.error is not None:
            await self._flight.run(self._open, deadline, "opening $cbs")
        exchange = self._exchange
        assert exchange is not None
        response = await exchange.call(
            lambda message_id, reply_to: requests.put_token(message_id, reply_to, audience, token),
            deadline,
            f"put-token for {audience}",
        )
        problem = response.refusal
        if problem is not None:
            raise type(problem)(problem.condition, f"$cbs for {audience}: {problem.description}")
        self._renew_at[audience] = renew_at

    def _due(self, at: float) -> _Due:
        return at, self._transport.loop.time() + at - self._clock()

    def _left_s(self, due: _Due) -> float:
        return min(due[0] - self._clock(), due[1] - self._transport.loop.time())

    async def _open(self) -> None:
        exchange = Exchange(self._transport, requests.CBS_NODE, self._timeout)
        await exchange.opened(self._transport.loop.time() + self._timeout)
        self._exchange = exchange

    async def _token(self, audience: str) -> tuple[Token, _Due]:
        credential, now = self._credential, self._clock()
        if not isinstance(credential, EntraToken):
            token = credential.token(audience, now)
            return token, self._due(math.inf if isinstance(credential, SharedSignature) else token.renew_at(now))
        if self._entra is not None and self._left_s(self._entra[1]) > 0:
            return self._entra
        get_token = credential.source.get_token
        try:
            if inspect.iscoroutinefunction(get_token):
                answer = await get_token(SCOPE)
            else:
                # azure-identity's sync credentials do network I/O
                answer = await asyncio.to_thread(get_token, SCOPE)
                if inspect.isawaitable(answer):
                    answer = await answer
            token = credential.token(answer)
        except Exception as error:
            text = f"the credential {type(credential.source).__name__} gave no token: {type(error).__name__}"
            raise Unauthorized("amqp:unauthorized-access", text) from error
        self._entra = token, self._due(token.renew_at(now))
        return self._entra

    async def _renew(self) -> None:
        """Renew tokens when they are due, until the connection is lost: the next one starts with new tokens."""
        while self._transport.error is None:
            left_s = {audience: self._left_s(due) for audience, due in self._renew_at.items()}
            delay = min(left_s.values(), default=math.inf)
            if delay > 0:
                await asyncio.sleep(min(delay, LOOK_S_MAX))
                continue
            for audience in [audience for audience, seconds in left_s.items() if seconds <= 0]:
                try:
                    await self._put(audience, self._transport.loop.time() + self._timeout)
                except WireError as error:
                    _log.warning("%s: renewing the token for %s failed: %s", self._transport.peer, audience, error)
                    self._renew_at[audience] = self._due(self._clock() + RETRY_S)

    def forget(self, audience: str) -> None:
        """Forget a token that the peer no longer accepts: the next link sends a new one first."""
        if self._renew_at.pop(audience, None) is not None:
            self._entra = None

    def close(self) -> None:
        if self._renewal is not None:
            self._renewal.cancel()
        self._flight.cancel()
