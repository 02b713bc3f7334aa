"""`python -m tests.frozen --write SUBJECT...` renews snapshots; without a SUBJECT, all of them."""

from __future__ import annotations

import click

from tests.frozen.subjects import SUBJECTS, snapshot_file, text_of


@click.command()
@click.option("--write", is_flag=True, required=True, help="Write the snapshots anew.")
@click.argument("subjects", nargs=-1, type=click.Choice(list(SUBJECTS)))
def main(write: bool, subjects: tuple[str, ...]) -> None:
    for name in subjects or SUBJECTS:
        snapshot_file(name).write_text(text_of(SUBJECTS[name]()))
        click.echo(snapshot_file(name).name)


if __name__ == "__main__":
    main()
