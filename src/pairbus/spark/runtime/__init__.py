"""Holds what all on Spark need: session, Java, files, connections, messages between processes; imports `connector`."""
