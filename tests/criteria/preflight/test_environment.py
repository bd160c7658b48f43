"""The environment of ranks, and settings in it that restrict a backend."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.preflight import environment
from pytest_mnode.criteria.preflight.environment import RankEnvironment, environment_of, hcas_of
from pytest_mnode.criteria.preflight.judges.common import of_node
from pytest_mnode.logs.nccl_files import settings_of_files
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.verbs import VerbsDevice
from pytest_mnode.measurement import Measurement
from pytest_mnode.rank import loop
from pytest_mnode.spec import Spec, default_spec_path, load_spec
from tests.criteria.preflight.made import devices_of, rdma_port, spec_of


def _ranks(**more: str) -> tuple[RankEnvironment, ...]:
    """Environments of two nodes with two ranks each."""
    return tuple(
        environment_of(
            {
                "MASTER_ADDR": "10.1.0.1",
                "MASTER_PORT": "29500",
                "WORLD_SIZE": "4",
                "RANK": str(rank),
                "LOCAL_RANK": str(rank % 2),
                "LOCAL_WORLD_SIZE": "2",
                **more,
            },
            rank,
            f"gpu{rank // 2}",
        )
        for rank in range(4)
    )


def _changed(rank: int, **changes: str) -> tuple[RankEnvironment, ...]:
    ranks = list(_ranks())
    variables = {**ranks[rank].variables, **changes}
    ranks[rank] = replace(ranks[rank], variables={k: v for k, v in variables.items() if v != "-"})
    return tuple(ranks)


@pytest.fixture
def spec(tmp_path: Path) -> Spec:
    return spec_of(tmp_path, "{environment: {}}")


def _one(found: list[Measurement]) -> Measurement:
    [one] = found
    return one


def test_a_correct_environment_passes(spec: Spec) -> None:
    for node in ("gpu0", "gpu1"):
        assert _one(environment.contract(_ranks(), spec, node)).verdict == "pass"
        assert _one(environment.overrides(_ranks(), spec, node)).verdict == "pass"
    unpromised = environment.contract(
        _ranks(),
        spec.model_copy(update={"criteria": spec.criteria.model_copy(update={"preflight": None})}),
        "gpu0",
    )
    assert unpromised == []


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"MASTER_ADDR": "10.1.0.2"}, "MASTER_ADDR=10.1.0.2, 10.1.0.1 in most ranks"),
        ({"MASTER_PORT": "29501"}, "MASTER_PORT=29501, 29500 in most ranks"),
        ({"MASTER_PORT": "-"}, "MASTER_PORT is not set"),
        ({"WORLD_SIZE": "8"}, "WORLD_SIZE=8, expected 4"),
        ({"RANK": "2"}, "RANK=2, expected 3"),
        ({"LOCAL_RANK": "0"}, "LOCAL_RANK=0, expected 1"),
        ({"LOCAL_WORLD_SIZE": "1"}, "LOCAL_WORLD_SIZE=1, expected 2"),
        ({"RANK": "-"}, "RANK is not set"),
    ],
)
def test_a_wrong_variable_is_its_nodes_fault(
    spec: Spec, change: dict[str, str], words: str
) -> None:
    ranks = _changed(3, **change)
    assert _one(environment.contract(ranks, spec, "gpu0")).verdict == "pass"
    found = _one(environment.contract(ranks, spec, "gpu1"))
    assert found.verdict == "fail"
    assert found.culprit == f"gpu1: rank 3: {words}"


def test_an_invalid_port_is_named(spec: Spec) -> None:
    ranks = tuple(replace(r, variables={**r.variables, "MASTER_PORT": "auto"}) for r in _ranks())
    assert "MASTER_PORT=auto is not a port" in _one(environment.contract(ranks, spec, "gpu0")).note


def test_without_ranks_the_environment_is_inconclusive(spec: Spec) -> None:
    for question in (environment.contract, environment.overrides):
        found = _one(question(None, spec, "gpu0", "no world: rank 1 did not come"))
        assert found.verdict == "inconclusive"
        assert found.note == "no world: rank 1 did not come"


@pytest.mark.parametrize(
    ("setting", "ties"),
    [
        ("NCCL_IB_DISABLE=1", False),  # the fabric is Ethernet
        ("NCCL_IB_DISABLE=0", False),
        ("NCCL_P2P_DISABLE=1", True),
        ("NCCL_ALGO=Ring", True),
        ("NCCL_NET=Socket", False),
        ("NCCL_NET=IB", False),
        ("NCCL_SOCKET_IFNAME=fab", False),
        ("NCCL_SOCKET_IFNAME==fab0", False),
        ("NCCL_SOCKET_IFNAME=eth0", True),
        ("NCCL_SOCKET_IFNAME=^fab0", True),
        ("NCCL_SOCKET_IFNAME=^lo,docker", False),
        ("GLOO_SOCKET_IFNAME=eth0", True),
        ("GLOO_SOCKET_IFNAME=fab0", False),
        ("GLOO_SOCKET_IFNAME=fab", True),  # gloo takes whole names
        ("GLOO_SOCKET_IFNAME=fab0,eth0", True),
        ("NCCL_DEBUG=INFO", False),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", True),
        ("CUDA_LAUNCH_BLOCKING=1", True),
        ("NCCL_TIMEOUT_OF_NO_KNOWN_MEANING=7", False),
    ],
)
def test_settings_that_restrict_a_backend(spec: Spec, setting: str, ties: bool) -> None:
    name, _, value = setting.partition("=")
    found = _one(environment.overrides(_ranks(**{name: value}), spec, "gpu0"))
    assert (found.verdict == "fail") is ties
    assert f"{name}={value}" in found.note  # shown whether it restricts or not
    if ties:
        assert (found.culprit or "").startswith(f"gpu0: {name}={value} (")


@pytest.mark.parametrize(
    ("pattern", "value", "ties"),
    [
        ("eth[1-2]", "=eth1,eth2", False),
        ("eth[1-2]", "=eth1,mgmt0", True),
        ("eth[1-2]", "eth1,eth2", False),
        ("eth*", "=eth1", False),
        ("enp*np0", "=enp25s0np0", False),
        ("enp*np0", "=enp25s0", True),
    ],
)
def test_interfaces_that_the_spec_gives_by_a_pattern(
    tmp_path: Path, pattern: str, value: str, ties: bool
) -> None:
    spec = spec_of(tmp_path, "{environment: {}}", interfaces=f'"{pattern}"')
    found = _one(environment.overrides(_ranks(NCCL_SOCKET_IFNAME=value), spec, "gpu0"))
    assert (found.verdict == "fail") is ties, found


def test_interfaces_may_have_other_names_on_other_nodes(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{environment: {}}", interfaces="ens3, ens5")
    ranks = (*_ranks(GLOO_SOCKET_IFNAME="ens3")[:2], *_ranks(GLOO_SOCKET_IFNAME="ens5")[2:])
    for node in ("gpu0", "gpu1"):
        assert _one(environment.overrides(ranks, spec, node)).verdict == "pass"
    ranks = (*ranks[:3], _ranks(GLOO_SOCKET_IFNAME="ens3")[3])
    assert _one(environment.overrides(ranks, spec, "gpu0")).verdict == "pass"
    assert "differs" in _one(environment.overrides(ranks, spec, "gpu1")).note


def test_settings_that_the_spec_allows_pass(tmp_path: Path) -> None:
    ranks = _ranks(NCCL_ALGO="Ring", NCCL_CROSS_NIC="0")
    allowed = spec_of(tmp_path, "{environment: {allowed: [NCCL_CROSS_NIC, NCCL_ALGO=Ring]}}")
    assert _one(environment.overrides(ranks, allowed, "gpu0")).verdict == "pass"
    other = spec_of(tmp_path, "{environment: {allowed: [NCCL_CROSS_NIC, NCCL_ALGO=Tree]}}")
    assert _one(environment.overrides(ranks, other, "gpu0")).verdict == "fail"


def test_settings_that_differ_between_ranks_fail(spec: Spec) -> None:
    same = (*_ranks()[:3], _ranks(NCCL_P2P_DISABLE="0")[3])  # the default anyway
    assert _one(environment.overrides(same, spec, "gpu1")).verdict == "pass"
    ranks = (*_ranks()[:3], _ranks(NCCL_DEBUG="INFO")[3])
    found = _one(environment.overrides(ranks, spec, "gpu1"))
    assert found.verdict == "fail"
    assert "NCCL_DEBUG differs between ranks (INFO, not set)" in found.note
    assert _one(environment.overrides(ranks, spec, "gpu0")).verdict == "pass"


@pytest.mark.parametrize(
    ("usual", "of_odd", "text"),
    [
        ({}, {"NCCL_DEBUG": "INFO"}, "INFO, not set on 2 of 3 nodes"),
        ({"NCCL_DEBUG": "INFO"}, {}, "not set, INFO on 2 of 3 nodes"),
    ],
)
def test_a_node_whose_settings_differ_from_the_majority_fails(
    spec: Spec, usual: dict[str, str], of_odd: dict[str, str], text: str
) -> None:
    alike, odd = _ranks(**usual), [replace(rank, node="gpu2") for rank in _ranks(**of_odd)[:2]]
    found = {
        node: _one(environment.overrides((*alike, *odd), spec, node))
        for node in ("gpu0", "gpu1", "gpu2")
    }
    assert [one.verdict for one in found.values()] == ["pass", "pass", "fail"]
    assert found["gpu2"].culprit == f"gpu2: NCCL_DEBUG is {text}"


@pytest.mark.parametrize(
    ("name", "value", "usual"),
    [
        ("OMP_NUM_THREADS", "7", "1"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", ":16:8"),
        ("torch.deterministic_algorithms", "True", "False"),
        ("torch.num_threads", "2", "16"),
    ],
)
def test_a_node_that_computes_with_other_settings_is_named(
    tmp_path: Path, name: str, value: str, usual: str
) -> None:
    """Losses then differ on all ranks after a restart, without anything that names the node."""
    spec = spec_of(tmp_path, "{environment: {}}")
    ranks = [
        replace(rank, node=f"gpu{i}", settings={name: (value if i == 1 else usual, "")})
        for i, rank in enumerate(_ranks()[:3])
    ]
    named = [_one(environment.overrides(ranks, spec, f"gpu{i}")) for i in range(3)]
    assert [m.passed for m in named] == [True, False, True]
    assert f"{name} is {value}, {usual} on 2 of 3 nodes" in named[1].note
    allowed = spec_of(tmp_path, f"{{environment: {{allowed: [{name}]}}}}")
    assert _one(environment.overrides(ranks, allowed, "gpu1")).passed


def test_torch_settings_of_a_rank_are_read() -> None:
    found = environment.torch_settings()
    assert found["torch.num_threads"][0].isdecimal()
    assert found["torch.deterministic_algorithms"] == ("False", "")


def test_the_log_of_nccl_that_each_rank_gets_is_no_difference(spec: Spec) -> None:
    ranks = []
    for rank in _ranks():
        environ: dict[str, str] = {}
        loop.have_nccl_log(environ, Path(f"/logs/rank{rank.number}.nccl.log"))
        found = environment.environment_of(environ, rank.number, rank.node)
        logs = {k: v for k, v in found.settings.items() if k.startswith("NCCL_DEBUG")}
        assert len(logs) == 3
        ranks.append(replace(rank, settings={**rank.settings, **logs}))
    for node in ("gpu0", "gpu1"):
        assert _one(environment.overrides(ranks, spec, node)).verdict == "pass"


@pytest.mark.parametrize(
    "name", ["TORCH_NCCL_DEBUG_INFO_TEMP_FILE", "TORCH_NCCL_DEBUG_INFO_PIPE_FILE", "UCX_LOG_FILE"]
)
def test_files_that_a_node_writes_for_itself_are_no_difference(spec: Spec, name: str) -> None:
    ranks = [replace(rank, settings={name: (f"/logs/{rank.node}.", "")}) for rank in _ranks()]
    for node in ("gpu0", "gpu1"):
        assert _one(environment.overrides(ranks, spec, node)).verdict == "pass"


@pytest.mark.parametrize("name", ["OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY"])
def test_cpus_that_a_rank_is_pinned_to_are_no_difference(spec: Spec, name: str) -> None:
    ranks = [replace(rank, settings={name: (f"{{{rank.number}}}", "")}) for rank in _ranks()]
    for node in ("gpu0", "gpu1"):
        assert _one(environment.overrides(ranks, spec, node)).verdict == "pass"


def test_of_two_nodes_that_differ_neither_is_to_blame_for_sure(spec: Spec) -> None:
    ranks = [replace(r, settings={"OMP_NUM_THREADS": (r.node[-1], "")}) for r in _ranks()]
    found = _one(environment.overrides(ranks, spec, "gpu1"))
    assert found.verdict == "fail"
    assert "no majority says who is right" in found.note
    culprit = of_node("gpu1", found).culprit
    assert culprit is not None
    assert not culprit.nodes
    assert culprit.either == {frozenset(["gpu1"])}
    within = [replace(r, settings={"OMP_NUM_THREADS": (str(r.number), "")}) for r in _ranks()]
    alone = of_node("gpu1", _one(environment.overrides(within, spec, "gpu1"))).culprit
    assert alone is not None
    assert alone.nodes == {"gpu1"}


def test_nodes_of_one_machine_have_identities_of_their_own(spec: Spec) -> None:
    apart = [
        replace(rank, settings=settings, variables=variables)
        for rank in _ranks()
        for variables in [{**rank.variables, "MASTER_ADDR": "127.0.0.1"}]
        for settings in [{"NCCL_HOSTID": (rank.node, ""), "NCCL_SOCKET_IFNAME": ("=lo", "")}]
    ]
    assert _one(environment.overrides(apart, spec, "gpu0")).verdict == "pass"
    alike = [replace(rank, settings={"NCCL_HOSTID": ("one", "")}) for rank in _ranks()]
    assert "another identity of the host" in _one(environment.overrides(alike, spec, "gpu0")).note


@pytest.mark.parametrize(
    ("profile", "image"),
    [
        ("a100-ib", "NCCL_TOPO_FILE=/opt/microsoft/ndv4/topo.xml\n"),
        ("h100-ib", "NCCL_TOPO_FILE=/opt/microsoft/ndv5/topo.xml\nNCCL_IGNORE_CPU_AFFINITY=1\n"),
    ],
)
def test_a_profile_allows_what_the_image_of_its_system_sets(
    profile: str, image: str, tmp_path: Path
) -> None:
    """Source: Azure, azhpc-images, customizations/ndv4.sh and ndv5.sh."""
    conf = tmp_path / "etc/nccl.conf"
    conf.parent.mkdir()
    conf.write_text(f"NCCL_IB_PCI_RELAXED_ORDERING=1\n{image}")
    files = settings_of_files({}, tmp_path)
    ranks = [
        environment.environment_of(rank.variables, rank.number, rank.node, files, "2.27.5")
        for rank in _ranks()
    ]
    spec = load_spec(default_spec_path().with_name(f"{profile}.yaml"))
    assert _one(environment.overrides(ranks, spec, "gpu0")).verdict == "pass"


def test_gid_indexes_may_differ_by_node(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "{environment: {}}", kind="roce")
    ranks = (*_ranks(NCCL_IB_GID_INDEX="3")[:2], *_ranks(NCCL_IB_GID_INDEX="5")[2:])
    notes = [_one(environment.overrides(ranks, spec, node)).note for node in ("gpu0", "gpu1")]
    assert notes == [f"NCCL_IB_GID_INDEX={index} (one GID for all devices)" for index in (3, 5)]


def test_nccl_config_files_count_and_the_environment_overrides_them(tmp_path: Path) -> None:
    env = {"NCCL_IB_HCA": "mlx5_1", "HOME": "/h"}
    for name, text in {
        "etc/nccl.conf": "# site\nNCCL_IB_HCA=mlx5_0\nNCCL_ALGO=Tree\nNCCL_PROTO = LL\nnonsense\n",
        "h/.nccl.conf": "NCCL_ALGO=Ring\nNCCL_ALGO=NVLS\n",
        "own.conf": "NCCL_ALGO=CollnetChain\n",
    }.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    settings = environment_of(env, 0, "n", settings_of_files(env, tmp_path)).settings
    assert settings == {
        "NCCL_IB_HCA": ("mlx5_1", ""),
        "NCCL_ALGO": ("Ring", " in /h/.nccl.conf"),  # first line without blanks
    }
    env |= {"NCCL_CONF_FILE": "/own.conf"}
    assert settings_of_files(env, tmp_path)["NCCL_ALGO"] == ("CollnetChain", "/own.conf")


@pytest.mark.parametrize(
    ("nccl", "verdict"), [("2.19.3", "pass"), ("2.21.5", "fail"), (None, "pass")]
)
def test_defaults_follow_the_nccl_version_that_ranks_load(
    tmp_path: Path, nccl: str | None, verdict: str
) -> None:
    roce = spec_of(tmp_path, "{environment: {}}", "roce", '"mlx5_*"')
    ranks = tuple(replace(r, nccl=nccl) for r in _ranks(NCCL_IB_SPLIT_DATA_ON_QPS="1"))
    assert _one(environment.overrides(ranks, roce, "gpu0")).verdict == verdict


@pytest.mark.parametrize(
    ("value", "absent"),
    [
        ("mlx5_0", None),
        ("mlx5", None),
        ("=mlx5_0:1,mlx5_1", None),
        ("mlx5_0:2", "mlx5_0:2"),
        ("mlx5_0,mlx5_3:1", "mlx5_3:1"),
        ("=mlx5", "mlx5"),
        ("^mlx5_0", None),
        ("^mlx5", "^mlx5"),
        ("", None),
    ],
)
def test_nccl_ib_hca_is_compared_with_devices_that_ranks_can_open(
    tmp_path: Path, value: str, absent: str | None
) -> None:
    roce = spec_of(tmp_path, "{environment: {}}", "roce", '"mlx5_*"')
    hcas = ("mlx5_0:1", "mlx5_1:1")
    ranks = tuple(replace(rank, hcas=hcas) for rank in _ranks(NCCL_IB_HCA=value))
    found = _one(environment.devices(ranks, roce, "gpu0"))
    assert found.culprit == (absent and f"gpu0: NCCL_IB_HCA names {absent}")
    assert found.verdict == ("fail" if absent else "pass")
    assert f"NCCL_IB_HCA={value}; ranks can open mlx5_0:1, mlx5_1:1" in found.note
    unread = (replace(ranks[0], hcas=None), *ranks[1:])
    assert _one(environment.devices(unread, roce, "gpu0")).verdict == "inconclusive"
    assert _one(environment.devices(unread, roce, "gpu1")).verdict == found.verdict
    none = tuple(replace(rank, hcas=()) for rank in ranks)
    assert _one(environment.devices(none, roce, "gpu0")).verdict == ("fail" if value else "pass")


def test_nccl_ib_hca_is_judged_only_on_rdma_fabrics(tmp_path: Path, spec: Spec) -> None:
    assert environment.devices(_ranks(NCCL_IB_HCA="mlx5_0"), spec, "gpu0") == []  # Ethernet
    roce = spec_of(tmp_path, "{environment: {}}", "roce", '"mlx5_*"')
    assert _one(environment.devices(_ranks(), roce, "gpu0")).verdict == "pass"
    assert _one(environment.devices(None, roce, "gpu0", "no world")).verdict == "inconclusive"
    there = devices_of(rdma_port(), rdma_port(device="mlx5_1"))
    verbs = (VerbsDevice("uverbs0", "mlx5_0", "no such file"), VerbsDevice("uverbs1", "mlx5_1"))
    assert hcas_of(Machine(rdma=there, verbs=verbs)) == ("mlx5_1:1",)
    assert hcas_of(Machine(rdma=there)) is None
