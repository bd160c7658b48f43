"""Guests that are booted once for all tests."""

from __future__ import annotations

from tests.machines.accepting import machines_warm, shared
from tests.machines.bed import machines, machines_once

__all__ = ["machines", "machines_once", "machines_warm", "shared"]
