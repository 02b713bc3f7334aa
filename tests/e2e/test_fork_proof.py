"""A worker process forked with a paired client in it: it sends, or is told clearly; the parent is not disturbed."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path

from .account import ids
from .scenarios import in_both_apis
from .world import QUICK, World

ROOT = Path(__file__).parent.parent.parent


@in_both_apis(each={"healthy": ("healthy",), "failed-over": ("failed-over",)})
async def test_a_forked_worker_sends_or_is_told_and_the_parent_goes_on(world: World, queue: str, when: str) -> None:
    work = {
        "api": world.api,
        "queue": queue,
        "when": when,
        "prefix": world.primary_name,
        "primary": world.primary.connection_string,
        "secondary": world.secondary.connection_string,
        "options": {**QUICK, "primary_name": world.primary_name},
        "ca_file": world.secondary.ca_file,
    }
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-W", "ignore", "-m", "tests.e2e.fork_worker"),
        cwd=ROOT,
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(json.dumps(work).encode()), 60)
    assert process.returncode == 0, err.decode()[-3000:]
    lines = [json.loads(line) for line in out.splitlines()]
    told = {(line["who"], line["what"]): line for line in lines}
    for line in lines:
        assert line["elapsed"] <= QUICK["send_timeout"] + 1, line
        if line["error"] is None:
            world.account.confirmed.add(line["id"])
            world.account.entities[line["id"]] = queue
    # the parent, before and after the fork, and a client that the child made itself
    for who, what in (("parent", "before"), ("parent", "after"), ("child", "own client")):
        assert told[who, what]["error"] is None, told
    # the inherited ones: sent, or a clear error
    for what in ("inherited sender", "inherited client"):
        assert told["child", what]["error"] in (None, "ForkedClientError"), told
    tally = await world.restore_message()
    assert sorted(ids(tally.home)) == sorted(world.account.confirmed), "each once: no stream was shared"
