"""What everything on Spark needs: a session, Java, files, connections, messages between processes."""
