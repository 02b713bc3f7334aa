"""What a column holds that a message says otherwise: application properties as JSON, ids made from a row, and many
messages in one row. Pure."""
