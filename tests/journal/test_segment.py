from __future__ import annotations

import errno
from dataclasses import replace

import pytest

from pairbus.journal import Journal, JournalCorrupt, JournalFailed, Options
from pairbus.journal.record import SEGMENT_HEADER_BYTES
from pairbus.journal.segment import segment_name, segment_number
from tests.journal.rig import FOLDER, SMALL, Rig, reopened
from tests.simulation.disk import DiskFault, MachineStopped, SimulatedDisk

SALVAGE = Options(segment_bytes=4096, reserve_bytes=2048, allocate_bytes=512, salvage=True)


def written(count: int = 6, size: int = 30, files: SimulatedDisk | None = None) -> Rig:
    """Each record in a batch of its own, as one-at-a-time sends are."""
    rig = Rig(files).open()
    for i in range(count):
        assert rig.send(bytes([65 + i]) * size) is None
    return rig


def on_disk(rig: Rig) -> SimulatedDisk:
    return rig.files.power_cut(everything=True)


def test_names() -> None:
    assert segment_name(12) == "000000000012.segment"
    assert segment_number("000000000012.segment") == 12
    for name in ("12.segment", "lock", "reserve", "000000000012.segment.damaged", "00000000001x.segment"):
        assert segment_number(name) is None


def test_cut_at_every_byte_of_the_last_records() -> None:
    """All that was cut was unsynced as far as anyone can tell; the records before come back, and life goes on."""
    rig = written(4)
    path = rig.segment_paths()[-1]
    whole = bytes(rig.files.content(path)).rstrip(b"\0")
    ends = [offset + 30 for _, _, _, offset in rig.answers]
    for cut in range(SEGMENT_HEADER_BYTES, len(whole) + 1):
        for padding in (0, 100):  # cut off, or never written in an allocated file
            files = rig.files.power_cut()
            files.content(path)[:] = whole[:cut] + bytes(padding)
            again = reopened(files)
            kept = sum(end <= cut for end in ends)
            assert again.replayed() == [bytes([65 + i]) * 30 for i in range(kept)]
            torn = cut not in (SEGMENT_HEADER_BYTES, *ends)
            assert bool(again.journal.notes) == (
                torn and bool(whole[ends[kept - 1] if kept else 64 : cut].strip(b"\0"))
            )
            assert again.send(b"more") is None
            third = reopened(again.files.power_cut())
            assert third.replayed() == [*again.replayed(), b"more"]
            assert third.journal.notes == []


def test_what_was_salvaged_on_a_full_disk_is_there_at_the_next_start() -> None:
    options = replace(SALVAGE, reserve_bytes=0)
    rig = Rig(options=replace(options, salvage=False)).open()
    rig.send(b"first")
    for payload in (b"damaged", b"second", b"third"):
        rig.append(payload)
    rig.turn().send(b"torn")  # only its header says that those before it are synced
    path = rig.segment_paths()[-1]
    files = rig.files.kill()
    for lsn in (2, 5):
        files.content(path)[rig.answers[lsn - 1][3]] ^= 1
    files.capacity = files.used()
    for _ in range(2):
        salvaged = Rig(files, options).open()
        assert salvaged.replayed() == [b"first", b"second", b"third"]
        salvaged.journal.close()
        files = files.kill()


def test_a_flipped_bit_in_synced_records_is_refused_and_named() -> None:
    rig = written(4)
    path = rig.segment_paths()[-1]
    starts = [offset - 28 for _, _, _, offset in rig.answers]
    whole = bytes(rig.files.content(path))
    for position in range(starts[0], starts[3]):
        files = rig.files.power_cut()
        files.content(path)[position] ^= 0x10
        spot = max(s for s in starts if s <= position)
        with pytest.raises(JournalCorrupt, match=f"segment 1 is damaged at offset {spot}.*salvage") as caught:
            Rig(files).open()
        assert (caught.value.segment, caught.value.offset) == (1, spot)
        salvaged = Rig(files.kill(), SALVAGE).open()
        lost = starts.index(spot)
        assert salvaged.replayed() == [bytes([65 + i]) * 30 for i in range(4) if i != lost]
        assert "are lost" in salvaged.journal.notes[0]
    assert len(whole) > starts[3]


