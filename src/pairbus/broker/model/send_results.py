"""Defines the special values that a send returns in place of a sequence number.

0 stands for a message that a topic numbered only as copies. enqueue.py returns them, recorder.py counts them.
"""

from __future__ import annotations

from typing import Final

PINGED: Final = -1
DUPLICATE: Final = -2
#: What the ledger says of a message that no subscription takes.
NO_SUBSCRIPTION: Final = "no-subscription"
