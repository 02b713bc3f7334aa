"""What the figures were measured on: cores, memory, file system, how fast it syncs, versions."""

from __future__ import annotations

import os
import platform
import statistics
import time
from importlib import metadata
from pathlib import Path

from benchmarks.servers import NatsServer, RabbitServer, ServerMissing


def file_system(folder: Path) -> str:
    """Type of the mount that holds the folder: on tmpfs a sync costs nothing and the tables say nothing."""
    wanted = str(folder.resolve())
    best, kind = "", "unknown"
    for line in Path("/proc/mounts").read_text().splitlines():
        _, mount, fs, *_ = line.split(" ")
        inside = wanted == mount or wanted.startswith(mount.rstrip("/") + "/")
        if inside and len(mount) >= len(best):
            best, kind = mount, fs
    return kind


def sync_ms(folder: Path, times: int = 100) -> float:
    """Median of appending 1 KB and fdatasyncing it."""
    path = folder / "sync-probe"
    took = []
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    try:
        for _ in range(times):
            started = time.perf_counter()
            os.write(handle, bytes(1024))
            os.fdatasync(handle)
            took.append((time.perf_counter() - started) * 1000)
    finally:
        os.close(handle)
        path.unlink()
    return statistics.median(took)


def _version(of: type[RabbitServer] | type[NatsServer]) -> str:
    try:
        return of.version()
    except ServerMissing:
        return "missing"


def describe(folder: Path) -> dict[str, object]:
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return {
        "cpus": os.cpu_count(),
        "memory_gb": round(memory / 1e9, 1),
        "kernel": ".".join(platform.release().split(".")[:2]),
        "file_system": file_system(folder),
        "fdatasync_ms": round(sync_ms(folder), 3),
        "load_1min": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "azure-servicebus": metadata.version("azure-servicebus"),
        "rabbitmq": _version(RabbitServer),
        "nats-server": _version(NatsServer),
    }