def test_after_a_pause_damage_to_the_very_last_record_shows_too() -> None:
    rig = written(2)
    rig.turn(after=1.0)  # the mark
    path = rig.segment_paths()[-1]
    files = rig.files.kill()
    files.content(path)[rig.answers[-1][3]] ^= 1
    with pytest.raises(JournalCorrupt):
        Rig(files).open()


def test_after_a_clean_stop_damage_to_the_last_record_shows_too() -> None:
    rig = written(2)
    rig.journal.close()
    files = rig.files.power_cut()
    files.content(rig.segment_paths()[-1])[rig.answers[-1][3]] ^= 1
    with pytest.raises(JournalCorrupt):
        Rig(files).open()


def test_whole_records_after_a_gap_in_the_unsynced_end_are_a_torn_tail() -> None:
    """Blocks reach the disk in any order: what a batch left after its gap was never confirmed."""
    rig = written(2)
    for letter in b"xyz":
        rig.append(bytes([letter]) * 30)
    path = rig.segment_paths()[-1]
    rig.files.faults = [DiskFault("stop", "fdatasync")]
    with pytest.raises(MachineStopped):
        rig.journal._log.commit(  # type: ignore[union-attr]
            [rig.journal._writer.queue.get() for _ in range(3)],  # type: ignore[union-attr,misc]
            rig.now,
        )
    files = rig.files.kill()
    first = rig.answers[-1][3] + 30
    files.content(path)[first : first + 58] = bytes(58)
    again = reopened(files)
    assert again.replayed() == [b"A" * 30, b"B" * 30]
    assert "torn tail" in again.journal.notes[0]


def test_a_write_that_went_to_the_place_of_an_earlier_record_is_refused() -> None:
    """It is a whole record of this segment; that it lies before what it calls synced gives it away."""
    rig = written(4)
    path = rig.segment_paths()[-1]
    starts = [offset - 28 for _, _, _, offset in rig.answers]
    for last, lost in ((1, 0), (2, 0), (3, 1), (3, 2)):
        files = rig.files.power_cut()
        content = files.content(path)
        content[starts[lost] : starts[lost] + 58] = content[starts[last] : starts[last] + 58]
        content[starts[last] :] = bytes(len(content) - starts[last])
        with pytest.raises(JournalCorrupt, match=f"damaged at offset {starts[lost]}"):
            Rig(files).open()
        kept = [bytes([65 + i]) * 30 for i in range(last) if i != lost]
        assert Rig(files.kill(), SALVAGE).open().replayed() == kept


def test_damage_in_an_older_segment_is_refused() -> None:
    rig = written(60, 200)
    paths = rig.segment_paths()
    assert len(paths) > 3
    files = on_disk(rig)
    files.content(paths[1])[-1] ^= 1
    with pytest.raises(JournalCorrupt, match="segment 2 is damaged"):
        Rig(files).open()
    salvaged = Rig(files.kill(), SALVAGE).open()
    assert len(salvaged.records) == 59


def test_an_older_segment_cut_short_is_refused() -> None:
    rig = written(60, 200)
    files = on_disk(rig)
    content = files.content(rig.segment_paths()[0])
    del content[-100:]
    with pytest.raises(JournalCorrupt, match="segment 1 is damaged"):
        Rig(files).open()


def test_a_missing_segment_is_refused() -> None:
    rig = written(60, 200)
    files = on_disk(rig)
    files.unlink(rig.segment_paths()[1])
    with pytest.raises(JournalCorrupt, match="segment 2 is missing although segment 1 before it is there"):
        Rig(files).open()
    assert Rig(files.kill(), SALVAGE).open().records[-1].payload == rig.asked[60][1]


def test_a_segment_whose_making_was_cut_off_is_removed() -> None:
    rig = written(3)
    for content in (b"", b"PBJO", bytes(512)):
        files = on_disk(rig)
        fd = files.create(f"{FOLDER}/{segment_name(2)}")
        files.pwrite(fd, content, 0)
        files.close(fd)
        again = reopened(files)
        assert len(again.records) == 3
        assert again.segment_paths() == [f"{FOLDER}/{segment_name(n)}" for n in (1, 3)]


