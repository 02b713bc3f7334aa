"""Defines `Refusal`: the error condition and the text with which the broker refuses a request. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Refusal:
    """`is_unknown`: it is refused, but may still have been carried out, which only a restart shows."""

    condition: str
    description: str
    is_unknown: bool = field(default=False, kw_only=True)
