"""Platforms that discovery recognises, and pages that extend their profile by what differs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_mnode.discover.draft import Draft, draft
from pytest_mnode.machine.dmi import Dmi, read_dmi
from pytest_mnode.machine.model import Machine
from pytest_mnode.spec import doubts, load_spec, profile_spec
from tests.discover.made import (
    changed,
    cluster_of,
    device,
    efa_node,
    gpus,
    ib_node,
    nic,
    on_pci,
    roce_node,
    tcp_node,
)

H100, H200 = "NVIDIA H100 80GB HBM3", "NVIDIA H200"
A100, A100_40 = "NVIDIA A100-SXM4-80GB", "NVIDIA A100-SXM4-40GB"
AZURE = Dmi("Microsoft Corporation", "Virtual Machine", "7783-7084-3265-9085-8269-3286-77")
EC2 = Dmi("Amazon EC2", "an instance")
GOOGLE, ORACLE = Dmi("Google", "Google Compute Engine"), Dmi("Dell", "X", "OracleCloud.com")
Make = Callable[[int], Machine]


def of(
    make: Make,
    model: str,
    dmi: Dmi | None = None,
    count: int = 8,
    vendor: str = "10de",
    **more: Any,
) -> Make:
    parts = gpus(count, model, vendor=vendor)
    return lambda index: replace(make(index), dmi=dmi, **parts, **more)


def bare(make: Make, vendor: str, number: str) -> Make:
    """Nodes whose accelerators only PCI shows."""
    return lambda index: replace(make(index), **on_pci(vendor, number))


def named(start: str, count: int = 8, protocol: str = "InfiniBand", **more: Any) -> dict[str, Any]:
    devices = tuple(device(f"{start}{i}", protocol, **more) for i in range(count))
    mtus = {port.name: 4096 for one in devices for port in one.ports}
    return {"rdma": devices, "active_mtus": mtus}


def google(count: int, speed_mbits_s: int | None = 200_000) -> Make:
    """A node with virtual NICs for training, and one more for control."""

    def make(index: int) -> Machine:
        nics = [
            nic(
                f"eth{i}",
                f"10.{i or 1}.{min(i, 1)}.{index + 1}",
                speed_mbits_s=speed_mbits_s,
                mtu_bytes=8244,
            )
            for i in range(count + 1)
        ]
        return replace(tcp_node(index), interfaces=tuple(nics))

    return make


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (of(ib_node, H100), "hgx-h100"),
        (of(ib_node, H100, AZURE, **named("mlx5_ib")), "nd-h100-v5"),
        (of(ib_node, H200, AZURE, **named("mlx5_ib")), "nd-h200-v5"),
        (of(ib_node, H100, **named("mlx5_ib")), "h100-ib"),
        (of(ib_node, H100, **named("ibp")), "h100-bare-metal"),
        (of(ib_node, "NVIDIA B200", AZURE), "hgx-b200"),  # a cloud without a profile of it
        (of(ib_node, "NVIDIA GB200", count=4, **named("mlx5_", 4)), "gb200-nvl72"),
        (of(roce_node, H100), "h100-roce"),
        (of(roce_node, H200, GOOGLE), "a3-ultra"),
        (of(roce_node, "NVIDIA B200", GOOGLE), "a4"),
        (of(efa_node, H100, Dmi("Amazon EC2", "p5.48xlarge")), "p5"),
        (of(efa_node, H200, Dmi("Amazon EC2", "p5e.48xlarge")), "p5e"),
        (of(efa_node, H100), "h100-efa"),
        (of(roce_node, H100, ORACLE, **named("mlx5_", 16, "RoCE", rate_gbits_s=200.0)), "oci-h100"),
        (of(google(4), H100, GOOGLE), "a3-high"),
        (of(google(8), H100, GOOGLE), "a3-mega"),
        (of(google(8), H100), None),
        (of(ib_node, "NVIDIA H100 NVL"), None),
        (of(ib_node, H100, count=4), None),
        (of(ib_node, H100, **named("mlx5_", rate_gbits_s=200.0)), "hgx-h100"),
        (of(ib_node, H100, **named("mlx5_", 4)), "hgx-h100"),
        (of(efa_node, H200, EC2, **named("rdmap", 16, "EFA", rate_gbits_s=100.0)), "p5en"),
        (of(efa_node, A100, EC2, **named("rdmap", 4, "EFA", rate_gbits_s=100.0)), "p4de"),
        (of(ib_node, A100_40, **named("mlx5_", rate_gbits_s=200.0)), "hgx-a100"),
        (of(roce_node, H200, ORACLE), ["hgx-h200", "roce"]),
        (of(roce_node, "NVIDIA GB200", GOOGLE, count=4), ["gb200-nvl72", "roce"]),
        (
            of(roce_node, A100_40, ORACLE, **named("mlx5_", 16, "RoCE", rate_gbits_s=100.0)),
            ["hgx-a100", "roce"],
        ),
        (of(ib_node, "AMD Instinct MI300X VF", AZURE, vendor="1002"), ["mi300x", "infiniband"]),
        (tcp_node, None),
        (of(roce_node, "AMD Instinct MI300X OAM", vendor="1002"), "mi300x"),
        (bare(roce_node, "1002", "74a1"), "mi300x"),
        (bare(roce_node, "1002", "74b5"), "mi300x"),  # a virtual function of it
        (bare(roce_node, "1002", "74a5"), "mi325x"),
        (bare(roce_node, "1002", "75a0"), "mi350x"),
        (of(roce_node, "AMD Instinct MI355X VF", ORACLE, vendor="1002"), "mi355x"),
        (of(roce_node, "NVIDIA H20"), "hgx-h20"),
        (
            of(
                efa_node,
                A100,
                Dmi("Amazon EC2", "p4de.24xlarge"),
                **named("rdmap", 4, "EFA", rate_gbits_s=100.0),
            ),
            "p4de",
        ),
        (bare(roce_node, "1002", "7408"), None),
        (bare(roce_node, "1da3", "1060"), None),
    ],
)
def test_nodes_are_of_a_profile(make: Make, name: str | list[str] | None, tmp_path: Path) -> None:
    page = draft(cluster_of(make))
    written = yaml.safe_load(page.text())
    assert written.get("extends") == name
    spec = loaded(page, tmp_path)
    [doubt] = doubts(spec)
    assert doubt.startswith("confirmed: false")
    if name is not None:
        profile = profile_spec(*([name] if isinstance(name, str) else name))
        assert spec.criteria.fabric == profile.criteria.fabric
        same_rate = "line_rate" not in written.get("fabric", {})
        assert (spec.fabric.line_rate_bits_s == profile.fabric.line_rate_bits_s) is same_rate
        assert spec.promised("mesh")
        assert not spec.promised("restart")


def test_accelerators_that_no_profile_has_are_named() -> None:
    text = draft(cluster_of(bare(roce_node, "1da3", "1060"))).text()
    assert 'model: "Intel Gaudi 3"' in text
    assert "on PCI (Habana)" in text


def loaded(page: Draft, directory: Path) -> Any:
    path = directory / "page.yaml"
    path.write_text(page.text())
    return load_spec(path)


def test_a_page_says_only_what_differs(tmp_path: Path) -> None:
    page = draft(cluster_of(of(ib_node, H100, **named("mlx5_", 8))))
    written = yaml.safe_load(page.text())
    assert written["extends"] == "hgx-h100"
    assert "accelerators" not in written
    assert set(written["fabric"]) == {"interfaces"}  # those beside accelerators, by name
    assert "certificate" not in written
    assert set(written["criteria"]) <= {"preflight", "restart"}
    text = " ".join(page.text().replace("#", "").split())
    assert "accelerators.per_node 8" in text
    assert "fabric.line_rate 400 Gbit/s" in text


def test_what_nodes_do_not_show_is_not_promised(tmp_path: Path) -> None:
    page = draft(cluster_of(of(ib_node, H100)))
    spec = loaded(page, tmp_path)
    assert spec.criteria.preflight.pcie is None  # the composed nodes have no links
    assert spec.criteria.preflight.kernel_log is None
    assert spec.criteria.preflight.accelerators is not None
    assert spec.criteria.preflight.nvlink is None
    assert spec.promised("numa")


def test_another_mtu_than_the_profiles_stays(tmp_path: Path) -> None:
    small = named("mlx5_")
    small["active_mtus"] = dict.fromkeys(small["active_mtus"], 2048)
    spec = loaded(draft(cluster_of(of(ib_node, H100, **small))), tmp_path)
    assert spec.fabric.mtu_bytes == 2048


def test_what_no_node_shows_is_the_profiles(tmp_path: Path) -> None:
    page = draft(cluster_of(of(ib_node, H100, active_mtus={})))
    assert page.missing == ()
    assert loaded(page, tmp_path).fabric.mtu_bytes == 4096
    assert "fabric.mtu not seen" in " ".join(page.text().replace("#", "").split())


def test_one_node_of_another_kind_is_named() -> None:
    page = draft(changed(cluster_of(of(ib_node, H100)), 1, **gpus(8, H200)))
    assert f"model of accelerators (most: {H100}): node1: {H200}" in page.differences


def test_firmware_names_its_cloud(tmp_path: Path) -> None:
    folder = tmp_path / "sys/class/dmi/id"
    folder.mkdir(parents=True)
    (folder / "sys_vendor").write_text("Amazon EC2\n")
    (folder / "product_name").write_text("p5.48xlarge\n")
    assert read_dmi(tmp_path) == Dmi("Amazon EC2", "p5.48xlarge", None)
    assert read_dmi(tmp_path / "sys") == Dmi()
