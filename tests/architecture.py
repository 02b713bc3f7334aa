"""Which folder may import which: `python -m tests.architecture` writes it into the table of ARCHITECTURE.md."""

from __future__ import annotations

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent / "ARCHITECTURE.md"

# Folder, or file at the top of one → what it may import of pairbus besides itself. A folder stands for what lies in it.
# "" is the package itself, for its version.
ROOMS: dict[str, set[str]] = {
    "": {"errors", "pairing", "sync"},  # what the package hands out, imported when it is asked for
    "billing": set(),
    "errors": set(),
    "sas": {"errors"},
    "connection_string": {"errors"},
    "credentials": {"amqp", "connection_string", "sas"},
    "amqp": set(),
    "journal": set(),
    "ledger": {"", "billing", "errors"},
    "broker/refusal": set(),
    "broker/clock": set(),
    "broker/slices": set(),
    "broker/format": {"amqp"},
    "broker/sql": {"amqp"},
    "broker/model": {"amqp", "errors", "sas", "broker/format", "broker/refusal", "broker/slices", "broker/sql"},
    "broker/storage": {"amqp", "journal", "broker/format", "broker/model", "broker/refusal", "broker/slices"},
    "broker/operations": {"amqp", "journal", "broker/format", "broker/model", "broker/refusal", "broker/slices",
        "broker/storage"},
    "broker/telemetry": {"amqp", "billing", "ledger", "broker/format", "broker/model", "broker/operations",
        "broker/refusal"},
    "broker/access": {"amqp", "errors", "sas", "broker/model", "broker/operations", "broker/refusal", "broker/storage"},
    "broker/amqp": {"amqp", "billing", "journal", "sas", "broker/access", "broker/format", "broker/model",
        "broker/operations", "broker/refusal", "broker/server", "broker/slices", "broker/telemetry"},
    "broker/http": {"amqp", "errors", "sas", "broker/access", "broker/model", "broker/operations", "broker/refusal",
        "broker/slices"},
    "broker/net": {"errors", "journal", "broker/access", "broker/http", "broker/storage"},
    "broker/config": {"amqp", "errors", "broker/access", "broker/http", "broker/model", "broker/operations"},
    "broker/control": {"errors", "broker/access", "broker/model", "broker/refusal"},
    "broker": {"", "amqp", "errors", "journal", "ledger", "sas"},
    "wire": {"", "amqp", "billing", "connection_string", "credentials", "errors"},
    "pairing": {"", "amqp", "billing", "credentials", "errors", "ledger"},
    "syphon/core": {"amqp", "pairing/backlog", "wire/batches", "wire/errors"},
    "syphon": {"", "amqp", "billing", "credentials", "errors", "ledger", "pairing", "wire"},
    "sync": {"", "ledger", "pairing", "syphon", "wire"},
    "aio": {"", "ledger", "pairing", "syphon"},
    "cost": {"billing", "errors"},
    "spark/runtime": {"", "errors", "syphon", "spark/connector"},
    "spark/connector": {"", "amqp", "billing", "errors", "pairing", "syphon", "wire"},
    "spark/syphon": {"", "amqp", "billing", "credentials", "errors", "ledger", "pairing", "syphon", "wire",
        "spark/connector", "spark/runtime"},
    "spark/pipelines": {"", "billing", "errors", "ledger", "syphon", "wire", "spark/connector",
        "spark/runtime", "spark/syphon"},
    "spark/reports": {"", "billing", "cost", "errors", "ledger", "pairing", "spark/runtime"},
    "spark": {""},
    "telemetry": {"", "errors", "pairing"},
    "testing": {"", "broker", "errors"},
    "drill": {"", "aio", "broker", "cost", "errors", "ledger", "pairing", "spark", "syphon"},
    "commands": {"", "amqp", "broker", "connection_string", "cost", "drill", "errors", "ledger", "pairing", "spark",
        "sync", "syphon", "wire"},
    "cli": {"", "commands", "errors"},
    "__main__": {"cli"},
}  # fmt: skip

# A row of the page: the room, what it holds, and what it may import, which is written by `page`.
_ROW = re.compile(r"^\| `([\w/]+?)(?:/|\.py)` \| (.*) \| [^|]* \|$", re.MULTILINE)


def may_import(room: str) -> str:
    """Return the cell of a room. The package itself, whose version many import, is left out."""
    return ", ".join(f"`{each}`" for each in sorted(ROOMS[room]) if each) or "nothing"


def rooms_of(text: str) -> list[str]:
    """Return the rooms that have a row in the page, in its order."""
    return [found[1] for found in _ROW.finditer(text)]


def page(text: str) -> str:
    """Return the page with the last column of its table as the rules are."""

    def row(found: re.Match[str]) -> str:
        name, holds = found[1], found[2]
        return f"{found[0].partition(' | ')[0]} | {holds} | {may_import(name) if name in ROOMS else ''} |"

    return _ROW.sub(row, text)


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
