"""Bugs in the journal, in compaction, and in what is rebuilt from the journal."""

from __future__ import annotations

import errno
from typing import Any

from pairbus.broker.model.entity import QueueEntity
from pairbus.broker.storage import replay
from pairbus.broker.storage.replay import PartialReplay
from pairbus.journal import Journal
from pairbus.journal import journal as journal_module
from pairbus.journal import segment as segment_module
from pairbus.journal.log import ANSWERED, Log

from ..disk import SimulatedDisk
from . import sabotage

Replay = replay._Replay

# -- the journal alone


@sabotage(Log, "_fdatasync", "journal", 0, "is lost: SURE")
def confirm_before_the_sync(real: Any, log: Any) -> None:
    """A message that was confirmed is gone after a power cut."""
    log.synced = log.offset
    log._lazy_since = None
    log._unsynced = []


@sabotage(Log, "_valid_end", "journal", 597, "came back: NEVER")
def refused_send_left_in_the_log(real: Any, log: Any) -> int:
    """A message that was refused, and that its sender sent again, is there twice after a restart."""
    return log.offset


@sabotage(SimulatedDisk, "fsync_dir", "journal", 45, "came back, and was gone before")
def folder_not_synced(real: Any, *arguments: Any) -> None:
    """All messages of a new segment are gone after a power cut, since nothing leads to its file."""


@sabotage(Log, "_check_in_place", "journal", 2, "was confirmed while the folder was away")
def folder_not_looked_at(real: Any, *arguments: Any) -> None:
    """Messages are confirmed that went to a file which nobody finds again."""


@sabotage(Log, "_sync_is_due", "journal", 21, "answered long before, are not synced")
def settlements_answered_while_a_sync_is_late(real: Any, log: Any, now: float, share: float = 0.8) -> bool:
    """A power cut in a storage stall undoes settlements that were answered seconds before."""
    return share < 1 and real(log, now)


@sabotage(Log, "_abandon", "journal", 815, "came back: SURE, its removal SURE")
def answered_settlements_lost_with_a_failed_sync(real: Any, *arguments: Any) -> list[Any]:
    """Messages that were completed before a sync failed are delivered again after a restart."""
    return [entry for entry in real(*arguments) if not entry[5] & ANSWERED]


@sabotage(Journal, "_append_copy", "journal", 46, "is lost: SURE")
def compaction_leaves_out_a_record(real: Any, journal: Any, kind: int, parts: Any, done: Any) -> None:
    """Messages are gone with the segment that they were in."""
    if journal.last_lsn % 2:
        real(journal, kind, parts, done)
    else:
        done(None, 1, 64)


@sabotage(segment_module, "_judge", "journal", 2, "was accepted, known are")
def damage_taken_for_a_torn_tail(real: Any, *arguments: Any) -> None:
    """Confirmed messages behind a damaged spot are dropped without a word."""


@sabotage(journal_module, "write_again", "journal", 2, "damaged at offset")
def tail_not_written_again(real: Any, *arguments: Any, **options: Any) -> None:
    """The broker does not start when a power cut follows the death of its process."""


@sabotage(Journal, "compaction_is_due", "journal", 160, "bytes are used, .* are allowed")
def never_compact(real: Any, *arguments: Any) -> bool:
    """The broker takes all room that there is on the disk."""
    return False


@sabotage(Log, "_refill", "journal", 114, "no fault is left, and yet")
def room_not_found_again(real: Any, *arguments: Any) -> bool:
    """Sends are refused for ever after the disk was full."""
    return False


@sabotage(Journal, "trouble", "journal", 4, "and the journal says that it is well")
def trouble_not_told(real: Any, *arguments: Any) -> None:
    """Nobody hears that the data folder is gone."""


@sabotage(Journal, "read", "journal", 0, "reads as")
def read_from_elsewhere(real: Any, journal: Any, segment: int, offset: int, length: int) -> bytes:
    """A receiver gets a part of another message."""
    return real(journal, segment, offset - 1, length)


@sabotage(Log, "_go_home", "stalled journal", 100015, "the journal stays in its standby folder")
def journal_stays_in_its_standby_folder(real: Any, *arguments: Any) -> None:
    """The standby folder takes everything for ever, after one stall of the data folder."""


@sabotage(Log, "_new_segment", "stalled journal", 100000, "was refused although the standby folder answers")
def standby_folder_not_used(real: Any, log: Any) -> None:
    """Sends are refused while the data folder stalls, although there is another one."""
    if log.home in log.stalled:
        raise OSError(errno.ETIMEDOUT, "the data folder does not answer")
    real(log)


# -- the broker's worlds, when it starts


@sabotage(Replay, "_remove_all", "broker", 2, "it came back as")
def replay_forgets_a_removal(real: Any, replaying: Any, id: int, numbers: Any) -> None:
    """A message that was completed is there again after a restart."""
    real(replaying, id, list(numbers)[1:])


@sabotage(Replay, "_change", "broker", 14, "delivery count . fell to")
def replay_loses_delivery_counts(real: Any, replaying: Any, *arguments: Any) -> None:
    """A message that makes every receiver fail is delivered for ever if the broker restarts now and then."""
    *others, update = arguments
    real(replaying, *others, update._replace(delivery_count=0))


@sabotage(Replay, "_insert", "broker", 2, "sequence number .* became")
def replay_gives_other_numbers(real: Any, replaying: Any, entity: Any, record: Any, entry: Any) -> None:
    """Nobody finds a deferred message again after a restart, since it has another number."""
    real(replaying, entity, record, entry._replace(sequence_number=entry.sequence_number + 1000))


@sabotage(QueueEntity, "note_number", "broker", 3, "is also that of")
def replay_loses_the_last_number(real: Any, *arguments: Any) -> bool:
    """Numbers are given out twice after a restart, and a new message takes the place of one that waits."""
    return False


@sabotage(replay.records, "read_session", "broker", 11, "jobs .: it is None; it can only be")
def replay_loses_session_states(real: Any, payload: bytes) -> Any:
    """The state that a receiver stored with its session is gone after a restart."""
    return real(payload)._replace(state_length=None)


# -- and while it serves


@sabotage(PartialReplay, "_remove_all", "crashes", 500010, "in the journal")
def restart_skips_removals(real: Any, *arguments: Any) -> None:
    """What was forwarded or settled comes back when a node fails."""


@sabotage(QueueEntity, "resume", "crashes", 500002, "please retry the operation")
def restarted_entity_stays_suspended(real: Any, *arguments: Any) -> None:
    """An entity whose node failed is never served again."""


@sabotage(Journal, "_is_being_deleted", "combined", 800276, "s of calm <Crashes")
def restart_reads_a_segment_whose_removal_hung(real: Any, *arguments: Any) -> bool:
    """The restart of an entity that fails during a storage stall takes longer than it must."""
    return False


@sabotage(Journal, "_check_answers", "combined", 800276, "is known to be stalled, and was read")
def restart_reads_a_folder_that_stalls(real: Any, *arguments: Any) -> None:
    """The broker hangs when a node fails during a storage stall."""
