"""The language of SQL rules: filters that say which messages match, and actions that change them.

Pure: it uses no clock, disk or network. It may import `pairbus.amqp`. docs/reference/sql-rules.md defines the language;
`broker.model` decides which rules a subscription has, and what happens to a match.
"""
