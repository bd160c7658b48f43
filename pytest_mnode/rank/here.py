"""The rank of this process. Imports no torch, because fixtures use it in the controller too."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pytest_mnode.rank.rank import Rank

rank: Rank | None = None
"""None in a process that is not a rank."""
