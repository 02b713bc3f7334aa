"""Defines `Refusal`: the error condition and the text with which the broker refuses a request. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    condition: str
    description: str
