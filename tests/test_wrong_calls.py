# ruff: noqa: E501 - the lines of the table are those that users see, whole
"""Wrong calls of every command: one line that says what was wrong and what to do next, nothing on stdout, a code.

The table is the point of this file. `…` stands for anything, `{…}` for what `Scene` has. A command without three rows
fails a test.
"""

from __future__ import annotations

import io
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import click
import pytest

from pairbus.cli import cli, main
from tests.document_blocks import shows

#: What stands in the folder in which every call is made, beside the connection strings of `scene`.
FILES = {
    "text": b"hello world",
    "empty": b"",
    "binary": b"\xff\xfe",
    "no-key": b"Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root",
    "no-host": b"Endpoint=sb://nowhere.invalid/;SharedAccessKeyName=root;SharedAccessKey=c2VjcmV0",
    "bad.toml": b"[namespaces.contoso]\nqueues = 3\n",
    "ledger-text/a.jsonl": b"hello world\n",
    "ledger-other/a.jsonl": b'{"schema": 99, "writer": "somebody"}\n',
    "nothing/here.txt": b"",
    "odd-keys/contoso/keys.json/in-place-of-a-file": b"",
    "odd-ca/ca.pem/in-place-of-a-file": b"",
    "odd-namespace/contoso": b"in place of a folder",
}
NO_FILE = "No such file or directory"
WANTED = "a connection string, @FILE, env:NAME (a variable), - (stdin), or a host name (then DefaultAzureCredential) is wanted"
REFUSED = "127.0.0.1 can't be reached: 127.0.0.1:1: Connection refused; check host and port, and that it is up"
NO_HOST = "nowhere.invalid can't be reached: nowhere.invalid:5671: …; check host and port, and that it is up"
WRONG_KEY = "127.0.0.1 refuses access to orders: …; the key must be right, and give"

