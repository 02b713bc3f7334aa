from __future__ import annotations

from pairbus.broker.telemetry.node_load import NodeLoad


class Machine:
    def __init__(self) -> None:
        self.now, self.cpu_s, self.memory, self.storage = 100.0, 5.0, 64 << 20, 3 << 20

    def load(self) -> NodeLoad:
        return NodeLoad(
            lambda: self.storage,
            clock=lambda: self.now,
            cpu_clock=lambda: self.cpu_s,
            memory_bytes=lambda: self.memory,
        )


def test_p47_the_cpu_of_the_last_second() -> None:
    machine = Machine()
    load = machine.load()
    assert load.read("cpu") == 0.0
    machine.now, machine.cpu_s = 101.0, 5.75
    assert load.read("cpu") == 75.0
    machine.now, machine.cpu_s = 101.9, 6.6
    assert load.read("cpu") == 75.0, "it looks once a second"
    machine.now = 103.0
    assert round(load.read("cpu"), 1) == 42.5


def test_p47_memory_and_storage_in_megabytes() -> None:
    machine = Machine()
    load = machine.load()
    assert (load.read("memory"), load.read("storage")) == (64.0, 3.0)
    machine.storage = 4 << 20
    assert load.read("storage") == 3.0
    machine.now += 1
    assert load.read("storage") == 4.0


def test_this_process_uses_memory_and_cpu() -> None:
    load = NodeLoad(lambda: 0, cpu_clock=lambda: 0.0)
    assert 1 < load.read("memory") < 100_000
