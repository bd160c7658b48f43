"""Reads what `nvidia-smi topo -m` prints, of any version. Pure and total."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from pytest_mnode.logs.lines import lines_of
from pytest_mnode.machine.cpus import parse_cpulist
from pytest_mnode.machine.pci import Distance

_DEVICE = re.compile(r"[A-Za-z][\w-]*\d\w*", re.ASCII)
_LINK = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|NVLS?|N/A")
_LEGEND = re.compile(r"\s*(NIC\d+)\s*:\s*(\S+)\s*")
_WORD = re.compile(r"[A-Za-z][\w-]*", re.ASCII)
_HOST = re.compile(r"([A-Za-z][\w.-]{0,80}: ?)(?=\s*GPU\d+\s)", re.ASCII)
_NVLINKS = re.compile(r"NV(\d+)")
_AFFINITIES = re.compile(
    r"(?P<gpu_numa>GPU NUMA ID)|(?P<cpus>CPU Affinity)|(?P<numa>NUMA Affinity)"
    r"|(?P<memory>Memory Affinity)",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"\d{1,9}", re.ASCII)


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """How two devices are connected: by NVLinks, or by a PCI path.

    nvlinks: how many where they are; path: in the other case. raw: as printed; NV18 says nothing
    of the PCI path between the two.
    """

    raw: str
    nvlinks: int | None = None
    path: Distance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRow:
    """The affinities of one GPU; None where N/A is printed, or the row was cut off.

    numa_nodes: those of its CPUs. gpu_numa_node: of its own memory, where that is one.
    """

    name: str
    cpus: frozenset[int] | None = None
    numa_nodes: frozenset[int] | None = None
    gpu_numa_node: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TopoMatrix:
    """The matrix. gpus, nics: names as printed, in order. devices: RDMA device of NIC0, NIC1, ….

    links: by row and column as printed; None where the cell is not there or not readable.
    """

    gpus: tuple[str, ...] = ()
    nics: tuple[str, ...] = ()
    devices: Mapping[str, str] = field(default_factory=dict)
    links: Mapping[tuple[str, str], Link | None] = field(default_factory=dict)
    rows: tuple[GpuRow, ...] = ()

    def link(self, one: str, other: str) -> Link | None:
        """Between two, by names as printed or of RDMA devices, whichever of the two rows has it."""
        printed = {device: name for name, device in self.devices.items()}
        a, b = printed.get(one, one), printed.get(other, other)
        return self.links.get((a, b)) or self.links.get((b, a))

    def row(self, gpu: int) -> GpuRow | None:
        """Affinities of the GPU with this number."""
        return next((row for row in self.rows if row.name == f"GPU{gpu}"), None)

    def nearest_nics(self, gpu: int) -> tuple[str, ...] | None:
        """RDMA devices that are nearest to a GPU, all that are equally near.

        None where any cell of them cannot be read, or there are none.
        """
        far: dict[str, int] = {}
        for nic in self.nics:
            link = self.link(f"GPU{gpu}", nic)
            if link is None or link.path is None:
                return None
            far[self.devices.get(nic, nic)] = link.path.rank
        least = min(far.values(), default=None)
        return tuple(nic for nic, rank in far.items() if rank == least) or None


def read_topo_matrix(output: str | bytes) -> TopoMatrix:
    """The matrix in `output`; an empty one where there is none.

    Before 2022 RDMA devices were columns by their own names; since then they are NIC0, NIC1, … with
    a legend. SOC is what SYS was called at first. Of several matrices the first is read, of several
    hosts' that are mixed the lines of the first.
    """
    columns: tuple[str, ...] = ()
    header = host = ""
    links: dict[tuple[str, str], Link | None] = {}
    rows: dict[str, GpuRow] = {}
    devices: dict[str, str] = {}
    for told in lines_of(output):
        if not columns and (match := _HOST.match(told)) and _columns(told[match.end() :]):
            host = match[1]
        if not told.startswith(host):
            continue
        line = told.removeprefix(host)
        words = line.split()
        found = _columns(line)
        if columns and rows and found:
            break
        if legend := _LEGEND.fullmatch(line):
            devices[legend[1]] = legend[2]
        elif not columns and found:
            columns, header = found, line
        elif columns and words and words[0] in columns and words[0] not in rows:
            cells = words[1:]
            for i, column in enumerate(columns):
                links[words[0], column] = _link(cells[i]) if i < len(cells) else None
            rows[words[0]] = _row(line, header, len(columns))
    return TopoMatrix(
        gpus=tuple(name for name in columns if name.startswith("GPU")),
        nics=tuple(name for name in columns if not name.startswith("GPU")),
        devices=devices,
        links=links,
        rows=tuple(row for name, row in rows.items() if name.startswith("GPU")),
    )


def _columns(line: str) -> tuple[str, ...]:
    """Names of a header; empty for another line, a row in particular."""
    affinities = _AFFINITIES.search(line)
    # An RDMA device may have any name; without what follows, a sentence has no other mark.
    kind = _WORD if affinities else _DEVICE
    names = line[: affinities.start() if affinities else None].split()
    if not all(kind.fullmatch(name) and not _LINK.fullmatch(name) for name in names):
        return ()
    rest = affinities is not None
    is_header = (len(names) > 1 or rest) and names and names[0].startswith("GPU")
    return tuple(names) if is_header else ()


def _link(cell: str) -> Link | None:
    if not _LINK.fullmatch(cell) or cell == "N/A":
        return None
    if match := _NVLINKS.fullmatch(cell):
        return Link(raw=cell, nvlinks=int(match[1]))
    told = "SYS" if cell == "SOC" else cell
    path = Distance(told) if told in set(Distance) else None
    return Link(raw=cell, path=path)


def _row(line: str, header: str, columns: int) -> GpuRow:
    """Affinities of a row: its last cells, in the order of the header's names for them."""
    kinds = [str(match.lastgroup) for match in _AFFINITIES.finditer(header)]
    told = dict(zip(kinds, _last_cells(line, columns), strict=False))
    cpus = parse_cpulist(told.get("cpus")) or None
    numa = parse_cpulist(told.get("numa") or told.get("memory")) or None
    gpu = told.get("gpu_numa", "")
    return GpuRow(
        name=line.split(maxsplit=1)[0],
        cpus=cpus,
        numa_nodes=numa,
        gpu_numa_node=int(gpu) if _NUMBER.fullmatch(gpu) else None,
    )


def _last_cells(line: str, columns: int) -> list[str]:
    """Cells after the matrix. Between tabs a cell may be empty; between blanks it cannot be."""
    if "\t" not in line:
        return line.split()[1 + columns :]
    cells = [cell.strip() for cell in line.strip("\r\n ").split("\t")]
    # Some versions put two tabs before the affinities, some one: drop what pads.
    rest = cells[1 + columns :]
    return [cell for cell in rest if cell]
