"""Numbers that say what became of a message that was sent and confirmed: its sequence number, or one of these.

0 stands for a message that a topic numbered only as copies. enqueue.py returns them, recorder.py counts them.
"""

from __future__ import annotations

from typing import Final

PINGED: Final = -1
DUPLICATE: Final = -2
#: What the ledger says of a message that no subscription takes.
NO_SUBSCRIPTION: Final = "no-subscription"
