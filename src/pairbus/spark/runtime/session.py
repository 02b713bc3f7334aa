"""Starts a Spark session with our defaults, one per process, for users who have none.

It owns the process's environment for Spark: Java, the workers' Python, the folders. The session is local by default;
any master works.
"""

from __future__ import annotations

import atexit
import contextlib
import logging
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
import warnings
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from . import worker_python
from .java import java_home

if find_spec("pyspark") is None:  # a missing extra is reported at once, not at its first use
    raise ModuleNotFoundError("No module named 'pyspark'", name="pyspark")

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: All cores, and four tries a task: `local[*]` allows none, and one killed worker would fail the job.
LOCAL: Final = "local[*,4]"
DEFAULTS: Final[Mapping[str, str]] = {
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1000",
    # Large messages: as many bytes as the sink sends together.
    "spark.sql.execution.arrow.maxBytesPerBatch": "16m",
    "spark.speculation": "false",
    "spark.sql.session.timeZone": "UTC",
    "spark.sql.streaming.stopTimeout": "60s",
    # What a stream kept of finished batches; the queue is the state, so a few suffice.
    "spark.sql.streaming.minBatchesToRetain": "10",
}
#: For a master on this machine. Executors on others would look for the driver on their own loopback.
_LOCAL_DEFAULTS: Final[Mapping[str, str]] = {
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
}
_SAY_AFTER_S: Final = 2.0
#: How long a JVM may take to end before it is killed.
END_S: Final = 5.0
#: The session that `session` has started, and whether it has begun to.
_started: SparkSession | None = None
_launched = False
JAVA_OPTIONS: Final = "spark.driver.extraJavaOptions"
QUICK_JAVA: Final[Mapping[str, str]] = {"spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1"}
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
    """Return the process's session, started if there is none. `on_progress` gets the seconds gone by, once a second.

    With a session at hand `master` and `conf` must be left out: Spark can't change them any more.
    """

    if is_gone():
        _forget()
    active = existing()
    if active is not None:
        if master is not None and master != active.sparkContext.master:
            raise ValueError(
                f"this process has a Spark session on {active.sparkContext.master} already, and can't have one on "
                f"{master} too; stop() the first, or leave `master` out"
            )
        _register(active)
        return active
    with _Progress(on_progress):
        return _start(master or LOCAL, app_name, conf or {})


