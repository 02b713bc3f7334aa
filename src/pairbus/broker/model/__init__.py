"""What a namespace holds and which state it may be in: messages, queues, sessions, topics, rules. Pure."""
