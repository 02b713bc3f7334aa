"""Holds the reports on ledgers: audit, availability, cost, series. Imports only `runtime`."""
