"""Nodes in the output of `scontrol --oneliner show node`."""

from __future__ import annotations

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.slurm import NodeState
from pytest_mnode.launchers.slurm.nodes import gpus_of, gpus_to_request, nodes_from_text, shortage

IDLE = (
    "NodeName=gpu-01 Arch=x86_64 CoresPerSocket=48 CPUAlloc=0 CPUTot=96 CPULoad=0.10 "
    "AvailableFeatures=(null) Gres=gpu:h100:8(S:0-1) NodeAddr=10.1.0.1 NodeHostName=gpu-01 "
    "OS=Linux 6.1.0 #1 SMP x Debian State=IDLE ThreadsPerCore=1 Partitions=gpu,all "
    "BootTime=1795274622 Comment=(null)"
)
DOWN = (
    "NodeName=gpu-02 CPUAlloc=0 CPUTot=96 Gres=(null) NodeAddr=gpu-02 NodeHostName=gpu-02 "
    "State=DOWN*+DRAIN Partitions=gpu Reason=Not responding [slurm@2026-11-21T10:00:00]"
)
SILENT = "NodeName=gpu-03 CPUTot=96 State=ALLOCATED* Partitions=gpu"


def node_of(fields: str) -> NodeState:
    (node,) = nodes_from_text(f"NodeName=n {fields}")
    return node


def test_a_node_is_read() -> None:
    (node,) = nodes_from_text(IDLE)
    assert node == NodeState(
        *("gpu-01", "IDLE", frozenset(), None, "gpu-01", "10.1.0.1", 96, 0, 8, ("gpu", "all")),
        gres="gpu:h100:8(S:0-1)",
    )
    assert node.usable
    assert not node.lost


def test_problems_of_a_node_are_read() -> None:
    down, silent = nodes_from_text(f"{DOWN}\n{SILENT}")
    assert (down.state, set(down.flags)) == ("DOWN", {"DRAIN", "NOT_RESPONDING"})
    assert (down.lost, down.usable, down.gpus) == (True, False, None)
    assert down.text == "DOWN+DRAIN+NOT_RESPONDING: Not responding"
    assert (silent.state, silent.lost, silent.usable) == ("ALLOCATED", False, False)


def test_a_node_without_a_state_is_an_error() -> None:
    with pytest.raises(ClusterError, match=r"^scontrol show node: cannot be read: no State=$"):
        nodes_from_text(f"{IDLE}\nNodeName=gpu-09 CPUTot=1")


@pytest.mark.parametrize(
    ("gres", "count"),
    [
        ("gpu:8", 8),
        ("gpu:a100:4(S:0),nic:2", 4),
        ("gpu:a100:4,gpu:t4:2", 6),
        ("nic:2", None),
        ("vgpu:2", None),
        ("gpu:tesla:no_consume:4(S:0)", 4),
        ("nic:2,gpu:4", 4),
        ("(null)", None),
        ("", None),
    ],
)
def test_gpus_of_a_node_are_counted(gres: str, count: int | None) -> None:
    assert gpus_of(gres) == count


def test_gpus_are_requested_only_if_slurm_has_some() -> None:
    with_gpus, without = nodes_from_text(f"{IDLE}\n{DOWN}")
    assert gpus_to_request(8, [without, with_gpus]) == 8
    assert gpus_to_request(8, [without]) == 0


def test_missing_resources_for_a_job_are_named() -> None:
    nodes = nodes_from_text("\n".join([IDLE, DOWN, SILENT]))
    assert shortage(nodes, 1) is None
    assert shortage(nodes, 2) is None  # a silent node may answer again
    shortfall = str(shortage(nodes, 3))
    assert shortfall.startswith("this cluster has 2 usable of 3 nodes; missing: gpu-02 (DOWN+DRAIN")
    assert "gpu-03" not in shortfall
    assert shortage(nodes, 2, "all") == "partition all has 1 usable of 1 node"


USABLE = "IDLE MIXED+PLANNED IDLE+CLOUD+POWERED_DOWN IDLE+RESERVED IDLE+MAINT RESERVED"
BUSY = (
    "MAINT* ALLOCATED* ALLOCATED+CLOUD+NOT_RESPONDING+POWERING_UP DOWN*+CLOUD+POWERING_UP UNKNOWN "
    "IDLE+CLOUD+POWERING_DOWN IDLE+DRAIN+REBOOT_REQUESTED IDLE+DRAIN+REBOOT_ISSUED"
)
HOPELESS = "DOWN DOWN+CLOUD+POWERED_DOWN MIXED+DRAIN ALLOCATED+FAIL INVAL IDLE+INVALID_REG"


@pytest.mark.parametrize(
    ("state", "usable", "hopeless"),
    [
        *((state, True, False) for state in USABLE.split()),
        *((state, False, False) for state in BUSY.split()),
        *((state, False, True) for state in HOPELESS.split()),
    ],
)
def test_nodes_available_now_and_never_for_a_job(state: str, usable: bool, hopeless: bool) -> None:
    node = node_of(f"State={state} Partitions=gpu")
    assert (node.usable, node.hopeless) == (usable, hopeless)
    assert (shortage([node], 1, "gpu") is not None) is hopeless


def test_reserved_nodes() -> None:
    texts = ("IDLE+RESERVED", "IDLE+MAINT+RESERVED", "MIXED+MAINTENANCE", "IDLE$", "IDLE")
    nodes = nodes_from_text("\n".join(f"NodeName=n State={text}" for text in texts))
    assert [node.set_aside for node in nodes] == [True, True, True, True, False]


