"""Where a message goes: failover of an entity, pings, pauses, verdicts on errors, the backlog queues in turn. Pure."""
