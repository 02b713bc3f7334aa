"""The syphon in an application without an event loop: what `enable_syphon=True` starts, and how it ends (P36, P38, P43,
P44).

The engine runs on a daemon thread with a loop of its own. The paired client makes a `SyphonHost` when pairing is done,
calls `start`, and in its `close` calls `stop` before it closes anything else. The secondary's `close()` is watched from
here; for a client that ends otherwise there is `client_closed`. A shell: it decides nothing.
"""

from __future__ import annotations

from pairbus.paired.syphon import SyphonHalf
from pairbus.syphon.hosting import check_engine
from pairbus.wire.errors import ClientClosed
from pairbus.wire.sync import LoopThread

__all__ = ["SyphonHost", "check_engine"]


class SyphonHost(SyphonHalf):
    _thread: LoopThread | None = None

    def start(self) -> None:
        """Raises PairingFailed where the secondary may not be read; then there is nothing to do but `stop`."""
        close = self._clients["secondary"].close

        def closing() -> None:
            self.client_closed("secondary")
            close()

        self._watch(closing)
        self._thread = LoopThread()
        self._thread.run(self._syphon.check_listen())
        self._thread.run(self._syphon.start())

    def stop(self) -> None:
        """Releases what is locked and ends, in a few seconds at most. Idempotent; nothing to do in a forked child."""
        if self.is_over:
            return
        self._ending()
        if self._thread is not None:
            try:
                self._thread.run(self._syphon.stop())
            except ClientClosed:  # its thread is gone
                pass
            self._thread.stop()
        self._ended()
