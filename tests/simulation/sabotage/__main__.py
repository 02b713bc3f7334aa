"""`python -m tests.simulation.sabotage`: the package says what it can do."""

import sys

from . import main

main(sys.argv[1:])
