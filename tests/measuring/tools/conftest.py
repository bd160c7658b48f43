"""Recorded machines for the tests of measuring programs."""

from __future__ import annotations

from tests.recorded import recorded

__all__ = ["recorded"]
