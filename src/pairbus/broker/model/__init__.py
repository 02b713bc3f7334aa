"""Models what a namespace holds: messages, queues, sessions, topics, rules, and the states that they may be in.

Pure: it uses no clock, disk or network. It may import `pairbus.amqp`, `broker.format` and `broker.refusal`.
"""
