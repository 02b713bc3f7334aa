"""Seeded bugs in the wire client, in the syphon and in what a paired client decides."""

from __future__ import annotations

from .sabotage import Sabotage

_SENDER = "pairbus.wire.sender"
_RECEIVER = "pairbus.wire.receiver"
_TRANSFERS = "pairbus.syphon.core.transfer_state"
_DISPATCH = "pairbus.pairing.routing.dispatch"

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
                for transfer in reversed(transfers):
""",
        """\
            if len(transfers) > 1:
                return self.confirmed(transfers)
                for transfer in reversed(transfers):
""",
        "All messages of a batch are gone if the primary refuses one of them.",
        needs=("a pair",),
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
        "            self._coordinator.commands.extend(rotation.failed(pick, now, error))\n",
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
        "pairbus.pairing.routing.failover",
        "        Input.PING_SUCCEEDED:        (H, S, H, H),",
        "        Input.PING_SUCCEEDED:        (H, S, F, F),",
        "Messages go through the backlog for ever, although the primary is well again.",
        needs=("a pair",),
    ),
    Sabotage(
        "failover-timer-forgotten",
        "pairbus.pairing.routing.failover",
        "        if self.state is S and now >= self.since + self.failover_interval:\n",
        "        if self.state is S and now >= self.since + 1e9 * self.failover_interval:\n",
        "Sends fail for as long as the primary is away, and nothing is diverted.",
        needs=("a pair",),
    ),
)
