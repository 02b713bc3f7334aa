"""SASL as Service Bus and its clients use it (AMQP 5.3): one step each way, no challenges.

Real authorization happens in `$cbs`, so ANONYMOUS, EXTERNAL and MSSBCBS are accepted without claims. PLAIN names a key
and is checked by the function that the server was given.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

SASL_OK = 0
SASL_AUTH_FAILED = 1

ANONYMOUS = "ANONYMOUS"
EXTERNAL = "EXTERNAL"
MSSBCBS = "MSSBCBS"
PLAIN = "PLAIN"


def plain_response(username: str, password: str) -> bytes:
    return b"\0" + username.encode() + b"\0" + password.encode()


def read_plain(response: bytes) -> tuple[str, str] | None:
    """Return user name and password of a PLAIN response (RFC 4616), or None where it is malformed."""
    fields = response.split(b"\0")
    if len(fields) != 3:
        return None
    try:
        return fields[1].decode(), fields[2].decode()
    except UnicodeDecodeError:
        return None


@dataclass(frozen=True, slots=True)
class SaslServer:
    mechanisms: Sequence[str] = (MSSBCBS, PLAIN, ANONYMOUS, EXTERNAL)
    #: Says whether a user name and password are good. Without it PLAIN is refused.
    check_plain: Callable[[str, str], bool] | None = None

    def judge(self, mechanism: str, response: bytes | None) -> tuple[int, str | None]:
        """Return the outcome code, and the user name where the mechanism carries a verified one."""
        if mechanism not in self.mechanisms:
            return SASL_AUTH_FAILED, None
        if mechanism != PLAIN:
            return SASL_OK, None
        credentials = read_plain(response or b"")
        if credentials is None or self.check_plain is None or not self.check_plain(*credentials):
            return SASL_AUTH_FAILED, None
        return SASL_OK, credentials[0]


@dataclass(frozen=True, slots=True)
class SaslClient:
    mechanism: str = ANONYMOUS
    initial_response: bytes = b""

    def __repr__(self) -> str:  # the response may hold a password
        return f"<SaslClient {self.mechanism}>"
