"""Is storage as fast as promised, and do nodes see each other's files as programs need it?"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

import pytest

from pytest_mnode.criteria.storage import asked
from pytest_mnode.criteria.storage.asked import Asked

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.measure import Measure
    from pytest_mnode.spec import Spec

if "torch" in sys.modules:  # in the fork server, so that ranks need not import it
    import pytest_mnode.criteria.storage.in_ranks  # noqa: F401

pytestmark = pytest.mark.criterion


@pytest.fixture
def storage(
    request: pytest.FixtureRequest,
    take_cluster: Callable[[], Cluster],
    spec: Spec,
    measure: Measure,
) -> Asked:
    """Asks a question of each path that promises it."""
    return Asked(request.node, take_cluster, spec, measure)


def test_checkpoints_are_written_and_read_in_time(storage: Asked) -> None:
    """Do all nodes write a checkpoint, and read what another wrote, as fast as promised?"""
    storage("checkpoint", asked.checkpoint)


def test_all_nodes_at_once_are_as_fast_as_each_alone(storage: Asked) -> None:
    """Is the rate of all nodes at once their number times that of one alone?"""
    storage("checkpoint.together_at_least_fraction", asked.together)


def test_small_files_are_handled_in_time(storage: Asked) -> None:
    """Are as many small files created, looked up and deleted in a second as promised?"""
    storage("small_files", asked.small_files)


def test_random_reads_are_fast(storage: Asked) -> None:
    """Do data loaders on all nodes read at random places as fast as promised?"""
    storage("random_reads", asked.random_reads)


def test_storage_and_collectives_leave_each_other_their_rates(storage: Asked) -> None:
    """How much do a checkpoint and all-reduces lose to each other?"""
    storage("beside_collectives", asked.beside_collectives)


def test_renamed_files_are_seen_in_time(storage: Asked) -> None:
    """Do all nodes soon see a file that one of them renamed, with its content?"""
    storage("renamed_within_s", asked.renames)


def test_locks_exclude_other_nodes(storage: Asked) -> None:
    """Is a lock that one node holds refused to the others, and given once it is free?"""
    storage("locks", asked.locks)


def test_a_replaced_file_stays_readable(storage: Asked) -> None:
    """Can nodes go on reading a file that another replaces, and find the new one afterwards?"""
    storage("replaced_files", asked.replaced)


def test_a_full_file_system_is_an_error_and_no_loss(storage: Asked) -> None:
    """Does a checkpoint beyond the limit end with an error, and the one before stay whole?"""
    storage("limit_bytes", asked.exceeded)
