"""What the ledgers say: audit, availability, cost."""
