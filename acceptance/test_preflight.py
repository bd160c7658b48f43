"""Is every node fit for what is to be run on it?"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.criteria.preflight.asking import Asking
from pytest_mnode.criteria.preflight.questions import (
    clocks,
    devices,
    environment,
    kernel,
    links,
    mtu,
    names,
    payload,
    reach,
    room,
    same,
    storage,
)

if TYPE_CHECKING:
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

pytestmark = pytest.mark.criterion(first=True)

stops_all = pytest.mark.stops(
    *("mesh", "fabric", "numa", "devices"), *("groups", "data", "launch", "scaling", "restart")
)
stops_speed = pytest.mark.stops("fabric")


@pytest.fixture
def ask(request: pytest.FixtureRequest, spec: Spec, node: str, measure: Measure) -> Asking:
    """Puts a question to this test's node."""
    return Asking(request.node, spec, node, measure)


@pytest.fixture
def ask_storage(ask: Asking) -> Asking:
    """The same; the paths of storage are looked at where a test has it."""
    return ask


# No group of ranks forms past a link that is down; that it is slow is for the fabric to say.
@stops_all
def test_interfaces_are_up(ask: Asking) -> None:
    """Do the interfaces that the spec names exist on this node, and are they up?"""
    ask(links.interfaces)


def test_interfaces_run_at_their_speed(ask: Asking) -> None:
    """Do this node's interfaces run at the line rate promised?"""
    ask(links.speed)


@stops_all
def test_first_node_is_reached(ask: Asking) -> None:
    """Does this node reach the first one, where ranks meet (MASTER_ADDR)?"""
    ask(reach.master)


@stops_all
def test_every_node_is_reached(ask: Asking) -> None:
    """Does this node reach every other on each network, both ways?"""
    ask(reach.peers)


def test_names_are_found(ask: Asking) -> None:
    """Does this node look up names and addresses of all nodes quickly and rightly?"""
    ask(names.names)


def test_interfaces_have_their_mtu(ask: Asking) -> None:
    """Have this node's interfaces the MTU of their network?"""
    ask(mtu.interface_mtu)


@stops_all
def test_full_size_packets_pass(ask: Asking) -> None:
    """Do packets of full size pass between this node and every other?"""
    ask(mtu.path_mtu)


@stops_all
def test_payloads_arrive_unchanged(ask: Asking) -> None:
    """Does what this node sends to others and receives from them arrive as it was sent?"""
    ask(payload.payload)


def test_clocks_agree(ask: Asking) -> None:
    """Does this node's clock agree with the others'?"""
    ask(clocks.clocks)


@pytest.mark.parametrize("part", same.PARTS)
def test_nodes_are_the_same(ask: Asking, part: Any) -> None:
    """Has this node the same code, versions, driver, firmware and kernel as the others?"""
    ask(lambda survey, spec, node: same.same(survey, spec, node, part))


@pytest.mark.stops("mesh", "fabric", "numa", "devices", "accelerators")
def test_accelerators_are_as_promised(ask: Asking) -> None:
    """Has this node the accelerators promised, in the state promised?"""
    ask(devices.accelerators)


def test_kernel_log_has_no_failures(ask: Asking) -> None:
    """Has this node's kernel logged no failing device since boot?"""
    ask(kernel.kernel_log)


def test_pcie_links_are_full(ask: Asking) -> None:
    """Have this node's accelerators and NICs the PCIe width and speed that card and slot can?"""
    ask(devices.pcie)


@stops_speed
def test_rdma_ports_are_active(ask: Asking) -> None:
    """Are this node's RDMA ports there, ACTIVE, and with a GID of the right type?"""
    ask(devices.rdma_ports)


def test_rdma_errors_stand_still(ask: Asking) -> None:
    """Do the error counters of this node's RDMA ports stand still?"""
    ask(devices.rdma_errors)


def test_gpudirect_is_there(ask: Asking) -> None:
    """Has this node a way for NICs to reach the memory of accelerators?"""
    ask(devices.gpudirect)


def test_storage_can_be_used(ask_storage: Asking) -> None:
    """Can this node read the paths promised, and write where a job has to?"""
    ask_storage(storage.usable)


def test_storage_is_shared(ask_storage: Asking) -> None:
    """Does this node see on shared paths what the other nodes write there?"""
    ask_storage(storage.shared)


def test_datasets_are_the_same(ask_storage: Asking) -> None:
    """Does this node read the same datasets as the others?"""
    ask_storage(storage.sample)


def test_shared_memory_suffices(ask: Asking) -> None:
    """Is this node's /dev/shm as large and as free as promised?"""
    ask(room.shared_memory)


def test_memory_can_be_locked(ask: Asking) -> None:
    """May a process on this node lock as much memory as promised?"""
    ask(room.locked_memory)


def test_files_can_be_open(ask: Asking) -> None:
    """May a process on this node have as many files open as promised?"""
    ask(room.open_files)


def test_disks_have_room(ask: Asking) -> None:
    """Is there as much room on this node's disks as promised?"""
    ask(room.disk)


# Last, for it needs ranks: by now we know that they can meet.
@stops_all
def test_ranks_find_their_environment(ask: Asking, spec: Spec, node: str) -> None:
    """Do this node's ranks find torchrun's variables, right and like all other ranks?"""
    found = ask.environments()
    ask.record(environment.contract(found.ranks, spec, node, found.why))


def test_nothing_ties_the_hands_of_backends(ask: Asking, spec: Spec, node: str) -> None:
    """Is there no setting of NCCL, gloo or torch that costs speed and is not the cluster's own?"""
    found = ask.environments()
    ask.record(environment.overrides(found.ranks, spec, node, found.why))
