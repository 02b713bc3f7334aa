from __future__ import annotations

import errno
import itertools
import json
import os
import stat
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pairbus import __version__, ledger
from pairbus.errors import LedgerError
from pairbus.ledger import LedgerWriter

T = 1_700_000_000.123456


def read(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def all_events(folder: Path) -> list[dict[str, Any]]:
    """Every line that is neither the first of its file nor its end."""
    files = sorted(folder.glob("*.jsonl"))
    return [line for file in files for line in read(file)[1:] if line["kind"] != "end"]


def disk_full(*_: object) -> int:
    raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_tells_who_writes_then_the_events_then_its_end(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path / "ledger", "broker", clock=lambda: 5.0)
    writer.event("send", T, "contoso", "orders", mid="m-1", seq=7, size=1024, ms=1.25, cause="app")
    writer.event("state", T, "contoso", "orders", outcome=None, old="HEALTHY", new="FAILED_OVER")
    writer.event("divert", T, "fabrikam", "orders", queue=3, size=70_000)
    writer.event("manage", T, "contoso", outcome="amqp:not-found", cause="manage")
    writer.close()
    assert writer.path is not None
    lines = read(writer.path)
    assert len(lines[0].pop("series")) == 16
    assert lines == [
        {"schema": 1, "writer": "broker", "pid": os.getpid(), "t": 5.0, "pairbus": __version__, "number": 1},
        {"t": T, "kind": "send", "ns": "contoso", "entity": "orders", "mid": "m-1", "seq": 7, "bytes": 1024, "units": 1,
         "outcome": "ok", "ms": 1.25, "cause": "app"},
        {"t": T, "kind": "state", "ns": "contoso", "entity": "orders", "from": "HEALTHY", "to": "FAILED_OVER"},
        {"t": T, "kind": "divert", "ns": "fabrikam", "entity": "orders", "bytes": 70000, "units": 2, "outcome": "ok",
         "queue": 3},
        {"t": T, "kind": "manage", "ns": "contoso", "outcome": "amqp:not-found", "cause": "manage"},
        {"t": 5.0, "kind": "end", "reason": "closed", "events": 4},
    ]  # fmt: skip


def places(folder: Path) -> list[tuple[str, int]]:
    """Return the series and the number in it of each file, in the order in which they were begun."""
    firsts = sorted((read(file)[0] for file in folder.glob("*.jsonl")), key=lambda first: first["t"])
    return [(first["series"], first["number"]) for first in firsts]


def test_the_files_of_a_process_are_numbered(tmp_path: Path) -> None:
    times = itertools.count()
    for _ in range(2):
        writer = LedgerWriter(tmp_path, "client", file_bytes_max=1, clock=lambda: next(times))
        for _ in range(2):
            writer.event("send", T, "n", "q")
            writer.flush()
        writer.close()
    found = places(tmp_path)
    (first, _), *_, (second, _) = found
    assert first != second
    assert found == [*((first, number) for number in (1, 2, 3)), *((second, number) for number in (1, 2, 3))]


def test_one_series_goes_on_with_the_next_process(tmp_path: Path) -> None:
    """The files of the run before may have been moved away."""
    times = itertools.count()
    clock = lambda: next(times)  # noqa: E731
    for _ in range(3):
        LedgerWriter(tmp_path, "broker", clock=clock, continues=True).close()
    series = places(tmp_path)[0][0]
    assert places(tmp_path) == [(series, 1), (series, 2), (series, 3)]
    for file in tmp_path.glob("*.jsonl"):
        file.unlink()
    LedgerWriter(tmp_path, "broker", clock=clock, continues=True).close()
    assert places(tmp_path) == [(series, 4)]
    (tmp_path / "broker.series").write_text("")
    LedgerWriter(tmp_path, "broker", clock=clock, continues=True).close()
    assert places(tmp_path)[1] != (series, 5) and places(tmp_path)[1][1] == 1


def test_a_process_with_the_id_of_one_whose_files_were_compacted_takes_other_names(tmp_path: Path) -> None:
    """In containers the same id comes again at every start."""
    (tmp_path / f"broker-{os.getpid()}-000001.jsonl.parquet").touch()
    (tmp_path / f"broker-{os.getpid()}-000002.jsonl").touch()
    writer = LedgerWriter(tmp_path, "broker")
    writer.close()
    assert writer.path == tmp_path / f"broker-{os.getpid()}-000003.jsonl"


@pytest.mark.parametrize(("size", "units"), [(0, 1), (1, 1), (65_536, 1), (65_537, 2), (262_144, 4)])
def test_p51_units_are_of_64_kb(tmp_path: Path, size: int, units: int) -> None:
    writer = LedgerWriter(tmp_path, "broker")
    writer.event("send", T, "n", "q", size=size)
    writer.close()
    assert all_events(tmp_path)[0]["units"] == units


text = st.text(max_size=20)


@given(
    fields=st.fixed_dictionaries(
        {},
        optional={
            "mid": text,
            "seq": st.integers(0, 2**63),
            "size": st.integers(0, 2**31),
            "outcome": text,
            "ms": st.floats(0, 1e6),
            "queue": st.integers(0, 99),
            "old": text,
            "new": text,
        },
    ),
    ns=text,
    entity=text,
    t=st.floats(0, 4e9),
)
def test_any_event_is_one_line_of_json_that_reads_back(
    tmp_path_factory: pytest.TempPathFactory, fields: dict[str, Any], ns: str, entity: str, t: float
) -> None:
    folder = tmp_path_factory.mktemp("ledger")
    writer = LedgerWriter(folder, "broker")
    writer.event("send", t, ns, entity, **fields)
    writer.close()
    (event,) = all_events(folder)
    assert event["ns"] == ns
    assert event["entity"] == entity
    assert event["t"] == pytest.approx(t, abs=1e-6)
    renamed = {"size": "bytes", "old": "from", "new": "to"}
    for name, value in fields.items():
        assert event[renamed.get(name, name)] == (pytest.approx(value, abs=1e-3) if name == "ms" else value)


def test_the_owner_alone_reads_it(tmp_path: Path) -> None:
    folder = tmp_path / "ledger"
    writer = LedgerWriter(folder, "broker")
    assert writer.path is not None
    assert stat.S_IMODE(writer.path.stat().st_mode) == 0o600
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    writer.close()


def test_nothing_is_written_before_a_flush_and_all_of_it_after(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, "broker")
    writer.event("send", T, "n", "q")
    assert all_events(tmp_path) == []
    writer.flush()
    assert len(all_events(tmp_path)) == 1
    writer.close()


def test_a_late_owner_does_not_let_the_buffer_grow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "PENDING_LINES_MAX", 10)
    writer = LedgerWriter(tmp_path, "broker")
    for i in range(25):
        writer.event("send", T, "n", "q", seq=i)
    assert len(all_events(tmp_path)) == 20
    writer.close()
    assert [event["seq"] for event in all_events(tmp_path)] == list(range(25))


