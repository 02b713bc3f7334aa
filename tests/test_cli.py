from __future__ import annotations

import asyncio
import inspect
import json
import os
import signal
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import click
import pytest

from pairbus import __version__
from pairbus.broker.control.control_commands import Commands
from pairbus.broker.control.control_socket import ControlServer
from pairbus.broker.control.faults import Fault, Faults
from pairbus.cli import cli
from tests.commands.calls import call
from tests.typed_commands import calls, check

NOW = 1_700_000_000.0


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Any:
    return partial(call, capsys)


@pytest.fixture
def faults() -> dict[str, Faults]:
    return {"contoso": Faults(), "fabrikam": Faults()}


@pytest.fixture
def data(tmp_path: Path, faults: dict[str, Faults]) -> Iterator[str]:
    """A data folder whose control socket is served on another thread, by the broker's own pieces."""
    commands = Commands(faults)
    ready = threading.Event()
    stops: list[Any] = []

    async def serve() -> None:
        async def answer(message: dict[str, Any]) -> dict[str, Any]:
            return commands.answer(message, NOW)

        server = ControlServer(tmp_path, answer)
        await server.start()
        stop = asyncio.Event()
        loop = asyncio.get_running_loop()
        stops.append(lambda: loop.call_soon_threadsafe(stop.set))
        ready.set()
        await stop.wait()
        await server.stop()

    thread = threading.Thread(target=lambda: asyncio.run(serve()))
    thread.start()
    assert ready.wait(10)
    yield str(tmp_path)
    stops[0]()
    thread.join()


def test_version(run: Any) -> None:
    result = run("--version")
    assert (result.code, result.out) == (0, f"pairbus, version {__version__}\n")


@pytest.mark.parametrize("arguments", [["--help"], ["-h"], ["broker", "--help"], ["fault", "-h"]])
def test_help_is_a_result(run: Any, arguments: list[str]) -> None:
    result = run(*arguments)
    assert result.code == 0
    assert "Usage: pairbus" in result.out
    assert result.err == ""


def every_command(command: click.Command = cli, path: str = "pairbus") -> Iterator[tuple[str, click.Command]]:
    yield path, command
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, f"{path} {name}")


COMMANDS = list(every_command())


