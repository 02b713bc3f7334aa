"""How the suite's preparers add a key with given rights: over the control socket of the broker under test.

Imported by the suite's own interpreter, which knows nothing of pairbus: standard library only.
"""

from __future__ import annotations

import json
import os
import socket
from pathlib import Path

ANSWER_S_MAX = 10.0


def add_rule(entity: str | None, name: str, rights: list[str]) -> str:
    """Adds an authorization rule to the namespace, or to one entity of it, and returns its primary key."""
    asked = {"command": "rule", "namespace": os.environ["SB_NAMESPACE"], "name": name, "rights": rights}
    if entity is not None:
        asked["entity"] = entity
    answer = _request(Path(os.environ["SB_DATA"]), asked)
    if not answer.get("ok"):
        raise RuntimeError(f"the broker made no rule {name} with {', '.join(rights)}: {answer.get('error', answer)}")
    return str(answer["primary_key"])


def _request(data: Path, message: dict[str, object]) -> dict[str, object]:
    # Through the folder's descriptor: a socket's path has 108 bytes at most, a data folder's may have more.
    folder = os.open(data, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
            sock.settimeout(ANSWER_S_MAX)
            sock.connect(f"/proc/self/fd/{folder}/control.sock")
            sock.sendall(json.dumps(message).encode() + b"\n")
            with sock.makefile("rb") as lines:
                answer: dict[str, object] = json.loads(lines.readline())
                return answer
    finally:
        os.close(folder)
