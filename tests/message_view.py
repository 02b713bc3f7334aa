"""The sections of an encoded message, as a test wants to look at them."""

from __future__ import annotations

from typing import Any

from pairbus.amqp import message
from pairbus.amqp.message import Header, Properties


class View:
    def __init__(self, payload: Any) -> None:
        self.payload = bytes(payload)
        self.sections = message.split(self.payload)

    @property
    def header(self) -> Header:
        return message.read_header(self.payload, self.sections)

    @property
    def properties(self) -> Properties:
        return message.read_properties(self.payload, self.sections)

    @property
    def application_properties(self) -> dict[str, Any]:
        return message.read_application_properties(self.payload, self.sections)

    @property
    def message_annotations(self) -> dict[Any, Any]:
        return message.read_message_annotations(self.payload, self.sections)

    @property
    def delivery_annotations(self) -> dict[Any, Any]:
        return message.read_delivery_annotations(self.payload, self.sections)

    @property
    def body(self) -> list[tuple[str, Any]]:
        return message.read_body(self.payload, self.sections)
