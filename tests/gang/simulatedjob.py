"""A job of the simulated scheduler."""

from __future__ import annotations

from dataclasses import dataclass

from pytest_mnode.gang.engine import Ask


@dataclass
class Job:
    id: str
    ask: Ask
    nodes: tuple[str, ...] = ()
    began_s: float | None = None
    ending_s: float | None = None
    over: bool = False
    life: int = 0
    told: bool = False
    why: str = "PENDING (Resources)"

    @property
    def waits(self) -> bool:
        return self.began_s is None and not self.over