#: command → rows of (what is typed after it, exit code, the line); the line's beginning and the pointer to the help
#: are those of `line`.
CALLS: dict[str, list[tuple[str, int, str]]] = {
    "": [
        ("", 2, "Missing command"),
        ("brokr", 2, "No such command 'brokr'…"),
        ("--colour", 2, "No such option '--colour'…"),
    ],
    "broker": [
        ("--namespace contoso", 2, "Missing option '--data'"),
        ("--data d", 2, "name a namespace with --namespace, or give a --config that names some"),
        ("--namespace con_toso --data d", 2,
         "Invalid value for '--namespace': 'con_toso' can't name a namespace: lower-case letters, digits and inner dashes…"),
        ("--namespace contoso:99999 --data d", 2,
         "Invalid value for '--namespace': '99999' in 'contoso:99999' is not a port: 0 (any free one) to 65535"),
        ("--namespace contoso --data text", 2, "Invalid value for '--data': Directory 'text' is a file"),
        ("--data d --config missing.toml", 1, f"the configuration can't be read: missing.toml: {NO_FILE}"),
        ("--data d --config binary", 1, "binary: the file is not UTF-8 (byte 0); save it as UTF-8"),
        ("--data d --config bad.toml", 1, "bad.toml: namespaces.contoso.queues …"),
        ("--namespace contoso:{port} --data d", 1,
         "namespace 'contoso' can't be served: can't listen on port {port} of 127.0.0.1: Address already in use; end the "
         "program that has it, or choose another port (0 is any free one)"),
        ("--namespace contoso:5671, --data d", 2, "Invalid value for '--namespace': '' in 'contoso:5671,' is not a port: …"),
        ("--namespace", 2, "Option '--namespace' requires an argument"),
        ("--namespace a --namespace a:7 --data d", 2, "…a is given more than once…"),
        ("--namespace a --data d --durability some", 2, "…'some' is not one of 'strict', 'default', 'none'"),
        ("--namespace a:7001 --namespace b:7002,7001 --data d", 1,
         "port 7001 is given to a and to b; each namespace has its own"),
        ("--namespace contoso --host nowhere.invalid --data d", 1,
         "namespace 'contoso' can't be served: can't listen on nowhere.invalid: …; give an address or a name of this machine"),
        ("--emulator --host 0.0.0.0 --data d", 2,
         "the emulator is not served on 0.0.0.0: everybody knows its key, so it is for this machine only; leave out "
         "--host, or leave out --emulator"),
        ("--emulator --namespace a --namespace b --data d", 1,
         "the emulator has one namespace, not 2 (a, b); name one, or leave out --emulator"),
        ("--namespace a --advertise http://bus.example --data d", 2,
         "'http://bus.example' can't be advertised; give the host name or address that clients reach this machine by, "
         "without a scheme and without a port"),
        ("--namespace contoso --data text/d", 1,
         "the data folder can't be made: …/text: File exists; move it away, or name another"),
        ("--namespace contoso --data odd-keys", 1,
         "namespace 'contoso' can't be served: odd-keys/contoso/keys.json: Is a directory; move the folder away, or name "
         "a file"),
        ("--namespace contoso --data odd-ca", 1, "…/odd-ca/ca.pem: Is a directory; move the folder away, or name a file"),
        ("--namespace contoso --data odd-namespace", 1,
         "namespace 'contoso' can't be served: …/odd-namespace/contoso: File exists; move it away, or name another"),
        ("--namespace contoso --data data", 1,
         "namespace 'contoso' can't be served: data/contoso/journal is in use by process …; stop it or use another folder"),
    ],
    "fault": [
        ("contoso no-send", 2, "Missing option '--data'"),
        ("--data data contoso no-snd", 2, "there is no fault 'no-snd'; did you mean 'no-send'? the kinds are unreachable, …"),
        (
            "--data data contoso throttle",
            2,
            "throttle needs a rate: operations a second, or what it counts, 0 (none) to 1000000000",
        ),
        ("--data data contoso no-send --for soon", 2, "Invalid value for '--for': 'soon' is not a valid float"),
        ("--data missing contoso no-send", 1, f"the data folder missing can't be opened: {NO_FILE}; name another"),
        ("--data nothing contoso no-send", 1,
         "no broker serves nothing: it has no control.sock; start one with `pairbus broker --data nothing`"),
        ("--data data northwind no-send", 1, "no namespace 'northwind' is served here; there is contoso"),
        ("--data data contoso latency", 2, "latency needs a delay: …"),
        ("--data data contoso no-send --rate 1", 2, "no-send takes no rate; throttle does…"),
        ("--data data contoso latency --delay 9999", 2, "…out of bounds: seconds, 0 to 3600…"),
        ("--data data contoso no-send --for 0", 2, "--for 0 is out of bounds…"),
        ("--data data contoso no-send --for nan", 2, "--for nan is out of bounds…"),
        ("--data data contoso no-send --clear --rate 1 --for 1", 2, "--clear takes no --for, --rate…"),
        ("--data data contoso --entity orders", 2, "…takes no --entity…"),
        ("--data data contoso no-send --entity ''", 2, "…leave it out for the whole namespace"),
        ("--data data", 2, "Missing argument 'NAMESPACE'"),
        ("--data data contoso no-send --node 1", 2, "no-send takes no node; crash-node does…"),
        ("--data data contoso no-send --machine 1", 2, "No such option '--machine'…"),
        ("--data data contoso hang --partition 1", 2, "…unreachable, no-send and no-receive do…"),
        ("--data data contoso no-send --partition 16", 2, "…out of bounds: 0 to 15…"),
        ("--data data Contso no-send", 1,
         "no namespace 'Contso' is served here; did you mean 'contoso'? there is contoso"),
    ],
    "syphon": [
        ("", 2, "Missing option '--primary' (env var: 'PAIRBUS_PRIMARY')"),
        ("--primary @missing --secondary @good", 2, f"--primary: missing can't be read: {NO_FILE}"),
        ("--primary @text --secondary @good", 2,
         f"--primary is neither a connection string nor a host name; {WANTED}"),
        ("--primary @good --secondary @good --engine flink", 2,
         "Invalid value for '--engine': 'flink' is not one of 'spark', 'in-process', 'auto'"),
        ("--primary @good --secondary @good --engine in-process", 2,
         "the backlog queues take their name from the primary's host, and 127.0.0.1 has none; give --primary-name (an "
         "embedded broker prints it as `namespace`)"),
        ("--primary @good --secondary @good --primary-name x --engine in-process --master local", 2,
         "--master is for --engine spark; leave out one of the two"),
        ("--primary @good --secondary @good --primary-name x --engine in-process --checkpoint d", 2,
         "--checkpoint is for --engine spark; leave out one of the two"),
        ("--primary @good --secondary @good --max-rate 0", 2,
         "Invalid value for '--max-rate': 0.0 is not in the range x>0"),
        ("--primary @good --secondary @good --primary-name x --orphans --engine in-process", 1,
         "--orphans finds the queues by listing those of 127.0.0.1, and that failed: its certificate is not trusted (the "
         "embedded broker's is, with --ca-file)"),
        ("--primary @refused --secondary @backed --primary-name x --engine in-process --drain --ca-file {ca}", 1,
         "the primary x can't be reached: 127.0.0.1:1: Connection refused …"),
    ],
    "backlog": [
        ("", 2, "Missing option '--secondary' (env var: 'PAIRBUS_SECONDARY')"),
        ("--secondary @good", 2, "name the primary, with --primary, PAIRBUS_PRIMARY or --primary-name"),
        ("--secondary @no-key --primary-name contoso", 2,
         "--secondary: the connection string has no SharedAccessKey; name and key go together"),
        ("--secondary @good --primary-name contoso --fail-depth -1", 2,
         "Invalid value for '--fail-depth': -1 is not in the range x>=0"),
        ("--secondary @good --primary-name a/b", 2,
         "Invalid value for '--primary-name': 'a/b' can't name backlog queues; right are letters, digits, and . - _ "
         "between them, such as contoso"),
        ("--secondary @refused --primary-name contoso", 1,
         "the backlog in 127.0.0.1 can't be looked at: 127.0.0.1:1: Connection refused …; check host and port, and that "
         "it is up"),
        ("--secondary @wrong --primary-name contoso", 1, "127.0.0.1 refuses access: …; peeking needs Listen"),
        ("--secondary @no-host --primary-name contoso", 1, "the backlog in nowhere.invalid can't be looked at: …"),
    ],
    "provision": [
        ("", 2, "Missing option '--primary-name'"),
        ("--primary-name contoso", 2,
         "name the secondary, with --secondary or PAIRBUS_SECONDARY, or give --print"),
        ("--primary-name '' --print bicep", 2, "Invalid value for '--primary-name': '' can't name backlog queues; …"),
        ("--primary-name contoso --print yaml", 2, "Invalid value for '--print': 'yaml' is not one of 'bicep', 'terraform'"),
        ("--primary-name contoso --secondary @good --count 0", 2,
         "Invalid value for '--count': 0 is not in the range 1<=x<=1000"),
        ("--primary-name contoso --secondary @refused", 1,
         "the queues of 127.0.0.1 can't be listed: its management API can't be reached: check host and port, and that it "
         "is up"),
        ("--primary-name contoso --secondary @good", 1,
         "the queues of 127.0.0.1 can't be listed: its certificate is not trusted (the embedded broker's is, with "
         "--ca-file)"),
        ("--primary-name contoso --secondary @wrong --ca-file {ca}", 1,
         "the queues of 127.0.0.1 can't be listed: the key or identity has no Manage right there"),
    ],
    "peek": [
        ("", 2, "Missing argument 'NS'"),
        ("@good", 2, "Missing argument 'ENTITY'"),
        ("@missing orders", 2, f"NS: missing can't be read: {NO_FILE}"),
        ("@empty orders", 2, f"NS: @empty is empty; {WANTED}"),
        ("env:NOWHERE orders", 2, "NS: the environment variable NOWHERE is not set"),
        ("env:Endpoint=sb://x;Key=s orders", 2,
         "NS: the name of an environment variable is wanted after env:, such as env:CONTOSO"),
        ("contoso orders", 2, "NS contoso: give the whole host name, such as contoso.servicebus.windows.net"),
        ("@good orders --count 0", 2, "Invalid value for '--count': 0 is not in the range x>=1"),
        ("@good /", 2, "ENTITY is empty; right is a queue, or TOPIC/Subscriptions/NAME"),
        ("@good nowhere", 1, "127.0.0.1 has no nowhere; check the name: a queue, or TOPIC/Subscriptions/NAME"),
        ("@good news", 1,
         "127.0.0.1 refuses it for news: 'news' is a topic: ask one of its subscriptions: news/Subscriptions/NAME"),
        ("@wrong orders", 1, f"{WRONG_KEY} Listen"),
        ("@refused orders", 1, REFUSED),
        ("@no-host orders", 1, NO_HOST),
    ],
    "send": [
        ("@good orders", 2, "Missing argument 'BODY'"),
        ("@good orders x --property nonsense", 2,
         "'nonsense' is no property: NAME=TEXT, or NAME:=JSON for a number, true or false, is wanted"),
        ("@good orders x --schedule tomorrow", 2,
         "'tomorrow' is no time: 2026-12-31T08:00:00Z (with its zone), or +90s, +5m, +2h, +1d from now, is wanted"),
        ("@good orders @missing", 2,
         f"BODY @missing: missing can't be read: {NO_FILE}; a text that begins with @ goes through stdin"),
        ("@good orders x --ttl 0", 2, "Invalid value for '--ttl': 0.0 is not in the range 0<x<=…"),
        ("@good orders - --lines --id x", 2, "--id names one message, and --lines sends many; leave one of them out"),
        ("- orders -", 2, "NS comes from stdin, so BODY can't; name one of them as @FILE"),
        ("@good nowhere x", 1, "127.0.0.1 has no nowhere; check the name: a queue or a topic"),
        ("@good talks x", 1, "127.0.0.1 refuses it for talks: …requires sessions…; give --session"),
        ("@wrong orders x", 1, f"{WRONG_KEY} Send"),
        ("@refused orders x", 1, REFUSED),
    ],
    "purge": [
        ("@good", 2, "Missing argument 'ENTITY'"),
        ("@good orders", 2, "purge removes messages for good, and there is no terminal to ask on; give --yes"),
        ("@good orders --yes --before yesterday", 2, "--before: 'yesterday' is no time: …is wanted"),
        ("@good orders --yes --count all", 2, "Invalid value for '--count': 'all' is not a valid integer range"),
        ("@binary orders --yes", 2, "NS: binary is not a text file in UTF-8"),
        ("@wrong orders --yes", 1, f"{WRONG_KEY} Listen"),
        ("@good nowhere --yes", 1, "127.0.0.1 has no nowhere; check the name: a queue, or TOPIC/Subscriptions/NAME"),
        ("@refused orders --yes", 1, REFUSED),
    ],
    "drill": [
        ("--messages 0", 2, "0 messages are out of bounds: at least one for each of the 4 entities, at most 1,000,000"),
        ("--messages many", 2, "Invalid value for '--messages': 'many' is not a valid integer"),
        ("--fault rain", 2, "there is no fault 'rain' for a drill; the kinds are unreachable, …"),
        ("--fault no-manage", 2, "the fault no-manage leaves sends alone, …"),
        ("--entities 0", 2, "0 entities are out of bounds: 1 to 10"),
        ("--outage -1", 2, "an outage of -1 s is out of bounds: 1 to 3600 seconds"),
        ("--engine flink", 2, "Invalid value for '--engine': 'flink' is not one of 'spark', 'in-process'"),
        ("--out text", 2, "Invalid value for '--out': Directory 'text' is a file"),
        ("--out nothing", 1, "nothing holds here.txt, which is no drill's; name a folder with --out that is empty or new"),
    ],
    "move": [
        ("--from @good orders", 2, "Missing argument 'ENTITY'"),
        ("orders copies", 2, "Missing option '--from'"),
        ("--from @missing orders copies", 2, f"--from: missing can't be read: {NO_FILE}"),
        ("--from @good orders copies --engine in-process --where n=1", 2,
         "--where is Spark SQL; leave out one of the two"),
        ("--from @good orders copies --count 0", 2, "Invalid value for '--count': 0 is not in the range x>=1"),
        ("--from @good orders copies --max-rate 0", 2, "Invalid value for '--max-rate': 0.0 is not in the range x>0"),
        ("--from @good orders nowhere", 1, "127.0.0.1 has no queue or topic 'nowhere'; check the name, or make it first"),
        ("--from @good orders talks/$DeadLetterQueue", 1, "…nothing can be sent to the dead-letter…"),
        ("--from @good orders orders", 1, "orders is both ends of the move; name another entity, or another namespace"),
        ("--from @good nowhere orders", 1, "127.0.0.1 has no queue or subscription 'nowhere'; check the name"),
        ("--from @refused orders copies", 1, "orders of 127.0.0.1 can't be received from: 127.0.0.1:1: Connection refused…"),
        ("--from @wrong orders copies", 1, "127.0.0.1 refuses to let us receive from orders: …; it needs Listen"),
    ],
    "archive": [
        ("", 2, "Missing argument 'NS'"),
        ("@good orders", 2, "Missing argument 'FOLDER'"),
        ("contoso orders folder", 2, "NS contoso: give the whole host name, such as contoso.servicebus.windows.net"),
        ("@good orders folder --engine in-process --conf spark.x=y", 2,
         "--conf is for --engine spark; leave out one of the two"),
        ("@missing orders folder", 2, f"NS: missing can't be read: {NO_FILE}"),
        ("@good nowhere folder", 1, "127.0.0.1 has no queue or subscription 'nowhere'; check the name"),
        ("@refused orders folder", 1, "orders of 127.0.0.1 can't be received from: 127.0.0.1:1: Connection refused…"),
    ],
    "restore": [
        ("", 2, "Missing argument 'TABLE'"),
        ("folder", 2, "where to? Name the namespace, as NS or with --to"),
        ("folder @missing", 2, f"NS: missing can't be read: {NO_FILE}"),
        ("folder @good --max-rate 0", 2, "Invalid value for '--max-rate': 0.0 is not in the range x>0"),
        ("s3a://there @good --engine in-process", 2, "the URL s3a://there is for --engine spark; leave out one of the two"),
        ("folder @good --max-rate fast", 2, "Invalid value for '--max-rate': 'fast' is not a valid float range"),
        ("missing @good", 1, "missing holds no messages: it has neither …; name the FOLDER of `archive`, or the TABLE of `ingest`"),
        ("nothing @good", 1, "nothing holds no messages: it has neither …; name the FOLDER of `archive`, or the TABLE of `ingest`"),
    ],
    "ingest": [
        ("@good orders", 2, "Missing argument 'TABLE'"),
        ("@missing orders table", 2, f"NS: missing can't be read: {NO_FILE}"),
        ("@good orders table --every -1", 2, "Invalid value for '--every': -1.0 is not in the range x>=0"),
        ("@good orders table --every nan", 2, "Invalid value for '--every': 'nan' is no finite number"),
        ("@good orders table --max-rate inf", 2, "Invalid value for '--max-rate': 'inf' is no finite number"),
        ("@good nowhere table", 1, "127.0.0.1 has no queue or subscription 'nowhere'; check the name"),
        ("@refused orders table", 1, "orders of 127.0.0.1 can't be received from: 127.0.0.1:1: Connection refused…"),
    ],
    "audit": [
        ("", 2, "Missing argument 'LEDGER...'"),
        ("ledger-text --late soon", 2, "Invalid value for '--late': 'soon' is not a valid float range"),
        ("ledger-text --late -1", 2, "Invalid value for '--late': -1.0 is not in the range x>=0"),
        ("ledger-text --ids -1", 2, "Invalid value for '--ids': -1 is not in the range 0<=x<=1000000"),
        ("ledger-text --parquet ledger-text", 2,
         "--parquet ledger-text is a ledger that is read; name another folder to write to"),
        ("missing", 1, "missing does not exist; name a folder with *.jsonl files, or such a file"),
        ("nothing", 1, "nothing holds no ledger: no *.jsonl file in it or below; a broker writes one with --ledger, …"),
        ("ledger-text", 1, "ledger-text/a.jsonl is no ledger: the first line, which names its schema and its writer, is missing; …"),
        ("ledger-other", 1, "ledger-other/a.jsonl is a ledger of schema 99, and this pairbus reads schema 1; update pairbus"),
    ],
    "availability": [
        ("", 2, "Missing argument 'LEDGER...'"),
        ("ledger-text --late 5", 2, "No such option '--late'…"),
        ("missing", 1, "missing does not exist; name a folder with *.jsonl files, or such a file"),
        ("text", 1, "text is no ledger: the first line, which names its schema and its writer, is missing; …"),
        ("ledger-other", 1, "ledger-other/a.jsonl is a ledger of schema 99, and this pairbus reads schema 1; update pairbus"),
    ],
    "ledger": [
        ("", 2, "Missing command"),
        ("compct", 2, "No such command 'compct'…"),
        ("--json", 2, "No such option '--json'…"),
    ],
    "ledger compact": [
        ("", 2, "Missing argument 'LEDGER...'"),
        ("missing", 1, "missing does not exist; name a folder with *.jsonl files, or such a file"),
        ("nothing", 1, "nothing holds no ledger: no *.jsonl file in it or below; a broker writes one with --ledger, …"),
        ("s3a://bucket/ledger", 1, "s3a://bucket/ledger is not on this machine; name a folder with *.jsonl files, or such a file"),
    ],
    "cost": [
        ("", 2, "Missing command"),
        ("estimat", 2, "No such command 'estimat'…"),
        ("--rate 5", 2, "No such option '--rate'…"),
        ("estimate --rate", 2, "Option '--rate' requires an argument"),
    ],
    "cost estimate": [
        ("--size big", 2, "Invalid value for '--size': 'big' is no size; allowed: bytes, or a number with KB or MB, such as 64KB"),
        ("--outage soon", 2, "Invalid value for '--outage': 'soon' is no time; allowed: seconds, or a number with s, m, h or d, such as 90m"),
        ("--rate -1", 2, "Invalid value for '--rate': -1.0 is not in the range x>=0"),
        ("--queues 0", 2, "Invalid value for '--queues': 0 is not in the range 1<=x<=1000"),
        ("--ping-interval 0", 2, "--ping-interval may not be 0; allowed: more, such as 60s"),
        ("--outage 2d --days 1", 2,
         "--outage 172800 s does not fit into --days 1; make the outage shorter or the period longer"),
        ("extra", 2, "Got unexpected extra argument (extra)"),
        ("--prices missing.toml", 1, f"the price book missing.toml can't be read: {NO_FILE}; name another"),
        ("--prices text", 1, "text is no TOML: …; docs/reference/price-book.md shows a whole one"),
        ("--prices bad.toml", 1, "bad.toml: namespaces is not a key of a price book; the keys at the top are name, …"),
    ],
    "cost report": [
        ("", 2, "Missing argument 'LEDGER...'"),
        ("missing", 1, "missing does not exist; name a folder with *.jsonl files, or such a file"),
        ("nothing", 1, "nothing holds no ledger: no *.jsonl file in it or below; a broker writes one with --ledger, …"),
        ("ledger-other", 1, "ledger-other/a.jsonl is a ledger of schema 99, and this pairbus reads schema 1; update pairbus"),
        ("ledger-text --prices missing.toml", 1, f"the price book missing.toml can't be read: {NO_FILE}; name another"),
    ],
    "completion": [
        ("", 2, "Missing argument 'SHELL'. Choose from: bash, zsh, fish"),
        ("tcsh", 2, "Invalid value for 'SHELL': 'tcsh' is not one of 'bash', 'zsh', 'fish'"),
        ("bash zsh", 2, "Got unexpected extra argument (zsh)"),
    ],
}  # fmt: skip


