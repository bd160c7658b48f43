"""Common fixtures of this folder."""

from tests.launchers.dial_in.sites import make, site_programs

__all__ = ["make", "site_programs"]
