"""The real broker, journal, clients and pairing in a simulated world."""
