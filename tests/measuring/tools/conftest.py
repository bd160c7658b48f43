"""Recorded machines for the tests of programs."""

from __future__ import annotations

from tests.recorded import recorded

__all__ = ["recorded"]
