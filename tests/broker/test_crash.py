"""Killed with -9 under load, again and again: nothing that was confirmed is lost, doubled, changed or raised again.

Under much traffic, and while nodes of the broker fail beside that and are restarted from the journal
(P49). These are real processes, sockets and disks, and the official SDK; what else queues and topics can do is killed
in the simulation, by the same checker.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from .broker_process import SMALL_SEGMENTS
from .crash_drive import SEED, UNTIDY_SDK, Drive

pytestmark = UNTIDY_SDK


def test_killed_under_load(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED)
    drive.run(kills=3, confirmed=50, settled=20)
    assert drive.totals.kills >= 3


def stalling(tmp_path: Path) -> Drive:
    """Return a drive of a broker whose data folder stalls every few syncs, for as long as it lives or shorter."""
    drive = Drive(tmp_path / "data", SEED)
    drive.broker.standby = tmp_path / "standby"
    drive.broker.journal = {**SMALL_SEGMENTS, "stall_s": 0.1}
    drive.broker.disk = {"folder": str(tmp_path / "data"), "hangs": [10, 1.0]}
    return drive


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_p48_killed_in_the_middle_of_a_storage_stall(tmp_path: Path) -> None:
    drive = stalling(tmp_path)
    drive.run(kills=4, confirmed=100, audits=2)
    assert drive.totals.kills >= 4
    assert list(tmp_path.glob("standby/contoso/*.segment")), "no stall was noticed"


def test_p49_killed_while_nodes_fail(tmp_path: Path) -> None:
    drive = Drive(tmp_path / "data", SEED, crashes=True)
    drive.run(kills=2, confirmed=20, crashes=2)
