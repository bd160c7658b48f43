"""How NCCL chooses interfaces and RDMA devices by a list of names."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Selection:
    """A list as in NCCL_SOCKET_IFNAME and NCCL_IB_HCA: names or, without `=`, prefixes.

    excludes: the list begins with `^` and selects all other names. exact: it begins with `=` and
    has whole names. names: each with the port after its colon; None for every port. A blank is a
    part of a name.

    Source: NCCL user guide, environment variables, NCCL_SOCKET_IFNAME and NCCL_IB_HCA.
    """

    excludes: bool
    exact: bool
    names: tuple[tuple[str, int | None], ...]

    @classmethod
    def of(cls, written: str) -> Self:
        """Parse a list; any text is valid."""
        excludes = written.startswith("^")
        rest = written.removeprefix("^")
        exact = rest.startswith("=")
        rest = rest.removeprefix("=")
        names = [_name_and_port(part) for part in rest.split(",") if part]
        return cls(excludes, exact, tuple(names))

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether it selects a device; an empty list means all."""
        listed = not self.names or any(
            (name == one if self.exact else name.startswith(one))
            and (wanted is None or port is None or port == wanted)
            for one, wanted in self.names
        )
        return listed is not self.excludes

    @property
    def doubt(self) -> str:
        """What a reader may overlook in the list; "" if nothing."""
        blanks = any(" " in name for name, _ in self.names)
        return " (a blank is a part of a name)" if blanks else ""


def _name_and_port(text: str) -> tuple[str, int | None]:
    """DEVICE, DEVICE:PORT or DEVICE:PORT:RAIL:PLANE, where the port may be empty."""
    name, _, rest = text.partition(":")
    port = rest.partition(":")[0]
    return (name, int(port) if port.isdigit() else None)
