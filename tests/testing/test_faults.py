from __future__ import annotations

import asyncio
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pairbus.broker.control.faults import Fault
from pairbus.broker.server import Broker, serve, serve_sync
from pairbus.errors import ControlError, InvalidFault
from pairbus.testing import fault


def in_force(broker: Broker, namespace: str = "contoso") -> list[Fault]:
    return broker.faults(namespace).active(broker.clock())


def reachable(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), timeout=10).close()
    except ConnectionRefusedError:
        return False
    return True


def test_in_force_inside_gone_after(pairbus_broker: Broker) -> None:
    with fault(pairbus_broker, "throttle", entity="orders", rate=3):
        assert in_force(pairbus_broker) == [Fault("throttle", entity="orders", rate=3)]
    assert in_force(pairbus_broker) == []


def test_what_a_kind_may_be_given_and_need_not(pairbus_broker: Broker) -> None:
    with fault(pairbus_broker, "lost-answer", delay=0.5), fault(pairbus_broker, "hang", entity="orders"):
        assert in_force(pairbus_broker) == [Fault("lost-answer", delay=0.5), Fault("hang", entity="orders")]
    with fault(pairbus_broker, "lost-answer"):
        assert in_force(pairbus_broker) == [Fault("lost-answer")]
    assert in_force(pairbus_broker) == []


def test_gone_after_an_error_too(pairbus_broker: Broker) -> None:
    with pytest.raises(ZeroDivisionError), fault(pairbus_broker, "no-send"):
        raise ZeroDivisionError
    assert in_force(pairbus_broker) == []


def test_blocks_nest_and_each_ends_only_its_own(pairbus_broker: Broker) -> None:
    with fault(pairbus_broker, "no-send", entity="orders"):
        with fault(pairbus_broker, "no-send"), fault(pairbus_broker, "latency", delay=0.1):
            assert len(in_force(pairbus_broker)) == 3
        assert in_force(pairbus_broker) == [Fault("no-send", entity="orders")]
    assert in_force(pairbus_broker) == []


def test_the_port_refuses_inside_the_block_and_answers_after(pairbus_broker: Broker) -> None:
    port = pairbus_broker.namespaces["contoso"].port
    with fault(pairbus_broker, "unreachable"):
        assert not reachable(port)
    assert reachable(port)


async def test_with_a_broker_on_the_test_s_own_loop(tmp_path: Path) -> None:
    async with serve("contoso", data=tmp_path) as broker:
        port = broker.namespaces["contoso"].port
        with fault(broker, "unreachable"):
            assert not await asyncio.to_thread(reachable, port)
        async with fault(broker, "no-receive", entity="orders"):
            assert in_force(broker) == [Fault("no-receive", entity="orders")]
        assert in_force(broker) == []
        assert await asyncio.to_thread(reachable, port)


async def test_from_a_loop_with_the_broker_on_a_thread(pairbus_broker: Broker) -> None:
    async with fault(pairbus_broker, "no-manage"):
        assert in_force(pairbus_broker) == [Fault("no-manage")]
    with fault(pairbus_broker, "no-manage"):
        assert in_force(pairbus_broker) == [Fault("no-manage")]
    assert in_force(pairbus_broker) == []


def test_by_folder_for_a_broker_in_another_process(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pairbus", "broker", "--namespace", "contoso", "--data", str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            port = int(process.stdout.readline().split('"port": ')[1].split(",")[0])
            with fault(str(tmp_path), "unreachable"):
                assert not reachable(port)
            assert reachable(port)
        finally:
            process.kill()


def test_of_several_namespaces_one_must_be_named(tmp_path: Path) -> None:
    with serve_sync("contoso", "fabrikam", data=tmp_path) as broker:
        with pytest.raises(InvalidFault, match="serves contoso, fabrikam; say which with namespace="):
            fault(broker, "no-send").__enter__()
        with fault(broker, "no-send", namespace="fabrikam"):
            assert in_force(broker, "fabrikam") == [Fault("no-send")]
            assert in_force(broker, "contoso") == []
        with pytest.raises(InvalidFault, match="no namespace 'northwind'"):
            fault(broker, "no-send", namespace="northwind").__enter__()


def test_what_makes_no_sense_fails_before_the_block(pairbus_broker: Broker) -> None:
    with pytest.raises(InvalidFault, match="the kinds are"):
        fault(pairbus_broker, "no-snd")
    with pytest.raises(InvalidFault, match="throttle needs a rate"):
        fault(pairbus_broker, "throttle")


def test_no_broker(tmp_path: Path) -> None:
    with pytest.raises(ControlError, match="no broker serves"):
        fault(tmp_path, "no-send", namespace="contoso").__enter__()


def test_repr(pairbus_broker: Broker) -> None:
    assert repr(fault(pairbus_broker, "no-send", entity="orders")) == "<fault no-send on 'orders'>"
