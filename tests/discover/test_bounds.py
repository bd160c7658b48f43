from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node.mtu import FullSizePacketsPass
from pytest_mnode.checks.node.payloads import PayloadsArriveUnchanged
from pytest_mnode.checks.node.reachable import EveryNodeIsReached
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.discover.bounds import tcp_fraction, tcp_plateau_bytes
from pytest_mnode.discover.draft import draft
from pytest_mnode.logs.kernel_log import Log
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.pci import PciTree
from pytest_mnode.machine.process import Limits
from pytest_mnode.spec import Spec, load_spec
from pytest_mnode.spec.models import wire_allows_fraction
from tests.discover.made import changed, cluster_of, efa_node, gpus, ib_node, roce_node, tcp_node
from tests.discover.test_draft import loaded
from tests.spec.conftest import busbw_of, preflight_of

CLUSTERS = Path(__file__).parents[2] / "fixtures/clusters"


@pytest.mark.parametrize(
    ("mtu_bytes", "emulated", "fraction"),
    [(1500, True, 0.85), (1500, False, 0.8), (9000, False, 0.85), (576, False, 0.75)],
)
def test_the_tcp_bound_is_below_the_tcp_maximum(
    mtu_bytes: int, emulated: bool, fraction: float
) -> None:
    asked, why = tcp_fraction(mtu_bytes, emulated=emulated)
    assert asked == pytest.approx(fraction)
    assert f"MTU {mtu_bytes}" in why


@pytest.mark.parametrize("mtu_bytes", [1, 52, 68])
def test_an_impossible_mtu_does_not_break_the_page(mtu_bytes: int) -> None:
    asked, why = tcp_fraction(mtu_bytes, emulated=False)
    assert 0 < asked < 1
    assert "MTU 68" in why


@pytest.mark.parametrize(
    ("rate_mbits_s", "size_bytes"),
    [
        (0.0, 4 << 20),
        (200.0, 4 << 20),  # 5 MB in a fifth of a second
        (1_000.0, 16 << 20),
        (10_000.0, 128 << 20),
        (400_000.0, 256 << 20),
    ],
)
def test_a_size_keeps_the_links_busy(rate_mbits_s: float, size_bytes: int) -> None:
    assert tcp_plateau_bytes(rate_mbits_s) == size_bytes


def spec_of(directory: Path, *args: object, **changes: object) -> Spec:
    path = directory / "page.yaml"
    path.write_text(draft(cluster_of(*args, **changes)).text())  # type: ignore[arg-type]
    return load_spec(path)


@pytest.mark.parametrize("make", [tcp_node, ib_node, roce_node, efa_node])
def test_no_bound_is_above_the_wire_or_lets_half_of_it_pass(make: object, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, make)
    allowed, _ = wire_allows_fraction(spec)
    assert allowed / 2 < busbw_of(spec).at_least_fraction < allowed


def test_nccl_over_sockets_has_a_lower_bound_than_gloo(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, lambda i: replace(tcp_node(i), **gpus(8)))
    assert spec.fabric.kind == "ethernet"
    assert busbw_of(spec).at_least_fraction == 0.5


def test_a_restart_waits_for_a_directory_of_checkpoints(tmp_path: Path) -> None:
    text = draft(cluster_of(ib_node)).text()
    assert "Left out until storage.checkpoints is named" in text
    path = tmp_path / "page.yaml"
    path.write_text(text.replace("  # restart: {within: 5 min}", "  restart: {within: 5 min}"))
    assert load_spec(path).promised("restart")


def test_keys_without_a_promise_for_cpus_are_left_open(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, tcp_node)
    assert not spec.promised("scaling")
    assert not spec.promised("restart")
    assert not spec.promised("numa")
    assert "nccl" not in (preflight_of(spec).same or ())


def test_packets_between_rdma_nics_without_addresses_are_not_promised(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, ib_node)
    for one in (EveryNodeIsReached, FullSizePacketsPass, PayloadsArriveUnchanged):
        assert promise_of(one, spec).networks == ("management",)
    preflight = preflight_of(spec)
    assert preflight.rdma is not None
    assert preflight.rdma.gid_types == ("IB",)


