"""Our halves stand behind the SDK's classes in the order of bases: of a name that both have, the SDK's would win."""

from __future__ import annotations

from types import ModuleType

import azure.servicebus
import azure.servicebus.aio
import pytest

from pairbus.paired.client import ClientHalf
from pairbus.paired.receiver import ReceiverHalf
from pairbus.paired.sender import SenderHalf

#: What the paired classes take from the half by name.
TAKEN = {"_check_live"}


@pytest.mark.parametrize("api", [azure.servicebus, azure.servicebus.aio])
@pytest.mark.parametrize(
    ("half", "name"),
    [(ClientHalf, "ServiceBusClient"), (ReceiverHalf, "ServiceBusReceiver"), (SenderHalf, "ServiceBusSender")],
)
def test_p7_the_sdk_has_none_of_our_names(half: type, name: str, api: ModuleType) -> None:
    ours = {each for each in vars(half) if not each.startswith("__")}
    theirs = {each for base in getattr(api, name).__mro__[:-1] for each in vars(base)}
    assert len(ours) >= 5 and ours & theirs <= TAKEN
