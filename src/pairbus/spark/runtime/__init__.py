"""Holds what all on Spark need: session, Java, files, Python workers; imports `connector`."""
