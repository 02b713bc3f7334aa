"""What pairing decides: states, routes, verdicts, aliases. No I/O; `pairbus.sync` and `pairbus.aio` are the shells."""