@pytest.mark.parametrize("arguments", [[], ["cost"], ["ledger"]])
def test_a_list_of_commands_shows_whole_sentences(
    run: Any, arguments: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    _, _, listed = run(*arguments, "--help").out.partition("\nCommands:\n")
    assert listed.endswith(".\n")
    assert "..." not in listed


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_every_help_has_examples_that_could_be_typed(path: str, command: click.Command) -> None:
    text = inspect.cleandoc(command.help or "")
    _, found, examples = text.rpartition("\n\b\nExamples:\n")
    assert found, f"{path}: the docstring ends with a paragraph of examples"
    typed = [words for words in calls(examples) if "COMMAND" not in words]
    assert [words for words in typed if path == "pairbus" or words[: path.count(" ")] == path.split()[1:]], path
    for words in typed:
        check(words)


@pytest.mark.parametrize(("path", "command"), COMMANDS, ids=[path for path, _ in COMMANDS])
def test_every_option_says_what_it_does(path: str, command: click.Command) -> None:
    silent = [each.name for each in command.params if isinstance(each, click.Option) and not each.help]
    assert silent == []
    assert path == "pairbus" or "--debug" in [name for each in command.params for name in each.opts]


def test_what_a_script_may_read_is_there_as_json() -> None:
    without = {
        path for path, command in COMMANDS if "--json" not in [name for each in command.params for name in each.opts]
    }
    groups = {path for path, command in COMMANDS if isinstance(command, click.Group)}
    assert without - groups == {"pairbus broker", "pairbus completion"}, "the broker prints nothing else"


@pytest.mark.parametrize(
    "text", ["pairbus brokr", "pairbus peek @x orders --colour", "seq 3 | pairbus send @x orders - --colour | cat"]
)
def test_examples_that_could_not_be_typed_are_found(text: str) -> None:
    (words,) = calls(text)
    with pytest.raises(click.UsageError):
        check(words)


class TestFault:
    def test_set_and_list_and_clear(self, run: Any, data: str, faults: dict[str, Faults]) -> None:
        result = run(
            "fault", "--data", data, "contoso", "throttle", "--entity", "orders", "--rate", "2.5", "--for", "30"
        )
        assert (result.code, result.out) == (0, "contoso: throttle on orders rate 2.5/s for 30 s more\n")
        assert faults["contoso"].active(NOW) == [Fault("throttle", entity="orders", rate=2.5, until=NOW + 30)]
        assert run("fault", "--data", data, "contoso", "latency", "--delay", "0.2").code == 0
        result = run("fault", "--data", data, "contoso")
        assert result.out == "contoso: throttle on orders rate 2.5/s for 30 s more\ncontoso: latency delay 0.2 s\n"
        result = run("fault", "--data", data, "contoso", "throttle", "--clear")
        assert result.out == "contoso: 1 cleared\ncontoso: latency delay 0.2 s\n"
        result = run("fault", "--data", data, "contoso", "--clear")
        assert result.out == "contoso: 1 cleared\ncontoso: no faults\n"
        assert not faults["contoso"]

    def test_json(self, run: Any, data: str) -> None:
        result = run("fault", "--data", data, "contoso", "no-send", "--entity", "orders", "--json")
        expected = {"namespace": "contoso", "faults": [{"kind": "no-send", "entity": "orders"}]}
        assert json.loads(result.out) == expected
        assert json.loads(run("fault", "--data", data, "contoso", "--json").out) == expected
        cleared = json.loads(run("fault", "--data", data, "contoso", "--clear", "--entity", "orders", "--json").out)
        assert cleared == {"namespace": "contoso", "faults": [], "cleared": 1}

    def test_p49_a_crash_names_the_file_that_will_say_what_was_inconsistent(
        self, run: Any, data: str, faults: dict[str, Faults]
    ) -> None:
        contoso = faults["contoso"]
        contoso.on_crash = lambda fault: replace(fault, diagnostics="d.json")
        result = run("fault", "--data", data, "contoso", "crash-node", "--node", "2", "--delay", "1", "--for", "10")
        assert result.out == "contoso: crash-node on node 2 delay 1 s for 10 s more diagnostics in d.json\n"
        assert contoso.active(NOW) == [Fault("crash-node", node=2, delay=1.0, until=NOW + 10, diagnostics="d.json")]
        assert run("fault", "--data", data, "contoso", "crash-node", "--node", "2", "--clear").out.startswith(
            "contoso: 1 cleared"
        )
        assert not contoso

    def test_the_listing_says_how_long_a_fault_still_lasts(
        self, run: Any, data: str, faults: dict[str, Faults]
    ) -> None:
        for kind, seconds in (("no-send", 4.25), ("hang", 59.6), ("no-manage", 600), ("black-hole", 86_400)):
            faults["contoso"].set(Fault(kind, until=NOW + seconds))
        faults["contoso"].set(Fault("no-receive"))
        assert run("fault", "--data", data, "contoso").out.splitlines() == [
            "contoso: no-send for 4.2 s more",
            "contoso: hang for 60 s more",
            "contoso: no-manage for 10 min more",
            "contoso: black-hole for 24 h more",
            "contoso: no-receive",
        ]

    @pytest.mark.parametrize("arguments", [["--debug", "fault"], ["fault", "--debug"]])
    def test_debug_shows_the_traceback(self, tmp_path: Path, arguments: list[str]) -> None:
        command = [sys.executable, "-m", "pairbus", *arguments, "--data", str(tmp_path), "contoso", "no-send"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 1
        assert "Traceback" in done.stderr
        assert "ControlError" in done.stderr


def test_nothing_raw_of_the_system_reaches_the_user(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object, **__: object) -> None:
        raise PermissionError(13, "Permission denied", "/data/keys.json")

    monkeypatch.setattr("pairbus.broker.control.control_socket.request", fail)
    result = run("fault", "--data", ".", "contoso")
    assert (result.code, result.out) == (1, "")
    assert result.err == "pairbus: /data/keys.json: Permission denied; let this user have it, or name another\n"


def test_java_s_traceback_is_one_line(run: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = type("Py4JJavaError", (Exception,), {"__module__": "py4j.protocol"})

    def fail(*_: object, **__: object) -> None:
        raise kind("An error occurred while calling o1.x.\n: java.lang.Error: no room\n\tat a(B.java)\n\tat c(D.java)")

    monkeypatch.setattr("pairbus.broker.control.control_socket.request", fail)
    result = run("fault", "--data", ".", "contoso")
    assert result.err == "pairbus: Py4JJavaError: java.lang.Error: no room; run it with --debug to see where\n"


class TestOutput:
    """Where it goes is not always there to take it."""

    COMMAND = (sys.executable, "-m", "pairbus", "--help")

    def test_a_reader_that_is_gone_is_no_error_to_talk_about(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(self.COMMAND, stdout=writer, stderr=subprocess.PIPE, check=False)
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")

    @pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
    def test_a_full_disk_is_one_line(self) -> None:
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(self.COMMAND, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
        assert (done.returncode, done.stderr) == (
            1, "pairbus: the output: No space left on device; free some space\n"
        )  # fmt: skip

    def test_an_output_that_is_closed_is_no_traceback(self) -> None:
        done = subprocess.run(
            ["sh", "-c", '"$0" "$@" >&-', *self.COMMAND], stderr=subprocess.PIPE, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")


@contextmanager
def broker(*arguments: str) -> Iterator[subprocess.Popen[str]]:
    command = [sys.executable, "-m", "pairbus", "broker", *arguments]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        yield process
    finally:
        process.kill()
        process.communicate()


def ready_lines(process: subprocess.Popen[str], count: int) -> list[dict[str, Any]]:
    assert process.stdout is not None
    return [json.loads(process.stdout.readline()) for _ in range(count)]


class TestBroker:
    def test_it_tells_where_it_is_serves_and_shuts_down(self, tmp_path: Path) -> None:
        data = tmp_path / "data"
        with broker("--namespace", "contoso", "--namespace", "fabrikam:0", "--data", str(data)) as process:
            lines = ready_lines(process, 2)
            assert [line["namespace"] for line in lines] == ["contoso", "fabrikam"]
            for line in lines:
                assert list(line) == ["namespace", "host", "port", "ports", "connection_string", "ca_file"]
                assert line["ports"] == [line["port"]]
                assert line["host"] == "127.0.0.1"
                assert f"Endpoint=sb://127.0.0.1:{line['port']}" in line["connection_string"]
                assert Path(line["ca_file"]).read_text().startswith("-----BEGIN CERTIFICATE-----")
                socket.create_connection(("127.0.0.1", line["port"]), timeout=10).close()
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
            assert process.returncode == 0
            assert out == ""
            assert err == "shutting down\n"
            assert not (data / "control.sock").exists()

    def test_all_addresses_are_told_as_one_that_others_can_use_with_a_warning(self, tmp_path: Path) -> None:
        arguments = ("--namespace", "contoso:0,0", "--data", str(tmp_path), "--host", "0.0.0.0")
        for more in ((), ("--advertise", "localhost")):
            with broker(*arguments, *more) as process:
                (line,) = ready_lines(process, 1)
                assert line["host"] not in ("0.0.0.0", "127.0.0.1") and (not more or line["host"] == "localhost")
                assert f"Endpoint=sb://{line['host']}:{line['ports'][0]};" in line["connection_string"]
                context = ssl.create_default_context(cafile=line["ca_file"])
                with socket.create_connection(("127.0.0.1", line["ports"][1]), timeout=10) as plain:
                    context.wrap_socket(plain, server_hostname=line["host"]).close()
                process.terminate()
                _, err = process.communicate(timeout=30)
            assert "warning: others can reach this broker on 0.0.0.0" in err

    def test_the_emulator_has_a_fixed_key_and_the_ports_that_are_given(self, tmp_path: Path) -> None:
        with broker("--emulator", "--namespace", "sbemulatorns:0,0", "--data", str(tmp_path)) as process:
            (line,) = ready_lines(process, 1)
        assert (line["namespace"], len(line["ports"])) == ("sbemulatorns", 2)
        assert "SharedAccessKey=SAS_KEY_VALUE;" in line["connection_string"]

    def test_faults_from_another_process_and_ctrl_c_is_a_clean_end_too(self, run: Any, tmp_path: Path) -> None:
        with broker("--namespace", "contoso", "--data", str(tmp_path)) as process:
            (line,) = ready_lines(process, 1)
            address = ("127.0.0.1", line["port"])
            assert run("fault", "--data", str(tmp_path), "contoso", "unreachable").code == 0
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address, timeout=10)
            assert run("fault", "--data", str(tmp_path), "contoso", "unreachable", "--clear").code == 0
            socket.create_connection(address, timeout=10).close()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=30)
            assert process.returncode == 0

    def test_the_namespaces_of_a_configuration(self, tmp_path: Path) -> None:
        config, data = tmp_path / "broker.toml", str(tmp_path / "data")
        config.write_text("[namespaces.contoso]\n[[namespaces.contoso.queues]]\nname = 'orders'\n[namespaces.fabrikam]")
        with broker("--config", str(config), "--data", data) as process:
            assert [line["namespace"] for line in ready_lines(process, 2)] == ["contoso", "fabrikam"]
        config.write_text(config.read_text().replace("'orders'", "'orders'\nmax_delivery_count = 3"))
        with broker("--config", str(config), "--namespace", "contoso", "--data", data) as process:
            ready_lines(process, 1)
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=30)
        assert (process.returncode, out) == (0, "")
        assert err == "contoso: queue 'orders' is changed, as configured\nshutting down\n"

    def test_a_wrong_configuration_is_one_line(self, run: Any, tmp_path: Path) -> None:
        config = tmp_path / "broker.toml"
        config.write_text("[[namespaces.contoso.queues]]\nname = 'orders'\nlock_duration = 'PT10M'")
        result = run("broker", "--config", str(config), "--data", str(tmp_path / "data"))
        assert (result.code, result.out) == (1, "")
        assert result.err == (
            f"pairbus: {config}: namespaces.contoso.queues[0].lock_duration may not be 'PT10M'; "
            "allowed: a duration above zero, up to 5 minutes\n"
        )
        assert not (tmp_path / "data").exists()