class Scene(NamedTuple):
    folder: Path
    port: int
    ca: str


@pytest.fixture(scope="module")
def scene(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    """A broker in another process, so that its own log is not taken for the command's."""
    folder = tmp_path_factory.mktemp("wrong")
    for name, content in FILES.items():
        (folder / name).parent.mkdir(exist_ok=True, parents=True)
        (folder / name).write_bytes(content)
    (folder / "broker.toml").write_text(
        "[[namespaces.contoso.queues]]\nname = 'orders'\n[[namespaces.contoso.queues]]\nname = 'talks'\n"
        "requires_session = true\n[[namespaces.contoso.queues]]\nname = 'x/x-servicebus-transfer/0'\n"
        "[[namespaces.contoso.topics]]\nname = 'news'\n"
    )
    command = [sys.executable, "-m", "pairbus", "broker", "--config", "broker.toml", "--data", "data"]
    broker = subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    try:
        assert broker.stdout is not None
        told = json.loads(broker.stdout.readline())
        text = told["connection_string"]
        for name, changed in (
            ("good", text),
            ("backed", text),
            ("wrong", text.replace("SharedAccessKey=", "SharedAccessKey=x")),
            ("refused", text.replace(f":{told['port']}", ":1")),
        ):
            (folder / name).write_text(changed)
        yield Scene(folder, told["port"], told["ca_file"])
    finally:
        broker.terminate()
        broker.communicate(timeout=30)


def every_command(command: click.Command = cli, path: str = "") -> Iterator[str]:
    yield path
    for name, inner in getattr(command, "commands", {}).items():
        yield from every_command(inner, f"{path} {name}".strip())


def test_every_command_has_at_least_three_rows() -> None:
    assert {path for path in every_command() if len(CALLS.get(path, [])) < 3} == set()
    assert CALLS.keys() - set(every_command()) == set()


def line(command: str, code: int, text: str) -> str:
    """What is printed: a wrong call names the command and where its help is."""
    path = f"pairbus {command}".strip()
    return f"{path}: {text}; see `{path} --help`" if code == 2 else f"pairbus: {text}"


def started(*_arguments: object, **_options: object) -> None:
    pytest.fail("Spark is started before the call is looked at")


ROWS = [(command, *row) for command, rows in CALLS.items() for row in rows]


@pytest.mark.parametrize(("command", "typed", "code", "text"), ROWS, ids=[f"{row[0]} {row[1]}" for row in ROWS])
def test_a_wrong_call_is_one_line_that_says_what_to_do(
    scene: Scene,
    command: str,
    typed: str,
    code: int,
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(scene.folder)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO((scene.folder / "good").read_bytes())))
    for variable in ("PAIRBUS_PRIMARY", "PAIRBUS_SECONDARY"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("pyspark.core.context.launch_gateway", started)
    known = {"port": str(scene.port), "ca": scene.ca}
    with pytest.raises(SystemExit) as left:
        main(shlex.split(f"{command} {typed.format(**known)}"))
    out, err = capsys.readouterr()
    assert (left.value.code, out) == (code, ""), err
    assert err.count("\n") == 1, err
    assert shows(line(command, code, text.format(**known)), err), err
    assert "SharedAccessKey=" not in err
    assert not re.search(r"Traceback|Errno|<[a-z]+ object", err)
