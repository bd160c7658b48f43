"""Recorded machines for the tests of discovery."""

from __future__ import annotations

from tests.recorded import recorded

__all__ = ["recorded"]
