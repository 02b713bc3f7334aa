"""The broker's "no" as a value: what is said to the peer, decided far from the wire. Pure."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Refusal:
    condition: str
    description: str
