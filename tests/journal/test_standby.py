from __future__ import annotations

import contextlib
import errno
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus.journal import FormatError, Journal, JournalCorrupt, JournalError, JournalLocked, Options
from pairbus.journal.record import SEGMENT_HEADER_BYTES, decode_segment_header
from pairbus.journal.segment import segment_name
from pairbus.journal.standby import PLEDGE_NAME, Pledge, read_pledge, write_pledge
from tests.simulation.disk import MachineStopped, SimulatedDisk

from .rig import FOLDER, SMALL, STANDBY, Rig, reopened

SALVAGE = Options(
    segment_bytes=SMALL.segment_bytes,
    reserve_bytes=SMALL.reserve_bytes,
    allocate_bytes=SMALL.allocate_bytes,
    salvage=True,
)


def with_records() -> SimulatedDisk:
    """Return a disk with a journal whose last record is in the standby folder."""
    rig = Rig(standby=STANDBY).open()
    assert rig.send(b"in its own folder") is None
    rig.files.stalled.add(FOLDER)
    assert rig.send(b"in the standby folder") is None
    return rig.files.power_cut()


def versions(disk: SimulatedDisk) -> set[int]:
    paths = [f"{FOLDER}/{name}" for name in disk.listdir(FOLDER) if name.endswith(".segment")]
    return {disk.content(path)[8] for path in paths}


def test_a_pledge_is_written_whole_or_not_at_all_and_taken_back() -> None:
    disk = SimulatedDisk()
    disk.make_folder(FOLDER)
    assert read_pledge(disk, FOLDER) is None
    pledge = Pledge(2**63 + 7, "/mnt/other disk/ö")
    write_pledge(disk, FOLDER, pledge)
    assert read_pledge(disk.power_cut(), FOLDER) == pledge
    disk.fail("fdatasync", number=errno.EIO)
    with pytest.raises(OSError, match="Input"):
        write_pledge(disk, FOLDER, Pledge(1, "elsewhere"))
    assert read_pledge(disk.kill(), FOLDER) == pledge
    write_pledge(disk, FOLDER, None)
    assert read_pledge(disk.power_cut(), FOLDER) is None


def test_an_older_version_refuses_a_journal_with_a_standby_folder() -> None:
    rig = Rig().open()
    assert versions(rig.files) == {1}, "as ever where there is no standby folder"
    assert rig.send(b"x") is None
    rig.journal.close()
    with_standby = reopened(rig.files, standby=STANDBY)
    assert 2 in versions(with_standby.files), "before anything stalls"
    headers = [
        decode_segment_header(bytes(with_standby.files.content(path)[:SEGMENT_HEADER_BYTES]), path)
        for path in with_standby.segment_paths()
    ]
    pledge = read_pledge(with_standby.files, FOLDER)
    assert pledge is not None and headers[-1] is not None and headers[-1].journal == pledge.identity
    with_standby.journal.close()
    without = reopened(with_standby.files)
    assert read_pledge(without.files, FOLDER) is None
    assert without.replayed() == [b"x"]


@pytest.mark.parametrize("standby", [None, "another"])
def test_a_start_without_the_folder_that_holds_records_is_refused(standby: str | None) -> None:
    disk = with_records()
    with pytest.raises(JournalCorrupt, match=rf"the standby folder {STANDBY} holds records .*1 segments.*--standby"):
        Rig(disk, standby=standby).open()
    assert reopened(disk, standby=STANDBY).replayed() == [b"in its own folder", b"in the standby folder"]


def test_a_start_without_a_folder_that_cannot_be_read_is_refused() -> None:
    rig = Rig(standby=STANDBY).open()
    assert rig.send(b"x") is None
    rig.journal.close()
    gone = rig.files.delete_folder(STANDBY)
    with pytest.raises(JournalCorrupt, match=r"can't be read .*may hold records.*--salvage"):
        Rig(rig.files).open()
    rig.files.restore_folder(gone)
    assert reopened(rig.files).replayed() == [b"x"], "it is there, and empty"


