"""Data of earlier versions opens and survives a kill in mid-upgrade; data of a later one is refused, and left alone."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from pairbus import __version__
from pairbus.broker.format import records
from pairbus.errors import BrokerError
from pairbus.journal import Journal
from pairbus.journal import record as layout
from tests.broker.namespace_rig import FOLDER, Rig
from tests.commands.calls import call
from tests.frozen import feature_story, standby_story
from tests.frozen.subjects import HERE
from tests.frozen.test_data_proof import assert_holds
from tests.frozen.write_fixtures import opened
from tests.simulation.disk import MachineStopped, SimulatedDisk

FEATURES = sorted(each for each in (HERE / "feature_data").iterdir() if each.is_dir())
STALLED = sorted(each for each in (HERE / "standby_data").iterdir() if each.is_dir())
#: All data folders of the first two stories.
ALL = [*FEATURES, *sorted(each for each in (HERE / "data").iterdir() if each.is_dir())]


def named(fixtures: list[Path]) -> Any:
    return pytest.mark.parametrize("fixture", fixtures, ids=[f"{each.parent.name}/{each.name}" for each in fixtures])


@named(FEATURES)
def test_rules_forwarding_partitions_and_transactions_of_earlier_versions_open(fixture: Path, tmp_path: Path) -> None:
    before = json.loads((fixture / "expected.json").read_text())
    assert set(feature_story.KINDS) <= set(before["kinds"])
    copy = opened(fixture, tmp_path) / "broker"
    assert_holds(feature_story.examine(copy, before["now"]), before["broker"])


@named(STALLED)
def test_p48_data_with_a_standby_folder_of_earlier_versions_opens_with_that_alone(
    fixture: Path, tmp_path: Path
) -> None:
    before = json.loads((fixture / "expected.json").read_text())
    assert {"before", "meanwhile", "after"} <= set(before["orders"])
    copy = opened(fixture, tmp_path)
    standby = copy / standby_story.STANDBY
    assert standby_story.segments(standby) != []
    with pytest.raises(BrokerError, match="--standby"):
        standby_story.examine(copy, before["now"], None)
    assert standby_story.examine(copy, before["now"], standby) == before["orders"]
    with pytest.raises(BrokerError, match="holds records of this journal"):
        standby_story.examine(copy, before["now"], tmp_path / "another")


# -- killed in mid-upgrade


def disk_of(journal: Path) -> SimulatedDisk:
    """Return a simulated disk with these segments on it."""
    disk = SimulatedDisk()
    disk.make_folder(FOLDER)
    for segment in sorted(journal.glob("*.segment")):
        handle = disk.create(f"{FOLDER}/{segment.name}")
        disk.pwrite(handle, segment.read_bytes(), 0)
        disk.fdatasync(handle)
        disk.close(handle)
    disk.fsync_dir(FOLDER)
    return disk


def held(rig: Rig) -> tuple[Any, ...]:
    namespace = rig.namespace
    entities = [(each.name, each.document()) for each in namespace.store.by_id.values() if each.name != "-"]
    return sorted(namespace.contents()), sorted(entities, key=str)


def upgrade(rig: Rig) -> None:
    """Write all that there is anew, as compaction does while the broker runs."""
    rig.run()
    for _ in range(len(rig.journal.segments())):
        task = rig.loop.create_task(rig.journal.compact(rig.namespace.store.live_records))
        try:
            while not task.done():
                rig.loop.run_until_complete(asyncio.sleep(0))
                rig.run()
        finally:
            task.cancel()
            with contextlib.suppress(asyncio.CancelledError, MachineStopped):
                rig.loop.run_until_complete(task)


@pytest.mark.slow
@named(ALL)
@pytest.mark.parametrize("cut", [False, True], ids=["killed", "power cut"])
def test_an_upgrade_that_ends_at_any_call_to_the_disk_loses_nothing(fixture: Path, cut: bool) -> None:
    now = json.loads((fixture / "expected.json").read_text())["now"]
    disk = disk_of(fixture / "broker" / "contoso" / "journal")
    first = disk.calls
    with Rig(disk.kill(), now=now) as rig:
        before = held(rig)
        assert len(before[0]) > 10
        upgrade(rig)
        assert held(rig) == before
        last = rig.files.calls
    assert last - first > 20
    for dies_at in range(first, last):
        files = disk.kill()
        files.dies_at = dies_at
        with contextlib.suppress(MachineStopped), Rig(files, now=now) as rig:
            upgrade(rig)
        files.dies_at = None
        with Rig(files.power_cut() if cut else files.kill(), now=now) as again:
            assert held(again) == before, dies_at


# -- of a later version


def in_journal(*added: tuple[int, bytes]) -> Callable[[Path], None]:
    """Add records to a journal."""

    def change(folder: Path) -> None:
        journal = Journal.open(folder)
        list(journal.replay())
        journal.start(lambda call: call(), thread=False)
        for kind, payload in added:
            journal.append(kind, payload)
        journal.turn()
        journal.close()

    return change


def of_a_later_format(folder: Path) -> None:
    """Give the newest segment the header of a later format."""
    segment = sorted(folder.glob("*.segment"))[-1]
    data = bytearray(segment.read_bytes())
    fields = list(layout._SEGMENT.unpack_from(data))
    fields[1] = 9
    head = layout._SEGMENT.pack(*fields)
    data[: layout.SEGMENT_HEADER_BYTES] = head + layout._U32.pack(zlib.crc32(head))
    segment.write_bytes(data)


LATER: dict[str, tuple[Callable[[Path], None], str]] = {
    "record": (in_journal((records.ENQUEUE, b"\x02" + bytes(8))), "a record of version 2"),
    "kind": (in_journal((33, b"\x01more")), "is of a kind that this version of pairbus does not know"),
    "kind in a transaction": (
        in_journal((records.TRANSACTION, records.pack_transaction([(33, b"\x01")])[0][0] + b"\x21\0\0\0\1\1")),
        "is of a kind that this version of pairbus does not know",
    ),
    "field": (in_journal((records.QUEUE, records.pack_queue(999, 0, 0, {"name": "x", "colour": "red"}))), "colour"),
    "place": (
        in_journal((records.UPDATE, records.pack_updates(1, [(1, 0, 9, None)])[0])),
        "is in place 9, which this version does not know",
    ),
    "format": (of_a_later_format, "has journal format 9; this version of pairbus reads the formats 1 and 2"),
}


def files_of(folder: Path) -> dict[str, str]:
    """Return what is in a folder, but for the locks, which have the process's number."""
    files = (each for each in folder.rglob("*") if each.is_file() and each.name != "lock")
    return {str(each.relative_to(folder)): hashlib.sha256(each.read_bytes()).hexdigest() for each in files}


