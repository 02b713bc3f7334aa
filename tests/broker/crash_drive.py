"""Kills a broker under load, starts it again on the same data and port, and holds it against what the load knows."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import json
import os
import random
import re
import signal
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

import pytest

from pairbus.broker.control.control_socket import request
from tests.simulation.history import History, Totals
from tests.waiting import until

from .broker_process import BrokerProcess
from .crash_load import Load, Proof, take_inventory
from .crash_traffic import TRAFFIC

#: The SDK leaves sockets and coroutines behind when a connection fails under it.
UNTIDY_SDK: Final = [
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore::ResourceWarning"),
    pytest.mark.filterwarnings("ignore::RuntimeWarning"),
]
_DURABILITIES: Final = ("default", "default", "default", "strict", "none")
_KILLS_BETWEEN_RESTS: Final = 20
_TIMES_MAX: Final = 4
#: So long a load may take for the calls to the disk at which the broker dies, on a busy machine.
_DEATH_S_MAX: Final = 120.0


def new_seed() -> int:
    """Of a soak, printed: PAIRBUS_SEED repeats its decisions, if not its timing."""
    seed = int(os.environ.get("PAIRBUS_SEED") or random.randrange(2**32))
    print(f"PAIRBUS_SEED={seed}")
    return seed


#: Of all other runs.
SEED: Final = int(os.environ.get("PAIRBUS_SEED") or 20)


class Drive:
    def __init__(self, data: Path, seed: int, proof: Proof = TRAFFIC, *, crashes: bool = False) -> None:
        """`crashes`: nodes and entities of the broker fail all the while, too (P49)."""
        #: How many did.
        self.crashes = 0
        self._has_crashes = crashes
        self.history = History()
        self.checker = proof.checker()
        self._proof = proof
        self.broker = BrokerProcess(data, journal=proof.journal)
        self._rng = random.Random(seed)
        self._seed = seed
        self._load: Load | None = None

    def __repr__(self) -> str:
        return f"<Drive seed {self._seed}: {self.checker!r}>"

    @property
    def totals(self) -> Totals:
        return self.checker.totals

    def run(self, kills: int, seconds: float = 0.0, **least: int) -> None:
        """At least so many kills, on for so long, and until the totals, and `crashes`, are `least`, which takes a slow
        machine more kills; in the end nothing may be amiss."""
        end = time.monotonic() + seconds
        with self._under_load() as load:
            done = 0
            while done < kills - 1 or time.monotonic() < end or (self._lacks(least) and done < _TIMES_MAX * kills):
                self._live(self._rng.uniform(*self._proof.lives_s))
                done += self._crash(audited=self._rng.random() < 0.7)
                if done % _KILLS_BETWEEN_RESTS == 0:
                    load.wait_resumed()
            load.wait_resumed()
            self._crash(audited=True)
        assert self._lacks(least) == {}, (self.totals, self.crashes)

    def _live(self, seconds: float) -> None:
        """Let the broker serve for so long; a kill that follows may come in the middle of a restart of a node."""
        end = time.monotonic() + seconds
        while self._has_crashes and time.monotonic() < end:
            spread = request(self.broker.data, {"command": "status"})["status"]["contoso"]["nodes"]
            entity = self._rng.choice([name for names in spread for name in names])
            wanted = {"kind": self._rng.choice(("crash-entity", "crash-node")), "entity": entity}
            lasts = {"for": self._rng.choice((0.001, 0.05, 0.3)), "delay": 0.01}
            answer = request(self.broker.data, {"command": "fault", "namespace": "contoso", **wanted, **lasts})
            # or it was deleted since
            assert answer["ok"] or re.search("is being restarted already|contoso has no", answer["error"]), answer
            if answer["ok"]:
                self.crashes += 1
                self.history.left(f"the receivers at crash {self.crashes}")
            if self._rng.random() < 0.1:
                self._audit()
            time.sleep(self._rng.choice((0.0, 0.1, 0.4)))
        time.sleep(max(0.0, end - time.monotonic()))

    def _audit(self) -> None:
        """Hold what the broker has, while nothing is under way, against what the load knows."""
        load, broker = self._load, self.broker
        assert load is not None
        load.hold()
        load.wait_parked()
        if self._has_crashes:
            until(lambda: not request(broker.data, {"command": "list"})["namespaces"]["contoso"])
            time.sleep(0.5)  # until what was restarted is served
        self.history.audited(asyncio.run(take_inventory(broker.connection_string, broker.ca_file)))
        self.checker.fold(self.history.take())
        found = "\n".join(self.checker.problems)
        assert found == "", f"seed {self._seed}, after {self.totals.kills} kills, {self.checker!r}:\n{found}"
        load.release()

    def _lacks(self, least: dict[str, int]) -> dict[str, int]:
        """Return the minima that are not reached yet."""
        return {
            name: count
            for name, count in least.items()
            if (self.crashes if name == "crashes" else getattr(self.totals, name)) < count
        }

    def run_deaths(self, deaths: Sequence[tuple[str, int, str]]) -> None:
        """The broker dies by itself, at exactly these calls to its disk (see `SickDisk`)."""
        with self._under_load() as load:
            for death in deaths:
                self._kill()
                self.broker.disk = {"dies": death}
                self.broker.launch()
                assert self.broker.wait(_DEATH_S_MAX) == -signal.SIGKILL
                self.history.killed()
                self.broker.disk = {}
                self._start(audited=True)
            load.wait_resumed()

    @contextlib.contextmanager
    def _under_load(self) -> Iterator[Load]:
        with self.broker as broker:
            broker.start()
            self._proof.prepare(broker.connection_string, broker.ca_file, self.history)
            load = self._load = Load(
                broker.connection_string, broker.ca_file, self._seed, self.history, self._proof.workers()
            )
            load.start()
            try:
                yield load
            finally:
                load.stop()
                gc.collect()
            assert broker.stop() == 0
        for path in (broker.data / "contoso").glob("diagnostics/*.json"):
            assert json.loads(path.read_text())["summary"].startswith("memory and journal agree"), path.read_text()
        print(f"{self.totals}, {self.crashes} crashes of nodes")
        print(f"errors that the load noticed: {dict(load.errors)}\n{load.workers}")
        assert load.surprises == []
        assert "Traceback" not in broker.said(), broker.said()

    def _crash(self, audited: bool) -> int:
        """One kill while the broker serves, now and then more while it starts again."""
        broker, rng = self.broker, self._rng
        kills = self._kill()
        time.sleep(rng.choice((0.0, 0.0, 0.2, 0.5)))
        # What one start wrote the next one reads, whatever its own settings are.
        broker.journal = dict(rng.choice((self._proof.journal, self._proof.journal, {})))
        broker.durability = rng.choice(_DURABILITIES)
        while rng.random() < 0.15:
            broker.launch()
            time.sleep(rng.random() * 0.5)
            kills += self._kill()
        self._start(audited)
        return kills

    def _start(self, audited: bool) -> None:
        load, broker = self._load, self.broker
        assert load is not None
        if audited:
            load.hold()
        broker.start()
        if audited:
            self._audit()

    def _kill(self) -> int:
        self.broker.kill()
        self.history.killed()
        return 1
