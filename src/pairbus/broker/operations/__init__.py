"""What can be done with messages and entities: enqueue, publish, receive, settle, create, delete."""