@pytest.mark.parametrize("make", [tcp_node, ib_node, roce_node, efa_node])
@pytest.mark.parametrize(
    ("readable", "silent"), [(True, None), (True, 0), (True, 3), (False, None)]
)
def test_device_states_of_all_nodes_are_promised(
    tmp_path: Path, make: Callable[[int], Machine], readable: bool, silent: int | None
) -> None:
    def node(index: int) -> Machine:
        one, shown = make(index), readable and index != silent
        rows = False if shown else None
        state: dict[str, Any] = {"remapped_rows_failed": rows, "remapped_rows_pending": rows}
        there = tuple(
            replace(gpu, mig_enabled=False if readable else None, **state)
            for gpu in one.accelerators or ()
        )
        known = {"link_width": 16, "link_gtransfers_s": 32.0} if shown else {}
        known |= {f"max_{name}": value for name, value in known.items()}
        functions = tuple(replace(f, **known) for f in one.pci.functions)  # type: ignore[arg-type]
        return replace(
            one,
            accelerators=one.accelerators and there,
            pci=PciTree(functions=functions),
            kernel_log=Log(()) if shown else None,
        )

    preflight = preflight_of(spec_of(tmp_path, node))
    everywhere = readable and silent is None
    assert preflight.pcie == ("full" if everywhere and make is not tcp_node else None)
    assert (preflight.kernel_log is not None) is everywhere
    state = preflight.accelerators
    assert (state is not None) is (make is not tcp_node)
    if state is not None:
        assert (state.mig, state.remapped_rows) == (
            "off" if readable else None,
            "none" if everywhere else None,
        )


PROFILES = ("a100-ib", "h100-ib", "h100-roce", "h100-efa")


@pytest.mark.parametrize("name", PROFILES)
def test_profiles_of_real_hardware_promise_the_health_of_devices(name: str) -> None:
    preflight = preflight_of(load_spec(CLUSTERS / f"{name}.yaml"))
    assert preflight.kernel_log is not None
    assert preflight.pcie == "full"
    state = preflight.accelerators
    assert state is not None
    assert (state.mig, state.remapped_rows) == ("off", "none")


def limits_of(spec: Spec) -> tuple[int | None, int | str | None, int | None]:
    limits = preflight_of(spec).limits
    return (limits.shm_bytes, limits.memlock_bytes, limits.open_files) if limits else (None,) * 3


def test_the_limits_of_a_broken_node_are_named_and_not_promised(tmp_path: Path) -> None:
    """Otherwise all nodes would be allowed the limits of the worst."""
    broken: dict[str, Any] = {"shm_bytes": 64 << 20, "limits": Limits(64 << 10, 1024)}
    page = draft(changed(cluster_of(count=8), 3, **broken))
    assert limits_of(loaded(page, tmp_path)) == (250 << 30, "unlimited", 65536)
    assert page.differences == (
        "size of /dev/shm (most: 250 GiB): node3: 64 MiB",
        "locked memory (most: unlimited): node3: 64 KiB",
        "open files (most: 65536): node3: 1024",
    )


def test_slightly_different_sizes_of_shared_memory_count_as_one(tmp_path: Path) -> None:
    """It is half of the memory found by the kernel, which differs slightly between nodes."""
    shown = cluster_of(count=4)
    for i, size in enumerate((252 << 30, 250 << 30, (251 << 30) + 4096)):
        shown = changed(shown, i, shm_bytes=size)
    page = draft(changed(shown, 3, shm_bytes=125 << 30))
    assert page.differences == ("size of /dev/shm (most: 250 GiB): node3: 125 GiB",)
    assert limits_of(loaded(page, tmp_path))[0] == 250 << 30


def test_a_node_without_free_space_is_named(tmp_path: Path) -> None:
    none: dict[str, Any] = {"shm_bytes": 4096, "limits": Limits(0, 65536)}
    page = draft(changed(cluster_of(), 1, **none))
    assert limits_of(loaded(page, tmp_path)) == (250 << 30, "unlimited", 65536)
    assert page.differences == (
        "size of /dev/shm (most: 250 GiB): node1: less than 1 MiB",
        "locked memory (most: unlimited): node1: none",
    )


def test_limits_without_a_majority_are_named_and_left_open(tmp_path: Path) -> None:
    other: dict[str, Any] = {"shm_bytes": 64 << 20, "limits": Limits(None, 1024)}
    page = draft(changed(cluster_of(count=2), 1, **other))
    assert limits_of(loaded(page, tmp_path)) == (None, "unlimited", None)
    assert page.differences == (
        "size of /dev/shm: node0: 250 GiB; node1: 64 MiB",
        "open files: node0: 65536; node1: 1024",
    )


def test_a_node_without_a_known_limit_does_not_remove_the_promise(tmp_path: Path) -> None:
    page = draft(changed(cluster_of(), 1, limits=None))
    assert limits_of(loaded(page, tmp_path)) == (250 << 30, "unlimited", 65536)
    assert page.differences == (
        "locked memory (most: unlimited): node1: unknown",
        "open files (most: 65536): node1: unknown",
    )
