"""The syphon on Spark: one query that brings messages home from all backlog queues."""
