"""How many channels, rings and trees a communicator has, and which algorithm a size got."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from pytest_mnode.logs.nccl_log.facts import Plan, Process, Tuning

_CHANNELS = re.compile(r"(\d{1,5}) (?:(coll|collnet|nvls|p2p) )channels\b(?! per)", re.ASCII)
_RING = re.compile(r"Ring (\d{1,5}) ?: -?\d{1,7} -> -?\d{1,7} -> -?\d{1,7}$", re.ASCII)
_TREE = re.compile(r"\[(\d{1,5})\] -?\d{1,7}/", re.ASCII)
_CONNECTED = re.compile(
    r"Connected all rings(?:.{0,40}?PXN (?P<pxn>\d) GDR (?P<gdr>\d))?", re.ASCII
)
_TUNING = re.compile(
    r"(?P<collective>[A-Z]\w{2,40}): (?P<size>\d{1,18}) Bytes -> Algo (?P<algorithm>\w{1,40}) "
    r"proto (?P<protocol>\w{1,20})",
    re.ASCII,
)
# Numbers before 2.25, in the order of NCCL's own enumeration.
_ALGORITHMS = ("TREE", "RING", "COLLNET_DIRECT", "COLLNET_CHAIN", "NVLS", "NVLS_TREE", "PAT")
_PROTOCOLS = ("LL", "LL128", "SIMPLE")


@dataclass(slots=True)
class Plans:
    """Plans met so far, by process and communicator."""

    values: dict[tuple[Process, str | None], dict[str, int]] = field(default_factory=dict)

    def read(self, process: Process, comm: str | None, message: str) -> bool:
        """Take in a message; True when it says that rings or trees are connected."""
        found: dict[str, int] = {}
        connected = False
        if message.startswith("Ring "):
            ring = _RING.match(message)
            found = {"rings": int(ring.group(1)) + 1} if ring else {}
        elif message.startswith("Trees "):
            found = {"trees": max((int(n) + 1 for n in _TREE.findall(message)), default=0)}
        elif message.startswith("Connected all "):
            connected = True
            rings = _CONNECTED.match(message)
            if rings is not None and rings["gdr"] is not None:
                found = {"gdr": int(rings["gdr"]), "pxn": int(rings["pxn"])}
        elif " coll channels" in message:
            found = {kind: int(count) for count, kind in _CHANNELS.findall(message[:400])}
        if found:
            known = self.values.setdefault((process, comm), {})
            for name, value in found.items():
                known[name] = max(value, known.get(name, 0))
        return connected

    def all(self) -> tuple[Plan, ...]:
        return tuple(
            Plan(
                process=process,
                comm=comm,
                coll_channels=known.get("coll"),
                collnet_channels=known.get("collnet"),
                nvls_channels=known.get("nvls"),
                p2p_channels=known.get("p2p"),
                rings=known.get("rings"),
                trees=known.get("trees"),
                gdr=bool(known["gdr"]) if "gdr" in known else None,
                pxn=bool(known["pxn"]) if "pxn" in known else None,
            )
            for (process, comm), known in self.values.items()
        )


def read_tuning(process: Process, message: str) -> Tuning | None:
    """The algorithm and protocol that a collective of one size got, by name."""
    found = _TUNING.match(message)
    if found is None:
        return None
    return Tuning(
        process=process,
        collective=found["collective"],
        size_bytes=int(found["size"]),
        algorithm=_name(found["algorithm"], _ALGORITHMS),
        protocol=_name(found["protocol"], _PROTOCOLS),
    )


def _name(text: str, names: tuple[str, ...]) -> str:
    if text.isdigit() and len(text) < 3 and int(text) < len(names):
        return names[int(text)]
    return text
