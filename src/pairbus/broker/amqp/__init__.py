"""What clients ask over AMQP: connections, links, `$cbs` and `$management`."""
