"""The paired classes derive from the SDK's: a name of ours that the SDK has too would replace what it does."""

from __future__ import annotations

import pytest

import pairbus.aio.client
import pairbus.aio.receiver
import pairbus.aio.sender
import pairbus.sync.client
import pairbus.sync.receiver
import pairbus.sync.sender

#: Of each class, what it replaces on purpose.
CLIENT = {"close", "from_connection_string"} | {
    f"get_{kind}" for kind in ("queue_sender", "topic_sender", "queue_receiver", "subscription_receiver")
}
SENDER = {"cancel_scheduled_messages", "close", "create_message_batch", "schedule_messages", "send_messages"}
RECEIVER = {"peek_messages", "receive_deferred_messages", "receive_messages"}
RECEIVER |= {"_do_retryable_operation", "_handle_exception", "_mgmt_request_response", "_settle_message_with_retry"}


@pytest.mark.parametrize(
    ("ours", "replaced"),
    [
        (pairbus.aio.client.ServiceBusClient, CLIENT),
        (pairbus.sync.client.ServiceBusClient, CLIENT),
        (pairbus.aio.sender.PairedSender, SENDER | {"_check_live"}),
        (pairbus.sync.sender.PairedSender, SENDER | {"_check_live"}),
        (pairbus.aio.receiver.PairedReceiver, RECEIVER | {"_check_live", "_inner_anext"}),
        (pairbus.sync.receiver.PairedReceiver, RECEIVER | {"_check_live", "_inner_next"}),
    ],
)
def test_p7_of_the_sdks_names_only_those_meant_are_replaced(ours: type, replaced: set[str]) -> None:
    sdk = next(base for base in ours.__mro__ if base.__module__.startswith("azure."))
    theirs = {name for base in sdk.__mro__[:-1] for name in vars(base)}
    own = {name for base in ours.__mro__ if base.__module__.startswith("pairbus.") for name in vars(base)}
    assert {name for name in own & theirs if not name.startswith(("__", "_abc_"))} == replaced
    assert len(own - theirs) >= 5
