"""Reads the control file, by which an operator pins entities of a whole fleet. Pure.

The file is TOML, a name in each line: `orders = "failed-over"`, `"*" = "healthy"`, `invoices = "auto"`. This module
decides what a file says (`parse`), which line counts for an entity (`Pins.of`), and which results of reading the file
are new (`ControlFileLog`). `failover` decides what a pin does; the health monitors read the file.
"""

from __future__ import annotations

import tomllib
from collections.abc import Hashable, Mapping
from typing import Any, Final, Literal

from pairbus.pairing.errors import ControlFileError

Pin = Literal["failed-over", "healthy"]

BYTES_MAX: Final = 65536
#: A file that was changed less than this ago may be half-written.
SETTLED_S: Final = 1.0
#: Of a mapping that a callable returns; a file is bounded by its size.
NAMES_MAX: Final = 10_000
ALL: Final = "*"
_WORDS: Final[dict[str, Pin | None]] = {"failed-over": "failed-over", "healthy": "healthy", "auto": None}
_ALLOWED: Final = '"failed-over", "healthy" or "auto"'


class Pins:
    """What a control file says of each entity."""

    __slots__ = ("_by_name", "_others", "written")

    def __init__(self, written: Mapping[str, str]) -> None:
        #: The lines as they are in the file, in order.
        self.written = tuple(written.items())
        self._by_name = {name.lower(): _WORDS[word] for name, word in written.items() if name != ALL}
        self._others = _WORDS[written.get(ALL, "auto")]

    def __repr__(self) -> str:
        return f"<Pins {', '.join(f'{name}={word}' for name, word in self.written) or 'none'}>"

    def of(self, entity: str) -> Pin | None:
        """Return where the entity is pinned: by its own line, regardless of letter case, else by that of `*`."""
        return self._by_name.get(entity.lower(), self._others)


NO_PINS: Final = Pins({})


def parse(content: bytes | str | Mapping[str, Any]) -> Pins:
    """Return what the content of a control file says; raise ControlFileError for what can't be followed."""
    if isinstance(content, Mapping):
        found: Mapping[str, Any] = content
        if len(found) > NAMES_MAX:
            raise ControlFileError(f"the control file names {len(found)} entities; {NAMES_MAX} are allowed")
    elif isinstance(content, bytes | str):
        found = _table(content)
    else:
        raise ControlFileError(
            f"the control file may not be a {type(content).__name__}; right is TOML text or a mapping"
        )
    spelt: dict[str, tuple[str, str]] = {}
    for name, word in found.items():
        if not isinstance(name, str) or not name.strip():
            raise ControlFileError(f"{name!r} names no entity; right is the path of a queue or topic, or {ALL!r}")
        if isinstance(word, Mapping):
            raise ControlFileError(f'{name} is a table; put a name with dots in quotes: "{name}.…" = "failed-over"')
        if not isinstance(word, str) or word not in _WORDS:
            raise ControlFileError(f"{name} may not be {_brief(word)}; allowed: {_ALLOWED}")
        other, said = spelt.setdefault(name.lower(), (name, word))
        if said != word:
            raise ControlFileError(f"{other} and {name} are one entity, and may not be both {said!r} and {word!r}")
    return Pins(dict(found))


def _table(content: bytes | str) -> dict[str, Any]:
    data = content.encode("utf-8", "surrogateescape") if isinstance(content, str) else content
    if len(data) > BYTES_MAX:
        raise ControlFileError(f"the control file is larger than the {BYTES_MAX} bytes that are read of one")
    try:
        return tomllib.loads(data.decode("utf-8-sig"))
    except UnicodeDecodeError:
        raise ControlFileError("the control file is not UTF-8; save it as such") from None
    except (tomllib.TOMLDecodeError, RecursionError) as error:
        raise ControlFileError(f"the control file is no TOML: {_brief(error)}") from None


def _brief(value: object) -> str:
    text = str(value) if isinstance(value, Exception) else repr(value)
    return text if len(text) <= 100 else f"{text[:100]}…"


class ControlFileLog:
    """Remembers what was read from a control file, so that each change and each failure is reported once.

    A look at the file gives a `mark`, which is the same as long as the content is.
    """

    __slots__ = ("_is_first", "_late", "_mark", "_pins", "_reported", "_seen")

    def __init__(self) -> None:
        self._mark: Hashable = None
        self._pins = NO_PINS
        self._reported: Hashable = None
        # The mark of the last look, although the content may not have been read.
        self._seen: Hashable = None
        self._is_first = True
        # A look that took too long was reported, and none has ended in time since.
        self._late = False

    def __repr__(self) -> str:
        return f"<ControlFileLog {self._pins!r}{', unusable' if self._reported is not None else ''}>"

    def is_new(self, mark: Hashable) -> bool:
        """Return whether the content has to be read."""
        return mark != self._mark

    def is_settled(self, mark: Hashable, age_s: float) -> bool:
        """Return whether new content is to be read: it was changed more than a moment ago, or was there at the look
        before. A writer may be half-way: an empty file lifts all pins, and one that is cut off some of them. The first
        look lifts none, and reads whatever is there."""
        is_first, was_seen = self._is_first, mark == self._seen
        self._is_first, self._seen = False, mark
        return is_first or was_seen or age_s >= SETTLED_S

    def is_late(self) -> bool:
        """Note that a look takes too long; return whether to report that."""
        was_late, self._late = self._late, True
        return not was_late

    def answered(self, late: bool) -> None:
        """Note that a look has ended; the first that ends in time, after one that did not, is news."""
        if self._late and not late:
            self._late = False
            self._mark, self._reported = None, "late"

    def read(self, mark: Hashable, content: bytes | str | Mapping[str, Any]) -> Pins | None:
        """Return the pins to follow from now on; None: they are those of before, and nobody heard of a failure since.

        Raises ControlFileError.
        """
        self._mark = mark
        pins = parse(content)
        was_told, self._reported = self._reported, None
        if pins.written == self._pins.written and was_told is None:
            return None
        self._pins = pins
        return pins

    def is_news(self, error: BaseException) -> bool:
        """Return whether to report this failure: it differs from the last one, or the content has changed since."""
        what = (self._mark if isinstance(error, ControlFileError) else None, type(error), getattr(error, "errno", None))
        if not isinstance(error, ControlFileError):
            self._mark = None  # whatever is there next is read anew
            self._is_first = False
        if what == self._reported:
            return False
        self._reported = what
        return True
