"""Holds what all Spark code needs: session, Java, files, Python workers. Imports `connector`."""
