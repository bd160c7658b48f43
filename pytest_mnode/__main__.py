"""`python -m pytest_mnode COMMAND`: commands that need no pytest run."""

import sys

from pytest_mnode.commands import main

if __name__ == "__main__":
    sys.exit(main())