def test_salvage_goes_on_without_it_and_the_old_folder_is_another_journals_then() -> None:
    disk = with_records()
    rig = Rig(disk, SALVAGE).open()
    assert rig.replayed() == [b"in its own folder"]
    assert any("holds records" in note for note in rig.journal.notes)
    assert rig.send(b"later") is None
    rig.journal.close()
    with pytest.raises(FormatError, match="of another journal"):
        Rig(rig.files, standby=STANDBY).open()
    assert reopened(rig.files).replayed() == [b"in its own folder", b"later"]


def in_both() -> SimulatedDisk:
    """Return a disk with a journal that went to its standby folder and came back: one record in each of its segments.
    What hung is lost, so that it is nowhere else."""
    rig = Rig(SimulatedDisk(chance=Never()), standby=STANDBY).open()
    for payload, stalled in ((b"before", set[str]()), (b"meanwhile", {FOLDER}), (b"after", set[str]())):
        rig.files.stalled = stalled
        rig.turn(1.0).turn(1.0)
        assert rig.send(payload) is None
    rig.journal.close()
    return rig.files.power_cut()


class Never(Random):
    """Lets what hangs never do its work."""

    def choice(self, seq: Any) -> Any:
        return seq[-1]


def life(disk: SimulatedDisk, standby: str | None) -> SimulatedDisk:
    """Open it with salvage, send, and return what is left after a kill."""
    rig = reopened(disk.kill(), SALVAGE, standby)
    assert rig.send(b"later") is None
    return rig.files.kill()


@pytest.mark.parametrize("where", [FOLDER, STANDBY])
@pytest.mark.parametrize("how", ["damaged", "lost"])
def test_salvage_keeps_a_standby_folder_where_only_a_pledge_is_damaged(where: str, how: str) -> None:
    disk = in_both()
    if how == "damaged":
        disk.content(f"{where}/{PLEDGE_NAME}")[:4] = b"????"
    else:
        disk.unlink(f"{where}/{PLEDGE_NAME}")
    if (where, how) == (FOLDER, "lost"):  # as it is when the journal was started without its standby folder
        for options in (SMALL, SALVAGE):
            with pytest.raises(FormatError, match=f"{STANDBY} holds .* of another journal than {FOLDER}; give"):
                Rig(disk.kill(), options, standby=STANDBY).open()
        return
    with pytest.raises(JournalCorrupt, match="--salvage"):
        Rig(disk.kill(), standby=STANDBY).open()
    salvaged = reopened(disk.kill(), SALVAGE, STANDBY)
    assert salvaged.replayed() == [b"before", b"meanwhile", b"after"]
    assert "segments of this journal, which are read" in salvaged.journal.notes[0]
    again = reopened(life(disk, STANDBY), standby=STANDBY)
    assert again.replayed() == [b"before", b"meanwhile", b"after", b"later"], "from then on as ever"
    assert again.journal.notes == []


@pytest.mark.parametrize("standby", [None, STANDBY, "new"])
def test_salvage_without_the_standby_folder_says_what_is_missing_at_every_start(standby: str | None) -> None:
    disk = in_both()
    gone = disk.delete_folder(STANDBY)
    with pytest.raises(JournalCorrupt, match=f"{STANDBY}.* may hold records.*--salvage"):
        Rig(disk.kill(), standby=standby).open()
    disk = life(disk, standby)
    with pytest.raises(JournalCorrupt, match=f"segment 2 is missing .*restore {FOLDER}.* from a copy, or .*--salvage"):
        Rig(disk.kill(), standby=standby).open()
    again = reopened(disk.kill(), SALVAGE, standby)
    assert again.replayed() == [b"before", b"after", b"later"]
    assert "segment 2 is missing although segment 1 before it is there" in again.journal.notes
    if standby != STANDBY:
        disk.restore_folder(gone)  # too late: there is another end of the journal now
        with pytest.raises(FormatError, match="of another journal"):
            Rig(disk, SALVAGE, standby=STANDBY).open()


