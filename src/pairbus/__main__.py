"""`python -m pairbus` is `pairbus`."""

from pairbus.cli import main

main()
