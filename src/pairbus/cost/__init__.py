"""What pairing costs, before the fact (P53). Pure; the report after the fact is `pairbus.spark.reports.cost_report`.

from pairbus.cost import EXAMPLE, PriceBook, Scenario, estimate
"""

from .estimate import Estimate, Scenario, Term, estimate
from .prices import EXAMPLE, PriceBook, PriceError, parse

__all__ = ["EXAMPLE", "Estimate", "PriceBook", "PriceError", "Scenario", "Term", "estimate", "parse"]