def _start(master: str, app_name: str, conf: Mapping[str, Any]) -> SparkSession:
    from pyspark.sql import SparkSession

    folder = Path(tempfile.mkdtemp(prefix="pairbus-spark-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["JAVA_HOME"] = str(java_home())
    # PySpark reads the setting only where spark-submit starts the driver.
    os.environ.setdefault("PYSPARK_PYTHON", str(conf.get("spark.pyspark.python", sys.executable)))
    os.environ.setdefault("PYSPARK_DRIVER_PYTHON", sys.executable)
    if is_local(master):
        # `local-cluster` would put its executors' folders into the installed package.
        os.environ.setdefault("SPARK_WORKER_DIR", str(folder / "work"))
        os.environ.setdefault("SPARK_LOCAL_IP", "127.0.0.1")
    log_settings = folder / "log4j2.properties"
    log_settings.write_text(_LOGGING)
    builder = SparkSession.builder.master(master).appName(app_name)
    settings = settings_for(master, folder, os.cpu_count() or 2)
    ours = f'"-Dlog4j2.configurationFile=file:{log_settings}"'  # Spark cuts it at spaces outside of quotes
    settings |= {**conf, JAVA_OPTIONS: f"{ours} {conf.get(JAVA_OPTIONS, '')}".strip()}
    for name, value in settings.items():
        builder = builder.config(name, str(value))
    global _started, _launched
    _launched = True
    # While Java starts, which takes longer.
    threading.Thread(target=_import_source, name="pairbus-spark-import", daemon=True).start()
    with worker_python.in_use(folder, os.environ) if is_local(master) else contextlib.nullcontext():
        made = _started = builder.getOrCreate()
    _register(made)
    return made


def _import_source() -> None:
    with contextlib.suppress(Exception):  # code that needs it will meet the error
        import pairbus.spark.connector.source  # noqa: F401


def _register(spark: SparkSession) -> None:
    from pairbus.spark.connector.source import register

    register(spark)


def existing() -> SparkSession | None:
    """Return the process's session, even one of the application's, or None where its JVM has died. Spark knows the
    active one by thread, and an application's is seldom that of our threads: to ask Spark for a session there would
    rewrite its settings."""
    from pyspark.sql import SparkSession

    if is_gone():  # to ask it would raise
        return None
    active = SparkSession.getActiveSession()
    if active is not None:
        return active
    made = SparkSession._instantiatedSession
    return made if made is not None and made._sc._jsc is not None else None


def is_started_here(spark: SparkSession) -> bool:
    """Return whether `session` started it: otherwise it is the application's."""
    return _started is not None and spark.sparkContext is _started.sparkContext


def beside(spark: SparkSession) -> SparkSession:
    """Return a session for our queries on the context of the application's, which is neither changed nor stopped:
    with its settings, except those that our queries need."""
    made = spark.newSession()
    for name, value in {**spark.conf.getAll, **DEFAULTS}.items():
        if name.startswith("spark.sql.") and made.conf.isModifiable(name):
            made.conf.set(name, value)
    _register(made)
    return made


def end() -> None:
    """End the JVM that this process started, and all that it has started on this machine, at once; for a process that
    is about to end itself. Nothing of them prints afterwards."""
    if not _launched:
        return
    logging.disable(logging.CRITICAL)  # py4j would tell of every call that is cut off
    leaders = _processes(parent=os.getpid())  # the JVM; while it is being started PySpark has it in no variable
    for wanted, seconds in ((signal.SIGTERM, END_S), (signal.SIGKILL, END_S)):
        deadline = time.monotonic() + seconds
        for leader in leaders:
            _send(leader, wanted)
        while any(map(_is_alive, leaders)) and time.monotonic() < deadline:
            time.sleep(0.02)
    for leader in leaders:
        with contextlib.suppress(ChildProcessError):
            os.waitpid(leader, os.WNOHANG)
    deadline = time.monotonic() + END_S
    while (rest := [each for leader in leaders for each in _processes(leader=leader)]) and time.monotonic() < deadline:
        for each in rest:
            _send(each, signal.SIGKILL)
        time.sleep(0.02)


def _send(process: int, number: int) -> None:
    with contextlib.suppress(OSError):
        os.kill(process, number)


def _is_alive(process: int) -> bool:
    with contextlib.suppress(OSError):
        return _stat(Path(f"/proc/{process}/stat"))[0] != "Z"
    return False


def _stat(file: Path) -> list[str]:
    """Return state, parent, group and session, as /proc has them after the name, which may hold anything."""
    return file.read_text().rpartition(")")[2].split()[:4]


def _processes(*, parent: int | None = None, leader: int | None = None) -> list[int]:
    """Return the children of a process, and those of the session that our `java` has begun. None where there is no
    /proc."""
    found = []
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError, ValueError):
            state, parent_id, _, session_id = _stat(file)
            if state != "Z" and (int(parent_id) == parent or int(session_id) == leader):
                found.append(int(file.parent.name))
    return found


def is_local(master: str) -> bool:
    """Return whether driver and executors are all on this machine."""
    return master.partition("[")[0] in ("local", "local-cluster")


def quick_java(master: str | None, conf: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the settings for work that asks little of Java itself: with its quick compiler alone it starts with half
    the effort. Where the master is a cluster, and what `conf` says otherwise, stays."""
    return {**(QUICK_JAVA if is_local(master or LOCAL) else {}), **(conf or {})}


def settings_for(master: str, folder: Path, cores: int) -> dict[str, Any]:
    """Return the defaults of a session on this master. What belongs to this machine alone is left to a cluster's
    own."""
    if not is_local(master):
        return dict(DEFAULTS)
    return {
        **DEFAULTS,
        **_LOCAL_DEFAULTS,
        "spark.sql.shuffle.partitions": str(cores),
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "local"),
    }


def is_gone() -> bool:
    """Return whether the JVM of this process's driver has died; what is left of it answers with errors only."""
    from pyspark import SparkContext

    process = getattr(SparkContext._gateway, "proc", None)
    return process is not None and process.poll() is not None


def _forget() -> None:
    """Drop what pyspark keeps of a dead JVM, so that it starts another one."""
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
