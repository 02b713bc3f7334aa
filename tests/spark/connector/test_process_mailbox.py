from __future__ import annotations

from pathlib import Path

from pairbus.spark.connector.process_mailbox import ProcessMailbox


def test_news_come_once_and_in_order(tmp_path: Path) -> None:
    writer, reader = ProcessMailbox(tmp_path), ProcessMailbox(tmp_path)
    assert reader.read_new("moves") == []
    writer.append("moves", {"n": 1})
    writer.append("moves", {"n": 2})
    writer.append("polls", {"n": 3})
    assert reader.read_new("moves") == [{"n": 1}, {"n": 2}]
    assert reader.read_new("moves") == []
    writer.append("moves", {"n": 4})
    assert reader.read_new("moves") == [{"n": 4}]
    assert ProcessMailbox(tmp_path).read_new("moves") == [{"n": 1}, {"n": 2}, {"n": 4}]


def test_a_line_that_is_not_whole_yet_waits(tmp_path: Path) -> None:
    reader = ProcessMailbox(tmp_path)
    sheet = tmp_path / "moves"
    sheet.write_bytes(b'{"n":1}\n{"n":')
    assert reader.read_new("moves") == [{"n": 1}]
    with sheet.open("ab") as file:
        file.write(b"2}\n")
    assert reader.read_new("moves") == [{"n": 2}]


def test_flags_are_seen_by_all_and_files_are_the_owners(tmp_path: Path) -> None:
    mailbox = ProcessMailbox(tmp_path)
    assert not mailbox.is_raised("stop")
    mailbox.raise_flag("stop")
    mailbox.append("moves", {})
    assert ProcessMailbox(tmp_path).is_raised("stop")
    mailbox.lower_flag("stop")
    mailbox.lower_flag("stop")
    assert not ProcessMailbox(tmp_path).is_raised("stop")
    assert all(path.stat().st_mode & 0o077 == 0 for path in tmp_path.iterdir())
