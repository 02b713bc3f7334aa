"""A Spark session with the house's defaults, one per process, for people who bring none of their own.

Owns the process's environment for Spark: Java, the workers' Python, the folders. Local by default; any master will do.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import shutil
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .java import java_home
from .source import register

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: All cores, and four tries a task: `local[*]` allows none, and one killed worker would fail the job.
LOCAL: Final = "local[*,4]"
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # Large messages: as many bytes as the sink sends together.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60s",
    # What a stream kept of finished batches; the queue is the state, so a few suffice.
    "spark.sql.streaming.minBatchesToRetain": "10",
}
_SAY_AFTER_S: Final = 2.0
#: From the first line on: `spark.log.level` would take hold only when the session stands, and say so.
_LOGGING: Final = """\
rootLogger.level = error
rootLogger.appenderRef.stderr.ref = stderr
logger.gateway.name = org.apache.spark.api.python.PythonGatewayServer
logger.gateway.level = error
appender.stderr.type = Console
appender.stderr.name = stderr
appender.stderr.target = SYSTEM_ERR
appender.stderr.layout.type = PatternLayout
appender.stderr.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def session(
    master: str | None = None,
    *,
    app_name: str = "pairbus",
    conf: Mapping[str, Any] | None = None,
    on_progress: Callable[[float], None] | None = None,
) -> SparkSession:
    """The process's session, started if there is none. `on_progress` hears the seconds gone by, once a second.

    With a session at hand `master` and `conf` must be left out: Spark can't change them any more.
    """
    from pyspark.sql import SparkSession

    if is_gone():
        _forget()
    active = SparkSession.getActiveSession()
    if active is not None:
        if master is not None and master != active.sparkContext.master:
            raise ValueError(
                f"this process has a Spark session on {active.sparkContext.master} already, and can't have one on "
                f"{master} too; stop() the first, or leave `master` out"
            )
        register(active)
        return active
    with _Progress(on_progress):
        return _start(master or LOCAL, app_name, conf or {})


def _start(master: str, app_name: str, conf: Mapping[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    folder = Path(tempfile.mkdtemp(prefix="pairbus-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAVA_HOME"] = str(java_home())
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    # `local-cluster` would put its executors' folders into the installed package.
    os.environ.setdefault("SPARK_WORKER_DIR", str(folder / "work"))
    os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    logging = folder / "log4j2.properties"
    logging.write_text(_LOGGING)
    builder = SparkSession.builder.master(master).appName(app_name)
    settings: dict[str, Any] = {
        **DEFAULTS,
        "spark.sql.shuffle.partitions": str(os.cpu_count() or 2),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile=file:{logging}",
        **conf,
    }
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    made = builder.getOrCreate()
    register(made)
    return made


def is_gone() -> bool:
    """Whether the JVM of this process's driver has died; what is left of it answers with errors only."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _forget() -> None:
    """What pyspark keeps of a dead JVM, so that it starts another one."""
    from pyspark import SparkContext
    from pyspark.sql import SparkSession

    context = SparkContext._active_spark_context
    if context is not None:
        with warnings.catch_warnings(), contextlib.suppress(Exception):
            warnings.simplefilter("ignore")
            context.stop()
    SparkContext._active_spark_context = None
    SparkContext._gateway = None
    SparkContext._jvm = None
    SparkSession._instantiatedSession = None
    SparkSession._activeSession = None


class _Progress:
    """Calls back once a second while the block runs, from the second second on."""

    def __init__(self, on_progress: Callable[[float], None] | None) -> None:
        self._call = on_progress
        self._done = threading.Event()
        self._thread: threading.Thread | None = None

    def __enter__(self) -> None:
        if self._call is not None:
            self._thread = threading.Thread(target=self._run, name="pairbus-spark-progress", daemon=True)
            self._thread.start()

    def __exit__(self, *exc: object) -> None:
        self._done.set()
        if self._thread is not None:
            self._thread.join()

    def _run(self) -> None:
        assert self._call is not None
        begun = time.monotonic()
        wait = _SAY_AFTER_S
        while not self._done.wait(wait):
            self._call(time.monotonic() - begun)
            wait = 1.0
