"""The page about errors: its ten lines send again what is not confirmed, and its table has every error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from azure.servicebus import ServiceBusMessage, exceptions

from pairbus.pairing import errors
from pairbus.pairing.errors import (
    BacklogUnavailableError,
    EntityThrottledError,
    NoTimeLeftError,
    PairingError,
    SentSoFar,
)
from tests.document_blocks import find

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "handle-errors.md"


class Sender:
    """Raises these errors, one a call, and then takes what it is given."""

    def __init__(self, *raised: Exception) -> None:
        self.raised = list(raised)
        self.given: list[list[str]] = []

    def send_messages(self, messages: list[ServiceBusMessage]) -> None:
        self.given.append([str(each.message_id) for each in messages])
        if self.raised:
            raise self.raised.pop(0)


def send_all(*arguments: Any, **options: Any) -> Any:
    (block,) = [each for each in find(PAGE.name, PAGE.read_text()) if "def send_all" in each.text]
    program = block.text.partition("\nwith ServiceBusClient")[0]
    names: dict[str, Any] = {}
    exec(compile(program, PAGE.name, "exec"), names)  # our own page
    return names["send_all"](*arguments, pause_s=0, **options)


def told(error: Any, confirmed: tuple[str, ...], unknown: tuple[str, ...]) -> Exception:
    error.tells(SentSoFar(3, len(confirmed), confirmed, len(unknown), unknown))
    assert isinstance(error, Exception)
    return error


MESSAGES = [ServiceBusMessage("x", message_id=id) for id in ("a", "b", "c")]


@pytest.mark.parametrize("kind", [BacklogUnavailableError, EntityThrottledError, NoTimeLeftError])
def test_p22_what_is_not_confirmed_is_sent_again_with_its_id(kind: type[Exception]) -> None:
    sender = Sender(told(kind("first"), ("a",), ("b",)), exceptions.ServiceBusConnectionError(message="second"))
    send_all(sender, MESSAGES)
    assert sender.given == [["a", "b", "c"], ["b", "c"], ["b", "c"]]


def test_p22_the_last_error_comes_out_and_so_does_one_that_another_try_does_not_mend() -> None:
    last = BacklogUnavailableError("again and again")
    sender = Sender(BacklogUnavailableError("once"), last)
    with pytest.raises(BacklogUnavailableError) as caught:
        send_all(sender, MESSAGES, tries=2)
    assert caught.value is last
    sender = Sender(exceptions.MessageSizeExceededError(message="too large"))
    with pytest.raises(exceptions.MessageSizeExceededError):
        send_all(sender, MESSAGES)
    assert len(sender.given) == 1


def test_p22_the_page_names_every_error_and_what_it_tells() -> None:
    page = PAGE.read_text()
    kinds = [each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, PairingError)]
    # What a client logs or announces, and never raises to an application, is on the page of the control file.
    wanted = {kind.__name__ for kind in kinds} - {"ControlFileError"}
    assert [name for name in sorted(wanted) if f"`{name}`" not in page] == []
    telling = sorted(kind.__name__ for kind in kinds if "tells" in dir(kind) and kind is not errors.NotTriedError)
    sentence = page.partition("by their ids: ")[2].partition("\n")[0]
    assert [name for name in telling if f"`{name}`" not in sentence] == []
