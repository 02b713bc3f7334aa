"""What a churn sent and what became of it, message by message: a light count, not a history.

An answer may be lost. Then nobody knows whether a message is there: neither its being there nor its absence is wrong.
"""

from __future__ import annotations

from collections import Counter

from pairbus.wire import WireError


class Books:
    """What was sent and not yet received, by home and message id."""

    def __init__(self) -> None:
        #: Whether the message must be there; False where an answer was lost, so that nobody knows.
        self.there: dict[tuple[str, str], bool] = {}
        self.depth: Counter[str] = Counter()
        self.confirmed = self.removed = self.unknown = 0
        self.violations: list[str] = []

    def __repr__(self) -> str:
        return f"<Books: {self.confirmed} confirmed, {self.removed} removed, {len(self.there)} there>"

    def sending(self, home: str, id: str) -> None:
        """Enter a message that is about to be sent: it may be received before it is confirmed."""
        if (home, id) not in self.there:
            self.depth[home] += 1
            self.there[home, id] = False

    def sent(self, home: str, id: str, error: WireError | None = None, is_part: bool = False) -> None:
        """Enter what came of it. `is_part`: an error was raised for several messages, of which some may be stored."""
        if error is None:
            self.confirmed += 1
            if (home, id) in self.there:
                self.there[home, id] = True
        elif error.outcome_unknown or is_part:
            self.unknown += 1
        elif self.there.get((home, id)) is False:
            del self.there[home, id]
            self.depth[home] -= 1

    def seen(self, home: str, id: str) -> None:
        """Check a message that was received."""
        if (home, id) not in self.there:
            self.violations.append(f"{id} was received from {home}, where it was never sent or was removed before")

    def gone(self, home: str, id: str, is_certain: bool = True) -> None:
        """Strike out a message that was removed; one whose answer was lost may still be there."""
        if (home, id) not in self.there:
            return
        if is_certain:
            del self.there[home, id]
            self.depth[home] -= 1
            self.removed += 1
        else:
            self.there[home, id] = False

    def doubt(self, home: str) -> None:
        """Know no longer what a home holds."""
        for key in self.there:
            if key[0] == home:
                self.there[key] = False

    def compare(self, found: dict[tuple[str, str], int]) -> list[str]:
        """Return what is wrong with what was found in the end: what is missing, what is too much."""
        missing = [key for key, is_certain in self.there.items() if is_certain and key not in found]
        extra = [key for key in found if key not in self.there]
        doubled = [key for key, count in found.items() if count > 1]
        return [
            *self.violations,
            *(f"{id} was confirmed in {home} and is lost" for home, id in missing),
            *(f"{id} is in {home}, where it was never sent or was removed before" for home, id in extra),
            *(f"{id} is in {home} more than once" for home, id in doubled),
        ]