@pytest.mark.parametrize("wrote", ["9.1.0", None])
@pytest.mark.parametrize("case", LATER)
def test_data_of_a_later_version_is_refused_and_left_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], case: str, wrote: str | None
) -> None:
    copy = opened(FEATURES[-1], tmp_path) / "broker"
    change, said = LATER[case]
    change(copy / "contoso" / "journal")
    version = copy / "contoso" / "version.txt"
    version.unlink(missing_ok=True)
    if wrote is not None:
        version.write_text(wrote + "\n")
    before = files_of(copy)
    ran = call(capsys, "broker", "--namespace", "contoso:0", "--data", str(copy))
    assert (ran.code, ran.out) == (1, "")
    (line,) = ran.err.strip().splitlines()
    assert line.startswith("pairbus: namespace 'contoso' can't be served: ") and said in line
    reads = f"pairbus 9.1.0 wrote this data last, and this is {__version__}; start it with 9.1.0 or a later one"
    assert (
        reads if wrote else f"This is pairbus {__version__}; start it with the version that wrote this data"
    ) in line
    assert "Traceback" not in line
    assert files_of(copy) == before


def test_the_version_that_wrote_the_data_is_noted(tmp_path: Path) -> None:
    data = tmp_path / "data"
    feature_story.play(data)
    note = data / "contoso" / "version.txt"
    assert note.read_text() == f"{__version__}\n" and note.stat().st_mode & 0o777 == 0o600
    note.write_text("0.0.1\n")
    feature_story.examine(data, feature_story.ManualClock()())
    assert note.read_text() == f"{__version__}\n"
    shutil.rmtree(data)
