"""The command `completion`: prints the script with which a shell completes commands and options of `pairbus`.

The script is click's own and calls `pairbus` itself, so it is never out of date.
"""

from __future__ import annotations

import click

SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(SHELLS), metavar="SHELL")
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    """Print the script that completes commands and options in a shell: bash, zsh or fish.

    \b
    Examples:
      pairbus completion bash > ~/.local/share/bash-completion/completions/pairbus
      pairbus completion zsh > "${fpath[1]}/_pairbus"
      pairbus completion fish > ~/.config/fish/completions/pairbus.fish
    """
    from click.shell_completion import get_completion_class

    made = get_completion_class(shell)
    assert made is not None
    click.echo(made(context.find_root().command, {}, "pairbus", "_PAIRBUS_COMPLETE").source())