@pytest.mark.parametrize(
    ("marked", "flags"),
    [
        ("MIXED*+DRAIN", {"DRAIN", "NOT_RESPONDING"}),
        ("IDLE~+CLOUD", {"CLOUD", "POWERED_DOWN"}),
        ("ALLOCATED#+CLOUD", {"CLOUD", "POWERING_UP"}),
        ("IDLE%+CLOUD", {"CLOUD", "POWERING_DOWN"}),
        ("IDLE!", {"POWER_DOWN"}),
        ("MIXED@", {"REBOOT_REQUESTED"}),
        ("DOWN^", {"REBOOT_ISSUED"}),
        ("IDLE-", {"PLANNED"}),
    ],
)
def test_state_suffixes_of_older_versions_are_flags(marked: str, flags: set[str]) -> None:
    node = node_of(f"State={marked} Partitions=gpu")
    assert set(node.flags) == flags
    assert node.state in marked


def test_a_node_without_contact_since_a_restart_is_not_lost() -> None:
    """Every node is in this state for a moment after slurmctld was restarted."""
    node = node_of("State=UNKNOWN* Partitions=gpu")
    assert (node.lost, node.usable, node.up) == (False, False, False)


UP = "ALLOCATED ALLOCATED+DRAIN MIXED+FAIL"
NOT_UP = (
    "ALLOCATED* MIXED+REBOOT_ISSUED DOWN POWERED_DOWN ALLOCATED+CLOUD+POWERED_DOWN "
    "ALLOCATED+CLOUD+POWERING_UP ALLOCATED#+CLOUD IDLE~+CLOUD IDLE+CLOUD+POWER"
)


@pytest.mark.parametrize(
    ("state", "up"),
    [*((state, True) for state in UP.split()), *((state, False) for state in NOT_UP.split())],
)
def test_node_states_in_which_an_allocation_continues(state: str, up: bool) -> None:
    assert node_of(f"State={state} Partitions=gpu").up is up


@pytest.mark.parametrize(
    ("after", "reason"),
    [
        ("NHC: check_fs_size: /scratch Size=10T below Min=20T [root@2026-11-21T10:00:00]",
         "NHC: check_fs_size: /scratch Size=10T below Min=20T"),
        ("bad fan [root@2026-11-21T10:00:00] Comment=swap Size=2 Extra=x", "bad fan"),
        ("bad fan [root@2026-11-21T10:00:00] InstanceId=i-1 InstanceType=p5", "bad fan"),
        ("bad fan ReservationName=maint_1", "bad fan"),
        ("bad fan [root@2026-11-21T10:00:00] KeyOfALaterVersion=1", "bad fan"),
        ("State=[x] Size=2 [root@2026-11-21T10:00:00] ReservationName=m", "State=[x] Size=2"),
    ],
)  # fmt: skip
def test_a_reason_may_have_words_that_look_like_fields(after: str, reason: str) -> None:
    assert node_of(f"State=IDLE+DRAIN Partitions=p Reason={after}").reason == reason


@pytest.mark.parametrize("word", ["RESERVED", "MAINT", "PLANNED"])
def test_older_versions_report_the_reservation_in_the_state(word: str) -> None:
    node = node_of(f"State={word} Partitions=gpu")
    assert (node.state, set(node.flags)) == ("IDLE", {word})
    assert node.set_aside == (word != "PLANNED")
    node = node_of(f"State={word}+DRAIN Partitions=gpu")
    assert (node.state, set(node.flags)) == ("IDLE", {word, "DRAIN"})


@pytest.mark.parametrize(
    ("resources", "counts"),
    [
        ("cpu=128,mem=1T,billing=128", False),
        ("cpu=128,gres/gpu=8", True),
        ("cpu=128,gres/gpu:a100=8", True),
        ("cpu=128,gres/gpumem=8", False),
    ],
)
def test_whether_slurm_accounts_for_gpus(resources: str, counts: bool) -> None:
    assert node_of(f"State=IDLE Gres=gpu:8 CfgTRES={resources}").counts_gpus is counts


def test_features_of_a_node() -> None:
    assert node_of("State=IDLE AvailableFeatures=a,b ActiveFeatures=b,c").features == {"b", "c"}
    assert node_of("State=IDLE ActiveFeatures=(null)").features == frozenset()


def test_records_on_several_lines() -> None:
    """The output of scontrol without --oneliner."""
    text = (
        "NodeName=hall-7 Arch=x86_64 CoresPerSocket=64 \n   CPUAlloc=3 CPUTot=256\n"
        "   Gres=gpu:mi300x:8(S:0-1)\n   State=MIXED+DRAIN ThreadsPerCore=2\n"
        "   Partitions=train,debug \n   Reason=fan 3 is slow [ada@2026-11-21T10:00:00]\n\n"
        "NodeName=hall-8 Arch=x86_64\n   CPUAlloc=0 CPUTot=128\n   State=IDLE ThreadsPerCore=2\n"
    )
    one, other = nodes_from_text(text)
    assert (one.gpus, one.cpus, one.partitions) == (8, 256, ("train", "debug"))
    assert one.text == "MIXED+DRAIN: fan 3 is slow"
    assert (other.name, other.text, other.cpus, other.gpus) == ("hall-8", "IDLE", 128, None)
