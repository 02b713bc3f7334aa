"""`python -m tests.simulation.endurance`: the package says what it measures."""

import sys

from . import main

sys.exit(main())
