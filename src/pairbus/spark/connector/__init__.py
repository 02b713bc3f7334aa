"""The `servicebus` data source: batch and stream readers, the writer, options and schema."""
