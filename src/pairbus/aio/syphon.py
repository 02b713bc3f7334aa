"""The syphon in an application on asyncio: what `enable_syphon=True` starts, and how it ends (P36, P38, P43, P44).

The paired client makes a `SyphonHost` when pairing is done, calls `start`, and in its `close` calls `stop` before it
closes anything else. The secondary's `close()` is watched from here; for a client that ends otherwise there is
`client_closed`. When one client of the pair ends alone, the other is faulted: its calls raise ClientFaultedError.
A shell: it decides nothing.
"""

from __future__ import annotations

from pairbus.paired.syphon import SyphonHalf
from pairbus.syphon.hosting import check_engine

__all__ = ["SyphonHost", "check_engine"]


class SyphonHost(SyphonHalf):
    async def start(self) -> None:
        """Raises PairingFailed where the secondary may not be read; then there is nothing to do but `stop`."""
        close = self._clients["secondary"].close

        async def closing() -> None:
            self.client_closed("secondary")
            await close()

        self._watch(closing)
        await self._syphon.check_listen()
        await self._syphon.start()

    async def stop(self) -> None:
        """Releases what is locked and ends, in a few seconds at most. Idempotent."""
        if self.is_over:
            return
        self._ending()
        await self._syphon.stop()
        self._ended()
