"""A job whose ranks do nothing for a second."""

import time

time.sleep(1)
