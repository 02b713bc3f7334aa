"""Runs the tests that the official SDK publishes against the broker: `make sdk-suite`.

`suite.py` fetches the tests and decides which are run, `run.py` runs them, `__main__.py` is the command. The other
modules are pytest plugins for the process that runs the SDK's tests. Nothing of the SDK's tests is kept here.
"""
