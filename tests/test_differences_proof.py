"""docs/explanation/differences.md has a row for each decision that departs from the description, and the way back in it
is one that there is."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from pairbus.pairing.options import Settings

TEXT = (Path(__file__).parent.parent / "docs" / "explanation" / "differences.md").read_text()
#: For each requirement with a decision that changes what the description says: what its row, or line, is about.
SUBJECTS = [
    (1, "senders made before pairing"),
    (2, "defaults and bounds"),
    (3, "whether pairing needs the primary"),
    (3, "pairing with the syphon on"),
    (4, "pairing without the Manage right"),
    (5, "a backlog queue that can't be created"),
    (6, "what may not be paired"),
    (7, "one sender used from many threads"),
    (8, "a primary without a host name"),
    (10, "an existing backlog queue with a low maximum"),
    (12, "each sender picks its backlog queue at random"),
    (13, "how a failed backlog queue comes back"),
    (13, "all backlog queues fail"),
    (15, "case of an entity's name"),
    (16, "whether the failover timer needs a send"),
    (16, "a send that its caller gives up"),
    (17, "a message whose failure arrives after"),
    (18, "which failures count"),
    (19, "time of a send"),
    (19, "a refusal at once"),
    (19, "silence of the primary"),
    (20, "message ids"),
    (21, "the return to the primary"),
    (22, "doubt about an outcome"),
    (23, "who decides on a failover"),
    (24, "a busy server"),
    (24, "a slow primary"),
    (24, "a server that is busy for hours"),
    (25, "`schedule_messages` during a failover"),
    (26, "types of the aliases"),
    (28, "time to live while in the backlog"),
    (29, "messages that already carry"),
    (30, "messages that become too large"),
    (31, "session id of a ping"),
    (31, "the first ping of a failover"),
    (32, "brokers that deliver pings"),
    (34, "a ping that is refused"),
    (35, "how many successful pings"),
    (38, "where the syphon runs"),
    (40, "messages without a destination"),
    (41, "draining, rates, replaying"),
    (43, 'what "closed" and "faulted" mean'),
]
OPTIONS = set(Settings.__dataclass_fields__)


@pytest.mark.parametrize(("number", "subject"), SUBJECTS)
def test_each_departure_has_its_row(number: int, subject: str) -> None:
    rows = [line for line in TEXT.splitlines() if line.startswith(f"| {subject}")]
    assert len(rows) == 1, f"P{number}"
    assert all(cell.strip() for cell in rows[0].strip("|").split("|")), f"P{number} has an empty cell"


@pytest.mark.parametrize(
    ("printed", "meant"),
    [("`x-ms-path`", "`x-ms-scheduledenqueuetimeutc`"), ("`[0, N]`", "`[0, N)`"), ("28,880", "28,800")],
)
def test_each_misprint_is_named(printed: str, meant: str) -> None:
    part = TEXT.partition("## Misprints")[2].partition("## ")[0]
    assert any(f"| {printed}" in line and meant in line for line in part.splitlines())


def test_p10_says_whose_extra_and_changed_queues_are() -> None:
    part = TEXT.partition("## Backlog queues of your own making")[2].partition("\n## ")[0]
    assert "The owner\n  cleans them up" in part and "test such queues well" in part


def test_the_way_back_is_one_that_there_is() -> None:
    named = set(re.findall(r"`([a-z_]+)=", TEXT))
    assert named and named <= OPTIONS | {"timeout"}
