"""Seeded bugs in the wire client, in the syphon and in what a paired client decides."""

from __future__ import annotations

from . import Sabotage

_SENDER = "pairbus.wire.sender"
_RECEIVER = "pairbus.wire.receiver"
_TRANSFERS = "pairbus.syphon.core.transfer_state"
_COORDINATOR = "pairbus.pairing.routing.coordinator"
_DISPATCH = "pairbus.pairing.routing.dispatch"
_FAILOVER = "pairbus.pairing.routing.failover"
_PATIENCE = "pairbus.pairing.routing.patience"
_PINS = "pairbus.pairing.routing.pins"
_ROTATION = "pairbus.pairing.routing.rotation"

SABOTAGES = (
    # -- the wire client
    Sabotage(
        "lost-answer-reported-as-confirmed",
        _SENDER,
        """\
                _fail(
                    future, kind(condition, f"a message to {self.entity} was under way: {text}", outcome_unknown=True)
                )
""",
        """\
                future.set_result(None)
""",
        "A message that was on its way when the connection was lost is called sent, and is nowhere.",
        needs=("Doom",),
    ),
    Sabotage(
        "unknown-outcome-sent-again",
        _SENDER,
        """\
        try:
            await future
        finally:
            timer.cancel()

    def send_nowait(""",
        """\
        try:
            await future
        except WireError as error:
            if not error.outcome_unknown:
                raise
            await self.send(payload, message_format=message_format, timeout=timeout)
        finally:
            timer.cancel()

    def send_nowait(""",
        "A message that was sent once is there twice.",
        needs=("Doom",),
    ),
    Sabotage(
        "timeout-reported-as-not-sent",
        _SENDER,
        "self._sent_too_late() if sent else self._never_sent()",
        "self._never_sent()",
        "An application sends a message again that is stored already, because it was told that it was not sent.",
        needs=("send",),
    ),
    Sabotage(
        "rejection-read-as-accepted",
        _SENDER,
        "        if type(state) is Accepted:\n",
        "        if state is not None:\n",
        "A message that the broker refused is called sent.",
        needs=("poison",),
    ),
    Sabotage(
        "refused-settlement-read-as-done",
        "pairbus.wire.confirms",
        "if type(state) is Rejected and state.error is not None and state.error.condition != DEAD_LETTER:",
        "if type(state) is Rejected and state.error is None:",
        "An application is told that it completed a message whose lock it had lost.",
        needs=("hold=7.0",),
    ),
    Sabotage(
        "settlement-not-waited-for",
        _RECEIVER,
        """\
            try:
                await settlement.entry
            finally:
                timer.cancel()
""",
        """\
            timer.cancel()
""",
        "An application is told that it completed a message before the broker has heard of it.",
        needs=("outgoing=True",),
    ),
    Sabotage(
        "message-handed-out-twice",
        _RECEIVER,
        "            taken = list(buffer)\n            buffer.clear()\n",
        "            taken = list(buffer)\n            if not self.credit:\n                buffer.clear()\n",
        "An application gets a message twice from one delivery.",
        needs=("credit=",),
    ),
    # -- the syphon
    Sabotage(
        "syphon-completes-before-the-primary-confirms",
        _TRANSFERS,
        "            transfer.epoch = epoch\n        return Send(path, chosen), commands\n",
        """\
            transfer.epoch = epoch
        commands += [Complete(queue, given) for queue, given in _by_queue(chosen)]
        return Send(path, chosen), commands
""",
        "A message on its way home is gone when the primary fails at that moment.",
        needs=("a pair",),
    ),
    Sabotage(
        "syphon-takes-an-unknown-outcome-for-confirmed",
        _TRANSFERS,
        """\
        path, epoch = transfers[0].path, transfers[0].epoch
        verdict = verdict_of(error)
""",
        """\
        if error.outcome_unknown:
            return self.confirmed(transfers)
        path, epoch = transfers[0].path, transfers[0].epoch
        verdict = verdict_of(error)
""",
        "A message on its way home is gone when the connection to the primary is lost.",
        needs=("a pair", "syphon 1", "contoso"),
    ),
    Sabotage(
        "syphon-completes-what-it-left",
        _TRANSFERS,
        "                commands.append(Leave(path, left, self.destinations.trouble(path) or trouble))\n",
        "                commands += [Complete(queue, given) for queue, given in _by_queue(left)]\n",
        "A message that the primary did not take is removed from the backlog.",
        needs=("a pair", "syphon 1", "contoso"),
    ),
    Sabotage(
        "syphon-queues-a-message-twice",
        _TRANSFERS,
        "                    self._queue_up(transfer)\n                    wanted.add(path)\n",
        "                    self._queue_up(transfer)\n                    self._queue_up(transfer)\n"
        "                    wanted.add(path)\n",
        "Every message comes home twice, or the second time empty.",
        needs=("a pair",),
    ),
    Sabotage(
        "syphon-reports-a-refused-batch-as-confirmed",
        _TRANSFERS,
        """\
            if len(transfers) > 1:
                self.destinations.batch_refused(path, error, len(transfers))
""",
        """\
            if len(transfers) > 1:
                return self.confirmed(transfers)
""",
        "All messages of a batch are gone if the primary refuses one of them.",
        needs=("a pair",),
    ),
    Sabotage(
        "syphon-forgets-what-is-home",
        _TRANSFERS,
        "            if key in self._remembered:\n",
        "            if key in self._remembered and self._stopping:\n",
        "A message comes home a second time when its completion is lost.",
        needs=("a pair", "syphon 1"),
    ),
    # -- pairing
    Sabotage(
        "primary-timeout-reported-as-sent",
        _DISPATCH,
        "        self._primary_answered(now, error, verdict)\n        self._trial = False\n",
        """\
        self._primary_answered(now, error, verdict)
        if isinstance(error, OperationTimeoutError):
            self._outcome = SENT
        self._trial = False
""",
        "A send that timed out is called sent, and the message may be nowhere.",
        needs=("a pair",),
    ),
    Sabotage(
        "failure-of-the-backlog-swallowed",
        _DISPATCH,
        "            self._coordinator.commands.extend(rotation.failed(pick, now, error, is_definite=refuses))\n",
        "            self._outcome = SENT\n",
        "A message that no backlog queue took is called sent.",
        needs=("a pair",),
    ),
    Sabotage(
        "diverted-message-sent-again",
        _DISPATCH,
        '        self._arrived("backlog")\n        self._outcome = SENT\n',
        '        self._arrived("backlog")\n',
        "A message that the backlog has taken is sent again and again.",
        needs=("a pair",),
    ),
    Sabotage(
        "ping-does-not-bring-back",
        _FAILOVER,
        "        Input.PING_SUCCEEDED:        (H, S, H, H),",
        "        Input.PING_SUCCEEDED:        (H, S, F, F),",
        "Messages go through the backlog for ever, although the primary is well again.",
        needs=("a pair",),
    ),
    Sabotage(
        "failover-timer-forgotten",
        _FAILOVER,
        "        if self.state is S and now >= self.since + self.failover_interval:\n",
        "        if self.state is S and now >= self.since + 1e9 * self.failover_interval:\n",
        "Sends fail for as long as the primary is away, and nothing is diverted.",
        needs=("a pair",),
    ),
    Sabotage(
        "failover-before-its-time",
        _FAILOVER,
        "        if self.state is S and now >= self.since + self.failover_interval:\n",
        "        if self.state is S and now >= self.since + self.failover_interval / 2:\n",
        "A short hiccup of the primary sends messages through the backlog.",
        needs=("a pair",),
    ),
    Sabotage(
        "late-success-ends-the-failover",
        _FAILOVER,
        "        Input.SEND_SUCCEEDED:        (H, H, F, U),",
        "        Input.SEND_SUCCEEDED:        (H, H, H, H),",
        "The answer to an old send brings an entity back whose primary is away.",
        needs=("a pair",),
    ),
    Sabotage(
        "one-entity-takes-the-others-along",
        _COORDINATOR,
        "        self._note(failover, commands)\n",
        """\
        self._note(failover, commands)
        for each in self._entities.values():
            self._note(each, each.primary_failed(now, each.epoch))
""",
        "An entity that fails takes healthy ones with it into the backlog.",
        needs=("a pair",),
    ),
    Sabotage(
        "failure-shown-while-suspect",
        _DISPATCH,
        'return settings.while_suspect == "divert" or settings.failover_interval == 0',
        "return settings.failover_interval == 0",
        "Callers see failures that they asked to be spared.",
        needs=("a pair", "while suspect: divert"),
    ),
    Sabotage(
        "definite-failures-are-waited-on",
        _COORDINATOR,
        "        return PrimaryTerms(self.ends_at)\n",
        "        return None\n",
        "The SDK's retries of a refused connection come before the backlog.",
        needs=("a pair",),
    ),
    Sabotage(
        "trial-waits-for-retries",
        _DISPATCH,
        "self._to_primary(now, remaining, coordinator.trial_terms)",
        "self._to_primary(now, remaining, None)",
        "The message that tries the primary waits for all retries, though the backlog is behind it.",
        needs=("a pair", "trial every"),
    ),
    Sabotage(
        "primary-takes-all-the-time",
        _DISPATCH,
        "return TryPrimary(granted_s, terms)",
        "return TryPrimary(remaining, terms)",
        "A silent primary leaves no time for the backlog.",
        needs=("a pair",),
    ),
    Sabotage(
        "primary-not-tried-once-more",
        _DISPATCH,
        "        if pick is None:\n            return self._to_primary_once_more(now, remaining)\n",
        "        if pick is None:\n            return self._fail(self._backlog_unavailable(now))\n",
        "A send fails when the backlog is away, although the primary would take it.",
        needs=("a pair", "fabrikam"),
    ),
    Sabotage(
        "both-refuse-and-nobody-asks-again",
        _DISPATCH,
        "self._coordinator.retries.wait_s(self._rounds) if self._backlog_refuses else None",
        "None",
        "A send fails at once when both namespaces refuse for a moment, which the SDK alone would have ridden out.",
        needs=("a pair", "it tries again"),
    ),
    Sabotage(
        "queues-of-a-host-that-refuses-asked-one-by-one",
        _DISPATCH,
        "        if self._host_refuses or budget.is_over(remaining - kept_s):\n",
        "        if budget.is_over(remaining - kept_s):\n",
        "A host that refuses is asked at every backlog queue before the primary is.",
        needs=("a pair", "fabrikam"),
    ),
    Sabotage(
        "answer-forgotten-in-the-silence-after-it",
        "pairbus.pairing.guarded_sender",
        "    if answer is None or not isinstance(error, OperationTimeoutError):\n",
        "    if answer is None or isinstance(error, ServiceBusError):\n",
        "An entity that refuses passes for an outage where the SDK's retry runs out of time.",
        needs=("a pair", "it tries again"),
    ),
    Sabotage(
        "change-of-state-not-told",
        _FAILOVER,
        "        return [Announce(StateChanged(self.entity, previous, state, heading.cause))]\n",
        "        return [] if state is S else [Announce(StateChanged(self.entity, previous, state, heading.cause))]\n",
        "An operator does not hear that an entity began to fail.",
        needs=("a pair",),
    ),
    Sabotage(
        "pings-come-too-often",
        _FAILOVER,
        "            self._next = now + self.ping_interval\n            commands.append(SendPing",
        "            self._next = now + self.ping_interval / 2\n            commands.append(SendPing",
        "A primary that comes up again meets twice the pings.",
        needs=("a pair",),
    ),
    Sabotage(
        "ping-before-the-last-is-answered",
        _FAILOVER,
        'if self.state is H or self._held or self._probing or self.probe == "trial":',
        'if self.state is H or self._held or self.probe == "trial":',
        "Pings to a silent primary pile up.",
        needs=("a pair",),
    ),
    Sabotage(
        "sender-changes-its-queue",
        _ROTATION,
        "            self._kept[sender] = (failover, queue)\n",
        "            self._kept.clear()\n",
        "Each sender opens links to every backlog queue.",
        needs=("a pair",),
    ),
    Sabotage(
        "failed-queue-not-ejected",
        _ROTATION,
        "        self._in.remove(pick.queue)\n",
        "        return []\n",
        "Every message waits for a backlog queue that has failed all before it.",
        needs=("a pair", "fabrikam"),
    ),
    Sabotage(
        "ejected-queue-tried-at-once",
        _ROTATION,
        "                if now >= out.due and not out.trying and queue not in tried:\n",
        "                if not out.trying and queue not in tried:\n",
        "Messages go to a backlog queue that has just failed.",
        needs=("a pair", "fabrikam"),
    ),
    Sabotage(
        "trials-of-an-ejected-queue-not-alone",
        _ROTATION,
        "                if now >= out.due and not out.trying and queue not in tried:\n",
        "                if now >= out.due and queue not in tried:\n",
        "All messages wait for a backlog queue that one of them could have tried.",
        needs=("a pair", "fabrikam"),
    ),
    # -- fleets: the phase of pings, the return ramp, the control file
    Sabotage(
        "all-clients-ping-at-once",
        _FAILOVER,
        "            self._next = at + self.phase * self.ping_interval\n",
        "            self._next = at + self.ping_interval\n",
        "A fleet that failed over in one second pings in one second.",
        needs=("a pair", "a fleet"),
    ),
    Sabotage(
        "all-clients-return-at-once",
        _FAILOVER,
        "        if not self.return_delay or not self.is_diverting:\n",
        "        if self.return_delay or not self.is_diverting:\n",
        "A primary that comes up meets all clients of a fleet in one second.",
        needs=("a pair", "return ramp 8 s"),
    ),
    Sabotage(
        "return-ramp-has-no-end",
        _FAILOVER,
        "        if self._home_at is not None and now >= self._home_at:\n",
        "        if self._home_at is not None and now >= self._home_at + 1e9:\n",
        "Messages go through the backlog for ever, although the primary is well again.",
        needs=("a pair", "return ramp 2 s"),
    ),
    Sabotage(
        "pings-in-the-return-ramp",
        _FAILOVER,
        "        if self._home_at is not None:\n            return self._home_at\n        if self.state is H",
        "        if self.state is H",
        "A primary that was found healthy is pinged until the ramp is over.",
        needs=("a pair", "return ramp 8 s"),
    ),
    Sabotage(
        "pinned-entity-fails-over",
        _FAILOVER,
        "        if state is previous or (self.pin is not None and heading is not Input.RAMP_OVER):\n",
        "        if state is previous:\n",
        "An entity that the operator keeps at the primary fails over.",
        needs=("a pair", "'healthy'", "contoso"),
    ),
    Sabotage(
        "ping-ends-a-pinned-failover",
        _FAILOVER,
        "self.forced(now, hold=True, heading=Input.PINNED_FAILED_OVER)",
        "self.forced(now, hold=False, heading=Input.PINNED_FAILED_OVER)",
        "A fleet that the operator keeps away from the primary goes back to it.",
        needs=("a pair", "'failed-over'"),
    ),
    Sabotage(
        "lifted-pin-holds",
        _FAILOVER,
        "        elif self.is_diverting:\n            commands += self.forced(now, hold=False)\n",
        "",
        "Messages go through the backlog for ever after the operator has lifted the pin.",
        needs=("a pair", "'failed-over'"),
    ),
    Sabotage(
        "pins-by-letter-case",
        _PINS,
        "{name.lower(): _WORDS[word] for",
        "{name: _WORDS[word] for",
        "A line of the control file does nothing because it spells the entity in another way.",
        needs=("a pair", "'ONCE'"),
    ),
    Sabotage(
        "star-wins-over-the-name",
        _PINS,
        "return self._by_name.get(entity.lower(), self._others)",
        "return self._others or self._by_name.get(entity.lower())",
        "An exception in the control file does nothing.",
        needs=("a pair", "'*'", "'orders'"),
    ),
    Sabotage(
        "entity-used-later-not-pinned",
        _COORDINATOR,
        "        if self.pins is not NO_PINS:\n            self._note",
        "        if self.pins is NO_PINS:\n            self._note",
        "A sender that is made after the operator's change goes to the primary all the same.",
        needs=("a pair", "'*'"),
    ),
    Sabotage(
        "change-of-the-control-file-not-told",
        _COORDINATOR,
        "        self.commands.append(Announce(ControlFileChanged(pins.written)))\n",
        "",
        "Nobody hears that the operator's file has changed.",
        needs=("a pair", "control file"),
    ),
    Sabotage(
        "calls-given-up-never-count",
        _DISPATCH,
        "            if silent_s > patience:\n",
        "            if silent_s > math.inf:\n",
        "Where every caller gives up early, nothing ever fails over.",
        needs=("a pair", "is given up after"),
    ),
    Sabotage(
        "ready-link-to-a-queue-that-failed",
        _DISPATCH,
        "pick is None or pick.trial or queue in self._tried:",
        "pick is None or queue in self._tried:",
        "The trial of an ejected queue goes to another one, and the queue never returns.",
        needs=("a pair", "in haste", "link to"),
    ),
    Sabotage(
        "call-given-up-after-a-return-fails-over-again",
        _FAILOVER,
        "            self.asked_at = None  # what said so is an answer (P16)\n",
        "",
        "After an outage the first caller who gives up fails the entity over again, though its primary is well.",
        needs=("a pair", "is given up after"),
    ),
    Sabotage(
        "patience-learns-an-average",
        _PATIENCE,
        "        self._quantile_s = sorted(took)[math.ceil(len(took) * _QUANTILE) - 1]\n",
        "        self._quantile_s = sum(took) / len(took)\n",
        "A few slow answers make every caller wait for a primary that is away.",
        needs=("a pair", "in haste: adaptive"),
    ),
    Sabotage(
        "patience-forgets-its-floor",
        _PATIENCE,
        "self._factor * max(self._least_s, self._multiple * self._quantile_s)",
        "self._factor * self._multiple * self._quantile_s",
        "A pause of the sender's own process fails an entity over whose primary is well.",
        needs=("a pair", "in haste: adaptive"),
    ),
    Sabotage(
        "ping-at-once-after-any-short-silence",
        _COORDINATOR,
        "            if now - self.answered_at < hasty_s / 2:  ",
        "            if hasty_s:  ",
        "All clients of a fleet that meets an outage ping in the same second.",
        needs=("a pair", "in haste: adaptive"),
    ),
    Sabotage(
        "throttled-messages-go-to-the-busy-primary",
        _DISPATCH,
        """\
            if until <= now:
                return self._to_primary(now, remaining, failover.terms)
""",
        """\
            if until <= now or self._coordinator.diverts_throttled:
                return self._to_primary(now, remaining, failover.terms)
""",
        "Every send asks a primary again that has just said to leave it alone.",
        needs=("a pair", "while throttled: divert", "throttle"),
    ),
    Sabotage(
        "links-open-as-long-as-they-like",
        _COORDINATOR,
        "            self._terms = replace(self._terms, opening_s=openings.silence_s)\n",
        "            self._terms = replace(self._terms, opening_s=math.inf)\n",
        "A caller whose link is not open waits for half of its time for a primary that says nothing.",
        needs=("a pair", "in haste: adaptive"),
    ),
    Sabotage(
        "no-link-after-a-return",
        _COORDINATOR,
        "                self.commands.append(OpenLinks(entity))\n",
        "                pass\n",
        "The first caller after an outage opens the link, and waits where the primary is gone again.",
        needs=("a pair", "kill"),
    ),
    Sabotage(
        "slow-ping-ends-a-brownout",
        _COORDINATOR,
        "        if brownout is not None and took_s > brownout.slower_than_s:\n",
        "        if brownout is not None and took_s > 1e9 * brownout.slower_than_s:\n",
        "Messages go back to a primary that is as slow as before.",
        needs=("a pair", "Brownout"),
    ),
    Sabotage(
        "slow-sends-forgotten",
        _COORDINATOR,
        "(slow_sends.is_slow(took_s) if trial else slow_sends.noted(took_s))",
        "trial and slow_sends.is_slow(took_s)",
        "A primary that takes seconds for each message is never left.",
        needs=("a pair", "Brownout"),
    ),
)
