"""The command `ledger compact`: turns finished ledger files into Parquet.

Results go to stdout, progress to stderr. `cli.py` turns errors into one line.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

import click

from pairbus.commands import status_line
from pairbus.commands.progress_bar import bar


@click.group(no_args_is_help=False)
def ledger() -> None:
    """Look after ledger files.

    \b
    Examples:
      pairbus ledger compact ./data/contoso/ledger ./client-ledger
    """


@ledger.command()
@click.argument("ledgers", metavar="LEDGER...", nargs=-1, required=True)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object: for scripts.")
def compact(ledgers: tuple[str, ...], as_json: bool) -> None:
    """Turn finished ledger files into Parquet: a tenth of the size, and quicker to report on.

    LEDGER is a folder, searched for *.jsonl with all that is below it, or such a file. NAME.jsonl becomes
    NAME.jsonl.parquet beside it, with every line and every field, and is removed. The reports read both. A file that is
    still being written, or that a kill has cut, is left as it is. Run it as often as you like, beside whoever writes
    the ledgers; when it is killed, run it again. Needs no Spark.

    The exit code is 1 when a file could not be compacted, such as on a full disk.

    \b
    Examples:
      pairbus ledger compact ./data/contoso/ledger ./data/backup/ledger ./client-ledger
      pairbus ledger compact ./ledgers --json
    """
    try:
        from pairbus.spark.reports.ledger_files.compaction import compact as compact_files
    except ModuleNotFoundError:
        raise click.ClickException("compaction needs pyarrow, which is not installed: install pairbus[spark]") from None
    is_watched = sys.stderr.isatty()
    next_line = time.monotonic() + status_line.LOG_EVERY_S

    def say(done: int, total: int, file: Path) -> None:
        nonlocal next_line
        if is_watched or time.monotonic() >= next_line:
            next_line = time.monotonic() + status_line.LOG_EVERY_S
            status_line.say(f"{bar(done, total) if is_watched else ''}{done:,} of {total:,} files, {file.name}")

    found = compact_files(*ledgers, on_file=(lambda *_: None) if as_json else say)
    status_line.clear()
    click.echo(json.dumps(found.summary()) if as_json else found.text())
    if found.exit_code:
        raise click.exceptions.Exit(found.exit_code)
