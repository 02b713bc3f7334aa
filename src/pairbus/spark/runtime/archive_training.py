"""Makes the archive of Spark's classes: `python -m pairbus.spark.runtime.archive_training`; ends with 0 if it is there.

Starts a Spark session of its own, does a little of what our commands do, and lets Java write down which classes that
took. The archive is written beside its place, tried, and then renamed, so that nobody finds half of one; of two that
make it at once the second ends at once. Runs when nobody waits for it; may be run by hand, for an image of a container.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pyspark.find_spark_home import _find_spark_home
from pyspark.sql.datasource import (
    DataSource,
    DataSourceReader,
    DataSourceStreamReader,
    DataSourceStreamWriter,
    DataSourceWriter,
    InputPartition,
    WriterCommitMessage,
)

from pairbus.spark.connector.arrow_rows import StreamWriter

from . import class_archive
from .java import inner_home, java_home
from .session import JAVA_OPTIONS, LOCAL, end, quick_java, session

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Whatever hangs is ended: nobody waits for this process.
LIMIT_S: Final = 1200
#: How long Java may take to write the archive and end: on a busy machine others go first.
WRITE_S: Final = 600.0
TRY_S: Final = 300.0
_TRIED: Final = "org.apache.spark.deploy.SparkSubmit"


def main() -> int:
    signal.signal(signal.SIGALRM, _give_up)
    signal.alarm(LIMIT_S)
    if is_alone := os.getsid(0) == os.getpid():
        _yield_to_others(os.getpid())
    archive = class_archive.find(os.environ, inner_home(java_home()), Path(_find_spark_home()))
    if archive is None:
        return 1
    try:
        class_archive.make_private(archive.folder)
        with open(archive.lock, "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return 0 if archive.is_whole() or make(archive, is_alone=is_alone) else 1
    except OSError:  # another one makes it; or the folder can't be written, or is full
        return 1


def _give_up(*_: object) -> None:
    end()
    os._exit(1)


def make(archive: class_archive.ClassArchive, *, is_alone: bool = False) -> bool:
    """Make the archive; return whether it is there. The caller holds the lock. Raises OSError."""
    archive.begin_attempt()
    for left_over in archive.folder.glob("*.new"):
        left_over.unlink()
    made = archive.folder / "classes.new"
    try:
        _make_base(archive)
        if not _is_usable(archive, made, _write(archive, made, is_alone)):
            return False
        archive.seal(made)
    finally:
        made.unlink(missing_ok=True)
    archive.drop_others()
    return True


def _make_base(archive: class_archive.ClassArchive) -> None:
    """Make the archive of Java's own classes where Java has none, since the other is made on top of it."""
    if (archive.java / "lib" / "server" / "classes.jsa").exists():
        return
    made = archive.folder / "base.new"
    subprocess.run(
        [str(archive.java / "bin" / "java"), "-Xshare:dump", f"-XX:SharedArchiveFile={made}"],
        check=False, timeout=TRY_S, stdin=subprocess.DEVNULL, capture_output=True,
    )  # fmt: skip
    if made.exists():
        class_archive.put(made, archive.base)


def _write(archive: class_archive.ClassArchive, made: Path, is_alone: bool) -> list[str]:
    """Have a session of Spark's write the archive; return those options of its Java that an archive is bound to: the
    class path, and what it may do to modules."""
    os.environ[class_archive.SWITCH] = "off"  # for the session, which would otherwise look for the archive itself
    options = class_archive.as_text(archive.training_options(made))
    spark = session(LOCAL, conf=quick_java(LOCAL, {JAVA_OPTIONS: options}))
    gateway: Any = spark.sparkContext._gateway
    if is_alone:
        _yield_to_others(gateway.proc.pid)
    with tempfile.TemporaryDirectory(prefix="pairbus-training-") as folder, contextlib.suppress(Exception):
        exercise(spark, Path(folder))  # what it does not come to, on a machine that is too busy, is not in the archive
    java = gateway.jvm.java.lang
    given = java.management.ManagementFactory.getRuntimeMXBean().getInputArguments()
    bound_to = [*(each for each in given if each.startswith("--")), "-cp", java.System.getProperty("java.class.path")]
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(WRITE_S)
    return bound_to


