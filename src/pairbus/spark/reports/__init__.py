"""Holds what is computed from ledgers: audit, availability, cost, series. Imports `runtime` only."""
