"""A Celery application on Kombu's `azureservicebus` transport for test_celery_proof.py, run where Celery is installed.

That transport takes no port and no CA: a namespace is a name under `.net`, on 5671 and 443. Its channel is led to the
broker by the connection string alone (PAIRBUS_NAMESPACE); all else is Kombu's and Celery's.
"""

from __future__ import annotations

import os
import threading
from pathlib import Path

from celery import Celery, Task
from kombu.transport import TRANSPORT_ALIASES, azureservicebus


class Channel(azureservicebus.Channel):
    def _try_parse_connection_string(self) -> None:
        super()._try_parse_connection_string()
        self._connection_string = os.environ["PAIRBUS_NAMESPACE"]


class Transport(azureservicebus.Transport):
    Channel = Channel


TRANSPORT_ALIASES["azureservicebus"] = f"{__name__}:Transport"
FOLDER = Path(os.environ["PAIRBUS_RESULTS"])
app = Celery("proof", broker="azureservicebus://policy:key@contoso", backend=f"file://{FOLDER}")
app.conf.update(
    broker_transport_options={"peek_lock_seconds": 5, "wait_time_seconds": 1, "uamqp_keep_alive_interval": 0},
    task_acks_late=True,
    worker_prefetch_multiplier=1,
    worker_hijack_root_logger=False,
)


@app.task
def add(left: int, right: int) -> int:
    return left + right


@app.task(bind=True, max_retries=3, default_retry_delay=0)
def succeed_the_third_time(self: Task) -> int:
    if self.request.retries < 2:
        raise self.retry()
    retries: int = self.request.retries
    return retries


@app.task
def note_and_wait_once(name: str) -> str:
    """Its first run never ends: the worker is to be killed under it."""
    noted = FOLDER / name
    if not noted.exists():
        noted.write_text(str(os.getpid()))
        threading.Event().wait()
    return noted.read_text()


def main() -> None:
    """What an application does: send tasks, wait for their results. Prints a line when the long task has been sent."""
    assert [add.delay(n, 2).get(timeout=60) for n in range(5)] == [2, 3, 4, 5, 6]
    assert succeed_the_third_time.delay().get(timeout=60) == 2
    waiting = note_and_wait_once.delay("noted")
    print("sent", flush=True)
    print(waiting.get(timeout=60), flush=True)