class Hanging:
    """The disk does not answer until it is told to: writes begin, and do not return."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.began, self.answers = threading.Event(), threading.Event()
        real_write = os.write

        def write(descriptor: int, data: memoryview) -> int:
            self.began.set()
            assert self.answers.wait(30)
            return real_write(descriptor, data)

        monkeypatch.setattr(os, "write", write)


def test_p48_a_write_aside_that_hangs_holds_up_nobody_and_drops_what_waits_longest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ledger, "PENDING_LINES_MAX", 3)
    monkeypatch.setattr(ledger, "WAITING_LINES_MAX", 10)
    monkeypatch.setattr(ledger, "CLOSING_S", 30.0)
    writer = LedgerWriter(tmp_path, "broker", clock=lambda: 9.0, aside=True)
    disk = Hanging(monkeypatch)
    assert writer.flush_aside() and not writer.is_flushing, "there is nothing to write"
    writer.event("send", T, "n", "q", seq=1)
    assert writer.flush_aside()
    assert disk.began.wait(30) and not writer.flush_aside() and writer.is_flushing
    for seq in range(2, 27):
        writer.event("send", T, "n", "q", seq=seq)
    writer.skip(4)
    assert writer.dropped_total == 24
    disk.answers.set()
    writer.close()
    events = all_events(tmp_path)
    assert [event.get("seq") for event in events] == [1, None, 22, 23, 24, 25, 26], "in order, and the gap in its place"
    assert events[1] == {"t": 9.0, "kind": "gap", "events": 24}


def test_p48_the_end_does_not_wait_long_for_a_disk_that_hangs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ledger, "CLOSING_S", 0.01)
    writer = LedgerWriter(tmp_path, "broker", aside=True)
    disk = Hanging(monkeypatch)
    writer.event("send", T, "n", "q", seq=1)
    assert writer.flush_aside() and disk.began.wait(30)
    writer.close()
    (file,) = tmp_path.glob("*.jsonl")
    assert len(read(file)) == 1, "it has no end, as after a kill"
    disk.answers.set()


def test_rotation_ends_a_file_and_loses_nothing(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, "broker", file_bytes_max=2_000)
    for i in range(100):
        writer.event("send", T, "contoso", "orders", seq=i)
        writer.flush()
    writer.close()
    files = sorted(tmp_path.glob("*.jsonl"))
    assert len(files) > 2
    for file in files:
        lines = read(file)
        assert lines[0]["schema"] == 1
        assert lines[-1]["kind"] == "end"
        assert lines[-1]["reason"] == ("closed" if file == files[-1] else "rotated")
        assert lines[-1]["events"] == len(lines) - 2
        assert file.stat().st_size < 2_300
    assert [event["seq"] for event in all_events(tmp_path)] == list(range(100))


def test_a_process_with_the_id_of_an_earlier_one_leaves_its_file_alone(tmp_path: Path) -> None:
    first = LedgerWriter(tmp_path, "broker")
    second = LedgerWriter(tmp_path, "broker")
    assert first.path != second.path
    first.close()
    second.close()


def test_a_full_disk_drops_events_never_raises_and_writes_the_gap_down(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LedgerWriter(tmp_path, "broker", clock=lambda: 9.0)
    writer.event("send", T, "n", "q", seq=1)
    writer.flush()
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full)
        for seq in (2, 3):
            writer.event("send", T, "n", "q", seq=seq)
            writer.flush()
    assert writer.dropped_total == 2
    assert writer.error is not None
    assert writer.error.errno == errno.ENOSPC
    writer.event("send", T, "n", "q", seq=4)
    writer.close()
    assert writer.error is None
    events = all_events(tmp_path)
    assert [event.get("seq") for event in events] == [1, None, 4]
    assert events[1] == {"t": 9.0, "kind": "gap", "events": 2}


def test_a_gap_is_written_before_the_end_although_nothing_came_after_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LedgerWriter(tmp_path, "broker", clock=lambda: 9.0)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full)
        writer.event("send", T, "n", "q", seq=1)
        writer.flush()
    writer.skip(5)  # for want of time
    assert writer.dropped_total == 6
    writer.close()
    (file,) = tmp_path.glob("*.jsonl")
    assert read(file)[1:] == [
        {"t": 9.0, "kind": "gap", "events": 6}, {"t": 9.0, "kind": "end", "reason": "closed", "events": 0},
    ]  # fmt: skip


def test_a_write_that_stops_half_way_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LedgerWriter(tmp_path, "broker")
    real_write = os.write
    calls = itertools.count()

    def half_then_full(descriptor: int, data: memoryview) -> int:
        return real_write(descriptor, data[: len(data) // 2]) if next(calls) == 0 else disk_full()

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", half_then_full)
        writer.event("send", T, "n", "q", seq=1)
        writer.flush()
    writer.event("send", T, "n", "q", seq=2)
    writer.close()
    assert [event.get("seq") for event in all_events(tmp_path)] == [None, 2]


def test_rotation_into_a_full_disk_goes_on_in_a_new_file_later(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    writer = LedgerWriter(tmp_path, "broker", file_bytes_max=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", disk_full)
        writer.event("send", T, "n", "q", seq=1)
        writer.flush()
    writer.event("send", T, "n", "q", seq=2)
    writer.close()
    assert [event.get("seq") for event in all_events(tmp_path)] == [None, 2]


def test_threads_lose_nothing(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, "broker")

    def write(start: int) -> None:
        for i in range(500):
            writer.event("send", T, "n", "q", seq=start + i)
            if i % 7 == 0:
                writer.flush()

    threads = [threading.Thread(target=write, args=(n * 500,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close()
    assert sorted(event["seq"] for event in all_events(tmp_path)) == list(range(2_000))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_writes_a_file_of_its_own(tmp_path: Path) -> None:
    writer = LedgerWriter(tmp_path, "app")
    writer.event("send", T, "n", "q", mid="parent")
    child = os.fork()
    if child == 0:
        status = 1
        try:
            writer.event("send", T, "n", "q", mid="child")
            writer.close()
            status = 0
        finally:
            os._exit(status)
    assert os.waitpid(child, 0)[1] == 0
    writer.close()
    by_writer = {read(file)[0]["pid"]: [line["mid"] for line in read(file)[1:-1]] for file in tmp_path.glob("*.jsonl")}
    assert by_writer == {os.getpid(): ["parent"], child: ["child"]}


@pytest.mark.parametrize("name", ["", "../up", "a b", ".hidden", "x" * 65])
def test_a_writer_s_name_must_fit_a_file_name(tmp_path: Path, name: str) -> None:
    with pytest.raises(LedgerError, match="can't name a ledger's writer"):
        LedgerWriter(tmp_path, name)


def test_a_folder_that_can_t_be_one_is_told_at_once(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(LedgerError, match=r"the ledger folder .* can't be written: .*; name another"):
        LedgerWriter(tmp_path / "file" / "ledger", "broker")
