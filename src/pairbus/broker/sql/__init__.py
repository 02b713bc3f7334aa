"""The language of SQL rules: filters that say which messages match, and actions that change them.

Pure: no clock, disk or wire. It may import `pairbus.amqp`. What a language element means stands in
docs/reference/sql-rules.md; which rules a subscription has, and what becomes of a match, is decided in `broker.model`.
"""
