"""The syphon brings messages home from the backlog queues.

`core/` decides, for every engine; the modules here are the in-process engine, its host inside an application, and the
modules with which both engines reach a namespace. May import `pairing`, `wire` and what lies below them.
"""
