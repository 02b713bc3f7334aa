"""Makes `python -m pairbus` the same as the command `pairbus`."""

from pairbus.cli import main

main()
