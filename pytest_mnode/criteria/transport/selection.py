"""How NCCL chooses interfaces and RDMA devices by a list of names."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Selection:
    """A list as in NCCL_SOCKET_IFNAME and NCCL_IB_HCA: names or, without `=`, prefixes.

    excludes: the list begins with `^` and selects all other names. exact: it begins with `=` and
    has whole names. names: each with the port after its colon; None for every port.

    Source: NCCL user guide, environment variables, NCCL_SOCKET_IFNAME and NCCL_IB_HCA.
    """

    excludes: bool
    exact: bool
    names: tuple[tuple[str, int | None], ...]

    @classmethod
    def of(cls, written: str) -> Self:
        """Parse a list; any text is valid."""
        rest = written.strip()
        excludes = rest.startswith("^")
        rest = rest.removeprefix("^")
        exact = rest.startswith("=")
        rest = rest.removeprefix("=")
        names = [_name_and_port(part.strip()) for part in rest.split(",") if part.strip()]
        return cls(excludes, exact, tuple(names))

    def takes(self, name: str, port: int | None = None) -> bool:
        """Whether it selects a device; an empty list selects all."""
        if not self.names:
            return True
        return self._lists(name, port) is not self.excludes

    def taken(self, names: Iterable[str]) -> tuple[str, ...]:
        """The names among `names` that it selects, by any port."""
        return tuple(name for name in names if self.takes(name))

    def _lists(self, name: str, port: int | None) -> bool:
        return any(
            (name == listed if self.exact else name.startswith(listed))
            and (wanted is None or port is None or port == wanted)
            for listed, wanted in self.names
        )


def _name_and_port(text: str) -> tuple[str, int | None]:
    """DEVICE, DEVICE:PORT or DEVICE:PORT:RAIL:PLANE, where the port may be empty."""
    name, _, rest = text.partition(":")
    port = rest.partition(":")[0]
    return (name, int(port) if port.isdigit() else None)
