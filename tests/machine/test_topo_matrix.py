"""nvidia-smi's matrix as several versions print it, pasted, cut and coloured. Composed by hand."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_mnode.machine.cpus import parse_cpulist as listed
from pytest_mnode.machine.pci import Distance
from pytest_mnode.machine.topo_matrix import Link, read_topo_matrix

NEW = """\t\x1b[4mGPU0\tGPU1\tNIC0\tNIC1\tNIC2\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m
GPU0\t X \tNV18\tPIX\tNODE\tSYS\t0-15,32-47\t0\t\tN/A
GPU1\tNV18\t X \tSYS\tSYS\tPXB\t16-31,48-63\t1\t\tN/A
NIC0\tPIX\tSYS\t X \tNODE\tSYS\t\t\t\t
NIC1\tNODE\tSYS\tNODE\t X \tSYS\t\t\t\t
NIC2\tSYS\tPXB\tSYS\tSYS\t X \t\t\t\t

Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect

NIC Legend:

  NIC0: mlx5_0
  NIC1: mlx5_1
  NIC2: mlx5_bond_0

"""
OLD = """\tGPU0\tGPU1\tmlx5_0\tmlx5_1\tCPU Affinity
GPU0\t X \tNV4\tPIX\tSOC\t0-11
GPU1\tNV4\t X \tSOC\tPHB\t12-23
mlx5_0\tPIX\tSOC\t X \tSOC
mlx5_1\tSOC\tPHB\tSOC\t X
"""


@pytest.mark.parametrize(
    "told",
    [
        NEW,
        NEW.expandtabs(8),
        NEW.replace("\n", "\r\n"),
        "\n".join(f"3: {line}" for line in NEW.split("\n")),
        NEW.replace("\t\tN/A", "\tN/A"),
        NEW.encode(),
    ],
    ids=["as printed", "blanks", "carriage returns", "srun's labels", "one tab", "bytes"],
)
def test_a_matrix_of_today(told: str | bytes) -> None:
    matrix = read_topo_matrix(told)
    assert (matrix.gpus, matrix.nics) == (("GPU0", "GPU1"), ("NIC0", "NIC1", "NIC2"))
    assert matrix.devices == {"NIC0": "mlx5_0", "NIC1": "mlx5_1", "NIC2": "mlx5_bond_0"}
    assert matrix.link("GPU0", "GPU1") == Link(raw="NV18", nvlinks=18)
    assert matrix.link("GPU0", "GPU0") == Link(raw="X", path=Distance.SELF)
    assert matrix.link("GPU1", "mlx5_bond_0") == Link(raw="PXB", path=Distance.PXB)
    assert matrix.link("mlx5_0", "NIC1") == Link(raw="NODE", path=Distance.NODE)
    first, second = matrix.row(0), matrix.row(1)
    assert first is not None
    assert second is not None
    assert first.cpus == listed("0-15,32-47")
    assert (first.numa_nodes, first.gpu_numa_node) == (listed("0"), None)
    assert second.numa_nodes == listed("1")
    assert matrix.nearest_nics(0) == ("mlx5_0",)
    assert matrix.nearest_nics(1) == ("mlx5_bond_0",)


def test_a_matrix_with_the_devices_own_names() -> None:
    matrix = read_topo_matrix(OLD)
    assert matrix.nics == ("mlx5_0", "mlx5_1")
    link = matrix.link("GPU0", "mlx5_1")
    assert link is not None
    assert (link.raw, link.path) == ("SOC", Distance.SYS)
    row = matrix.row(1)
    assert row is not None
    assert (row.cpus, row.numa_nodes) == (listed("12-23"), None)
    assert matrix.nearest_nics(0) == ("mlx5_0",)


def test_affinities_that_are_not_available_are_none() -> None:
    told = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"
    told += "GPU0\t X \tPHB\tN/A\tN/A\t\tN/A\nGPU1\tPHB\t X \t0-71\t0\t\t1\n"
    matrix = read_topo_matrix(told)
    first, second = matrix.rows
    assert (first.cpus, first.numa_nodes, first.gpu_numa_node) == (None, None, None)
    assert (second.numa_nodes, second.gpu_numa_node) == (listed("0"), 1)
    assert matrix.nearest_nics(0) is None


def test_a_matrix_that_is_cut_off_is_read_as_far_as_it_goes() -> None:
    cut = NEW[: NEW.index("PXB")]
    matrix = read_topo_matrix(cut)
    assert matrix.nearest_nics(0) == ("NIC0",)
    assert matrix.nearest_nics(1) is None
    second = matrix.row(1)
    assert second is not None
    assert second.cpus is None
    assert matrix.link("GPU1", "NIC2") is None
    assert matrix.link("GPU1", "GPU0") == Link(raw="NV18", nvlinks=18)


def test_a_gpu_alone() -> None:
    matrix = read_topo_matrix("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-3\t0-1\n")
    assert matrix.gpus == ("GPU0",)
    assert matrix.rows[0].numa_nodes == listed("0-1")


def test_what_is_no_matrix_is_empty() -> None:
    matrix = read_topo_matrix("No devices were found\n")
    assert (matrix.gpus, matrix.nics, matrix.rows) == ((), (), ())
    assert matrix.nearest_nics(0) is None


@pytest.mark.parametrize("prefix", ["gpu-node07: ", "rack1.hall:", "n1: "])
def test_a_matrix_that_a_parallel_shell_put_a_host_before(prefix: str) -> None:
    lines = [f"{prefix}{line}" for line in NEW.split("\n")]
    other = [f"zz9: {line.replace('PIX', 'SYS')}" for line in NEW.split("\n")]
    mixed = [line for pair in zip(lines, other, strict=True) for line in pair]
    for told in (lines, mixed, [*lines, *other]):
        matrix = read_topo_matrix("\n".join(told))
        assert matrix == read_topo_matrix(NEW)


def test_of_two_matrices_the_first_is_read() -> None:
    assert read_topo_matrix(OLD + NEW) == read_topo_matrix(OLD)


def test_devices_may_have_any_name() -> None:
    matrix = read_topo_matrix(OLD.replace("mlx5_0", "storage").replace("mlx5_1", "roce-a"))
    assert matrix.nics == ("storage", "roce-a")
    assert matrix.nearest_nics(1) == ("roce-a",)
    assert read_topo_matrix("GPU0 is broken\nGPU0 X PIX\n").gpus == ()


_CELLS = st.sampled_from(
    [
        *("GPU0", "GPU1", "NIC0", "NIC0:", "mlx5_0", "X", "NV99999", "PIX", "0-3", "N/A"),
        *("CPU Affinity", "NUMA Affinity", "GPU NUMA ID", "\x1b[4m", ""),
    ]
)


@settings(deadline=None, max_examples=60)
@given(
    st.text()
    | st.lists(st.lists(_CELLS).map("\t".join)).map("\n".join)
    | st.integers(0, len(NEW)).map(lambda end: NEW[:end])
    | st.integers(0, len(NEW)).map(lambda start: NEW[start:])
)
def test_any_text_is_read(told: str) -> None:
    matrix = read_topo_matrix(told)
    for gpu in range(3):
        matrix.nearest_nics(gpu)