def _is_usable(archive: class_archive.ClassArchive, made: Path, bound_to: list[str]) -> bool:
    """Return whether Java, started as Spark starts it, takes a class of Spark's from the archive."""
    if not made.exists():
        return False
    # Not every Java knows all options that Spark gives it.
    options = [*archive.using(made), "-XX:+IgnoreUnrecognizedVMOptions", "-Xlog:class+load=info"]
    java = [str(archive.java / "bin" / "java"), *options]
    ran = subprocess.run(
        [*java, *bound_to, _TRIED, "--version"],
        check=False, timeout=TRY_S, stdin=subprocess.DEVNULL, capture_output=True, text=True,
    )  # fmt: skip
    wanted = [line for line in ran.stdout.splitlines() if f" {_TRIED} " in line]
    return ran.returncode == 0 and any("shared objects file" in line for line in wanted)


def _yield_to_others(process: int) -> None:
    """Let others go first. Linux may share the cores by session before it looks at `nice`; so the session of this
    process, which must be its leader, is told too."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, process, 19)
        Path(f"/proc/{process}/autogroup").write_text("19")


# -- what it does


def exercise(spark: SparkSession, folder: Path) -> None:
    """Do a little of what the commands do: read JSON, group, join, sort; write and read Parquet; a stream from a Python
    source to a Python sink."""
    from pyspark.sql import functions as F
    from pyspark.sql.window import Window

    lines = folder / "lines.jsonl"
    lines.write_text("".join(f'{{"t": {number}.5, "kind": "send", "mid": "{number % 3}"}}\n' for number in range(9)))
    events = spark.read.schema("t double, kind string, mid string").json(str(lines))
    first = events.groupBy("mid", "kind").agg(F.count("*").alias("n"), F.min("t").alias("t"), F.max("t").alias("end"))
    numbered = events.withColumn("row", F.row_number().over(Window.partitionBy("mid").orderBy("t")))
    joined = numbered.join(first.select("mid", "n"), "mid").where("row > 1 and kind like 's%'").orderBy("t")
    joined.write.parquet(str(folder / "table"))
    spark.read.parquet(str(folder / "table")).agg(F.sum("n"), F.collect_list("mid")).collect()
    spark.createDataFrame([(1, "a", b"b")], "number int, text string, bytes binary").collect()
    spark.dataSource.register(Exercise)
    spark.read.format(Exercise.name()).load().write.format(Exercise.name()).mode("append").save()
    rows = spark.readStream.format(Exercise.name()).load().coalesce(1)
    query = rows.writeStream.format(Exercise.name()).option("checkpointLocation", str(folder / "checkpoint")).start()
    try:
        deadline = time.monotonic() + 30
        while query.isActive and query.lastProgress is None and time.monotonic() < deadline:
            time.sleep(0.1)
    finally:
        query.stop()


class _Reading:
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        yield pa.RecordBatch.from_pydict({"entity": ["orders"], "amqp": [b"x"]})


class _BatchReader(_Reading, DataSourceReader):
    pass


class _StreamReader(_Reading, DataSourceStreamReader):
    def initialOffset(self) -> dict[str, int]:
        return {"at": 0}

    def latestOffset(self, *_: Any) -> dict[str, int]:
        return {"at": 1}

    def partitions(self, start: dict[str, int], end: dict[str, int]) -> list[InputPartition]:
        return [InputPartition(0)]

    def commit(self, end: dict[str, int]) -> None:
        pass


class _Writing:
    def write(self, iterator: Iterator[Any]) -> WriterCommitMessage:
        for _ in iterator:
            pass
        return WriterCommitMessage()


class _BatchWriter(_Writing, DataSourceWriter):
    pass


class _StreamWriter(_Writing, StreamWriter):
    pass


class Exercise(DataSource):
    """A source and a sink of one row, since those of the connector need a namespace."""

    @classmethod
    def name(cls) -> str:
        return "pairbus-exercise"

    def schema(self) -> str:
        return "entity string, amqp binary"

    def reader(self, schema: Any) -> DataSourceReader:
        return _BatchReader()

    def streamReader(self, schema: Any) -> DataSourceStreamReader:
        return _StreamReader()

    def writer(self, schema: Any, overwrite: bool) -> DataSourceWriter:
        return _BatchWriter()

    def streamWriter(self, schema: Any, overwrite: bool) -> DataSourceStreamWriter:
        return _StreamWriter()


if __name__ == "__main__":
    # Under its own name: Spark's workers import the source by that of its module.
    from pairbus.spark.runtime.archive_training import main as main_by_name

    sys.exit(main_by_name())
