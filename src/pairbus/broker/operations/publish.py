"""Publish operations: a message sent to a topic becomes one record with its body and a copy for each subscription.

Which subscriptions get a copy is decided in topic.py and rules.py when the message is published: at once or, if it is
scheduled, when it is due; until then it waits on the topic. A copy that a rule's action has changed is one more body in
the same record (publish_record.py). A message that no subscription takes is checked and confirmed like the others, but
not stored. A ping goes as far as the disk and reaches no subscription.

A record is laid out, and its copies enter their queues, in slices (slices.py). Messages to a topic keep their order:
one record after the other is laid out, written, and entered.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from functools import partial
from typing import Final

from pairbus.broker.format import records
from pairbus.broker.format.content import Content, message_id_in
from pairbus.broker.model.message import Message
from pairbus.broker.model.outcomes import NO_SUBSCRIPTION
from pairbus.broker.model.partitions import PARTITION_SHIFT
from pairbus.broker.model.queue import MessageQueue
from pairbus.broker.model.rules import RuleIndex
from pairbus.broker.model.shared_bodies import Shared
from pairbus.broker.model.topic import Subscription, Topic
from pairbus.broker.refusal import Refusal
from pairbus.broker.slices import Job, SlicesFull, finish
from pairbus.broker.storage.publish_record import COPIES_AT_ONCE, WEIGHT_AT_ONCE, PublishRecord, StoredPublication
from pairbus.broker.storage.store import Done, Staged, Store
from pairbus.journal import JournalError

from .settlement import SettlementOperations

# Published with one record; those behind them are due at once.
_DUE_MAX: Final = 100
_DUE_BYTES_MAX: Final = 1 << 20


class PublishOperations:
    """Publishes to the subscriptions of a topic."""

    def __init__(self, store: Store, settlement: SettlementOperations) -> None:
        self._store = store
        self._journal = store.journal
        self._settlement = settlement

    def lay_out(
        self,
        topic: Topic,
        rules: RuleIndex[Subscription],
        contents: Sequence[Content],
        payloads: Sequence[bytes],
        now: float,
        numbered: bool,
    ) -> PublishRecord:
        """Lay out at once the record of a few messages to a topic."""
        record = PublishRecord(topic, rules, self._store.new_token)
        for content, payload in zip(contents, payloads, strict=True):
            work = record.add_sent(content, payload, now, numbered)
            if work is not None:
                finish(work)
        return record

    def laying_out(
        self,
        topic: Topic,
        rules: RuleIndex[Subscription],
        contents: Sequence[Content],
        payloads: Sequence[bytes],
        now: float,
        numbered: bool,
        staged: Staged,
        partitions: Sequence[int] = (),
    ) -> Generator[None, None, PublishRecord]:
        """Lay out the record of many messages to a topic in slices. They go to these partitions, or all to the one that
        the topic was turned to."""
        while True:
            record = PublishRecord(topic, rules, self._store.new_token)
            record.begin()
            held = 0
            for index, (content, payload) in enumerate(zip(contents, payloads, strict=True)):
                if partitions:
                    topic.turn_to(partitions[index])
                work = record.add_sent(content, payload, now, numbered)
                if work is not None:
                    yield from work
                record.join()
                staged.hold(record.length - held)
                held = record.length
                yield
            if not record.is_stale:
                return record
            staged.hold(-held)

    def reporting_unmatched(self, topic: Topic, record: PublishRecord, payloads: Sequence[bytes], done: Done) -> Done:
        """Return a `done` that also reports messages that no subscription takes, if a ledger is kept."""
        if not record.unmatched or self._store.observer is None:
            return done
        return partial(
            self._report_unmatched, topic, [message_id_in(payloads[index]) for index in record.unmatched], done
        )

    def _report_unmatched(
        self, topic: Topic, message_ids: list[str | None], done: Done, refusal: Refusal | None
    ) -> None:
        done(refusal)
        observer = self._store.observer
        if refusal is None and observer is not None:
            for mid in message_ids:
                observer("expire", topic.path, None, mid, NO_SUBSCRIPTION)

    # ---- the copies of a written record enter their queues

    def enter_copies(
        self,
        topic: Topic,
        record: PublishRecord,
        pending: int,
        segment: int,
        offset: int,
        entered: Callable[[], None],
    ) -> None:
        """Put the copies of a written record into their queues, behind those of the records before it; then call
        `entered` and wake those who wait for them. `pending` bytes count as stored already."""
        work = self._entering(topic, record.publications, pending, segment, offset, entered)
        if record.copies <= WEIGHT_AT_ONCE and not topic.entering:
            for _ in work:
                pass
            return
        slices, journal = self._store.slices, self._journal
        if slices.is_full or not journal.hold(segment):
            for job in list(topic.entering):
                job.cancel()
            for _ in work:
                pass
            return
        held = self._holding(work, segment)
        next(held)  # from now on it also ends properly when it is cancelled
        slices.start(held, Job.result, (topic.entering,))

    def _holding(self, work: Generator[None, None, None], segment: int) -> Generator[None, None, None]:
        """Do this work, all that is left of it when it is cancelled: what is on the disk is in memory by then. The
        segment is kept until that is so."""
        try:
            yield
            for _ in work:
                yield
        except GeneratorExit:
            for _ in work:
                pass
            raise
        finally:
            self._journal.let_go(segment)

    def _entering(
        self,
        topic: Topic,
        publications: list[StoredPublication],
        pending: int,
        segment: int,
        offset: int,
        entered: Callable[[], None],
    ) -> Generator[None, None, None]:
        store = self._store
        woken: dict[MessageQueue, None] = {}
        count = 0
        publications.reverse()
        while publications:
            # Released one by one: freeing a whole large batch at once would take longer than a turn may.
            copies, content_offset, nbytes = publications.pop()
            account = topic.account
            if topic.partitions is not None and copies:
                account = account.part(copies[0][1].sequence_number >> PARTITION_SHIFT)
            shared = Shared(account, nbytes)
            place = offset + content_offset
            if copies:
                counted = min(pending, copies[0][1].length)
                topic.pending_bytes -= counted
                pending -= counted
            for queue, copy in copies:
                count += 1
                if count % COPIES_AT_ONCE == 0:
                    yield
                copy.segment = segment
                copy.offset = place
                copy.join(shared)
                if copy.content is not None:
                    store.keep(queue, copy)
                entity = queue.entity
                if entity.deleted:
                    store.drop(queue, copy)
                    continue
                queue.enqueue(copy)
                if entity.partitions is None:
                    entity.confirmed_sequence = copy.sequence_number
                else:
                    entity.partitions.confirm(copy.sequence_number)
                woken[queue] = None
        topic.pending_bytes -= pending
        for queue in woken:
            if queue.is_timed and not queue.entity.deleted:
                store.watched[queue] = None
        entered()
        for queue in woken:
            queue.wake()

    # ---- scheduled messages whose time has come

    def publish_due(self, topic: Topic, now: float) -> None:
        """Begin to publish messages that are due, unless that is in progress."""
        if topic.is_publishing_due or topic.active.schedule.deadline() > now:
            return
        work = self._publishing_due(topic, now)
        next(work)  # from now on it also ends properly when it is cancelled
        try:
            self._store.slices.start(work, Job.result, (topic.sending,))
        except SlicesFull:
            pass  # they are due for some longer

    def _publishing_due(self, topic: Topic, now: float) -> Generator[None, None, None]:
        due: list[Message] = []
        topic.is_publishing_due = True
        try:
            yield
            while not topic.deleting and (due := topic.active.take_due(now, _DUE_MAX)):
                while due and not topic.deleting:
                    yield from self._publish_some(topic, due, now)
        finally:
            topic.is_publishing_due = False
            if due and not topic.deleted:
                self._store.restore(topic.active, due)

    def _publish_some(self, topic: Topic, due: list[Message], now: float) -> Generator[None, None, None]:
        """Publish with one record those that fit into it, and take them out of the list."""
        record = PublishRecord(topic, topic.rules, self._store.new_token, is_of_due=True)
        record.begin()
        messages: list[Message] = []
        unmatched: list[tuple[int, str | None]] = []
        contents = []
        for message in list(due):
            if record.length >= _DUE_BYTES_MAX:
                break
            try:
                content = self._store.content(message) if message.content is None else message.content
            except JournalError:
                due.remove(message)
                self._store.restore(topic.active, [message])
                continue
            work = record.add_due(message, content, now)
            if work is not None:
                yield from work
            yield
            messages.append(message)
            contents.append(content)
        if record.is_stale or topic.deleting or not messages:
            return  # and begins anew, unless the topic is being deleted
        if self._store.observer is not None:
            unmatched = [
                (messages[index].sequence_number, message_id_in(contents[index], messages[index].pairs_bytes))
                for index in record.unmatched
            ]
        del due[: len(messages)]

        def written(error: JournalError | None, segment: int, offset: int) -> None:
            if topic.deleted:
                return
            if error is not None:
                self._store.restore(topic.active, messages)
                return
            self._journal.release(segment, records.BATCH_HEAD_BYTES)
            for each in record.publications:
                if not each.copies:
                    self._journal.release(segment, each.nbytes)
            observer = self._store.observer
            for number, mid in unmatched:
                assert observer is not None
                observer("expire", topic.path, number, mid, NO_SUBSCRIPTION)
            forget = partial(self._settlement.forget_removed, topic.active, messages)
            self.enter_copies(topic, record, 0, segment, offset, forget)

        self._store.append(records.PUBLISH, tuple(record.all_parts()), written)