@pytest.mark.parametrize("where", [FOLDER, STANDBY])
@pytest.mark.parametrize("spot", [0, SEGMENT_HEADER_BYTES + 4])
def test_salvage_passes_over_damage_in_either_folder(where: str, spot: int) -> None:
    disk = in_both()
    number, lost = (1, b"before") if where == FOLDER else (2, b"meanwhile")
    disk.content(f"{where}/{segment_name(number)}")[spot : spot + 4] = b"????"
    with pytest.raises(JournalCorrupt, match=f"segment {number} .*restore {where} from a copy, or .*--salvage"):
        Rig(disk.kill(), standby=STANDBY).open()
    kept = [each for each in (b"before", b"meanwhile", b"after") if each != lost]
    salvaged = reopened(disk.kill(), SALVAGE, STANDBY)
    assert salvaged.replayed() == kept
    assert "lost" in salvaged.journal.notes[0]
    assert (f"{segment_name(number)}.damaged" in salvaged.files.listdir(where)) is (spot == 0)
    again = reopened(life(disk, STANDBY), SALVAGE, STANDBY)
    assert again.replayed() == [*kept, b"later"]


@pytest.mark.parametrize("options", [SMALL, SALVAGE])
def test_a_standby_folder_whose_journal_is_gone_is_refused_untouched(options: Options) -> None:
    disk = in_both()
    disk.delete_folder(FOLDER)
    before = {name: bytes(disk.content(f"{STANDBY}/{name}")) for name in disk.listdir(STANDBY)}
    with pytest.raises(FormatError, match=f"the standby folder {STANDBY} holds .*give the standby folder of this data"):
        Rig(disk, options, standby=STANDBY).open()
    assert {name: bytes(disk.content(f"{STANDBY}/{name}")) for name in disk.listdir(STANDBY)} == {**before, "lock": b""}


def test_a_folder_that_was_moved_is_found_under_its_new_name() -> None:
    disk = with_records()
    for name in disk.listdir(STANDBY):
        if name != "lock":
            disk.rename(f"{STANDBY}/{name}", f"moved/{name}")
    disk.delete_folder(STANDBY)
    rig = reopened(disk, standby="moved")
    assert rig.replayed() == [b"in its own folder", b"in the standby folder"]
    assert rig.journal._pledge is not None and rig.journal._pledge.folder == "moved"


def copy_folder(disk: SimulatedDisk, folder: str, to: str) -> None:
    """Do what cp -r does."""
    disk.make_folder(to)
    for name in disk.listdir(folder):
        fd = disk.create(f"{to}/{name}")
        disk.pwrite(fd, bytes(disk.content(f"{folder}/{name}")), 0)
        disk.fdatasync(fd)
        disk.close(fd)
    disk.fsync_dir(to)


def stalled_life(disk: SimulatedDisk, standby: str, payload: bytes) -> SimulatedDisk:
    """Start, store one record in the standby folder, and lose power."""
    rig = reopened(disk, standby=standby)
    rig.files.stalled.add(FOLDER)
    assert rig.send(payload) is None
    return rig.files.power_cut()


@pytest.mark.parametrize("goes_on_with", [STANDBY, "copy"])
def test_of_a_standby_folder_and_its_copy_only_the_one_that_was_used_last_is_taken(goes_on_with: str) -> None:
    disk = with_records()
    copy_folder(disk, STANDBY, "copy")
    disk = stalled_life(disk, goes_on_with, b"later")
    for folder in {STANDBY, "copy"} - {goes_on_with}:
        with pytest.raises(JournalCorrupt, match=f"the standby folder {goes_on_with} holds records .*2 segments"):
            Rig(disk.kill(), standby=folder).open()
        salvaged = reopened(disk.kill(), SALVAGE, folder)
        assert salvaged.replayed()[:2] == [b"in its own folder", b"in the standby folder"], "as it was asked for"
    again = reopened(disk.kill(), standby=goes_on_with)
    assert again.replayed() == [b"in its own folder", b"in the standby folder", b"later"]


def test_a_copy_that_was_made_while_the_journal_was_written_is_refused_while_the_folder_is_there() -> None:
    rig = Rig(standby=STANDBY).open()
    rig.files.stalled.add(FOLDER)
    assert rig.send(b"before") is None
    disk = rig.files
    copy_folder(disk, STANDBY, "copy")
    assert rig.send(b"after") is None
    disk = disk.power_cut()
    with pytest.raises(
        JournalCorrupt, match=f"copy is a copy of the standby folder {STANDBY}, which is there, too, wit"
    ):
        Rig(disk.kill(), standby="copy").open()
    assert reopened(disk, standby=STANDBY).replayed() == [b"before", b"after"]


