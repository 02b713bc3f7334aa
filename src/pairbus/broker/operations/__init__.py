"""Implements what can be done with messages and entities: enqueue, publish, receive, settle, create, delete.

`Namespace` makes one object of each kind and holds them. They may import `broker.format`, `broker.model` and
`broker.storage`.
"""
