from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import click
import pytest

from pairbus.commands.namespace_argument import NamespaceArgument, namespace_option, parse

TEXT = "Endpoint=sb://contoso.servicebus.windows.net/;SharedAccessKeyName=root;SharedAccessKey=s3cret="


def test_a_connection_string_warns(capsys: pytest.CaptureFixture[str]) -> None:
    found = parse(TEXT, "--primary")
    assert found == NamespaceArgument("contoso.servicebus.windows.net", TEXT)
    warning = capsys.readouterr().err
    assert warning.count("\n") == 1
    assert "--primary holds a secret" in warning and "PAIRBUS_PRIMARY" in warning
    assert "s3cret" not in warning and "s3cret" not in repr(found)


def test_from_the_environment_it_does_not(capsys: pytest.CaptureFixture[str]) -> None:
    assert parse(TEXT, "--primary", from_command_line=False).connection_string == TEXT
    assert capsys.readouterr().err == ""


def test_from_a_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "primary"
    file.write_text(f"\n{TEXT}\n")
    assert parse(f"@{file}", "--primary").connection_string == TEXT
    file.write_text("contoso.servicebus.windows.net\n")
    assert parse(f"@{file}", "--primary") == NamespaceArgument("contoso.servicebus.windows.net")
    assert capsys.readouterr().err == ""


def test_from_a_variable_of_one_s_own(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("CONTOSO", f" {TEXT}\n")
    monkeypatch.setenv("HOST", "contoso.servicebus.windows.net")
    monkeypatch.setenv("EMPTY", "")
    assert parse("env:CONTOSO", "NS") == NamespaceArgument("contoso.servicebus.windows.net", TEXT)
    assert parse("env:HOST", "NS") == NamespaceArgument("contoso.servicebus.windows.net")
    assert parse("env:CONTOSO", "--primary", from_command_line=False).connection_string == TEXT
    assert capsys.readouterr().err == "", "nobody sees the secret"
    with pytest.raises(click.UsageError, match=r"^NS: the environment variable NOWHERE is not set$"):
        parse("env:NOWHERE", "NS")
    with pytest.raises(click.UsageError, match=r"^NS: env:EMPTY is empty; a connection string, @FILE, env:NAME"):
        parse("env:EMPTY", "NS")
    for odd in (f"env:{TEXT}", "env:", "env:-", "env:my variable"):
        with pytest.raises(click.UsageError) as raised:
            parse(odd, "NS")
        assert raised.value.message == (
            "NS: the name of an environment variable is wanted after env:, such as env:CONTOSO"
        )


def test_what_a_variable_holds_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    for value in (TEXT + ";EntityPath", TEXT[20:], "s3cret", "-", "@s3cret", "env:s3cret"):
        monkeypatch.setenv("CONTOSO", value)
        with pytest.raises(click.UsageError) as raised:
            parse("env:CONTOSO", "NS")
        assert "s3cret" not in raised.value.format_message()


def test_from_stdin_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(f"{TEXT}\n"))
    with click.Context(click.Command("syphon")):
        assert parse("-", "--primary").connection_string == TEXT
        with pytest.raises(click.UsageError, match="only one namespace can come from stdin, and --primary does"):
            parse("-", "--secondary")


@pytest.mark.parametrize("text", ["contoso.servicebus.windows.net", "sb://contoso.servicebus.windows.net/"])
def test_a_host_name(text: str) -> None:
    found = parse(text, "--primary")
    assert found == NamespaceArgument("contoso.servicebus.windows.net")
    assert repr(found) == "<NamespaceArgument contoso.servicebus.windows.net>"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("contoso", "contoso.servicebus.windows.net"),
        ("what is this", "neither a connection string nor a host name"),
        ("", "is empty"),
        ("@/nowhere/at/all", "can't be read: No such file"),
        ("Endpoint=sb://x;SharedAccessKeyName=a", "no SharedAccessKey"),
    ],
)
def test_what_is_none(text: str, problem: str) -> None:
    with pytest.raises(click.UsageError, match=problem):
        parse(text, "--primary")


@pytest.mark.parametrize("spoilt", [TEXT + ";EntityPath", TEXT[20:], TEXT.replace("Name=root", "=s3cret"), "@file"])
def test_no_secret_is_shown_whatever_is_wrong(
    spoilt: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_bytes(b"\xff\xfes3cret")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(click.UsageError) as raised:
        parse(spoilt, "--primary")
    assert "s3cret" not in raised.value.format_message()
    assert "s3cret" not in capsys.readouterr().err


def test_a_host_name_without_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "azure.identity", None)
    found = parse("contoso.servicebus.windows.net", "--primary")
    for call in (lambda: found.endpoint("contoso"), found.admin):
        with pytest.raises(click.ClickException, match=r"pairbus\[identity\]"):
            call()


def test_a_host_name_is_reached_with_the_default_credential(monkeypatch: pytest.MonkeyPatch) -> None:
    identity = pytest.importorskip("azure.identity")
    made = object()
    monkeypatch.setattr(identity, "DefaultAzureCredential", lambda: made)
    endpoint = parse("contoso.servicebus.windows.net", "--primary").endpoint("contoso", Path("ca.pem"))
    assert (endpoint.host, endpoint.credential, endpoint.ca_file, endpoint.tls) == (
        "contoso.servicebus.windows.net", made, "ca.pem", True,
    )  # fmt: skip


def test_the_sdk_s_administration_client() -> None:
    found = parse(TEXT, "--primary", from_command_line=False)
    with found.admin(retry_total=0) as admin:
        assert admin.fully_qualified_namespace == "contoso.servicebus.windows.net"


def test_the_option(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[Any] = []

    @click.command()
    @namespace_option("primary", "Where.", required=False)
    def command(primary: NamespaceArgument | None) -> None:
        seen.append(primary)

    monkeypatch.setenv("PAIRBUS_PRIMARY", TEXT)
    command.main([], standalone_mode=False)
    command.main(["--primary", "fabrikam.servicebus.windows.net"], standalone_mode=False)
    monkeypatch.delenv("PAIRBUS_PRIMARY")
    command.main([], standalone_mode=False)
    assert seen == [
        NamespaceArgument("contoso.servicebus.windows.net", TEXT),
        NamespaceArgument("fabrikam.servicebus.windows.net"),
        None,
    ]
    assert capsys.readouterr().err == ""
