"""What became of a message that was sent and taken, in one number: its sequence number, or one of these.

0 is a message that a topic took and numbered only as copies. Decides nothing; intake.py and publishing.py say it, and
observation.py puts it into the books.
"""

from __future__ import annotations

from typing import Final

PINGED: Final = -1
DUPLICATE: Final = -2
#: How the ledger calls the end of one that no subscription wanted.
NO_SUBSCRIPTION: Final = "no-subscription"
