"""Specs drafted from composed nodes: they load, and list what is to be confirmed."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pytest_mnode.discover.draft import Draft, draft
from pytest_mnode.discover.nodes import FoundCluster
from pytest_mnode.errors import SpecError
from pytest_mnode.evidence.row import row
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.mounts import Mount
from pytest_mnode.machine.process import Limits
from pytest_mnode.spec import Spec, doubts, load_spec
from tests.discover.made import (
    H100,
    NO_NVML,
    changed,
    cluster_of,
    device,
    efa_node,
    gpus,
    ib_node,
    nic,
    numa,
    roce_node,
    silent,
    tcp_node,
    without_nvml,
)
from tests.spec.conftest import busbw_of, preflight_of

HUGE_PAGES, THP = "test_huge_pages_are_alike", "mode of transparent huge pages"


def loaded(page: Draft, directory: Path) -> Spec:
    path = directory / "page.yaml"
    path.write_text(page.text())
    return load_spec(path)


def unwrapped(text: str) -> str:
    """With each comment on one line."""
    return re.sub(r"\n *# (?=[^-])", " ", text)


@pytest.mark.parametrize("make", [tcp_node, ib_node, roce_node, efa_node])
def test_a_drafted_page_loads_and_needs_only_confirmation(
    make: Callable[[int], Machine], tmp_path: Path
) -> None:
    page = draft(cluster_of(make))
    assert page.differences == ()
    assert page.missing == ()
    spec = loaded(page, tmp_path)
    assert not spec.confirmed
    [doubt] = doubts(spec)
    assert doubt.startswith("confirmed: false")
    assert spec.nodes == 4


@pytest.mark.parametrize("make", [tcp_node, ib_node, roce_node, efa_node])
def test_every_hardware_line_names_what_to_compare_it_with(
    make: Callable[[int], Machine],
) -> None:
    lines = draft(cluster_of(make)).text().splitlines()
    keys = ("nodes", "per_node", "model", "memory", "kind", "interfaces", "line_rate")
    found = 0
    for i, line in enumerate(lines):
        if line.strip().partition(":")[0] in (*keys, "nics_per_node", "mtu") and "#" not in line:
            above: list[str] = []
            while lines[i - 1 - len(above)].lstrip().startswith("#"):
                above.append(lines[i - 1 - len(above)])
            if "criteria:" in lines[:i]:
                continue
            assert above, line
            assert "Seen on" in " ".join(above) or "nodes:" in line, line
            found += 1
    assert found >= 8


def test_values_are_those_of_the_nodes(tmp_path: Path) -> None:
    spec = loaded(draft(cluster_of(ib_node, 16)), tmp_path)
    assert spec.accelerators.model == H100
    assert spec.accelerators.memory_bytes == 80 << 30
    assert spec.fabric.line_rate_gbits_s == 400
    assert spec.fabric.nics_per_node == 8
    assert spec.fabric.mtu_bytes == 4096
    assert spec.fabric.gpudirect is True
    assert spec.promised("numa")
    assert not spec.promised("restart")  # no node knows the directory of checkpoints
    preflight = preflight_of(spec)
    assert preflight.gpudirect == "dma-buf"
    assert preflight.limits is not None
    assert preflight.limits.memlock_bytes == "unlimited"
    assert preflight.limits.shm_bytes == 250 << 30  # a slightly larger size
    assert busbw_of(spec).plateau_from_bytes == 8 << 30  # more nodes saturate later


def test_a_differing_node_is_named_with_its_value(tmp_path: Path) -> None:
    rdma = ib_node(2).rdma or ()
    slow = (device("mlx5_0", rate_gbits_s=200.0), *rdma[1:])
    page = draft(changed(cluster_of(ib_node), 2, rdma=slow))
    [names, nics] = [line for line in page.differences if line.startswith("fabric")]
    assert names.startswith("fabric interfaces (most: mlx5_0, mlx5_1")
    assert "node2: mlx5_1, mlx5_2" in names
    assert nics == "fabric NICs (most: 8): node2: 7"
    assert loaded(page, tmp_path).fabric.nics_per_node == 8
    text = unwrapped(page.text())
    assert "Not all nodes show the same:" in text
    assert "Seen on 3 of 4 nodes (node0, node1, node3); differing: node2: 7." in text


def test_another_model_on_one_node_is_named() -> None:
    page = draft(changed(cluster_of(ib_node), 1, **gpus(8, "NVIDIA H200")))
    assert f"model of accelerators (most: {H100}): node1: NVIDIA H200" in page.differences


def test_one_node_without_gpudirect_is_named_and_keeps_the_promise(tmp_path: Path) -> None:
    closed = gpus(driver_is_open=False)
    page = draft(changed(cluster_of(ib_node), 1, **closed))
    assert page.differences == ("GPUDirect (most: dma-buf): node1: none",)
    spec = loaded(page, tmp_path)
    assert spec.fabric.gpudirect is True
    assert preflight_of(spec).gpudirect == "dma-buf"
    assert "Seen on 3 of 4 nodes (node0, node2, node3)" in unwrapped(page.text())
    on_tcp = draft(changed(cluster_of(lambda i: replace(tcp_node(i), **gpus())), 1, **closed))
    assert on_tcp.differences == ()


def test_one_node_with_fewer_numa_nodes_is_named_and_keeps_the_promise(tmp_path: Path) -> None:
    page = draft(changed(cluster_of(ib_node), 1, numa=numa(1)))
    assert page.differences == ("NUMA nodes (most: 2): node1: 1",)
    assert loaded(page, tmp_path).promised("numa")


def test_nodes_of_two_kinds_give_no_majority(tmp_path: Path) -> None:
    two = cluster_of(ib_node, 2)
    page = draft(changed(two, 1, **gpus(4)))
    assert "accelerators: node0: 8; node1: 4" in page.differences
    assert page.missing == ("accelerators.per_node",)
    with pytest.raises(SpecError, match="accelerators: missing"):
        loaded(page, tmp_path)
    assert "FILL IN per_node" in page.text()


def test_unknown_keys_are_left_out_and_requested_by_the_loader(tmp_path: Path) -> None:
    mute = cluster_of(
        lambda i: replace(tcp_node(0), interfaces=(nic("eth0", f"10.1.0.{i}", speed_mbits_s=None),))
    )
    page = draft(mute)
    assert page.missing == ("fabric.line_rate",)
    assert "# line_rate: 400 Gbit/s" in page.text()
    with pytest.raises(SpecError, match=r"fabric\.line_rate: missing; needed: Line rate"):
        loaded(page, tmp_path)
    filled = page.text().replace("# line_rate: 400 Gbit/s", "line_rate: 10 Gbit/s")
    path = tmp_path / "filled.yaml"
    path.write_text(filled)
    assert load_spec(path).fabric.line_rate_gbits_s == 10


def test_nodes_that_are_one_machine_show_no_fabric(tmp_path: Path) -> None:
    one = cluster_of(lambda _: replace(tcp_node(0)), launcher="local")
    page = draft(one)
    assert set(page.missing) == {f"fabric.{key}" for key in (
        "kind", "interfaces", "line_rate", "nics_per_node", "mtu")}  # fmt: skip
    assert "eth1 has 10.2.0.1, which other nodes also have" in unwrapped(page.text())
    with pytest.raises(SpecError, match="fabric: no value; needed: The network"):
        loaded(page, tmp_path)


@pytest.mark.parametrize(
    ("shown", "scheduler", "hint"),
    [(0, {"kind": "slurm"}, "; request them with --gpus-per-node"), (4, {}, "")],
)
def test_if_nvml_shows_fewer_devices_no_number_is_promised(
    tmp_path: Path, shown: int, scheduler: dict[str, str], hint: str
) -> None:
    found = cluster_of(lambda i: replace(ib_node(i), **gpus(shown=shown)), scheduler=scheduler)
    page = draft(found)
    assert page.missing == ("accelerators.per_node",)
    why = f"FILL IN per_node, and uncomment: NVML shows {shown} of 8 on PCI{hint}."
    assert why in unwrapped(page.text())
    with pytest.raises(SpecError, match="accelerators: missing"):
        loaded(page, tmp_path)


def test_one_node_whose_nvml_shows_fewer_is_named_with_both(tmp_path: Path) -> None:
    page = draft(changed(cluster_of(ib_node), 1, **gpus(shown=7)))
    assert "accelerators (most: 8): node1: NVML shows 7 of 8 on PCI" in page.differences
    assert loaded(page, tmp_path).accelerators.per_node == 8
    none = cluster_of(lambda i: replace(ib_node(i), **gpus(shown=0)))
    two = draft(changed(none, 1, **gpus(shown=4)))
    assert "accelerators (most: NVML shows 0 of 8 on PCI): node1: NVML shows 4 of 8 on PCI" in (
        two.differences
    )
    assert two.missing == ("accelerators.per_node",)


def test_accelerators_of_other_vendors_need_no_nvml(tmp_path: Path) -> None:
    page = draft(cluster_of(lambda i: replace(ib_node(i), **gpus(shown=0, vendor="1002"))))
    assert loaded(page, tmp_path).accelerators.per_node == 8
    assert "on PCI (AMD)" in unwrapped(page.text())


def test_accelerators_without_a_driver_are_counted_and_not_named(tmp_path: Path) -> None:
    page = draft(cluster_of(lambda i: replace(ib_node(i), **without_nvml(8))))
    spec = loaded(page, tmp_path)
    assert spec.accelerators.per_node == 8
    assert spec.accelerators.model is None
    text = unwrapped(page.text())
    assert "on PCI (NVIDIA)" in text
    assert f"Left out: node0: {NO_NVML}" in text
    assert not spec.promised("numa")  # their NUMA nodes are unknown
    assert preflight_of(spec).accelerators is None


def test_unreadable_parts_are_named_with_their_nodes() -> None:
    shown = cluster_of(lambda i: replace(tcp_node(i), unread={"rdma": "OSError: no"} if i else {}))
    page = draft(shown)
    assert page.unread == ("rdma of node1, node2, node3: OSError: no",)
    hung = draft(changed(shown, 0, unread={"accelerators": "no answer within 10 s"}))
    assert "accelerators of node0: no answer within 10 s" in hung.unread
    assert "# - could not be read: rdma of node1, node2, node3: OSError: no" in page.text()


def test_a_silent_node_is_named_and_counted(tmp_path: Path) -> None:
    page = draft(silent(cluster_of(), 3))
    assert "- node3 could not be read: no answer within 90 s" in page.text()
    assert loaded(page, tmp_path).nodes == 4


def test_without_any_node_there_is_no_page() -> None:
    nothing = cluster_of(count=1)
    with pytest.raises(ValueError, match="no node could be read"):
        draft(silent(nothing, 0))


def test_shared_file_systems_are_suggested_and_missing_mounts_named() -> None:
    data = Mount("/data", "nfs4", "filer:/data")
    home = Mount("/home", "lustre", "mds@tcp:/home")
    shown = cluster_of(lambda i: replace(tcp_node(i), mounts=(data, home) if i else (data,)))
    page = draft(shown)
    text = unwrapped(page.text())
    assert "Mounted on all nodes: /data (nfs4 filer:/data)." in text
    assert "# storage: {datasets: /data, checkpoints: /data}" in page.text()
    [line] = page.differences
    mounted = "/home (lustre mds@tcp:/home) is mounted on node1, node2, node3, and not on node0"
    assert line == mounted
    on_demand = Mount("/home", "autofs", "auto.home")
    assert draft(changed(shown, 0, mounts=(data, on_demand))).differences == ()


def test_one_file_system_by_another_address_on_each_node_is_one() -> None:
    """File servers may spread nodes over addresses: a virtual IP per node, or round-robin DNS."""

    def seen_by(index: int) -> Machine:
        source = f"10.9.0.{index + 1}:/data"
        home = Mount("/home", "lustre", "mds@tcp:/home")
        return replace(tcp_node(index), mounts=(Mount("/data", "nfs4", source), home))

    page = draft(cluster_of(seen_by, 10))
    assert page.differences == ()
    text = unwrapped(page.text())
    assert "# storage: {datasets: /data, checkpoints: /data}" in page.text()
    assert "Mounted on all nodes: /data (nfs4 from 10 sources: 10.9.0.1:/data, " in text
    assert "and 7 more; check that they are one file system); /home (lustre mds@tcp:/home)." in text
    of_two_kinds = changed(cluster_of(seen_by), 1, mounts=(Mount("/data", "nfs", "x:/data"),))
    expected = "/data (nfs x:/data) is mounted on node1, and not"
    assert any(line.startswith(expected) for line in draft(of_two_kinds).differences)


@pytest.mark.parametrize(
    ("changes", "scheduler"),
    [
        ({}, None),
        ({"scheduler": {"kind": "slurm"}}, {"kind": "slurm"}),
        (
            {"scheduler": {"kind": "slurm", "cluster": "hall", "partition": "gpu"}},
            {"kind": "slurm", "names": {"partition": "gpu"}},
        ),
    ],
)
def test_the_scheduler(changes: dict[str, Any], scheduler: dict[str, Any] | None) -> None:
    page = yaml.safe_load(draft(cluster_of(**changes)).text())
    assert page.get("scheduler") == scheduler
    assert ("  # gang: {}" in draft(cluster_of(**changes)).text()) is (scheduler is not None)
    if "cluster" in changes.get("scheduler", {}):
        assert page["name"] == "hall"


def test_slurm_counts_if_nodes_can_query_it_except_on_emulated_nodes() -> None:
    answered = cluster_of(lambda i: replace(tcp_node(i), scheduler="slurm"))
    assert yaml.safe_load(draft(answered).text())["scheduler"] == {"kind": "slurm"}
    emulated = replace(answered, emulated=("nodes are namespaces",))
    assert "scheduler" not in yaml.safe_load(draft(emulated).text())


def test_one_node_has_no_promises_between_nodes(tmp_path: Path) -> None:
    spec = loaded(draft(cluster_of(count=1)), tmp_path)
    assert not spec.promised("fabric")
    assert preflight_of(spec).same is None


_WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
_COUNTS = st.none() | st.integers(0, 1 << 70)


@st.composite
def _clusters(make: st.DrawFn) -> FoundCluster:
    """Nodes with any values and texts."""
    count = make(st.integers(1, 4))
    shown = cluster_of(make(st.sampled_from([tcp_node, ib_node, roce_node, efa_node])), count)
    for i in range(count):
        readings = st.fixed_dictionaries(
            {},
            optional={
                "interfaces": st.none()
                | st.lists(
                    st.builds(
                        nic,
                        _WORDS,
                        st.sampled_from(["", "10.1.0.1", "fe80::1%x", "10.9.9.9"]),
                        speed_mbits_s=_COUNTS,
                        shaped_mbits_s=st.none() | st.floats(0, 1e9),
                        mtu_bytes=_COUNTS,
                        carrier=st.sampled_from([None, True, False]),
                    ),
                    max_size=3,
                ).map(tuple),
                "rdma": st.none()
                | st.lists(
                    st.builds(
                        device,
                        _WORDS,
                        st.sampled_from(["InfiniBand", "RoCE", "EFA", "iWARP", "?"]),
                        rate_gbits_s=st.none() | st.floats(0, 1e6),
                        state=st.sampled_from([None, "ACTIVE", "DOWN"]),
                    ),
                    max_size=3,
                ).map(tuple),
                "shm_bytes": _COUNTS,
                "limits": st.none() | st.builds(Limits, _COUNTS, _COUNTS),
                "mounts": st.none()
                | st.lists(st.builds(Mount, _WORDS, _WORDS, _WORDS), max_size=2).map(tuple),
            },
        )
        has = make(st.just({}) | st.builds(gpus, st.integers(0, 9), _WORDS))
        shown = changed(shown, i, **has, **make(readings))
    return shown


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(shown=_clusters())
def test_any_values_give_yaml_that_loads_or_is_refused_with_a_line_per_fault(
    shown: FoundCluster, tmp_path: Path
) -> None:
    page = draft(shown)
    text = page.text(["tried: \x00\n# x", "- y\r\nz: 1"])
    assert isinstance(yaml.safe_load(text), dict)
    path = tmp_path / "page.yaml"
    path.write_text(text, encoding="utf-8")
    assert all(line.startswith(f"{path}: ") for line in refusal(path).splitlines())


def refusal(path: Path) -> str:
    """The loader's error for a page; "" if there is none."""
    try:
        load_spec(path)
    except SpecError as error:
        return str(error)
    return ""


def test_checks_draft_promises_of_what_their_rows_show(tmp_path: Path) -> None:
    found = cluster_of(ib_node, 2)

    def drafted(*modes: str | None) -> Draft:
        read = [{HUGE_PAGES: (row(THP, mode),)} if mode else {} for mode in modes]
        pairs = zip(found.nodes, read, strict=True)
        return draft(replace(found, nodes=tuple(replace(node, rows=r) for node, r in pairs)))

    page = drafted("madvise", "madvise")
    assert preflight_of(loaded(page, tmp_path)).huge_pages == "same"
    text = unwrapped(page.text())
    assert re.search(rf"Do all nodes .* alike\? Seen: {THP} madvise on node0, node1\.", text)
    for modes in (("madvise", None), ("madvise", "never")):
        assert preflight_of(loaded(drafted(*modes), tmp_path)).huge_pages is None