def test_a_damaged_header_before_records_is_refused() -> None:
    rig = written(3)
    files = on_disk(rig)
    files.content(rig.segment_paths()[0])[20] ^= 1
    with pytest.raises(JournalCorrupt, match="segment 1 has a damaged header"):
        Rig(files).open()
    salvaged = Rig(files.kill(), SALVAGE).open()
    assert salvaged.records == []
    assert f"{segment_name(1)}.damaged" in salvaged.files.listdir(FOLDER)


def test_a_renamed_segment_is_refused_and_the_refusal_says_what_to_do() -> None:
    rig = written(3)
    files = on_disk(rig)
    own, other = segment_name(1), segment_name(9)
    files.rename(f"{FOLDER}/{own}", f"{FOLDER}/{other}")
    with pytest.raises(
        JournalCorrupt, match=f"{other} is {own} under another name: rename it to {own}, or .*--salvage"
    ):
        Rig(files).open()
    salvaged = Rig(files.kill(), SALVAGE).open()
    assert salvaged.records == []
    assert salvaged.files.content(f"{FOLDER}/{other}.damaged") == files.content(f"{FOLDER}/{other}")
    files.rename(f"{FOLDER}/{other}", f"{FOLDER}/{own}")
    assert len(reopened(files.kill()).records) == 3


@pytest.mark.parametrize("number", [2, 9])
def test_a_doubled_segment_is_refused_and_salvage_keeps_it_aside(number: int) -> None:
    rig = written(3)
    files = on_disk(rig)
    own, copy = segment_name(1), segment_name(number)
    fd = files.create(f"{FOLDER}/{copy}")
    files.pwrite(fd, bytes(files.content(f"{FOLDER}/{own}")), 0)
    files.close(fd)
    with pytest.raises(JournalCorrupt, match=f"{copy} is a copy of {own}: move it out of the folder, or .*--salvage"):
        Rig(files.kill()).open()
    salvaged = Rig(files.kill(), SALVAGE).open()
    assert len(salvaged.records) == 3
    assert f"kept as {copy}.damaged" in salvaged.journal.notes[0]
    assert f"{copy}.damaged" in salvaged.files.listdir(FOLDER)
    assert salvaged.send(b"after") is None
    assert len(reopened(salvaged.files.power_cut()).records) == 4


def test_a_message_that_carries_journal_bytes_does_not_stop_a_restart() -> None:
    """The tail is torn inside a payload that holds a whole foreign segment, with records that call all synced."""
    foreign = bytes(written(10).files.content(f"{FOLDER}/{segment_name(1)}"))[64:600]
    files = SimulatedDisk()
    files.salt()
    rig = Rig(files).open()
    assert rig.send(b"kept") is None
    assert rig.send(foreign) is None
    cut = rig.files.power_cut()
    path = rig.segment_paths()[0]
    del cut.content(path)[rig.answers[-1][3] + len(foreign) - 5 :]
    assert reopened(cut).replayed() == [b"kept"]


def test_records_larger_than_a_chunk_and_than_a_segment() -> None:
    rig = Rig(options=Options(segment_bytes=4096, reserve_bytes=2048)).open()
    payloads = [b"a" * 10, b"b" * 9000, b"c" * 3_000_000, b"d"]
    for payload in payloads:
        assert rig.send(payload) is None
    assert reopened(rig.files.power_cut()).replayed() == payloads


def test_empty_segments_are_reused_and_lsns_never_go_back() -> None:
    rig = written(3)
    files = on_disk(rig)
    for _ in range(5):
        again = reopened(files)
        files = again.files.power_cut()
    assert len(again.segment_paths()) == 2
    assert again.append(b"next") == 4


def test_replay_reads_only_what_survey_found() -> None:
    files = SimulatedDisk()
    journal = Journal.open(FOLDER, SMALL, files)
    assert list(journal.replay()) == []
    journal.close()


@pytest.mark.parametrize("number", range(1, 8))
def test_a_start_fails_with_an_error_of_the_journal_whatever_the_disk_does_not_do(number: int) -> None:
    files = on_disk(written())
    files.faults = [DiskFault("error", at=files.calls + number, value=errno.EMFILE)]
    with pytest.raises(JournalFailed) as caught:
        Rig(files).open()
    assert caught.value.errno == errno.EMFILE
    assert len(reopened(files.kill()).records) == 6
