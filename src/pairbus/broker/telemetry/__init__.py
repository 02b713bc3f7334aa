"""What the broker counts and records: metrics, metering, the ledger, the inventory."""
