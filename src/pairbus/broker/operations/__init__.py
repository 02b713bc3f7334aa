"""Implements what can be done with messages and entities: enqueue, publish, receive, settle, create, delete.

`Namespace` inherits all of them. It may import `broker.format`, `broker.model` and `broker.storage`.
"""
