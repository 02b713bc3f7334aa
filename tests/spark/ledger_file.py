"""Ledgers written by hand: a `LedgerFile` is one file of one writer."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from pairbus.ledger import SCHEMA

END = 1000.0


class LedgerFile:
    """Lines at times of our choosing. As a block it ends as a clean close does; `cut` leaves the end away. Without
    `series` it is a file of an earlier version."""

    def __init__(
        self,
        folder: Path,
        writer: str,
        ns: str = "",
        *,
        pid: int = 1,
        number: int = 1,
        t: float = 0.0,
        series: str | None = None,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.path = folder / f"{writer}-{pid}-{number:06d}.jsonl"
        self.ns = ns
        self.end: float | None = END
        self.reason = "closed"
        self.lines: list[dict[str, Any]] = [
            {"schema": SCHEMA, "writer": writer, "pid": pid, "t": t, "pairbus": "0.1.0"}
        ]
        if series is not None:
            self.lines[0] |= {"series": series, "number": number}

    def __call__(
        self, kind: str, t: float, entity: str | None = None, mid: str | None = None, **more: Any
    ) -> LedgerFile:
        line = {"t": t, "kind": kind, "ns": self.ns, "entity": entity, "mid": mid}
        if kind not in ("state", "gap"):
            line["outcome"] = "ok"
        line |= {name.rstrip("_"): value for name, value in more.items()}
        self.lines.append({name: value for name, value in line.items() if value is not None})
        return self

    def cut(self) -> LedgerFile:
        self.end = None
        return self

    def rotated(self, t: float) -> LedgerFile:
        self.end, self.reason = t, "rotated"
        return self

    def __enter__(self) -> LedgerFile:
        return self

    def __exit__(self, *exc: object) -> None:
        text = "".join(json.dumps(line) + "\n" for line in self.lines)
        if self.end is not None:
            text += (
                json.dumps({"t": self.end, "kind": "end", "reason": self.reason, "events": len(self.lines) - 1}) + "\n"
            )
        self.path.write_text(text)
