"""A rehearsal of the outage that pairing is for: two namespaces, traffic, a fault, the way back, the reckoning."""
