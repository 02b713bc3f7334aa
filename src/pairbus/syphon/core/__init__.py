"""What the syphon decides, whichever engine runs it: what arrived, where it goes, when to settle. Pure."""
