"""Is every node fit for what is to run on it?

Each question is a check of `pytest_mnode.checks.node`, or of a package or conftest.py of yours; see
docs/checks.md.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.criteria.preflight import environment
from pytest_mnode.criteria.preflight.judges import devices, rdma, storage, system
from pytest_mnode.criteria.preflight.survey_check import NEED_RANKS
from pytest_mnode.criteria.preflight.survey_fixture import NodeJudgement, case_of
from pytest_mnode.evidence.check import catalogue

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion(first=True)

stops_all = pytest.mark.stops(*NEED_RANKS)
stops_speed = pytest.mark.stops("fabric")


@pytest.fixture
def ask(request: pytest.FixtureRequest, spec: Spec, node: str, measure: Measure) -> NodeJudgement:
    """Judges this test's node by one key of the spec."""
    return NodeJudgement(request.node, spec, node, measure)


@pytest.fixture
def ask_storage(ask: NodeJudgement) -> NodeJudgement:
    """The same as `ask`; the survey reads storage paths only if a test requests this fixture."""
    return ask


globals().update({one.case(): case_of(one) for one in catalogue()})


@pytest.mark.parametrize("part", system.PARTS)
def test_nodes_are_the_same(ask: NodeJudgement, part: Any) -> None:
    """Does this node have the same code, versions, driver, firmware and kernel as the others?"""
    ask("preflight.same", lambda survey, spec, node: system.same(survey, spec, node, part))


@pytest.mark.stops("mesh", "fabric", "numa", "devices", "accelerators")
def test_accelerators_are_as_promised(ask: NodeJudgement) -> None:
    """Does this node have the accelerators promised, in the state promised?"""
    ask("preflight.accelerators", devices.accelerators)


def test_kernel_log_has_no_failures(ask: NodeJudgement) -> None:
    """Has this node's kernel logged no failing device since boot?"""
    ask("preflight.kernel_log", devices.kernel_log)


def test_pcie_links_are_full(ask: NodeJudgement) -> None:
    """Do this node's accelerators and NICs have the PCIe width and speed of card and slot?"""
    ask("preflight.pcie", devices.pcie)


@stops_speed
def test_rdma_ports_are_active(ask: NodeJudgement) -> None:
    """Are this node's RDMA ports present, ACTIVE, and with a GID of the right type?"""
    ask("preflight.rdma", rdma.rdma_ports)


@stops_speed
def test_rdma_devices_can_be_opened(ask: NodeJudgement) -> None:
    """May a process on this node open as many of the fabric's RDMA devices as promised?"""
    ask("preflight.rdma", rdma.rdma_opened)


def test_rdma_errors_stand_still(ask: NodeJudgement) -> None:
    """Are the error counters of this node's RDMA ports unchanged?"""
    ask("preflight.rdma.errors_at_most", rdma.rdma_errors)


def test_gpudirect_is_there(ask: NodeJudgement) -> None:
    """Can this node's NICs reach the memory of its accelerators directly?"""
    ask("preflight.gpudirect", rdma.gpudirect)


def test_storage_can_be_used(ask_storage: NodeJudgement) -> None:
    """Can this node read the promised paths, and write where a job must write?"""
    ask_storage("preflight.storage", storage.usable)


def test_storage_is_shared(ask_storage: NodeJudgement) -> None:
    """Does this node see on shared paths what the other nodes write there?"""
    ask_storage("preflight.storage", storage.shared)


def test_datasets_are_the_same(ask_storage: NodeJudgement) -> None:
    """Does this node read the same datasets as the others?"""
    ask_storage("preflight.storage", storage.sample)


def test_shared_memory_suffices(ask: NodeJudgement) -> None:
    """Is this node's /dev/shm as large and as free as promised?"""
    ask("preflight.limits", system.shared_memory)


def test_memory_can_be_locked(ask: NodeJudgement) -> None:
    """May a process on this node lock as much memory as promised?"""
    ask("preflight.limits", system.locked_memory)


def test_files_can_be_open(ask: NodeJudgement) -> None:
    """May a process on this node have as many files open as promised?"""
    ask("preflight.limits", system.open_files)


def test_disks_have_room(ask: NodeJudgement) -> None:
    """Do this node's disks have as much free space as promised?"""
    ask("preflight.disk", system.disk)


@stops_all
def test_temporary_files_can_be_written(ask: NodeJudgement) -> None:
    """Can a process on this node write to its directory of temporary files?"""
    ask("preflight.environment", system.temporary)


# Last, because it needs ranks: by now it is known whether they can meet.
@stops_all
def test_ranks_find_their_environment(ask: NodeJudgement) -> None:
    """Do this node's ranks find torchrun's variables, correct and consistent with all ranks?"""
    ask.ranks("preflight.environment", environment.contract)


def test_nothing_ties_the_hands_of_backends(ask: NodeJudgement) -> None:
    """Is every NCCL, gloo and torch override on this node on the spec's allow-list?"""
    ask.ranks("preflight.environment", environment.overrides)


def test_ranks_name_rdma_devices_that_are_there(ask: NodeJudgement) -> None:
    """Is every name in NCCL_IB_HCA of this node's ranks an RDMA device that they can open?"""
    ask.ranks("preflight.environment", environment.devices)
