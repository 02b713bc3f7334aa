"""Decides whether enough backlog queues could be found or created.

Both shells fill a `Provision` while they talk to the secondary. This module decides which failures are worth another
try, how a failure is reported, and which failures "degrade" accepts. `backlog_queues.py` decides names and properties.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import KW_ONLY, InitVar, dataclass, field
from typing import Any, Final

from azure.core.exceptions import ClientAuthenticationError, HttpResponseError
from azure.servicebus.exceptions import ServiceBusAuthenticationError, ServiceBusAuthorizationError

from pairbus.pairing.backlog import backlog_queues
from pairbus.pairing.errors import PairingFailed
from pairbus.pairing.events import BacklogQueueLeftOut
from pairbus.pairing.routing.verdicts import is_reach

_NO_ACCESS: Final = (ClientAuthenticationError, ServiceBusAuthenticationError, ServiceBusAuthorizationError)


@dataclass(repr=False, eq=False)
class Provision:
    """The backlog queues that exist, and those that were left out.

    `give_up_after_s` bounds the time that failing tries may take together; those that succeed do not count, however
    many there are.
    """

    primary_name: str
    secondary: str
    count: int
    _: KW_ONLY
    give_up_after_s: InitVar[float]
    is_managed: bool = True
    left_out: list[BacklogQueueLeftOut] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _found: set[int] = field(default_factory=set)
    _extra: set[int] = field(default_factory=set)
    #: How long tries may still fail.
    left_s: float = field(init=False)

    def __post_init__(self, give_up_after_s: float) -> None:
        self.left_s = give_up_after_s

    def __repr__(self) -> str:
        return (
            f"<Provision {self.primary_name}: {len(self._found)} of {self.count} queues, {len(self.left_out)} left out>"
        )

    @property
    def queues(self) -> tuple[int, ...]:
        return tuple(sorted(self._found))

    @property
    def to_read(self) -> tuple[int, ...]:
        """The queues for a syphon: all that exist, whoever made them; without a listing as many as were asked for."""
        return tuple(sorted(self._found | self._extra)) if self.is_managed else tuple(range(self.count))

    def path(self, index: int) -> str:
        return backlog_queues.path(self.primary_name, index)

    def listed(self, queues: Iterable[Any]) -> tuple[int, ...]:
        """Takes the secondary's queues as the SDK lists them, and returns the indexes that are to be made."""
        present = {queue.name: queue.max_delivery_count for queue in queues}
        plan = backlog_queues.plan(self.primary_name, self.count, present)
        self._found.update(plan.found)
        self._extra.update(plan.extra)
        wanted = set(plan.found)
        for name, deliveries in present.items():
            if backlog_queues.index_of(name, self.primary_name) in wanted:
                warning = backlog_queues.warning_about(name, deliveries)
                if warning is not None:
                    self.warnings.append(warning)
        return plan.missing

    def there(self, index: int) -> None:
        self._found.add(index)

    def failed_for(self, seconds: float) -> None:
        """Note that a try has failed, and how long it took."""
        self.left_s -= seconds

    def try_again(self, error: BaseException, tries: int) -> bool:
        """Return whether to try again to make a queue: up to three times, but not if a right is missing."""
        return tries < backlog_queues.TRIES and not self.is_hopeless(error)

    def leave_out(self, index: int, error: BaseException) -> None:
        self.left_out.append(BacklogQueueLeftOut(index, error))

    def is_hopeless(self, error: BaseException) -> bool:
        """Return, after a failed try, whether the next ones would only fail in the same way and take time."""
        return is_no_access(error) or self.left_s <= 0

    def check(self) -> None:
        """Raises if there is nothing to pair with."""
        if self._found:
            return
        errors = [event.error for event in self.left_out]
        # An error that may pass says more about the secondary than one missing queue.
        last = next((error for error in errors if is_reach(error)), errors[-1] if errors else None)
        lacking = "is there or could be made" if self.is_managed else "can be sent to"
        raise self.failed(
            f"none of the {self.count} backlog queues {self.path(0)} … of {self.secondary} {lacking}", last
        )

    def failed(self, what: str, error: BaseException | None) -> PairingFailed:
        """The error to raise, from the one that stands behind it."""
        hint = ""
        if error is not None and is_no_access(error):
            hint = (
                "; to list and make queues the administration client needs the Manage right:"
                " give it, or make the queues with `pairbus provision` and pass None instead of the client"
                if self.is_managed
                else "; the client of the secondary needs the Send right there"
            )
        elif not self.is_managed:
            hint = "; `pairbus provision` makes them"
        said = f": {_brief(error)}" if error is not None else ""
        made = PairingFailed(f"{what}{said}{hint}")
        made.__cause__ = error
        return made


def is_unavailable(error: PairingFailed) -> bool:
    """Return whether the secondary can't be reached, so that trying again may help, as
    `on_secondary_unavailable="degrade"` does."""
    return error.__cause__ is not None and is_reach(error.__cause__)


def is_conflict(error: BaseException) -> bool:
    """Return whether the queue exists already, because another client has just made it or is making it."""
    return isinstance(error, HttpResponseError) and error.status_code == 409


def is_no_access(error: BaseException) -> bool:
    if isinstance(error, HttpResponseError) and error.status_code in (401, 403):
        return True
    return isinstance(error, _NO_ACCESS) and not is_reach(error)


def _brief(error: BaseException) -> str:
    text = str(error).strip()
    return text.splitlines()[0] if text else type(error).__name__
