"""The syphon, hosted by the application or run as a command, brings everything home."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from pairbus.amqp.message import Properties, encode_message

from .scenarios import in_both_apis
from .world import AT_ONCE, World

ROOT = Path(__file__).parent.parent.parent
HOSTED = {"enable_syphon": True, "syphon_engine": "in-process"}


@in_both_apis()
async def test_p36_the_syphon_in_the_application_brings_all_home(world: World) -> None:
    queue, topic = await world.queue(), await world.topic("all")
    await world.backlog_queues()
    async with world.pair(**HOSTED, sdk=AT_ONCE) as pair:
        async with world.fault("unreachable"):
            for entity in (queue, topic):
                await pair.deliver(entity, world.message(session_id="s"))
                await pair.deliver(entity, *world.messages(30))
        await world.until_drained()
        await pair.until_state(queue, "HEALTHY")
    tally = await world.nothing_lost(home=True)
    assert len(tally.home) == 62
    assert not tally.doubled


@in_both_apis()
async def test_p36_what_waited_before_the_application_started_comes_home_too(world: World, queue: str) -> None:
    async with world.fault("unreachable"), world.pair(sdk=AT_ONCE) as pair:
        await pair.deliver(queue, *world.messages(20))
    async with world.pair(**HOSTED):
        await world.until_drained()
    assert len((await world.nothing_lost(home=True)).home) == 20


@in_both_apis()
async def test_p5_p36_a_host_with_fewer_queues_reads_those_of_every_sender(world: World, queue: str) -> None:
    async with world.fault("unreachable"), world.pair(backlog_queue_count=8, sdk=AT_ONCE) as pair:
        await pair.deliver(queue, world.message())
        for index in range(8):
            await put(world, index, queue)
    async with world.pair(**HOSTED, backlog_queue_count=1):
        await world.until_drained()
    assert len(await world.at_home(queue)) == 9


@in_both_apis()
async def test_p5_p36_without_the_manage_right_a_host_reads_as_many_as_it_was_told(world: World, queue: str) -> None:
    await world.backlog_queues(1)
    async with world.pair(**HOSTED, manage=False, backlog_queue_count=2):
        await world.manage("create_queue", world.backlog_path(1), at=world.secondary)
        await put(world, 0, queue)
        await world.until_home(queue, 1)


async def put(world: World, index: int, queue: str) -> None:
    async with world.wire(world.secondary) as wire:
        sender = await wire.sender(world.backlog_path(index))
        message_id = world.message().message_id
        await sender.send(encode_message(None, None, Properties(message_id=message_id), {"x-ms-path": queue}, b"x"))


@in_both_apis()
async def test_p39_several_syphons_at_once_are_safe(world: World, queue: str) -> None:
    async with world.fault("unreachable"), world.pair(sdk=AT_ONCE) as pair:
        for _ in range(4):
            await pair.deliver(queue, *world.messages(50))
    async with world.pair(**HOSTED), world.pair(**HOSTED), world.pair(**HOSTED):
        await world.until_drained()
    tally = await world.nothing_lost(home=True)
    assert len(tally.home) == 200
    assert not tally.doubled


async def command(world: World, *arguments: str) -> tuple[int, str, str]:
    """`pairbus syphon --engine in-process`, the connection strings in files."""
    folder = world.folder
    for name, namespace in (("primary", world.primary), ("secondary", world.secondary)):
        (folder / name).write_text(namespace.connection_string)
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "pairbus", "syphon", "--engine", "in-process"),
        *("--primary", f"@{folder / 'primary'}", "--secondary", f"@{folder / 'secondary'}"),
        *("--primary-name", world.primary_name, "--ca-file", world.secondary.ca_file),
        *arguments,
        cwd=ROOT,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, err = await asyncio.wait_for(process.communicate(), 60)
    assert process.returncode is not None
    return process.returncode, out.decode(), err.decode()
