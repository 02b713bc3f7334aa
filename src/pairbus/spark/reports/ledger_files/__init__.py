"""Holds the work on ledger files as such: which are copies of others, which are missing, compaction into Parquet."""
