"""The syphon: what brings messages home from the backlog queues. Its core serves every engine (P38)."""
