"""The environment of ranks, and settings in it that restrict a backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.checks.node.environment import (
    NothingTiesTheHandsOfBackends,
    RanksFindTheirEnvironment,
    RanksNameRdmaDevicesThatAreThere,
)
from pytest_mnode.criteria.preflight.environment import (
    RankEnvironment,
    Ranks,
    environment_of,
    hcas_of,
    torch_settings,
)
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.evidence.check import Check
from pytest_mnode.evidence.reading import ReadOrder, read
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.evidence.rules import Rows
from pytest_mnode.logs.nccl_files import settings_of_files
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import VerbsDevice
from pytest_mnode.measurement import Measurement
from pytest_mnode.rank import entry
from pytest_mnode.spec import Spec, default_spec_path, load_spec
from tests.criteria.preflight.made import devices_of, promising, rdma_port

ETHERNET = promising("{environment: {}}")
ROCE = promising("{environment: {}}", "roce", '"mlx5_*"')
NODES = ("gpu0", "gpu1")


def _ranks(**more: str) -> tuple[RankEnvironment, ...]:
    """Environments of two nodes with two ranks each."""
    common = {"MASTER_ADDR": "10.1.0.1", "MASTER_PORT": "29500", "WORLD_SIZE": "4"}
    common |= {"LOCAL_WORLD_SIZE": "2", **more}
    return tuple(
        environment_of(
            common | {"RANK": str(rank), "LOCAL_RANK": str(rank % 2)}, rank, NODES[rank // 2]
        )
        for rank in range(4)
    )


def _having(settings: Sequence[dict[str, str]]) -> tuple[RankEnvironment, ...]:
    """Ranks with settings of their own."""
    return tuple(
        replace(rank, settings={name: (value, "") for name, value in own.items()})
        for rank, own in zip(_ranks(), settings, strict=True)
    )


def _contract(ranks: Sequence[RankEnvironment], node: str) -> Measurement:
    [one] = judged(RanksFindTheirEnvironment, Ranks(NODES, tuple(ranks)), ETHERNET, node)
    return one


def _overrides(
    ranks: Sequence[RankEnvironment], node: str = "gpu0", spec: Spec = ETHERNET
) -> Measurement:
    [one] = judged(NothingTiesTheHandsOfBackends, Ranks(NODES, tuple(ranks)), spec, node)
    return one


def test_a_correct_environment_passes() -> None:
    for node in NODES:
        assert _contract(_ranks(), node).passed
        assert _overrides(_ranks(), node).passed
    criteria = ETHERNET.criteria.model_copy(update={"preflight": None})
    unpromised = ETHERNET.model_copy(update={"criteria": criteria})
    assert judged(RanksFindTheirEnvironment, Ranks(NODES, _ranks()), unpromised, "gpu0") == []


@pytest.mark.parametrize(
    ("name", "value", "words"),
    [
        ("MASTER_ADDR", "10.1.0.2", "MASTER_ADDR=10.1.0.2, 10.1.0.1 in most ranks"),
        ("MASTER_PORT", "29501", "MASTER_PORT=29501, 29500 in most ranks"),
        ("MASTER_PORT", None, "MASTER_PORT is not set"),
        ("WORLD_SIZE", "8", "WORLD_SIZE=8, expected 4"),
        ("RANK", "2", "RANK=2, expected 3"),
        ("LOCAL_RANK", "0", "LOCAL_RANK=0, expected 1"),
        ("LOCAL_WORLD_SIZE", "1", "LOCAL_WORLD_SIZE=1, expected 2"),
        ("RANK", None, "RANK is not set"),
    ],
)
def test_a_wrong_variable_is_its_nodes_fault(name: str, value: str | None, words: str) -> None:
    *others, last = _ranks()
    variables = {k: v for k, v in last.variables.items() if k != name}
    variables |= {} if value is None else {name: value}
    ranks = (*others, replace(last, variables=variables))
    assert _contract(ranks, "gpu0").passed
    found = _contract(ranks, "gpu1")
    assert (found.verdict, found.culprit) == ("fail", f"gpu1: rank 3: {words}")


def test_an_invalid_port_is_named() -> None:
    found = _contract(_ranks(MASTER_PORT="auto"), "gpu0")
    assert found.verdict == "fail"
    assert "MASTER_PORT=auto is not a port" in found.note


def test_without_ranks_the_environment_is_inconclusive() -> None:
    for ranks, why in (
        (Ranks(NODES, why="no world: rank 1 did not come"), "no world: rank 1 did not come"),
        (Ranks(NODES, _ranks()[2:]), "no rank runs on gpu0"),
    ):
        for question in (RanksFindTheirEnvironment, NothingTiesTheHandsOfBackends):
            [found] = judged(question, ranks, ETHERNET, "gpu0")
            assert (found.verdict, found.note) == ("inconclusive", why)


@pytest.mark.parametrize(
    ("setting", "ties"),
    [
        ("NCCL_IB_DISABLE=1", False),  # the fabric is Ethernet
        ("NCCL_P2P_DISABLE=1", True),
        ("NCCL_NET=Socket", False),
        ("NCCL_SOCKET_IFNAME=fab", False),
        ("NCCL_SOCKET_IFNAME==fab0", False),
        ("NCCL_SOCKET_IFNAME=eth0", True),
        ("NCCL_SOCKET_IFNAME=^fab0", True),
        ("NCCL_SOCKET_IFNAME=^lo,docker", False),
        ("GLOO_SOCKET_IFNAME=eth0", True),
        ("GLOO_SOCKET_IFNAME=fab0", False),
        ("GLOO_SOCKET_IFNAME=fab", True),  # gloo takes whole names
        ("GLOO_SOCKET_IFNAME=fab0,eth0", True),
        ("TORCH_DISTRIBUTED_DEBUG=DETAIL", True),
        ("CUDA_LAUNCH_BLOCKING=1", True),
        ("NCCL_TIMEOUT_OF_NO_KNOWN_MEANING=7", False),
    ],
)
def test_settings_that_restrict_a_backend(setting: str, ties: bool) -> None:
    name, _, value = setting.partition("=")
    found = _overrides(_ranks(**{name: value}))
    assert (found.verdict == "fail") is ties
    assert setting in found.note  # shown whether it restricts or not
    if ties:
        assert (found.culprit or "").startswith(f"gpu0: {setting} (")


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
def test_interfaces_that_the_spec_gives_by_a_pattern(pattern: str, value: str, ties: bool) -> None:
    spec = promising("{environment: {}}", interfaces=f'"{pattern}"')
    found = _overrides(_ranks(NCCL_SOCKET_IFNAME=value), spec=spec)
    assert (found.verdict == "fail") is ties, found


def test_interfaces_may_have_other_names_on_other_nodes() -> None:
    spec = promising("{environment: {}}", interfaces="ens3, ens5")
    three, five = _ranks(GLOO_SOCKET_IFNAME="ens3"), _ranks(GLOO_SOCKET_IFNAME="ens5")
    for node in NODES:
        assert _overrides((*three[:2], *five[2:]), node, spec).passed
    ranks = (*three[:2], five[2], three[3])
    assert _overrides(ranks, "gpu0", spec).passed
    assert "differs" in _overrides(ranks, "gpu1", spec).note


@pytest.mark.parametrize(("ring", "verdict"), [("Ring", "pass"), ("Tree", "fail")])
def test_settings_that_the_spec_allows_pass(ring: str, verdict: str) -> None:
    spec = promising(f"{{environment: {{allowed: [NCCL_CROSS_NIC, NCCL_ALGO={ring}]}}}}")
    ranks = _ranks(NCCL_ALGO="Ring", NCCL_CROSS_NIC="0")
    assert _overrides(ranks, spec=spec).verdict == verdict


def test_settings_that_differ_between_ranks_fail() -> None:
    same = (*_ranks()[:3], _ranks(NCCL_P2P_DISABLE="0")[3])  # the default anyway
    assert _overrides(same, "gpu1").passed
    ranks = (*_ranks()[:3], _ranks(NCCL_DEBUG="INFO")[3])
    found = _overrides(ranks, "gpu1")
    assert found.verdict == "fail"
    assert "NCCL_DEBUG differs between ranks (INFO, not set)" in found.note
    assert _overrides(ranks, "gpu0").passed


@pytest.mark.parametrize(
    ("name", "value", "usual"),
    [
        ("NCCL_DEBUG", "INFO", None),
        ("NCCL_DEBUG", None, "INFO"),
        ("OMP_NUM_THREADS", "7", "1"),
        ("CUBLAS_WORKSPACE_CONFIG", ":4096:8", ":16:8"),
        ("torch.deterministic_algorithms", "True", "False"),
    ],
)
def test_a_node_whose_settings_differ_from_the_majority_fails(
    name: str, value: str | None, usual: str | None
) -> None:
    """Losses may then differ on all ranks after a restart, without anything that names the node."""
    own = [{name: one} if one else {} for one in (usual, value, usual, usual)]
    ranks = [replace(r, node=f"gpu{i}") for i, r in enumerate(_having(own)[:3])]
    found = [_overrides(ranks, f"gpu{i}") for i in range(3)]
    assert [one.passed for one in found] == [True, False, True]
    shown = f"{name} is {value or 'not set'}, {usual or 'not set'} on 2 of 3 nodes"
    assert found[1].culprit == f"gpu1: {shown}"
    allowed = promising(f"{{environment: {{allowed: [{name}]}}}}")
    assert _overrides(ranks, "gpu1", allowed).passed


def test_torch_settings_of_a_rank_are_read() -> None:
    found = torch_settings()
    assert found["torch.num_threads"][0].isdecimal()
    assert found["torch.deterministic_algorithms"] == ("False", "")


def test_the_log_of_nccl_that_each_rank_gets_is_no_difference() -> None:
    ranks = []
    for rank in _ranks():
        environ: dict[str, str] = {}
        entry.have_nccl_log(environ, Path(f"/logs/rank{rank.number}.nccl.log"))
        logs = environment_of(environ, rank.number, rank.node).settings
        assert sum(name.startswith("NCCL_DEBUG") for name in logs) == 3
        ranks.append(replace(rank, settings={**rank.settings, **logs}))
    for node in NODES:
        assert _overrides(ranks, node).passed


@pytest.mark.parametrize(
    ("name", "values"),
    [
        *[(f"TORCH_NCCL_DEBUG_INFO_{kind}_FILE", "/x/{node}.") for kind in ("TEMP", "PIPE")],
        ("UCX_LOG_FILE", "/x/{node}."),
        *[(name, "{rank}") for name in ("OMP_PLACES", "GOMP_CPU_AFFINITY", "KMP_AFFINITY")],
    ],
)
def test_files_of_a_node_and_cpus_of_a_rank_are_no_difference(name: str, values: str) -> None:
    ranks = _having([{name: values.format(rank=r.number, node=r.node)} for r in _ranks()])
    for node in NODES:
        assert _overrides(ranks, node).passed


def test_of_two_nodes_that_differ_neither_is_to_blame_for_sure() -> None:
    found = _overrides(_having([{"OMP_NUM_THREADS": n} for n in "0011"]), "gpu1")
    assert found.verdict == "fail"
    assert "no majority says who is right" in found.note
    culprit = found.culprit
    assert culprit is not None
    assert not culprit.nodes
    assert culprit.either == {frozenset(["gpu1"])}
    within = _overrides(_having([{"OMP_NUM_THREADS": n} for n in "0123"]), "gpu1")
    alone = within.culprit
    assert alone is not None
    assert alone.nodes == {"gpu1"}


def test_nodes_of_one_machine_have_identities_of_their_own() -> None:
    settings = {"NCCL_SOCKET_IFNAME": ("=lo", "")}
    apart = [
        replace(rank, settings={**settings, "NCCL_HOSTID": (rank.node, "")})
        for rank in _ranks(MASTER_ADDR="127.0.0.1")
    ]
    assert _overrides(apart).passed
    alike = _having([{"NCCL_HOSTID": "one"}] * 4)
    assert "another identity of the host" in _overrides(alike).note


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
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/nccl.conf").write_text(f"NCCL_IB_PCI_RELAXED_ORDERING=1\n{image}")
    files = settings_of_files({}, tmp_path)
    ranks = [environment_of(r.variables, r.number, r.node, files, "2.27.5") for r in _ranks()]
    spec = load_spec(default_spec_path().with_name(f"{profile}.yaml"))
    assert _overrides(ranks, spec=spec).passed


def test_gid_indexes_may_differ_by_node() -> None:
    ranks = (*_ranks(NCCL_IB_GID_INDEX="3")[:2], *_ranks(NCCL_IB_GID_INDEX="5")[2:])
    notes = [_overrides(ranks, node, ROCE).note for node in NODES]
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
def test_defaults_follow_the_nccl_version_that_ranks_load(nccl: str | None, verdict: str) -> None:
    ranks = [replace(r, nccl=nccl) for r in _ranks(NCCL_IB_SPLIT_DATA_ON_QPS="1")]
    assert _overrides(ranks, spec=ROCE).verdict == verdict


def _devices(ranks: Sequence[RankEnvironment], node: str = "gpu0") -> Measurement:
    [one] = judged(RanksNameRdmaDevicesThatAreThere, Ranks(NODES, tuple(ranks)), ROCE, node)
    return one


@pytest.mark.parametrize(
    ("value", "absent"),
    [
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
    value: str, absent: str | None
) -> None:
    ranks = [replace(r, hcas=("mlx5_0:1", "mlx5_1:1")) for r in _ranks(NCCL_IB_HCA=value)]
    found = _devices(ranks)
    assert found.culprit == (absent and f"gpu0: NCCL_IB_HCA names {absent}")
    assert found.verdict == ("fail" if absent else "pass")
    assert f"NCCL_IB_HCA={value}; ranks can open mlx5_0:1, mlx5_1:1" in found.note
    unread = (replace(ranks[0], hcas=None), *ranks[1:])
    assert _devices(unread).verdict == "inconclusive"
    assert _devices(unread, "gpu1").verdict == found.verdict
    none = [replace(rank, hcas=()) for rank in ranks]
    assert _devices(none).verdict == ("fail" if value else "pass")


def test_nccl_ib_hca_is_judged_only_on_rdma_fabrics() -> None:
    question, named = RanksNameRdmaDevicesThatAreThere, Ranks(NODES, _ranks(NCCL_IB_HCA="mlx5_0"))
    assert judged(question, named, ETHERNET, "gpu0") == []
    assert _devices(_ranks()).passed
    [unknown] = judged(question, Ranks(NODES, why="no world"), ROCE, "gpu0")
    assert unknown.verdict == "inconclusive"


def test_devices_that_a_rank_can_open() -> None:
    there = devices_of(rdma_port(), rdma_port(device="mlx5_1"))
    verbs = (VerbsDevice("uverbs0", "mlx5_0", "no such file"), VerbsDevice("uverbs1", "mlx5_1"))
    assert hcas_of(Machine(rdma=there, verbs=verbs)) == ("mlx5_1:1",)
    assert hcas_of(Machine(rdma=there)) is None


class ThreadsAreFew(Check):
    """Do ranks have few threads?"""

    key, on = "preflight.threads", "rank"  # entered nowhere, for no suite has it
    promise: int

    def read(self, root: Path) -> Iterator[Row]:
        yield row("threads", int((root / "threads").read_text()))

    def rule(self, rows: Rows) -> Iterator[Measurement]:
        yield rows.at_most("threads", self.promise)


def test_a_check_may_read_in_ranks_by_itself(tmp_path: Path) -> None:
    ranks = []
    for rank, count in zip(_ranks(), ("4", "4", "4", "9"), strict=True):
        (tmp_path / "threads").write_text(count)
        rows = read(ReadOrder.of(ThreadsAreFew, 8), tmp_path)
        ranks.append(replace(rank, read=(rows,)))
    found = Ranks(NODES, tuple(ranks)).rows(ThreadsAreFew.case())
    assert [(one.node, one.rank, one.value) for one in found["gpu1"]] == [
        ("gpu1", 2, 4),
        ("gpu1", 3, 9),
    ]
    judge = ThreadsAreFew(8).judge
    verdicts = [one.verdict for n in NODES for one in judge(Ranks(NODES, tuple(ranks)), n)]
    assert verdicts == ["pass", "fail"]
    (tmp_path / "threads").unlink()
    mute = replace(ranks[0], read=(read(ReadOrder.of(ThreadsAreFew, 8), tmp_path),))
    [unknown] = judge(Ranks(NODES, (mute, *ranks[1:])), "gpu0")
    assert unknown.verdict == "inconclusive"
    assert "rank 0: " in unknown.note
