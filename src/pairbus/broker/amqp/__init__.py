"""Serves AMQP clients: connections, links, `$cbs` and `$management`.

May import the broker's access, operations, model and telemetry; the AMQP engine itself is `pairbus.amqp`.
"""
