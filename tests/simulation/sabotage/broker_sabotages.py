"""Seeded bugs in what the broker decides and does: queues, sessions, settlements, sends, links, clock."""

from __future__ import annotations

from . import Sabotage

_QUEUE = "pairbus.broker.model.queue"
_SESSIONS = "pairbus.broker.model.sessions"
_SETTLEMENT = "pairbus.broker.operations.settlement"
_ENQUEUE = "pairbus.broker.operations.enqueue"
_LINKS = "pairbus.broker.amqp.links"
_CONNECTION = "pairbus.broker.amqp.connection"

SABOTAGES = (
    # -- queues and locks
    Sabotage(
        "settled-message-keeps-its-lock",
        _QUEUE,
        "        del self._locks[token]\n        message.state = SETTLING\n",
        "        message.state = SETTLING\n",
        "A message that was completed is delivered again when its lock would have expired.",
    ),
    Sabotage(
        "renewed-lock-expires-at-its-old-time",
        _QUEUE,
        "                if not self._is_locked(message, until):\n",
        "                if message.state != LOCKED:\n",
        "A second receiver gets a message while the first, which has renewed its lock, works on it.",
        needs=("'renew'", "hold=4.0"),
    ),
    Sabotage(
        "renewal-does-not-extend-the-lock",
        _QUEUE,
        """\
            message.locked_until = until
        if messages:
            self._watch""",
        """\
            message.lock_token = message.lock_token
        if messages:
            self._watch""",
        "A second receiver gets a message although the broker has promised the first a longer lock.",
        needs=("'renew'", "hold=4.0"),
    ),
    Sabotage(
        "expired-lock-still-settles",
        _QUEUE,
        """\
        del self._locks[message.lock_token or b""]
        message.delivery_count += 1
""",
        """\
        message.delivery_count += 1
""",
        "A receiver whose lock has expired completes the message under the hands of the one that has it now.",
        needs=("hold=7.0",),
    ),
    Sabotage(
        "returned-message-stays-on-the-list",
        "pairbus.broker.model.ready_list",
        "return heappop(returned)[1]",
        "return returned[0][1]",
        "A message that was abandoned is delivered to several receivers at once.",
        needs=("'abandon'",),
    ),
    Sabotage(
        "abandoned-message-goes-to-the-end",
        "pairbus.broker.model.ready_list",
        "if not ready or ready[-1].sequence_number < number:",
        "if number:",
        "A message that was abandoned is delivered after those that were sent later.",
        needs=("'abandon'", "jobs"),
    ),
    Sabotage(
        "abandoned-message-is-stranded",
        _QUEUE,
        """\
            self._make_available(message)
            # Up to there""",
        """\
            if sessions is not None:
                self._make_available(message)
            # Up to there""",
        "A message that was abandoned, or whose lock expired, is not delivered again before a restart.",
        needs=("'abandon'",),
    ),
    Sabotage(
        "abandoning-does-not-count",
        _SETTLEMENT,
        "        count = message.delivery_count + 1\n",
        "        count = message.delivery_count\n",
        "A message that every receiver abandons is delivered for ever instead of being dead-lettered.",
        needs=("how='abandon'",),
    ),
    Sabotage(
        "one-delivery-too-many",
        _QUEUE,
        "delivery_count >= self.max_delivery_count",
        "delivery_count > self.max_delivery_count",
        "A message is delivered once more than its queue allows.",
        needs=("fail",),
    ),
    Sabotage(
        "exhausted-message-vanishes",
        _SETTLEMENT,
        "            self._dead_letter_all(queue, exhausted_messages, exhausted)\n",
        "            returned += exhausted_messages\n",
        "A message whose last lock expires is neither delivered nor dead-lettered.",
        needs=("how='forget'",),
    ),
    Sabotage(
        "messages-do-not-expire",
        _QUEUE,
        """\
            if message.expires_at != inf:
                self.lifetimes.add(message)
""",
        """\
            if message.expires_at == inf:
                self.lifetimes.add(message)
""",
        "Receivers get messages whose time to live is over.",
        needs=("ttl=",),
    ),
    Sabotage(
        "deferred-message-delivered",
        _SETTLEMENT,
        "                message.home = HOMES[place]\n                queue.offer(message)\n",
        "                queue.offer(message)\n",
        "A message that an application has put aside is delivered again at once.",
        needs=("'defer'",),
    ),
    Sabotage(
        "reason-of-a-dead-letter-lost",
        _SETTLEMENT,
        "properties: Mapping[str, Any] = outcome.changes()",
        "properties: Mapping[str, Any] = outcome.properties",
        "Nobody can tell why an application dead-lettered a message.",
        needs=("'dead-letter'",),
    ),
    # -- sessions
    Sabotage(
        "session-held-twice",
        _SESSIONS,
        "        if session is None or session.lock is not None:\n            return None\n        lock =",
        "        if session is None:\n            return None\n        lock =",
        "Two receivers work on the same session at once.",
        needs=("receive jobs",),
    ),
    Sabotage(
        "session-out-of-order-after-abandon",
        _SESSIONS,
        "        session.ready_list.add(message)\n",
        "        session.ready_list.ready.append(message)\n",
        "The messages of a session are delivered in another order than they were sent in.",
        needs=("receive jobs", "'abandon'"),
    ),
    Sabotage(
        "session-not-freed-with-its-link",
        _LINKS,
        "            host.namespace.release_session(self.session, host.clock())\n",
        "            host.clock()\n",
        "Nobody gets a session before its lock expires when its receiver has gone.",
        needs=("receive jobs",),
    ),
    Sabotage(
        "messages-of-a-lost-session-stranded",
        _SESSIONS,
        "messages = [message for message in taken if message.state == LOCKED]",
        "messages = [message for message in taken if message.state != LOCKED]",
        "Messages that were delivered under a session's lock and not settled are not delivered again.",
        needs=("receive jobs", "'forget'"),
    ),
    Sabotage(
        "renewed-session-expires-at-its-old-time",
        _SESSIONS,
        "return lock if lock is not None and lock.locked_until == until else None",
        "return lock",
        "A second receiver gets a session while the first, which has renewed its lock, works on it.",
        needs=("receive jobs", "'renew'"),
    ),
    Sabotage(
        "session-state-not-synced",
        "pairbus.broker.operations.session_access",
        "self._store.append(records.SESSION, payload, written)",
        "self._store.append(records.SESSION, payload, written, True)",
        "The state of a session is as it was before, after a power cut, although its change was confirmed.",
        needs=("state=True", "power"),
    ),
    Sabotage(
        "token-of-another-session-settles",
        _QUEUE,
        "message = None if session is not None and token not in session.held else self.claim(token, now)",
        "message = self.claim(token, now)",
        "A receiver completes messages of a session that another receiver holds.",
        needs=("'foreign'", "receive jobs"),
    ),
    # -- settlements
    Sabotage(
        "last-of-several-not-settled",
        _LINKS,
        "tokens = [token for token, _, _ in entries]",
        "tokens = [token for token, _, _ in entries[: max(1, len(entries) - 1)]]",
        "A message whose completion was confirmed is delivered again.",
        needs=("('together'",),
    ),
    Sabotage(
        "settlement-confirmed-before-it-is-written",
        _SETTLEMENT,
        "            self.remove(queue, messages, True, finish)\n",
        "            finish(None)\n            self.remove(queue, messages, True, nobody)\n",
        "A message whose completion was confirmed is delivered again where the disk refused the record.",
        needs=("disk:", "receive"),
    ),
    Sabotage(
        "neighbour-settled-too",
        _CONNECTION,
        "count = ((event.last - event.first) & 0xFFFFFFFF) + 1",
        "count = ((event.last - event.first) & 0xFFFFFFFF) + 2",
        "A message that nobody has settled is gone, because the one before it was completed.",
    ),
    Sabotage(
        "lost-lock-answered-with-success",
        _LINKS,
        "refusal if token in lost else None",
        "None",
        "A receiver is told that it completed a message that is delivered again.",
    ),
    Sabotage(
        "failed-settlement-strands-the-message",
        _SETTLEMENT,
        """\
        self._store.restore(queue, messages)
        queue.wake()
        finish(refusal_of(error))
""",
        """\
        queue.wake()
        finish(refusal_of(error))
""",
        "A message whose settlement the disk refused is not delivered again before a restart.",
        needs=("disk:", "receive"),
    ),
    # -- sends
    Sabotage(
        "batch-enqueued-in-part",
        _ENQUEUE,
        "        for message in messages:\n            message.segment = segment\n",
        "        for message in messages[: len(messages) // 2 + 1]:\n            message.segment = segment\n",
        "The last messages of a batch that was confirmed are not delivered before a restart.",
        needs=("batch",),
    ),
    Sabotage(
        "number-given-twice",
        _ENQUEUE,
        "            entity.last_sequence = messages[-1].sequence_number\n",
        "            entity.last_sequence = messages[0].sequence_number\n",
        "The message that follows a batch takes the place of one of its messages.",
        needs=("batch",),
    ),
    Sabotage(
        "duplicate-stored",
        "pairbus.broker.model.duplicates",
        "self._ends(sighting) <= now else sighting",
        "self._ends(sighting) > now else sighting",
        "A message that is sent again with its id is there twice, although the queue detects duplicates.",
        needs=("again=True",),
    ),
    Sabotage(
        "duplicate-of-a-pending-send-stored",
        _ENQUEUE,
        "        if earlier is None:\n            self.keys[key] = None\n",
        "        if earlier is None or earlier.is_pending:\n            self.keys[key] = None\n",
        "A message that is sent again before the first was answered is there twice.",
        needs=("again=True", "pipelined=True"),
    ),
    Sabotage(
        "ping-stored",
        "pairbus.broker.format.content",
        "if properties.content_type == PING_CONTENT_TYPE:",
        "if properties.content_type == PING_CONTENT_TYPE and s.body is None:",
        "Receivers get the pings of paired clients as if they were messages.",
        needs=("ping",),
    ),
    Sabotage(
        "near-schedule-ignored",
        _ENQUEUE,
        "if traits.scheduled_at is not None and traits.scheduled_at > now:",
        "if traits.scheduled_at is not None and traits.scheduled_at > now + 60.0:",
        "A message that is scheduled within the next minute is delivered at once.",
        needs=("due_in",),
    ),
    Sabotage(
        "cancelled-schedule-still-delivered",
        _SETTLEMENT,
        """\
        for message in messages:
            queue.remove(message)
            self._store.forget(queue, message)
        finish(None)

    def _not_written(""",
        """\
        for message in messages:
            if message.home == SCHEDULED:
                queue.restore(message)
                continue
            queue.remove(message)
            self._store.forget(queue, message)
        finish(None)

    def _not_written(""",
        "A scheduled message is delivered although its cancelling was confirmed.",
        needs=("schedule", "cancel"),
    ),
    # -- topics
    Sabotage(
        "busy-subscription-skipped",
        "pairbus.broker.storage.publish_record",
        "self._rules.matching(facts) if not each.deleting]",
        "self._rules.matching(facts) if not each.deleting and not each.active.locked]",
        "A subscription whose receivers are at work misses messages.",
        needs=("news",),
    ),
    Sabotage(
        "copy-against-the-rules",
        "pairbus.broker.storage.publish_record",
        "for each in self._rules.matching(facts) if not each.deleting",
        "for each in self._topic.subscriptions.values() if not each.deleting",
        "A subscription gets messages that its rules keep out.",
        needs=("news",),
    ),
    # -- links
    Sabotage(
        "link-left-behind-an-end",
        _CONNECTION,
        "for link in [link for link in self._served if link.session is event.session]:",
        "for link in event.session.links:",
        "A receiver that ended its session without detaching goes on being given messages, which nobody sees.",
        needs=("how='end",),
    ),
    Sabotage(
        "link-left-behind-a-drop",
        _CONNECTION,
        "        self._leave_all()\n        self._engine.lose()\n",
        "        self._engine.lose()\n",
        "A session stays locked, and its entity in use, when the connection of its receiver was lost.",
        needs=("how='abort'",),
    ),
    Sabotage(
        "link-left-behind-a-detach",
        _CONNECTION,
        """\
    def _on_detached(self, event: LinkDetached) -> None:
        self._leave(event.link)
""",
        """\
    def _on_detached(self, event: LinkDetached) -> None:
        if event.error is not None:
            self._leave(event.link)
""",
        "A session stays locked, and its entity in use, after its receiver was closed.",
        needs=("how='detach",),
    ),
    Sabotage(
        "waiting-receiver-left-behind",
        "pairbus.broker.amqp.session_waiters",
        "        self._waiters.leave(self.link)\n",
        "        self._waiters.wake()\n",
        "A session is given to a receiver that has gone, and nobody gets its messages meanwhile.",
        needs=("receive jobs", "session=None"),
    ),
    Sabotage(
        "credit-not-used-up",
        "pairbus.amqp.link",
        """\
        if self.credit > 0:
            self.credit -= 1
        performative =""",
        """\
        performative =""",
        "A receiver is sent more messages than it asked for; they stay locked and nobody works on them.",
    ),
    Sabotage(
        "drain-not-answered",
        _LINKS,
        "        if self._reserved == 0:\n            self.link.drained()\n",
        "        if self._reserved:\n            self.link.drained()\n",
        "A receiver that asks whether there is a message gets no answer when there is none.",
    ),
    Sabotage(
        "frame-at-the-end-of-a-read-kept-back",
        "pairbus.amqp.connection",
        "            if end > size_all:\n",
        "            if end >= size_all:\n",
        "A frame that came whole is not read before the next one comes: calls time out.",
    ),
    # -- the clock
    Sabotage(
        "locks-follow-the-wall-clock",
        "pairbus.broker.model.entity",
        "        self.active.shift(seconds)\n",
        "",
        "All locks expire at once when the wall clock is set forward, and two receivers work on the same message.",
        needs=("clock", "hold=4.0"),
    ),
    Sabotage(
        "session-locks-follow-the-wall-clock",
        _SESSIONS,
        "                session.lock.locked_until += seconds\n",
        "                session.lock.locked_until += 0.0\n",
        "Session locks expire when the wall clock is set forward, and two receivers work on the same session.",
        needs=("clock", "receive jobs"),
    ),
    Sabotage(
        "schedules-by-the-monotonic-clock",
        "pairbus.broker.clock",
        "        self._distance += step\n",
        "        step = 0.0\n",
        "Messages are not delivered at the time for which they are scheduled after the wall clock was set.",
        needs=("clock", "due_in"),
    ),
    # -- clients without a token, and what nobody can read
    Sabotage(
        "strangers-memory",
        "pairbus.broker.access.unauthenticated",
        "        if held > TOTAL_BYTES_MAX:\n",
        "        if held < 0:\n",
        "Clients that have shown no token fill the memory of the broker until it is killed.",
        needs=("kind='pieces'",),
    ),
    Sabotage(
        "strangers-budget-not-released",
        _CONNECTION,
        "        self.host.unauthenticated.release(self)\n        self._transport = None\n",
        "        self._transport = None\n",
        "New clients are turned away after enough connections came and went without a token.",
        needs=("stranger:",),
    ),
    Sabotage(
        "stranger-stays-for-ever",
        _CONNECTION,
        "            if now - since >= unauthenticated.WAIT_S_MAX:\n",
        "            if now - since < 0:\n",
        "Connections without a token are never closed.",
        needs=("kind='stay'",),
    ),
    Sabotage(
        "poison-schedule",
        "pairbus.broker.format.content_checks",
        "TIME_MS_MAX: Final = 253_402_300_799_999",
        "TIME_MS_MAX: Final = 2**63 - 1",
        "One message with an impossible schedule breaks the connection of everyone who peeks into the queue.",
        needs=("poison",),
    ),
)
