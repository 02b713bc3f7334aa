"""Holds what becomes of ledger files as files: which are copies of others, and their compaction into Parquet."""
