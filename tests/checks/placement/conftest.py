"""Recorded machines for the tests of placement."""

from __future__ import annotations

from tests.recorded import recorded

__all__ = ["recorded"]
