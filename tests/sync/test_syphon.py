"""What only a syphon without a loop has to prove; the rest is in tests/aio/test_syphon.py, for both."""

from __future__ import annotations

import os

import pytest

from ..aio.test_syphon import Application
from ..syphon.conftest import pair as pair
from ..syphon.conftest import syphon_brokers as syphon_brokers
from ..syphon.conftest import syphon_clock as syphon_clock
from ..syphon.pair import Pair


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
async def test_in_a_forked_child_there_is_nothing_to_stop(pair: Pair) -> None:
    await pair.backlog(0)
    application = Application(True, pair)
    application.host.start()
    child = os.fork()
    if child == 0:
        try:
            application.host.client_closed("secondary")
            application.host.stop()
        except BaseException:
            os._exit(1)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    await application.close()
