"""The half of a paired client that waits for nothing: what `sync/` and `aio/` have in common, same file names."""
