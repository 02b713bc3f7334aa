"""The old name of `pairbus.pairing.routing.verdicts`."""

from pairbus.moved import forward

__getattr__ = forward(__name__, "pairbus.pairing.routing.verdicts")
