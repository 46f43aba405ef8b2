"""`python -m tests.attack N`: see tests/attack/run.py."""

import sys

from tests.attack.run import main

if __name__ == "__main__":
    sys.exit(main())
