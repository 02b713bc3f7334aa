"""Models what a namespace holds: messages, queues, sessions, topics, rules, and the states that they may be in.

Pure: no clock, disk or wire. It may import `pairbus.amqp`, `broker.format` and `broker.refusal`.
"""