@pytest.mark.parametrize("keeps_the_original", [True, False])
def test_a_whole_copy_is_as_good_as_the_folder(keeps_the_original: bool) -> None:
    disk = with_records()
    copy_folder(disk, STANDBY, "copy")
    if not keeps_the_original:
        disk.delete_folder(STANDBY)
    disk = stalled_life(disk, "copy", b"later")
    assert reopened(disk, standby="copy").replayed() == [b"in its own folder", b"in the standby folder", b"later"]


def test_an_old_copy_in_the_place_of_the_folder_is_refused() -> None:
    disk = with_records()
    copy_folder(disk, STANDBY, "copy")
    disk = stalled_life(disk, STANDBY, b"later")
    disk.delete_folder(STANDBY)
    copy_folder(disk, "copy", STANDBY)
    for folder in (STANDBY, "copy", None):
        with pytest.raises(
            JournalCorrupt, match=f"{STANDBY} is not the standby folder .*: it is an old copy.* may hold"
        ):
            Rig(disk.kill(), standby=folder).open()


def test_an_old_copy_whose_records_are_gone_since_is_refused() -> None:
    disk = with_records()
    copy_folder(disk, STANDBY, "copy")
    rig = reopened(disk, standby=STANDBY)
    for name in rig.files.listdir(STANDBY):
        if name.endswith(".segment"):
            rig.files.unlink(f"{STANDBY}/{name}")  # as compaction does
    rig.journal.close()
    with pytest.raises(FormatError, match=f"copy is an old copy of a standby folder of {FOLDER}, and out of date"):
        Rig(rig.files.kill(), standby="copy").open()


def test_two_copies_of_a_journal_do_not_share_a_standby_folder() -> None:
    disk = with_records()
    copy_folder(disk, FOLDER, "k")
    disk = stalled_life(disk, STANDBY, b"later")
    with pytest.raises(
        JournalCorrupt, match=f"{STANDBY} is not .* or a copy of the journal used it since. .* may hold"
    ):
        Journal.open("k", SMALL, disk.kill(), standby=STANDBY)
    assert reopened(disk, standby=STANDBY).replayed() == [b"in its own folder", b"in the standby folder", b"later"]


def test_a_pledge_of_an_earlier_version_is_taken_as_it_is() -> None:
    disk = with_records()
    for folder in (FOLDER, STANDBY):
        pledge = read_pledge(disk, folder)
        assert pledge is not None
        disk.content(f"{folder}/{PLEDGE_NAME}")[:] = f"{pledge.identity:016x}\n{pledge.folder}\n".encode()
        assert read_pledge(disk, folder) == Pledge(pledge.identity, STANDBY)
    copy_folder(disk, STANDBY, "copy")
    disk = stalled_life(disk, STANDBY, b"later")
    with pytest.raises(JournalCorrupt, match="2 segments"):
        Rig(disk.kill(), standby="copy").open()
    assert reopened(disk, standby=STANDBY).replayed() == [b"in its own folder", b"in the standby folder", b"later"]


def test_a_full_disk_is_no_reason_not_to_start_with_the_same_folder() -> None:
    disk = with_records()
    disk.capacity = disk.used()
    rig = reopened(disk, standby=STANDBY)
    assert rig.replayed() == [b"in its own folder", b"in the standby folder"]
    rig.journal.close()
    rig.files.capacity = None
    assert reopened(rig.files.power_cut(), standby=STANDBY).send(b"with room") is None


def test_a_start_that_ends_anywhere_leaves_two_folders_that_know_each_other() -> None:
    disk = with_records()
    first = disk.calls
    rig = reopened(disk.kill(), standby=STANDBY)
    calls = range(first, rig.files.calls)
    assert len(calls) > 20
    for dies_at in calls:
        files = disk.kill()
        for _ in range(2):  # and so does the next one
            files.dies_at = dies_at
            with contextlib.suppress(MachineStopped):
                reopened(files, standby=STANDBY)
            files.dies_at = None
            files = files.power_cut()
        assert reopened(files, standby=STANDBY).replayed() == [b"in its own folder", b"in the standby folder"], dies_at


