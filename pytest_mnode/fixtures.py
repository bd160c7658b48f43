"""The fixtures: rank fixtures live in ranks, `cluster` and `node` in the controller."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from pytest_mnode.errors import MnodeError
from pytest_mnode.marks import MEASURES, NODE_FIXTURE, NODE_OF_TEST, NODES_FIXTURE, PORTS_FIXTURE
from pytest_mnode.options import RUN, read_settings
from pytest_mnode.rank import here
from pytest_mnode.suites import SIZE_FIXTURE

if TYPE_CHECKING:
    import torch

    from pytest_mnode.cluster import Cluster
    from pytest_mnode.criteria.port_counters.watching import PortWatch
    from pytest_mnode.measure import Measure
    from pytest_mnode.rank.rank import Rank
    from pytest_mnode.rank.world import World
    from pytest_mnode.spec import Spec

_SPEC: pytest.StashKey[Spec] = pytest.StashKey()


def _rank(fixture: str) -> Rank:
    """The rank of this process. Rank fixtures do not use `request`, because pytest creates it twice
    for each fixture of each test."""
    if here.rank is None:
        pytest.fail(
            f"{fixture} lives in ranks, and this test runs in the controller, because it asks for "
            f"{fixture} only while it runs (getfixturevalue, a lazy fixture, a step): add "
            "@pytest.mark.mnode",
            pytrace=False,
        )
    return here.rank


@pytest.fixture(scope="session")
def world() -> World:
    """This rank's place in its world: rank, size, local_rank, local_size, node, nodes."""
    return _rank("world").world


@pytest.fixture(scope="session")
def rank(world: World) -> int:
    """0 … world_size-1, counted over all nodes of the world."""
    return world.rank


@pytest.fixture(scope="session")
def world_size(world: World) -> int:
    """Number of ranks of the world."""
    return world.size


@pytest.fixture(scope="session")
def local_rank(world: World) -> int:
    """0 … local_size-1, counted on this node."""
    return world.local_rank


@pytest.fixture(scope="session")
def device() -> torch.device:
    """This rank's accelerator, by local rank; the CPU if the spec promises no accelerators."""
    return _rank("device").groups.device


@pytest.fixture(scope="session")
def process_group() -> Any:
    """The default process group, initialised over all ranks of the world.

    A fixture of any scope may depend on it; the ranks and the group outlive that fixture.
    """
    return _rank("process_group").groups.get()


@pytest.fixture
def shared_tmp_path(request: pytest.FixtureRequest) -> Path:
    """A new, empty directory that all ranks of this test share; `tmp_path` is each rank's own."""
    _rank("shared_tmp_path")
    follower: Any = request.config.pluginmanager.getplugin("mnode-rank-session")
    if not follower.order.shared_tmp:
        pytest.fail(
            "no directory is seen by all nodes; give --mnode-shared-dir=DIR, one that all nodes "
            "have mounted, and name shared_tmp_path as a parameter",
            pytrace=False,
        )
    return Path(follower.order.shared_tmp)


@pytest.fixture
def measure(request: pytest.FixtureRequest) -> Measure:
    """Records measured values with their bounds; see Measure.__call__."""
    from pytest_mnode.measure import measure_of

    place = here.rank.world if here.rank is not None else None
    where = f"rank {place.rank} on {place.node}" if place is not None else ""
    request.node.stash[MEASURES] = True
    return measure_of(request.node, where)


@pytest.fixture(scope="session")
def spec(request: pytest.FixtureRequest) -> Spec:
    """The spec: the page that says what the cluster promises."""
    return spec_of(request.config)


def spec_of(config: pytest.Config) -> Spec:
    """The spec, in the controller or a rank; the fork server reads it once for all its ranks."""
    if RUN in config.stash:
        return config.stash[RUN].spec  # type: ignore[no-any-return]
    if _SPEC not in config.stash:
        from pytest_mnode.spec import default_spec_path, load_spec

        config.stash[_SPEC] = load_spec(read_settings(config).spec or default_spec_path())
    return config.stash[_SPEC]


@pytest.fixture
def cluster(take_cluster: Callable[[], Cluster]) -> Cluster:
    """The nodes, driven from the controller: run commands, start worlds and jobs, switch power.

    All nodes, or as many as the mnode mark says, are leased to this test alone until it ends.
    """
    return take_cluster()


@pytest.fixture
def take_cluster(request: pytest.FixtureRequest) -> Iterator[Callable[[], Cluster]]:
    """A function that returns `cluster`, for a test that may find out that it needs no nodes."""
    from pytest_mnode.controller.session import run_of

    taken: list[Cluster] = []

    def take() -> Cluster:
        if not taken:
            try:
                taken.append(run_of(request.config).lease_cluster(request.node))
            except MnodeError as error:
                pytest.fail(str(error), pytrace=False)
        return taken[0]

    yield take
    for handle in taken:
        handle.close()


@pytest.fixture(name=PORTS_FIXTURE)
def _fabric_ports(request: pytest.FixtureRequest, spec: Spec) -> PortWatch:
    """Counters of every fabric port since this file's first test; its own test runs last."""
    from pytest_mnode.certificate.results import criterion_name
    from pytest_mnode.controller.session import run_of
    from pytest_mnode.skipping import not_promised

    if not spec.promised(name := criterion_name(request.node.path.name)):
        not_promised(key=name)
    try:
        run_of(request.config).all_nodes()
    except MnodeError as error:
        pytest.fail(str(error), pytrace=False)
    watch: PortWatch = request.config.pluginmanager.getplugin(PORTS_FIXTURE)
    return watch


@pytest.fixture(name=NODE_FIXTURE)
def _node(request: pytest.FixtureRequest) -> str:
    """A node's name, in the controller: a test that uses this fixture runs once for each node.

    The node is leased to the test only if the test uses `cluster` too.
    """
    from pytest_mnode.controller.session import run_of

    index, count = request.param
    try:
        names = run_of(request.config).all_nodes().nodes
    except MnodeError as error:
        pytest.fail(str(error), pytrace=False)
    if count != len(names):
        pytest.fail(
            f"this test runs once for each of {count} nodes, and there are {len(names)}; "
            f"give --mnode-nodes={len(names)}",
            pytrace=False,
        )
    name: str = names[index]
    request.node.stash[NODE_OF_TEST] = (name,)
    return name


@pytest.fixture(name=NODES_FIXTURE)
def _mnode_nodes(request: pytest.FixtureRequest) -> int:
    """Number of nodes of this variant of a test; set by the mnode mark."""
    return int(request.param)


@pytest.fixture(name=SIZE_FIXTURE)
def _mnode_size(request: pytest.FixtureRequest) -> int:
    """Number of ranks of this variant of a test; set by the world_size of its class."""
    return int(request.param)
