"""A journal on the simulated disk without a thread: every step happens when the test says so."""

from __future__ import annotations

from collections.abc import Callable

from pairbus.journal import Journal, JournalError, Options, Record
from tests.simulation.disk import SimulatedDisk

FOLDER, STANDBY = "j", "s"
SMALL = Options(segment_bytes=4096, reserve_bytes=2048, allocate_bytes=512, pending_bytes_max=1 << 20)


class Rig:
    """`sent` and `lazy` hold, per lsn, what was asked; `answers` what came back, in the order in which it came."""

    def __init__(
        self,
        files: SimulatedDisk | None = None,
        options: Options = SMALL,
        write_here: bool = False,
        standby: str | None = None,
    ) -> None:
        self.files = files if files is not None else SimulatedDisk()
        self.options = options
        self.write_here = write_here
        self.standby = standby
        self.now = 1000.0
        self.answers: list[tuple[int, JournalError | None, int, int]] = []
        self.asked: dict[int, tuple[int, bytes, bool]] = {}
        self.records: list[Record] = []
        self.errors: list[BaseException] = []
        self.journal: Journal

    def open(self) -> Rig:
        self.journal = Journal.open(FOLDER, self.options, self.files, lambda: self.now, self.standby)
        try:
            self.records = list(self.journal.replay())
            self.journal.start(self.post, thread=False, write_here=self.write_here)
        except BaseException:
            self.journal.close()
            raise
        return self

    def post(self, callback: Callable[[], None]) -> None:
        if self.files.is_dead:
            return  # nobody hears what a stopped machine says
        try:
            callback()
        except Exception as error:
            self.errors.append(error)

    def append(self, payload: bytes, *, lazy: bool = False, kind: int = 1) -> int:
        lsn = self.journal.last_lsn + 1  # it may be answered at once

        def done(error: JournalError | None, segment: int, offset: int) -> None:
            self.answers.append((lsn, error, segment, offset))

        self.asked[lsn] = (kind, payload, lazy)
        return self.journal.append(kind, payload, done, lazy=lazy)

    def turn(self, after: float = 0.0) -> Rig:
        self.now += after
        self.journal.turn()
        return self

    def send(self, payload: bytes, *, lazy: bool = False) -> JournalError | None:
        """Append one and turn; the answer to it."""
        lsn = self.append(payload, lazy=lazy)
        self.turn()
        return self.answer_to(lsn)

    def answer_to(self, lsn: int) -> JournalError | None:
        found = [error for number, error, _, _ in self.answers if number == lsn]
        assert len(found) == 1, f"{len(found)} answers to {lsn}"
        return found[0]

    def replayed(self) -> list[bytes]:
        return [record.payload for record in self.records]

    def segment_paths(self) -> list[str]:
        return sorted(f"{FOLDER}/{name}" for name in self.files.listdir(FOLDER) if name.endswith(".segment"))


def reopened(files: SimulatedDisk, options: Options = SMALL, standby: str | None = None) -> Rig:
    files.faults.clear()
    return Rig(files, options, standby=standby).open()


def check_crash(rig: Rig, files: SimulatedDisk, *, lazy_survives: bool = False) -> list[bytes]:
    """The promise: after any crash what was confirmed is there, exactly and in order; what was refused is not."""
    again = reopened(files, rig.options, rig.standby)
    found = {record.lsn: (record.kind, record.payload) for record in again.records}
    lsns = [record.lsn for record in again.records]
    assert lsns == sorted(set(lsns))
    known = set(rig.asked)
    for lsn, error, _, _ in rig.answers:
        kind, payload, lazy = rig.asked[lsn]
        if error is None and (not lazy or lazy_survives):
            assert found.get(lsn) == (kind, payload), f"confirmed record {lsn} is lost"
        if error is not None and not error.unknown:
            assert lsn not in found, f"refused record {lsn} came back"
    for lsn, content in found.items():
        if lsn in known:
            assert content == rig.asked[lsn][:2]
    assert again.send(b"after the crash") is None
    return again.replayed()
