"""The cost of settings by NCCL version, kind of fabric, and value."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.criteria.transport.settings import (
    SETTINGS,
    Selection,
    cost,
    is_default,
    why_silent,
)

VERBS, RDMA = {"infiniband", "roce"}, {"infiniband", "roce", "efa"}
ALL = RDMA | {"ethernet"}
VERSIONS = ("2.3.7", "2.10.3", "2.18.5", "2.19.3", "2.20.5", "2.21.5", "2.26.2", "2.27.5", "2.32.1")


@pytest.mark.parametrize(
    ("setting", "kinds"),
    [
        ("NCCL_IB_DISABLE=1", VERBS),
        ("NCCL_IB_DISABLE=0x1", VERBS),
        ("NCCL_IB_DISABLE=true", set()),  # NCCL reads this as the number 0
        ("NCCL_IB_DISABLE=", set()),
        ("NCCL_NET=Socket", RDMA),
        ("NCCL_NET= SOCKET ", RDMA),
        ("NCCL_NET=FastSocket", RDMA),
        ("NCCL_NET=ib", {"efa"}),
        ("NCCL_NET=AWS Libfabric", set()),
        ("NCCL_NET_PLUGIN=none", {"efa"}),
        ("FI_PROVIDER=tcp", {"efa"}),
        ("FI_PROVIDER=^tcp", set()),
        ("FI_PROVIDER=^efa", {"efa"}),
        ("FI_PROVIDER=efa", set()),
        ("FI_EFA_USE_DEVICE_RDMA=0", {"efa"}),
        ("FI_EFA_USE_DEVICE_RDMA=false", {"efa"}),
        ("FI_EFA_USE_DEVICE_RDMA=true", set()),
        ("NCCL_DMABUF_ENABLE=true", RDMA),  # it is 0, like any word
        ("NCCL_DMABUF_ENABLE=1", set()),
        ("NCCL_P2P_DISABLE=1", ALL),
        ("NCCL_P2P_LEVEL=LOC", ALL),
        ("NCCL_P2P_LEVEL=NVL", ALL),
        ("NCCL_P2P_LEVEL=nvl", set()),  # NCCL does not know this value
        ("NCCL_P2P_DISABLE=2", set()),
        ("NCCL_P2P_LEVEL=3", ALL),
        ("NCCL_P2P_LEVEL=SYS", set()),
        ("NCCL_P2P_LEVEL=5", set()),
        ("NCCL_SHM_DISABLE=1", ALL),
        ("NCCL_NET_GDR_LEVEL=LOC", RDMA),
        ("NCCL_NET_GDR_LEVEL=loc", set()),
        ("NCCL_NET_GDR_LEVEL=0", RDMA),
        ("NCCL_NET_GDR_LEVEL=PHB", set()),
        ("NCCL_IB_HCA=mlx5_0", VERBS),
        ("NCCL_PROTO=LL", ALL),
        ("NCCL_PROTO=^LL128", ALL),
        ("NCCL_PROTO=simple, ll128, ll", set()),
        ("NCCL_ALGO=ring", ALL),
        ("NCCL_MAX_NCHANNELS=4", ALL),
        ("NCCL_MAX_NCHANNELS=32", set()),
        ("NCCL_MAX_NCHANNELS=many", set()),
        ("NCCL_MAX_NCHANNELS=8 # of 32", ALL),
        ("NCCL_MIN_NCHANNELS=1", set()),
        ("NCCL_NTHREADS=64", ALL),
        ("NCCL_NTHREADS=256", set()),  # the default of older GPUs
        ("NCCL_BUFFSIZE=65536", ALL),
        ("NCCL_BUFFSIZE=0x400000", set()),
        ("NCCL_CROSS_NIC=0", ALL),
        ("NCCL_CROSS_NIC=2", set()),
        ("NCCL_TUNER_PLUGIN=ofi", ALL - {"efa"}),
        ("NCCL_TUNER_PLUGIN=none", ALL),
        ("NCCL_CHECKS_DISABLE=0", set()),
        ("NCCL_CHECK_POINTERS=1", ALL),
        ("NCCL_DEBUG=Trace", ALL),
        ("NCCL_DEBUG=INFO", set()),
        ("NCCL_IB_TC=106", set()),  # some sites' switches need it
        ("NCCL_IB_SL=3", set()),
        ("NCCL_IB_QPS_PER_CONNECTION=4", set()),
        ("GLOO_DEVICE_TRANSPORT=TCP_TLS", ALL),
        ("GLOO_DEVICE_TRANSPORT=TCP", set()),
        ("TORCH_NCCL_BLOCKING_WAIT=true", ALL),
        ("TORCH_NCCL_BLOCKING_WAIT=0", set()),
        ("TORCH_DISTRIBUTED_DEBUG=detail", ALL),
        ("TORCH_DISTRIBUTED_DEBUG=INFO", set()),
        ("CUDA_LAUNCH_BLOCKING=1", ALL),
        ("CUDA_LAUNCH_BLOCKING=0", set()),
        ("NCCL_OF_NO_KNOWN_MEANING=7", set()),
    ],
)
def test_cost_by_kind_of_fabric(setting: str, kinds: set[str]) -> None:
    name, _, value = setting.partition("=")
    for version in ("2.21.5", "2.27.5+cuda12.9", None):
        assert {kind for kind in ALL if cost(name, value, kind, version)} == kinds, version


@pytest.mark.parametrize(
    ("setting", "kind", "costly"),
    [
        # Each version of VERSIONS, then an unknown one; x: the setting costs speed.
        ("NCCL_IB_SPLIT_DATA_ON_QPS=0", "roce", "..xx......"),
        ("NCCL_IB_SPLIT_DATA_ON_QPS=1", "roce", "....xxxxx."),
        ("NCCL_IB_SPLIT_DATA_ON_QPS=1", "ethernet", ".........."),
        ("NCCL_IB_GID_INDEX=0", "roce", ".....xxxx."),
        ("NCCL_IB_GID_INDEX=-1", "roce", "xxxxx....."),
        ("NCCL_IB_GID_INDEX=3", "roce", "xxxxxxxxxx"),
        ("NCCL_IB_GID_INDEX=3", "infiniband", ".........."),
        ("NCCL_NET_GDR_C2C=0", "infiniband", ".......xx."),
        ("NCCL_NET_GDR_READ=0", "infiniband", ".xxxxxxxx."),
        ("NCCL_PXN_C2C=0", "infiniband", "........x."),
        ("NCCL_CUMEM_ENABLE=0", "efa", "...xxxxxx."),
        ("NCCL_IB_CUDA_SUPPORT=0", "roce", "x........."),
        ("NCCL_NVLS_ENABLE=0", "efa", "..xxxxxxxx"),
        ("NCCL_NVLS_ENABLE=2", "efa", ".........."),
        ("NCCL_IB_ADAPTIVE_ROUTING=0", "infiniband", "..xxxxxxxx"),
        ("NCCL_IB_ADAPTIVE_ROUTING=0", "roce", ".........."),
        ("NCCL_IB_PCI_RELAXED_ORDERING=0", "roce", "..xxxxxxxx"),
        ("NCCL_CHECK_MODE=DEBUG_LOCAL", "roce", "........xx"),
        ("NCCL_ALGO=Tree", "ethernet", ".xxxxxxxxx"),
    ],
)
def test_cost_by_nccl_version(setting: str, kind: str, costly: str) -> None:
    name, _, value = setting.partition("=")
    found = [cost(name, value, kind, version) for version in (*VERSIONS, None)]
    assert "".join("x" if why else "." for why in found) == costly


@pytest.mark.parametrize("version", [*VERSIONS, None])
def test_a_default_never_costs(version: str | None) -> None:
    known = tuple(int(part) for part in (version or "99").split("."))
    for setting, kind in itertools.product(SETTINGS, ALL):
        known_defaults = [default for first, default in setting.defaults if first <= known]
        for default in filter(None, known_defaults[-1:] if version else known_defaults):
            assert cost(setting.name, default, kind, version) is None, (setting.name, kind)


@pytest.mark.parametrize(
    ("subsystems", "silent"),
    [
        *(("", False), ("INIT,NET", False), ("net", False), ("COLL", True), ("ALL", False)),
        *(("^COLL", False), ("^NET", False), ("^INIT,NET", True), ("^ALL", True)),
    ],
)
def test_subsystems_that_leave_channels_out(subsystems: str, silent: bool) -> None:
    why = why_silent({"NCCL_DEBUG": "info", "NCCL_DEBUG_SUBSYS": subsystems})
    assert bool(why) is silent


@pytest.mark.parametrize(
    ("setting", "default"),
    [
        ("NCCL_P2P_DISABLE=0", True),
        ("NCCL_P2P_DISABLE=0x0", True),
        ("NCCL_CROSS_NIC=2", True),
        ("NCCL_CROSS_NIC=1", False),
        ("NCCL_NET_GDR_READ=0", False),  # of some versions only
        ("NCCL_ALGO=Ring", False),
        ("NCCL_IB_SL=0", True),
        ("NCCL_IB_HCA=", True),
        ("NCCL_IB_TC=106", False),
    ],
)
def test_values_equal_to_the_default(setting: str, default: bool) -> None:
    name, _, value = setting.partition("=")
    assert is_default(name, value) is default
    assert not is_default(name, None)


THERE = ("eth0", "eth1", "eth10", "docker0", "ib0")


@pytest.mark.parametrize(
    ("written", "taken"),
    [
        ("eth", ("eth0", "eth1", "eth10")),
        ("eth1", ("eth1", "eth10")),
        ("=eth1", ("eth1",)),
        ("=eth0,eth1", ("eth0", "eth1")),
        ("^docker,ib", ("eth0", "eth1", "eth10")),
        ("^=eth1", ("eth0", "eth10", "docker0", "ib0")),
        ("", THERE),
        ("eth1, ib,docker", ("eth1", "eth10", "docker0")),
        ("^", ()),
        ("nothing", ()),
    ],
)
def test_names_selected_by_a_list(written: str, taken: tuple[str, ...]) -> None:
    assert tuple(filter(Selection.of(written).takes, THERE)) == taken


def test_ports_in_a_list() -> None:
    one = Selection.of("=mlx5_0:1,mlx5_1")
    assert one.takes("mlx5_0", 1)
    assert not one.takes("mlx5_0", 2)
    assert one.takes("mlx5_1", 2)
    assert not Selection.of("^mlx5_0:2").takes("mlx5_0", 2)
    assert Selection.of("^mlx5_0:2").takes("mlx5_0", 1)
    planes = Selection.of("=mlx5_0:1:0:0,mlx5_1::0:1")  # with rail and plane, since 2.30
    assert planes.takes("mlx5_0", 1)
    assert not planes.takes("mlx5_0", 2)
    assert planes.takes("mlx5_1", 2)


@given(st.text(max_size=40), st.text(max_size=12))
def test_any_text_is_a_list_and_its_negation_selects_the_rest(written: str, name: str) -> None:
    one = Selection.of(written)
    if one.names and not one.excludes:
        assert Selection.of(f"^{written}").takes(name) is not one.takes(name)