def test_a_former_standby_folder_is_not_taken_for_the_present_one() -> None:
    rig = Rig(standby=STANDBY).open()
    assert rig.send(b"before") is None
    rig.journal.close()
    rig = reopened(rig.files, standby="another")
    rig.files.stalled.add(FOLDER)
    assert rig.send(b"in the other folder") is None
    disk = rig.files.power_cut()
    with pytest.raises(JournalCorrupt, match=r"the standby folder another holds records .*1 segments.*--standby"):
        Rig(disk.kill(), standby=STANDBY).open()
    again = reopened(disk, standby="another")
    assert again.replayed() == [b"before", b"in the other folder"]


def test_an_empty_standby_folder_can_be_given_up_for_another_and_back_again() -> None:
    disk = SimulatedDisk()
    marks = []
    for number, standby in enumerate((STANDBY, "another", STANDBY, STANDBY, None, STANDBY)):
        rig = reopened(disk, standby=standby)
        assert rig.replayed() == [b"%d" % each for each in range(number)]
        assert rig.send(b"%d" % number) is None
        marks.append(None if rig.journal._pledge is None else rig.journal._pledge.identity)
        rig.journal.close()
        disk = rig.files.power_cut()
    assert marks[2] == marks[3], "the same folder is the same"
    assert len(set(marks)) == 5, "and each other one is another"


def test_the_standby_folder_of_another_journal_is_refused_untouched() -> None:
    disk = with_records()
    before = {name: bytes(disk.content(f"{STANDBY}/{name}")) for name in disk.listdir(STANDBY)}
    with pytest.raises(FormatError, match=r"holds 000000000002.segment of another journal than k"):
        Journal.open("k", SMALL, disk, standby=STANDBY)
    after = {name: bytes(disk.content(f"{STANDBY}/{name}")) for name in disk.listdir(STANDBY)}
    assert after == {**before, "lock": after["lock"]}


def test_the_standby_folder_is_locked_and_is_not_the_journals_own() -> None:
    rig = Rig(standby=STANDBY).open()
    with pytest.raises(JournalLocked, match=f"{STANDBY} is in use"):
        Journal.open("k", SMALL, rig.files, standby=STANDBY)
    with pytest.raises(JournalError, match="is the journal's own"):
        Journal.open("m", SMALL, rig.files, standby="m")
    Journal.open("m", SMALL, rig.files).close()


def test_a_segment_that_is_in_both_folders_is_refused() -> None:
    disk = with_records()
    name = next(name for name in disk.listdir(STANDBY) if name.endswith(".segment"))
    fd = disk.create(f"{FOLDER}/{name}")
    disk.pwrite(fd, bytes(disk.content(f"{STANDBY}/{name}")), 0)
    with pytest.raises(JournalCorrupt, match="once more"):
        Rig(disk, standby=STANDBY).open()


@given(
    has_pledge=st.booleans(),
    given_folder=st.sampled_from([None, STANDBY, "t"]),
    holds=st.booleans(),
    gone=st.booleans(),
)
def test_no_start_loses_records_or_reads_those_of_others(
    has_pledge: bool, given_folder: str | None, holds: bool, gone: bool
) -> None:
    """Whatever is given, a start finds every record or is refused."""
    rig = Rig(standby=STANDBY if has_pledge else None).open()
    sent = [b"a"]
    assert rig.send(b"a") is None
    if holds and has_pledge:
        rig.files.stalled.add(FOLDER)
        assert rig.send(b"b") is None
        sent.append(b"b")
    disk = rig.files.power_cut()
    if gone:
        disk.delete_folder(STANDBY)
    try:
        found = reopened(disk, standby=given_folder).replayed()
    except JournalError:
        assert has_pledge, "there is nothing to refuse"
    else:
        assert found == sent


def test_a_damaged_pledge_is_refused() -> None:
    disk = with_records()
    disk.content(f"{FOLDER}/{PLEDGE_NAME}")[:4] = b"????"
    with pytest.raises(JournalCorrupt, match="says which is damaged"):
        Rig(disk, standby=STANDBY).open()
