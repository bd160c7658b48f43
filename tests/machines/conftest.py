"""Guests, booted once for all tests."""

from __future__ import annotations

from tests.machines.accepting import shared
from tests.machines.bed import machines, machines_once

__all__ = ["machines", "machines_once", "shared"]
