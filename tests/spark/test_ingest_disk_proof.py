"""Ingest into a table on a disk that fills up."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from pairbus.spark import ingest
from pairbus.spark.pipelines import table_files
from pairbus.spark.pipelines.ingest import Ingester
from pairbus.spark.pipelines.preflight import TransferFailed
from tests.moving_clock import Clock

from .conftest import Pair, peeked
from .test_ingest_proof import LOCK, clock, each_failure, ids, named, pair, queues
from .test_move_proof import message, send

assert clock and pair and queues  # fixtures
pytestmark = [pytest.mark.soak, pytest.mark.timeout(1800)]


def test_a_disk_that_fills_up_loses_nothing(
    spark: Any, pair: Pair, clock: Clock, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(table_files, "FREE_BYTES_MIN", 0)
    disk = tmp_path / "disk"
    disk.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", str(disk)], capture_output=True)
    if mounted.returncode:
        pytest.skip("a small disk can't be mounted here")
    try:
        large = [message(number, filling=os.urandom(100_000)) for number in range(60)]
        send(pair.primary, "orders", *large)
        first = Ingester(pair.primary_address, "orders", disk / "table", drain=True, spark=spark)
        with (
            each_failure(first, lambda: clock.advance(LOCK.total_seconds() + 1)),
            pytest.raises(TransferFailed, match=r"can't be ingested into .*No space left on device.* still there"),
        ):
            first.run()
        subprocess.run(["mount", "-o", "remount,size=200m", str(disk)], check=True)
        assert ingest(spark, pair.primary_address, "orders", disk / "table", drain=True).wait(900) == []
        assert ids(spark, disk / "table") == named(60) and peeked(pair.primary, "orders") == []
    finally:
        subprocess.run(["umount", "-l", str(disk)], check=True)
