"""Decides for the syphon, whichever engine runs it: what a delivery is, where it goes, when to settle it. Pure."""
