"""A curve: how fast a collective was at each size, as plain values for the certificate."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any, Self


@dataclass(frozen=True, slots=True)
class Point:
    """One size. Times are of one call, over the repeats, each by its slowest rank.

    size_bytes: as moved, in nccl-tests' meaning of the collective's size.
    time_p99_us: no more than one repeat in a hundred took longer; with fewer than a hundred
    repeats that is the slowest. The bandwidths are those of the median. wrong: values that did not
    come right, over all ranks.
    """

    size_bytes: int
    repeats: int
    time_median_us: float
    time_p99_us: float
    time_min_us: float
    time_max_us: float
    algbw_gbytes_s: float
    busbw_gbytes_s: float
    wrong: int


@dataclass(frozen=True, slots=True)
class Curve:
    """A collective over sizes, rising. A size that could not be measured has no point.

    collective: torch.distributed's name. algorithm: "ring" where a ring is known to have moved the
    data, "default" where the library chose. backend: such as nccl.
    """

    collective: str
    algorithm: str
    backend: str
    ranks: int
    points: tuple[Point, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return asdict(self) | {"points": [asdict(point) for point in self.points]}

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`."""
        return cls(**{**data, "points": tuple(Point(**point) for point in data["points"])})
