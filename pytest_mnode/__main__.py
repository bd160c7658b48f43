"""`python -m pytest_mnode COMMAND`: what needs no run of pytest."""

import sys

from pytest_mnode.commands import main

if __name__ == "__main__":
    sys.exit(main())
