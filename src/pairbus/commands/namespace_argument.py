"""Reads a namespace from the command line: a connection string, `@file`, `env:NAME`, `-` for stdin, or a host name.

A host name is reached with `DefaultAzureCredential`. PAIRBUS_PRIMARY and PAIRBUS_SECONDARY replace the options. A
literal secret on the command line works, and a line warns of it. No message of this module shows a secret.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click
from click.core import ParameterSource

F = TypeVar("F", bound=Callable[..., Any])

SOURCES = "A connection string, @FILE, env:NAME (a variable), - (stdin), or a host name (then DefaultAzureCredential)."
_WANTED = f"{SOURCES[0].lower()}{SOURCES[1:-1]} is wanted"
#: The environment variables that replace an option. Arguments, and the options of other commands, have none.
VARIABLES = {"--primary": "PAIRBUS_PRIMARY", "--secondary": "PAIRBUS_SECONDARY"}
_TYPED = "the command line"
#: The prefix of an argument that names an environment variable with the namespace.
_ENV = "env:"
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_HOST = re.compile(r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*")


class NamespaceArgument(NamedTuple):
    """A namespace: its connection string, or its host alone, with a credential found at run time."""

    host: str
    connection_string: str | None = None

    def __repr__(self) -> str:
        return f"<NamespaceArgument {self.host}{', with a key' if self.connection_string else ''}>"

    def endpoint(self, name: str, ca_file: Path | None = None) -> Any:
        """Return a `pairbus.syphon.endpoint.Endpoint`."""
        from pairbus.syphon.endpoint import Endpoint

        if self.connection_string is not None:
            return Endpoint.from_connection_string(self.connection_string, ca_file=ca_file, name=name)
        trusted = None if ca_file is None else str(ca_file)
        return Endpoint(self.host, credential=_default_credential(), ca_file=trusted, name=name)

    def admin(self, ca_file: Path | None = None, **options: Any) -> Any:
        """Return the sync ServiceBusAdministrationClient of the SDK."""
        from azure.servicebus.management import ServiceBusAdministrationClient

        if ca_file is not None:
            options["connection_verify"] = str(ca_file)
        if self.connection_string is not None:
            return ServiceBusAdministrationClient.from_connection_string(self.connection_string, **options)
        return ServiceBusAdministrationClient(self.host, _default_credential(), **options)


def _default_credential() -> Any:
    import logging

    try:
        from azure.identity import DefaultAzureCredential
    except ImportError:
        raise click.ClickException(
            "a host name is reached with DefaultAzureCredential: install pairbus[identity], or give a connection string"
        ) from None
    # Its log of what it tried is silenced: the error says it in a line.
    logging.getLogger("azure").addHandler(logging.NullHandler())
    return DefaultAzureCredential()


def parse(text: str, option: str, *, from_command_line: bool = True) -> NamespaceArgument:
    """Return the namespace; raise click.UsageError, which never shows a possible secret."""
    from pairbus.connection_string import ConnectionString, ConnectionStringError

    text = text.strip()
    if text == "-":
        text, source = _from_stdin(option), "stdin"
    elif text.startswith("@"):
        text, source = _from_file(text[1:], option), text
    elif text.startswith(_ENV):
        text, source = _from_environment(text.removeprefix(_ENV), option), text
    else:
        source = _TYPED if from_command_line else "the environment"
    if not text:
        raise click.UsageError(f"{option}: {source} is empty; {_WANTED}")
    if "=" not in text and ";" not in text:
        return _host(text, option, is_shown=source == _TYPED)
    try:
        parsed = ConnectionString.parse(text)
    except ConnectionStringError as error:
        raise click.UsageError(f"{option}: {error}") from None
    if source == _TYPED:
        click.echo(
            f"pairbus: {option} holds a secret, which others on this machine can see in the list of processes; "
            f"{_safer(option)} to yourself",
            err=True,
        )
    return NamespaceArgument(parsed.host, text)


def _safer(option: str) -> str:
    if option in VARIABLES:
        return f"@FILE, env:NAME, - or {VARIABLES[option]} keep it"
    return "@FILE, env:NAME and - keep it"


def _from_stdin(option: str) -> str:
    context = click.get_current_context(silent=True)
    taken = {} if context is None else context.find_root().meta
    if "pairbus.stdin" in taken:
        raise click.UsageError(f"{option}: only one namespace can come from stdin, and {taken['pairbus.stdin']} does")
    taken["pairbus.stdin"] = option
    if sys.stdin.isatty():
        click.echo(f"pairbus: {option}: the connection string, then Enter:", err=True)
    return sys.stdin.readline().strip()


def _from_file(name: str, option: str) -> str:
    try:
        return Path(name).read_text(encoding="utf-8").strip()
    except OSError as error:
        raise click.UsageError(f"{option}: {name} can't be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise click.UsageError(f"{option}: {name} is not a text file in UTF-8") from None


def _from_environment(name: str, option: str) -> str:
    if not _VARIABLE.fullmatch(name):  # not shown: it may be the secret itself
        raise click.UsageError(
            f"{option}: the name of an environment variable is wanted after {_ENV}, such as env:CONTOSO"
        )
    if name not in os.environ:
        raise click.UsageError(f"{option}: the environment variable {name} is not set")
    return os.environ[name].strip()


def _host(text: str, option: str, *, is_shown: bool) -> NamespaceArgument:
    """`is_shown`: it was typed, and can't be a key that somebody has taken for a connection string."""
    host = text.removeprefix("sb://").removeprefix("https://").rstrip("/")
    if not _HOST.fullmatch(host):
        raise click.UsageError(f"{option} is neither a connection string nor a host name; {_WANTED}")
    if "." not in host:
        shown, example = (f" {host}", host) if is_shown else ("", "contoso")
        raise click.UsageError(f"{option}{shown}: give the whole host name, such as {example}.servicebus.windows.net")
    return NamespaceArgument(host)


def _callback(context: click.Context, parameter: click.Parameter, value: str | None) -> NamespaceArgument | None:
    if value is None:
        return None
    assert parameter.name is not None
    typed = context.get_parameter_source(parameter.name) is ParameterSource.COMMANDLINE
    return parse(value, parameter.opts[0], from_command_line=typed)


def namespace_option(which: str, help_text: str, *, required: bool = True, name: str | None = None) -> Callable[[F], F]:
    """Return the option `--primary`, `--secondary` or another that names a namespace."""
    return click.option(
        f"--{which}",
        name or which,
        metavar="NAMESPACE",
        envvar=VARIABLES.get(f"--{which}"),
        show_envvar=True,
        required=required,
        callback=_callback,
        help=f"{help_text} {SOURCES}",
    )


def _argument_callback(_context: click.Context, _parameter: click.Parameter, value: str) -> NamespaceArgument:
    return parse(value, "NS")


def namespace_argument() -> Callable[[F], F]:
    """Return the argument NS of the commands that work on one entity."""
    return click.argument("namespace", metavar="NS", callback=_argument_callback)


ca_file_option = click.option(
    "--ca-file",
    type=click.Path(path_type=Path, dir_okay=False, exists=True),
    help="Trust this CA: the ca_file that an embedded broker prints.",
)
