"""Decides where a message goes: failover of entities, pings, busy pauses, verdicts on errors, rotation. Pure."""
