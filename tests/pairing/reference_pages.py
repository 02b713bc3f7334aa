"""The tables of docs/reference that are printed from the code. `python -m tests.pairing.reference_pages` writes them.

The words round a table are written by hand; the table stands between two marks.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pairbus.pairing.options import OPTIONS
from pairbus.pairing.routing.failover import TABLE
from pairbus.pairing.routing.states import EntityState
from pairbus.pairing.routing.verdicts import CASES, Table, Verdict

REFERENCE = Path(__file__).parents[2] / "docs" / "reference"
BEGIN, END = "<!-- printed from the code: begin -->", "<!-- printed from the code: end -->"
_WORDS = {Verdict.QUALIFIES: "**qualifies**", Verdict.BUSY: "*busy*", Verdict.REFUSED: "refused"}


def verdicts_page() -> str:
    lines = ["| what is raised | when | `DEFAULT` | `AS_DESCRIBED` |", "|---|---|---|---|"]
    for case in CASES:
        lines.append(f"| {case.errors} | {case.when} | {_WORDS[case.default]} | {_WORDS[case.described]} |")
    return "\n".join(lines)


def options_page() -> str:
    lines = ["| option | default | takes | means |", "|---|---|---|---|"]
    for option in OPTIONS:
        cells = (f"`{option.name}`", f"`{_shown(option.default)}`", option.allowed, option.meaning)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def failover_table() -> str:
    """Return the failover table in Markdown; a state that stays as it is is left blank."""
    rows = ["| | " + " | ".join(state.value for state in EntityState) + " |", "|---" * (len(EntityState) + 1) + "|"]
    for heading, states in TABLE.items():
        cells = ["" if after is before else after.value for before, after in states.items()]
        rows.append(f"| {heading.value} | " + " | ".join(cells) + " |")
    return "\n".join(rows)


def failover_diagram() -> str:
    """Return the failover table as a Mermaid state diagram, with one arrow for each pair of states."""
    arrows: dict[tuple[EntityState, EntityState], list[str]] = {}
    for heading, states in TABLE.items():
        for before, after in states.items():
            if after is not before:
                arrows.setdefault((before, after), []).append(heading.value)
    lines = ["stateDiagram-v2", f"    [*] --> {EntityState.HEALTHY.name}"]
    for before in EntityState:
        for after in EntityState:
            if labels := arrows.get((before, after)):
                lines.append(f"    {before.name} --> {after.name}: " + "<br>".join(labels))
    return "\n".join(lines)


def _shown(value: Any) -> str:
    if isinstance(value, Table):
        return value.name
    if isinstance(value, float):
        return f"{value:g}"
    return f'"{value}"' if isinstance(value, str) else repr(value)


def in_sync(page: Path, table: str) -> bool:
    text = page.read_text()
    assert text.count(BEGIN) == text.count(END) == 1
    return text.split(BEGIN)[1].split(END)[0].strip() == table


def write(page: Path, table: str) -> None:
    before, rest = page.read_text().split(BEGIN)
    page.write_text(f"{before}{BEGIN}\n{table}\n{END}{rest.split(END)[1]}")


if __name__ == "__main__":
    write(REFERENCE / "verdicts.md", verdicts_page())
    write(REFERENCE / "options.md", options_page())
