"""Seeded bugs in the journal, in compaction and in what is rebuilt from the journal at the start."""

from __future__ import annotations

from . import Sabotage

_LOG = "pairbus.journal.log"
_STANDBY = "pairbus.journal.standby"
_JOURNAL = "pairbus.journal.journal"
_REPLAY = "pairbus.broker.storage.replay"
_QUEUE = "pairbus.broker.model.queue"
_LIVE = "pairbus.broker.storage.live_records"

SABOTAGES = (
    # -- the journal
    Sabotage(
        "written-out-of-order-in-a-stall",
        _LOG,
        "self._redo = sorted(self._redo + self._todo, key=lambda entry: entry[0])",
        "self._redo = self._redo + self._todo",
        "A message that was confirmed while the data folder stalled is taken for a repeat after a restart.",
        kind="stalls",
    ),
    Sabotage(
        "answered-settlements-lost-in-a-stall",
        _LOG,
        "            self._redo += [self._answered(entry, number, offset) for entry, offset in self._unsynced]\n",
        "",
        "Messages that were completed before the data folder stalled are delivered again after a restart.",
        kind="stalls",
    ),
    Sabotage(
        "journal-stays-in-its-standby-folder",
        _LOG,
        "if not self.number or self.home in self.stalled:",
        "if self.number or self.home in self.stalled:",
        "The standby folder takes everything for ever, after one stall of the data folder.",
        kind="stalls",
    ),
    Sabotage(
        "pledge-without-folder-sync",
        _STANDBY,
        "        files.rename(new, path)\n    files.fsync_dir(folder)\n",
        "        files.rename(new, path)\n",
        "The broker does not start after a power cut, since its two folders do not know each other any more.",
        kind="stalls",
    ),
    Sabotage(
        "confirm-before-sync",
        _LOG,
        """\
        fd, data, written = self._fd, b"".join(pieces), list[bool]()
""",
        """\
        fd, data, written = self._fd, b"".join(pieces), list[bool]()
        if late:
            self._answer(late)
            late = []
""",
        "A message that was confirmed is gone when the sync that followed fails.",
    ),
    Sabotage(
        "send-written-lazily",
        _LOG,
        'if flags & LAZY and mode == "default":',
        'if mode == "default":',
        "A message that was confirmed is gone after a power cut within the next moments.",
    ),
    Sabotage(
        "lazy-sync-forgotten",
        "pairbus.journal.options",
        "lazy_sync_s: float = 0.1",
        "lazy_sync_s: float = 60.0",
        "A message that was completed long ago is delivered again after a power cut.",
    ),
    Sabotage(
        "new-segment-without-folder-sync",
        _LOG,
        """\
            files.fsync_dir(self.folder)
        except OSError:
            if fd >= 0:
""",
        """\
        except OSError:
            if fd >= 0:
""",
        "All messages of a new segment are gone after a power cut, since nothing leads to its file.",
    ),
    Sabotage(
        "failed-sync-taken-for-success",
        _LOG,
        "            self.unwatched.fdatasync(fd)\n",
        "            with contextlib.suppress(OSError):\n                self.unwatched.fdatasync(fd)\n",
        "A message that the disk never got is confirmed.",
    ),
    Sabotage(
        "short-write-taken-for-whole",
        "pairbus.journal.files",
        "while done < len(data):",
        "while done < 0:",
        "A message of which the disk took only a part is confirmed, and is gone after a restart.",
    ),
    Sabotage(
        "full-disk-confirmed",
        _LOG,
        "self._refuse(sends, self.full_error())",
        "self._answer([(entry[4], None, self.number, self.offset) for entry in sends if entry[4] is not None])",
        "Messages are confirmed while the disk is full, and are gone after a restart.",
    ),
    Sabotage(
        "refused-send-left-in-the-log",
        _LOG,
        'return self.offset if self.options.durability == "none" else self.synced',
        "return self.offset",
        "A message that was refused, and that its sender sent again, is there twice after a restart.",
    ),
    Sabotage(
        "answered-settlements-lost-with-a-failed-sync",
        _LOG,
        "return answered + lazy",
        "return lazy",
        "Messages that were completed before a sync failed are delivered again after a restart.",
    ),
    Sabotage(
        "unsynced-end-of-a-segment",
        _LOG,
        """\
        if self.offset > self.synced and not self._sync():
            redo,""",
        """\
        if self.is_full and self.offset > self.synced and not self._sync():
            redo,""",
        "The broker does not start after a power cut, because the end of a segment that it relies on was never synced.",
    ),
    Sabotage(
        "record-claims-what-is-not-synced",
        _LOG,
        "pieces.append(frame(salt, synced, lsn, kind, payload))",
        "pieces.append(frame(salt, offset, lsn, kind, payload))",
        "The broker takes an ordinary torn tail for damage and does not start after a power cut.",
    ),
    Sabotage(
        "payload-checksum-not-checked",
        "pairbus.journal.record",
        "if crc(payload) != payload_crc:",
        "if not payload_crc and payload:",
        "A torn record is taken for a message: a receiver gets bytes that nobody sent, or the broker does not start.",
    ),
    Sabotage(
        "damage-taken-for-a-torn-tail",
        "pairbus.journal.segment",
        "if known <= spot:",
        "if known <= segment.size:",
        "Confirmed messages behind a damaged spot are dropped without a word.",
    ),
    Sabotage(
        "tail-not-written-again",
        _JOURNAL,
        """\
                write_again(self.files, segment.path, segment.synced, end, cut=not self.options.salvage)
""",
        """\
                segment.is_sure = True
""",
        "The broker does not start when a power cut follows the death of its process.",
    ),
    Sabotage(
        "segment-number-reused",
        _JOURNAL,
        "number_next=self._number_max + 1,",
        "number_next=self._number_max or 1,",
        "The broker does not start again, because the name of its next segment is taken.",
    ),
    Sabotage(
        "lsn-begins-again",
        _JOURNAL,
        "self._lsn = max(lsn, first_lsn - 1)",
        "self._lsn = first_lsn - 1",
        "What was confirmed after a restart is passed over as a repetition at the next one.",
    ),
    # -- what is late
    Sabotage(
        "late-messages-shown-at-once",
        _QUEUE,
        "self.sessions is None and self.partition_sizes is None and not self.holds_back\n",
        "self.sessions is None and self.partition_sizes is None\n",
        "What is sent in a stall that is to make it late is received at once.",
        needs=(" late ",),
        kind="stalls",
    ),
    Sabotage(
        "late-until-the-store-is-back",
        "pairbus.broker.server",
        "releases=not is_late)",
        "releases=not holds_back)",
        "What is sent in a stall is received when the storage is back, and not so long after it as was asked for.",
        needs=(" late ",),
        kind="stalls",
    ),
    Sabotage(
        "late-and-scheduled-is-lost",
        _QUEUE,
        "            if message.state in (LATE, SCHEDULED):\n",
        "            if message.state == LATE:\n",
        "A scheduled message that was late never becomes due.",
        needs=(" late ", "due_in"),
        kind="stalls",
    ),
    Sabotage(
        "late-message-overtaken-in-its-session",
        "pairbus.broker.model.sessions",
        "session.late > 0 and message.home == READY",
        "False",
        "A receiver of a session gets what was sent after a stall before what was sent in it.",
        needs=(" late ", "jobs"),
        kind="stalls",
    ),
    # -- compaction
    Sabotage(
        "compaction-forgets-a-removal",
        _LIVE,
        "elif not entity.is_confirmed(entry.sequence_number):",
        "elif entity.confirmed_sequence:",
        "Messages that were completed are there again after a restart.",
    ),
    Sabotage(
        "compaction-ignores-a-failed-copy",
        "pairbus.journal.compaction",
        "self._error = self._error or error",
        "self.copies += 1",
        "Messages whose copies could not be written are gone with the segment that they were in.",
    ),
    Sabotage(
        "compaction-forgets-the-new-place",
        _LIVE,
        """\
        message.segment = segment
        message.offset = offset + copied.content_offset
""",
        "",
        "Messages that lie on the disk alone, such as dead letters, can't be read after a compaction.",
    ),
    Sabotage(
        "compaction-loses-session-states",
        _LIVE,
        "            return self._live_state(record)\n",
        "            return None\n",
        "The state that a receiver stored with its session is gone.",
        needs=("state=True", "segments of 2048"),
    ),
    # -- replay
    Sabotage(
        "replay-removes-the-neighbour",
        _REPLAY,
        "if (known := entity.find(number)) is not None:",
        "if (known := entity.find(number + 1)) is not None:",
        "After a restart one message is gone for each that was completed, and that one is there again.",
        needs=("complete", "broker: at"),
    ),
    Sabotage(
        "replay-loses-delivery-counts",
        _REPLAY,
        "        message.delivery_count = update.delivery_count\n",
        "",
        "A message that makes every receiver fail is delivered for ever if the broker restarts now and then.",
        needs=("'abandon'", "answers and"),
    ),
    Sabotage(
        "replay-loses-the-last-number",
        _REPLAY,
        "if not entity.note_number(number):",
        "if number:",
        "Numbers are given out twice after a restart, and a new message takes the place of one that waits.",
        needs=("broker: at",),
    ),
    Sabotage(
        "replay-makes-deferred-messages-active",
        _REPLAY,
        """\
        else:
            message.home = HOMES[update.place]
""",
        "",
        "Messages that an application has put aside are delivered in between after a restart.",
        needs=("'defer'", "answers and"),
    ),
    Sabotage(
        "replay-makes-scheduled-messages-active",
        _REPLAY,
        "        message.home = HOMES[entry.place]\n",
        "        message.home = HOMES[records.ACTIVE if entry.place == records.SCHEDULED else entry.place]\n",
        "Messages that are meant for tomorrow are delivered today after a restart.",
        needs=("due_in", "answers and"),
    ),
    Sabotage(
        "replay-loses-the-reason-of-a-dead-letter",
        _REPLAY,
        "        if update.changes_length is not None:\n",
        "        if update.changes_length is not None and update.place != records.DEAD:\n",
        "Nobody can tell after a restart why a message was dead-lettered.",
        needs=("'dead-letter'", "answers and"),
    ),
    Sabotage(
        "replay-loses-duplicate-ids",
        _REPLAY,
        "        history.restore(seen.time, seen.keys, record.segment, seen.nbytes)\n",
        "        self.release(record.segment, seen.nbytes)\n",
        "A message that is sent again because its confirmation was lost in a restart is there twice.",
        needs=("again=True", "answers and"),
    ),
    Sabotage(
        "replay-loses-session-states",
        _REPLAY,
        "            session.state = Stored(record.segment, record.offset + offset, length)\n",
        "            queue.sessions.forget_if_empty(session)\n",
        "The state that a receiver stored with its session is gone after a restart.",
        needs=("state=True",),
    ),
    Sabotage(
        "replay-loses-session-ids",
        _REPLAY,
        "            None if session_id is None else self._session_ids.setdefault(session_id, session_id),\n",
        "            None,\n",
        "Nobody gets the messages of a session any more after a restart.",
        needs=("jobs", "answers and"),
    ),
    Sabotage(
        "replay-loses-lifetimes",
        _REPLAY,
        """\
            entry.expires_at,
            None if session_id""",
        """\
            inf,
            None if session_id""",
        "Messages that should have expired are delivered after a restart.",
        needs=("ttl=", "answers and"),
    ),
    Sabotage(
        "replay-loses-a-subscription's-copy",
        _REPLAY,
        "            for entry in publication.copies:\n",
        "            for entry in publication.copies[1:] or publication.copies:\n",
        "One subscription has lost its copies after a restart.",
        needs=("news", "answers and"),
    ),
    Sabotage(
        "replay-forgets-activations",
        _REPLAY,
        "            if known is not None and known[1].sequence_number == activation.old:\n",
        "            if known is not None and known[1].sequence_number != activation.old:\n",
        "A scheduled message that was delivered and completed is delivered again after a restart.",
        needs=("due_in", "broker: at"),
    ),
)
