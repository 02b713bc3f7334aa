"""Lists the backlog queues and their depths through the secondary's management API; needs the Manage right.

A shell around the SDK's administration client, which is called on a thread. If listing fails, it raises
`ListingFailed`, and callers go on without. `Lister` lists again while a syphon runs, as `queue_discovery` decides.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

from azure.core.exceptions import AzureError, ClientAuthenticationError, HttpResponseError, ServiceRequestError

from pairbus.errors import PairbusError
from pairbus.pairing.backlog import backlog_queues
from pairbus.syphon.core.queue_discovery import Listed, QueueDiscovery

from .daemon_thread import in_daemon_thread

#: The SDK's own would try for a minute; callers wait here, and can do without.
OPTIONS: Final[dict[str, Any]] = {"retry_total": 1, "connection_timeout": 10, "read_timeout": 30}


_log = logging.getLogger("pairbus.syphon")


class ListingFailed(PairbusError):
    pass


class Lister:
    """Reports new queues until it is cancelled or all wanted ones are known. A listing that fails stops nothing: the
    known queues go on."""

    def __init__(self, discovery: QueueDiscovery, find: Callable[[], Awaitable[Sequence[Listed]]]) -> None:
        self.discovery = discovery
        self._find = find

    def __repr__(self) -> str:
        return f"<Lister {self.discovery!r}>"

    async def keep_listing(self, take_in: Callable[[list[Listed]], None]) -> None:
        if (greeting := self.discovery.greeting()) is not None:
            _log.warning("%s", greeting)
        while (pause_s := self.discovery.pause_s) is not None:
            await asyncio.sleep(pause_s)
            try:
                found = await self._find()
            except Exception as error:
                line = self.discovery.failed(str(error) if isinstance(error, ListingFailed) else reason(error))
                lines = [] if line is None else [line]
            else:
                queues, lines = self.discovery.listed(found)
                if queues:
                    take_in(queues)
            for line in lines:
                _log.warning("%s", line)


async def list_backlog(make_admin: Callable[[], Any], primary_name: str) -> list[Listed]:
    """Return every backlog queue of the primary by index. Raises ListingFailed."""
    return await in_daemon_thread(lambda: list_now(make_admin, primary_name))


def list_now(make_admin: Callable[[], Any], primary_name: str) -> list[Listed]:
    front = f"{primary_name}{backlog_queues.INFIX}".lower()
    try:
        with make_admin() as admin:
            found = [
                Listed(
                    each.name,
                    backlog_queues.index_of(each.name, primary_name),
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
    """Return in a few words why the management API could not be asked, and what may help."""
    text = str(getattr(error, "message", None) or error)
    if "failed to retrieve a token" in text:
        return "no Azure identity was found (`az login`, or the AZURE_ variables of a service principal)"
    if isinstance(error, ClientAuthenticationError) or (
        isinstance(error, HttpResponseError) and error.status_code in (401, 403)
    ):
        return "the key or identity has no Manage right there"
    if "CERTIFICATE_VERIFY_FAILED" in text:
        return "its certificate is not trusted (the embedded broker's is, with ca_file=)"
    if isinstance(error, ServiceRequestError):
        return "its management API can't be reached: check host and port, and that it is up"
    return " ".join(text.split())[:200] or type(error).__name__
