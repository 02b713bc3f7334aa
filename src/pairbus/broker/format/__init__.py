"""What a message and its records look like as bytes, on disk and on the wire. Pure."""
