"""Facts read from files as a node and NCCL write them, up to the verdict."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pytest_mnode.criteria.transport.evidence import PARTS, NodeTraffic, rank_now
from pytest_mnode.criteria.transport.remarks import Case
from pytest_mnode.criteria.transport.settings import number
from pytest_mnode.logs.nccl_files import log_of_process, settings_in
from pytest_mnode.machine.model import Machine
from pytest_mnode.measurement import Verdict
from pytest_mnode.rank.world import World
from tests.criteria.transport.compose import RAILS, Judged, device, healthy, judged, log_text, moved
from tests.trees import Tree

NODES = ("birch0", "birch1")
ALONE = World(0, 1, 0, 1, "birch0", ("birch0",))


def _write(root: Path, **files: str) -> None:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")


def _tree(root: Path, kind: str, words: int, *, drop: str = "") -> None:
    """A node's /sys: eight RDMA ports that have sent `words`, their interfaces, mgmt0."""
    tree = Tree(root)
    types = {"lo": 772, "mgmt0": 1, **{f"ib{rail}": 32 for rail in range(RAILS)}}
    for name, type_ in types.items():
        tree.interface(name, type=type_)
        for counter in ("tx_bytes", "rx_bytes"):
            tree.write(f"sys/class/net/{name}/statistics/{counter}", 7000)
    for rail in range(RAILS):
        name = device(kind, rail)
        on = f"pci0000:{rail:02x}/0000:{rail:02x}:01.0"
        gid = (f"fe80:0000:0000:0000:0c42:a103:0011:22{rail:02x}", "IB/RoCE v1", f"ib{rail}")
        counters = {"port_xmit_data": words, "port_rcv_data": words}
        tree.rdma(name, on, None if name == drop else counters, gids=[gid])


def _between(name: str, directory: Path) -> NodeTraffic:
    before, after = (Machine.read(directory / when, PARTS) for when in ("before", "after"))
    return NodeTraffic.between(name, before, after)


