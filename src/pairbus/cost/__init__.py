"""Estimates what pairing will cost. Pure; `pairbus.spark.reports.cost_report` reports what it has cost.

from pairbus.cost import EXAMPLE, PriceBook, Scenario, estimate
"""

from .estimate import Estimate, Scenario, Term, estimate
from .prices import EXAMPLE, PriceBook, PriceError, parse

__all__ = ["EXAMPLE", "Estimate", "PriceBook", "PriceError", "Scenario", "Term", "estimate", "parse"]
