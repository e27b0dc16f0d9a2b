"""`python -m tests.fuzz`. Kept apart from `run`, whose functions spawned workers must be able to import by name."""

from __future__ import annotations

import sys

from tests.fuzz.run import main

if __name__ == "__main__":
    sys.exit(main())
