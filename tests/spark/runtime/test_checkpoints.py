from __future__ import annotations

from pathlib import Path

import pytest

from pairbus.spark import session
from pairbus.spark.runtime import checkpoints

SETTING = "spark.sql.streaming.checkpointFileManagerClass"


def test_a_query_goes_on_from_a_checkpoint_that_was_written_so(tmp_path: Path) -> None:
    spark = session().newSession()
    checkpoints.write_quickly(spark)
    chosen = spark.conf.get(SETTING, "")
    assert chosen is not None and chosen.endswith(".FileSystemBasedCheckpointFileManager")
    (tmp_path / "from").mkdir()
    for run in range(2):
        (tmp_path / "from" / f"{run}.txt").write_text(f"{run}\n")
        query = (
            spark.readStream.text(str(tmp_path / "from"))
            .writeStream.format("parquet")
            .option("checkpointLocation", f"file:{tmp_path}/checkpoint")
            .trigger(availableNow=True)
            .start(f"file:{tmp_path}/to")
        )
        query.awaitTermination()
    assert sorted(row.value for row in spark.read.parquet(f"file:{tmp_path}/to").collect()) == ["0", "1"]
    assert sorted(each.name for each in (tmp_path / "checkpoint" / "commits").glob("[0-9]*")) == ["0", "1"]


def test_a_spark_that_has_no_such_class_writes_them_as_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    spark = session().newSession()
    monkeypatch.setattr(checkpoints, "_CLASSES", ("org.example.Missing",))
    checkpoints.write_quickly(spark)
    assert spark.conf.get(SETTING, None) is None


def test_the_session_of_an_application_is_not_changed() -> None:
    spark = session()
    checkpoints.write_quickly(spark.newSession())
    assert spark.conf.get(SETTING, None) is None