def _proof(tmp_path: Path, *, drop: str = "", silent: int | None = None) -> Judged:
    """Two nodes and sixteen ranks, each with its own tree, log and environment."""
    kind = "infiniband"
    words = moved(kind, healthy(kind, 2)) // RAILS // 4
    nodes = []
    for name in NODES:
        lost = drop if name == "birch1" else ""
        before, after = tmp_path / name / "before", tmp_path / name / "after"
        _tree(before, kind, 1000, drop=lost)
        _tree(after, kind, 1000 + words, drop=lost)
        nodes.append(_between(name, tmp_path / name))
    ranks = []
    for rank in range(2 * RAILS):
        log = tmp_path / f"rank{rank}.log"
        log.write_text(log_text(rank, 2, kind))
        environment = {"NCCL_DEBUG": "INFO", "NCCL_DEBUG_FILE": str(log), "PATH": "/bin"}
        if rank == silent:
            environment |= {"NCCL_DEBUG": "WARN", "NCCL_DEBUG_FILE": "/nowhere/%h.%p"}
        world = World(rank, 16, rank % RAILS, RAILS, NODES[rank // RAILS], NODES)
        ranks.append(rank_now(world, "nccl", environment, tmp_path))
    return judged(kind, replace(healthy(kind, 2), nodes=tuple(nodes), ranks=tuple(ranks)))


def test_files_of_a_healthy_cluster_pass(tmp_path: Path) -> None:
    proof = _proof(tmp_path)
    assert proof.verdict is Verdict.PASS, proof.remarks


def test_a_missing_counter_is_inconclusive(tmp_path: Path) -> None:
    proof = _proof(tmp_path, drop="mlx5_5")
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.culprit == "birch1: bytes sent by mlx5_5 could not be read"


def test_a_rank_with_logging_turned_off_is_named_with_the_remedy(tmp_path: Path) -> None:
    proof = _proof(tmp_path, silent=9)
    assert proof.verdict is Verdict.INCONCLUSIVE
    assert proof.cases == {Case.NO_LOG}
    assert proof.culprit == "rank 9 on birch1: no log: NCCL_DEBUG=WARN; set NCCL_DEBUG=INFO"
    assert proof.answers["logged"] == "inconclusive"


def test_settings_of_files_count_unless_the_environment_sets_them(tmp_path: Path) -> None:
    _write(tmp_path, **{"etc/nccl.conf": "# ours\nNCCL_IB_DISABLE=1\nNCCL_SOCKET_IFNAME==mgmt0"})
    _write(tmp_path, **{"home/me/.nccl.conf": "NCCL_IB_DISABLE=0\nNCCL_NET = Socket\nnonsense"})
    alone = rank_now(ALONE, "nccl", {"NCCL_ALGO": "RING"}, tmp_path)
    assert alone.environment["NCCL_IB_DISABLE"] == "1"
    assert alone.settings_of_files["NCCL_SOCKET_IFNAME"] == "/etc/nccl.conf"
    mine = rank_now(ALONE, "nccl", {"HOME": "/home/me", "NCCL_SOCKET_IFNAME": "ib"}, tmp_path)
    assert mine.environment["NCCL_IB_DISABLE"] == "0"
    assert mine.environment["NCCL_SOCKET_IFNAME"] == "ib"
    assert "NCCL_NET" not in mine.environment  # NCCL skips a name before a blank


@pytest.mark.parametrize("backend", ["nccl", "mpi"])
def test_a_separate_ucx_log_file_is_read(tmp_path: Path, backend: str) -> None:
    _write(tmp_path, ucx="[1.2] [birch0:7:0] a.c:9 UCX  INFO  x inter-node cfg#1 tag(tcp/mgmt0)\n")
    _write(tmp_path, nccl=log_text(0, 2, "roce"))
    environment = {"UCX_LOG_FILE": f"{tmp_path}/ucx", "NCCL_DEBUG_FILE": f"{tmp_path}/nccl"}
    log = rank_now(ALONE, backend, environment, Path("/")).log
    assert log is not None
    assert [config.tcp for config in log.ucx] == [("mgmt0",)]
    assert bool(log.channels) is (backend == "nccl")


def test_a_counter_that_decreased_is_unknown(tmp_path: Path) -> None:
    _tree(tmp_path / "before", "infiniband", 5000)
    _tree(tmp_path / "after", "infiniband", 10)
    node = _between("birch0", tmp_path)
    assert node.sent_bytes == {nic.name: 0 for nic in node.machine.interfaces or ()}
    assert len(node.machine.ports) == RAILS


def test_an_interface_made_since_then_has_counted_from_0(tmp_path: Path) -> None:
    for when in ("before", "after"):
        _tree(tmp_path / when, "infiniband", 5000)
    for name, on in (("veth7", None), ("eth7", "pci0000:40/0000:40:01.0")):
        Tree(tmp_path / "after").interface(name, on)
        _write(tmp_path / "after", **{f"sys/class/net/{name}/statistics/tx_bytes": "900"})
    sent = _between("birch0", tmp_path).sent_bytes
    assert sent["veth7"] == 900
    assert "eth7" not in sent  # a VF that a pod gave back has counted since long ago


def test_settings_in() -> None:
    assert settings_in("# NCCL_A=1\nNCCL_B==eth0\n\nNCCL_C\n=x\n") == {"NCCL_B": "=eth0"}
    # No device has such a name, so NCCL falls back to sockets.
    assert settings_in("NCCL_IB_HCA=mlx5_0 \n") == {"NCCL_IB_HCA": "mlx5_0 "}


def test_log_of_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("socket.gethostname", lambda: "birch0.hall.example")
    monkeypatch.setattr("os.getpid", lambda: 77)
    _write(tmp_path, **{"nccl.birch0.77": "short", "other.birch0.hall.example": "whole"})
    assert log_of_process(f"{tmp_path}/nccl.%h.%p") == b"short\n"
    assert log_of_process(f"{tmp_path}/other.%h") == b"whole\n"
    assert log_of_process(f"{tmp_path}/%p.%h") is None


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("1", 1), ("0x10", 16), ("010", 8), ("-1", -1), (" +2", 2), ("00", 0), ("09", 0)),
        *(("yes", 0), ("true", 0), ("1 # on", 1), ("4MiB", 4), ("0x", 0), ("", None), (None, None)),
    ],
)
def test_numbers_as_nccl_reads_them(text: str | None, value: int | None) -> None:
    assert number(text) == value
