"""Which backlog queues there are, and how deep, by asking the secondary's management API. Needs the Manage right.

A shell round the SDK's administration client, which is called on a thread. Where it can't be asked, the reason is
`ListingFailed`, and callers go on without.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Final, NamedTuple

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError

from pairbus.errors import PairbusError
from pairbus.pairing import backlog

#: The SDK's own would try for a minute; whoever asks here waits, and can do without.
OPTIONS: Final[dict[str, Any]] = {"retry_total": 1, "connection_timeout": 10, "read_timeout": 30}


class ListingFailed(PairbusError):
    pass


class Listed(NamedTuple):
    path: str
    #: None: the name is one of ours, but for its end.
    number: int | None
    messages: int
    dead_letters: int


async def list_backlog(make_admin: Callable[[], Any], primary_name: str) -> list[Listed]:
    """Every backlog queue of the primary, by index."""
    return await asyncio.to_thread(_list, make_admin, primary_name)


def _list(make_admin: Callable[[], Any], primary_name: str) -> list[Listed]:
    front = f"{primary_name}{backlog.INFIX}".lower()
    try:
        with make_admin() as admin:
            found = [
                Listed(
                    each.name,
                    backlog.index_of(each.name, primary_name),
                    each.active_message_count or 0,
                    each.dead_letter_message_count or 0,
                )
                for each in admin.list_queues_runtime_properties()
                if each.name.lower().startswith(front)
            ]
    except (AzureError, OSError) as error:
        raise ListingFailed(reason(error)) from error
    return sorted(found, key=lambda each: (each.number is None, each.number or 0, each.path))


def reason(error: BaseException) -> str:
    """Why the management API could not be asked, in a few words, and what may help."""
    text = str(getattr(error, "message", None) or error)
    if "failed to retrieve a token" in text:
        return "no Azure identity was found (`az login`, or the AZURE_ variables of a service principal)"
    if isinstance(error, ClientAuthenticationError) or (
        isinstance(error, HttpResponseError) and error.status_code in (401, 403)
    ):
        return "the key or identity has no Manage right there"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted (the embedded broker's is, with --ca-file)"
    if isinstance(error, ServiceRequestError):
        return "its management API can't be reached: check host and port, and that it is up"
    return " ".join(text.split())[:200] or type(error).__name__
