"""Runs a test on asyncio's loop and on uvloop's."""

import asyncio
import functools
import inspect

import pytest
import uvloop

_SECONDS_MAX = 20


def on_both_loops(test):
    """Make two tests of a coroutine function, one for each loop; it may have fixtures and parameters."""

    @functools.wraps(test)
    def run(new_loop, **arguments):
        with asyncio.Runner(loop_factory=new_loop) as runner:
            runner.run(asyncio.wait_for(test(**arguments), _SECONDS_MAX))

    parameters = [inspect.Parameter("new_loop", inspect.Parameter.KEYWORD_ONLY)]
    run.__signature__ = inspect.Signature([*inspect.signature(test).parameters.values(), *parameters])  # type: ignore[attr-defined]
    del run.__wrapped__  # pytest would take it for a coroutine function
    loops = [asyncio.new_event_loop, uvloop.new_event_loop]
    return pytest.mark.parametrize("new_loop", loops, ids=["asyncio", "uvloop"])(run)
