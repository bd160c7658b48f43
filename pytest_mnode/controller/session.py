"""The run's state in one pytest process: its settings, its connection to the hub, its nodes."""

from __future__ import annotations

import contextlib
import os
import pickle
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.backends.backend import Here
from pytest_mnode.backends.registry import chosen
from pytest_mnode.certificate.coverage import last_passes
from pytest_mnode.certificate.kept import earlier_runs
from pytest_mnode.certificate.run_facts import facts_of
from pytest_mnode.cluster import Cluster
from pytest_mnode.controller.client import Client
from pytest_mnode.controller.console import Console
from pytest_mnode.controller.pool import Pool, backend_of, procs_per_node_of
from pytest_mnode.controller.world_test import WorldTest, run_exit_handlers
from pytest_mnode.errors import ClusterError, MnodeError, NodeLostError, UsageError
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.node_env import RunEnv
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.marks import FEWEST_NODES, LimitOf, WorldRequest, runs_in_ranks, world_request
from pytest_mnode.options import RUN, Settings
from pytest_mnode.other_plugins import collected_ids, in_ranks
from pytest_mnode.outcome.outcome import Outcome
from pytest_mnode.protocol.launcher_requests import DescribeRun, LauncherRequest, PowerOn
from pytest_mnode.protocol.messages import Collect, Death, Lease, Shape, WorldInfo
from pytest_mnode.spec import default_spec_path, load_spec
from pytest_mnode.suites import spread

ENDED = "mnode_ended"
"""Key of a pytest-xdist worker's output for the process that started it: why it ended itself."""
_UNKNOWN_NODES = (
    "with pytest-xdist the number of nodes must be known beforehand; give --mnode-nodes"
)


def run_of(config: pytest.Config) -> Run:
    run: Run = config.stash[RUN]
    return run


class Run:
    """The run; one per pytest process that has, or may have, tests for ranks."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.spec_path = settings.spec or default_spec_path()
        self.spec = load_spec(self.spec_path)
        self.nodes = settings.nodes
        discovers = settings.discover is not None  # discovery determines the number of nodes
        most = self.spec.nodes
        if self.nodes is not None and most is not None and self.nodes > most and not discovers:
            raise pytest.UsageError(
                f"--mnode-nodes={self.nodes}: {self.spec_path.name} says nodes: {most}; "
                f"accepted: 1 to {most}"
            )
        self.pool: Pool | None = None
        self.client: Client | None = None
        self.launcher = ""
        self.reason = ""
        self.backend = backend_of(settings, self.spec)
        self.procs_per_node = procs_per_node_of(settings, self.spec)
        self._collect_sent = False
        self.postponed: list[pytest.Item] = []
        """Tests until the first of which the pool is not made."""
        self._pool_error = ""
        self._gone: dict[str, str] = {}
        self.switched_off: set[str] = set()
        """Nodes that tests switched off on purpose, since the criterion began."""
        self.tests: dict[int, str] = {}
        """Node ids of the tests that this process ran in ranks, by ordinal."""
        self.exit_notices: list[str] = []
        """What handlers of atexit raised in ranks, a line each."""
        self.console = Console(config, settings.debug_rank)
        self.ended = ""
        """Why this run ended itself, such as a node that could not be booted again."""

    def passed_at(self) -> dict[str, str]:
        """When the latest kept run ended in which a node passed, by its name in certificates."""
        settings, facts = self.settings, facts_of(self.spec, self.spec_path)
        kept = earlier_runs(
            settings.history_dir, facts, spec=self.spec, key=settings.history_key
        ).coverage
        return {name: date.isoformat() for name, date in last_passes(kept).items()}

    def test_of(self, death: Death) -> str:
        """Node id of the test that a rank had begun last; "" if this process did not run it."""
        return "" if death.ordinal is None else self.tests.get(death.ordinal, "")

    # The pool.

    @property
    def holds_nodes(self) -> bool:
        """Whether the run's own allocation would leave the scheduler's tests no free node."""
        if self.spec.criteria.gang is None:
            return False
        backend, _ = chosen(self.settings)
        return backend.requests_nodes(Here(self.settings, os.environ))

    def have_client(self) -> Client:
        """The connection to the hub; makes the pool now if it was postponed."""
        if self._pool_error:
            raise ClusterError(self._pool_error)
        if self.client is None and self.postponed:
            items, self.postponed = self.postponed, []
            try:
                self.make_pool()
            except MnodeError as error:
                self._pool_error = str(error)
                raise
            self.send_collect(items)
        if self.client is not None:
            return self.client
        raise MnodeError(_UNKNOWN_NODES)

    def make_pool(self) -> Pool:
        """The pool of this process, made if needed. Raises MnodeError if it cannot be made."""
        if self.pool is None:
            assert self.nodes is not None
            self.pool = Pool(self.settings, self.spec, self.nodes, self.config.rootpath)
            if self.settings.faults:
                self._inject_faults(self.pool)
            self.launcher, self.reason = self.pool.launcher.name, self.pool.reason
            self.client = self.pool.client
        return self.pool

    def require_rack(self, items: Sequence[pytest.Item]) -> None:
        """Raise UsageError if plain processes would be judged by the promises of the rack."""
        settings = self.settings
        replaced = settings.launcher == "auto" and self.launcher == "local" and not settings.spec
        if replaced and any(item.get_closest_marker("criterion") for item in items):
            raise UsageError(
                f"{self.reason}; plain processes have none of what {self.spec_path.name} promises: "
                "allow user namespaces, run as root, or name your cluster and its spec; "
                "--mnode-launcher=local judges them all the same"
            )

    def _inject_faults(self, pool: Pool) -> None:
        """Inject the faults of --mnode-fault, which last as long as the rack."""
        from pytest_mnode.faults import inject
        from pytest_mnode.launchers.rack import Rack

        try:
            if not isinstance(pool.launcher, Rack):
                found = f"{pool.launcher.name} ({pool.reason})"
                raise UsageError(f"faults need the rack, but the launcher is {found}")
            inject(pool.launcher, self.settings.faults)
        except MnodeError as error:
            self.close()
            raise UsageError(f"--mnode-fault: {error}") from error

    def decide_nodes(self, items: Sequence[pytest.Item]) -> None:
        """Without --mnode-nodes, use as many nodes as the most demanding test, at least two."""
        if self.nodes is None:
            asked = [world_request(item, self.settings).nodes or 0 for item in items]
            most = max([FEWEST_NODES, *asked])
            self.nodes = most if self.spec.nodes is None else min(most, self.spec.nodes)

    def send_collect(self, items: Sequence[pytest.Item]) -> None:
        """Have the ranks collect the files of these tests as this process did."""
        assert self.client is not None
        if not self._collect_sent:
            self._collect_sent = True
            self.client.tell("collect", collect_order(self.config, items))

    def give_to_others(self, nodeid: str, outcome: Outcome) -> None:
        """Give other plugins their data of a test's ranks; nodeid "": of a function's."""
        hook: Any = self.config.hook
        hook.pytest_mnode_of_ranks(config=self.config, nodeid=nodeid, outcome=outcome)

    def header(self) -> list[str]:
        """Lines with the facts of the run that a reader needs to judge its results."""
        assert self.nodes is not None
        per_node, on = self.procs_per_node, self.settings.on
        logs = self.pool.kept_logs if self.pool else None
        env = RunEnv.of_launcher(self.launcher, self.settings.env).header()
        facts = (
            f"mnode: launcher {self.launcher} ({self.reason}), {count(self.nodes)} × {per_node} = "
            f"{count(self.nodes * per_node, 'rank')}, backend {self.backend}, "
            f"spec {self.spec.name} ({_shown(self.spec_path, self.config)})"
            + (f", of the free nodes {compress(on)}" if on else "")
            + (f", fault injected: {self.settings.faults}" if self.settings.faults else "")
            + (f", logs in {logs}" if logs else "")
        )
        return [facts, f"mnode: environment of nodes: {env}"]

    def run_exit_handlers(self) -> None:
        """Call the handlers of atexit in the ranks that are left; only in the pool's process."""
        if (client := self.client) is None or self.pool is None:
            return
        leased = [client.take_kept()]
        if any(state.idle for state in list(self.pool.hub.worlds.worlds.values())):
            with contextlib.suppress(MnodeError):
                leased.append(client.lease_idle_worlds())
        for lease, worlds in filter(None, leased):
            for world in worlds:
                self.exit_notices += run_exit_handlers(client, world, self.test_of)
            client.release(lease)

    def close(self) -> None:
        self.console.close()
        if self.pool is not None:
            self.pool.close()
        elif self.client is not None:
            self.client.close()
        self.pool = self.client = None

    # Nodes for tests.

    def request_of(self, item: pytest.Item) -> WorldRequest:
        """The world request of a test; if its class needs a number of ranks, with exactly these."""
        need = world_request(item, self.settings)
        if need.size is None or self.nodes is None:
            return need
        nodes = need.nodes or spread(need.size, self.nodes)
        return replace(need, nodes=nodes, procs_per_node=need.size // nodes)

    def seconds_of(self, limit: float | LimitOf, need: WorldRequest) -> float:
        """A limit of a test's mark; one that a function derives is at most the run's timeout."""
        if not callable(limit):
            return limit
        shape = self.shape_of(need)
        derived_s = limit(self.spec, self.settings, shape.nodes, shape.procs_per_node)
        return min(derived_s, self.settings.timeout_s)

    def limit_of(self, item: pytest.Item) -> float | None:
        """The limit of a test in ranks, in seconds; None of another test, or if it is not known."""
        if in_ranks(item) and self.nodes is not None:
            # The mark's limit may be a function; its errors are reported as the test's failure.
            with contextlib.suppress(Exception):
                need = self.request_of(item)
                return self.seconds_of(need.timeout_s, need)
        return None

    def procs_of(self, need: WorldRequest) -> int:
        """Ranks per node of a test; more than the run's only if ranks need no accelerators."""
        procs = need.procs_per_node or self.procs_per_node
        on_cpus = self.backend == "gloo" and not self.spec.accelerators.per_node
        return max(procs, need.min_procs_per_node) if on_cpus else procs

    def shape_of(self, need: WorldRequest) -> Shape:
        """The shape of a test's world."""
        nodes = need.nodes or self.nodes
        assert nodes is not None
        return Shape(nodes, self.procs_of(need))

    def lease(
        self, need: WorldRequest, label: str, on: tuple[str, ...] = (), *, ranks: bool = True
    ) -> Lease:
        """Lease nodes for a test (see Client.lease); each lost node is booted again once."""
        client = self.have_client()
        booted: set[str] = set()
        while True:
            try:
                return client.lease(need.nodes, need.exclusive, label, on, ranks=ranks)
            except NodeLostError as error:
                again, why = error.node in booted, ""
                if again or (why := self._not_booted(error.node)):
                    self._gone[error.node] = why
                    raise
                booted.add(error.node)

    def repair(self, error: MnodeError) -> None:
        """Boot a lost node again, or end the run and name the node."""
        why = ""
        if isinstance(error, NodeLostError):  # `lease` may just have tried to boot it, for minutes
            why = self._gone.pop(error.node, "") or self._not_booted(error.node)
        if why:
            self.end(f"{error}; it could not be booted again: {why}")
        elif self.pool is not None and self.pool.hub.leases.failure:
            self.end(f"no ranks can be started: {error}")

    def end(self, why: str) -> None:
        """End the run after this test."""
        session: Any = self.config.pluginmanager.getplugin("session")
        self.ended = session.shouldstop = why
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[ENDED] = why

    def _not_booted(self, node: str) -> str:
        """Boot a node again; returns why that failed, or ""."""
        assert self.client is not None
        try:
            self.client.ask_launcher(PowerOn(node))
        except MnodeError as error:
            return str(error)
        return ""

    # Tests in the controller; see NodesOfRun.

    def lease_cluster(self, item: pytest.Item) -> Cluster:
        """The nodes for a test that runs in the controller."""
        need = world_request(item, self.settings)
        self.have_client()  # raises if the number of nodes is not known
        limit_s = self.seconds_of(need.timeout_s, need)  # may raise, so before nodes are leased
        lease = self.lease(need, item.nodeid, ranks=False)
        return Cluster(self, lease, self.procs_of(need), limit_s)

    def all_nodes(self) -> Nodes:
        """All nodes by name, without a lease: nodes exist even if no rank can start."""
        described = self.have_client().ask_launcher(DescribeRun())
        names = tuple(node.name for node in described.nodes)
        return Nodes(self.ask_launcher, names, self.spec.accelerators.per_node)

    @property
    def _open_client(self) -> Client:
        if self.client is None:
            raise ClusterError("the run is over")
        return self.client

    def ask_launcher(self, request: LauncherRequest) -> Any:
        return self._open_client.ask_launcher(request)

    def open_world(
        self, lease: Lease, procs_per_node: int, fresh: bool, nodes: tuple[str, ...]
    ) -> WorldInfo:
        return self._open_client.open_world(lease, procs_per_node, fresh, nodes)

    def close_world(self, world: WorldInfo, reusable: bool, new_group: bool) -> None:
        if self.client is not None:
            self.client.close_world(world, reusable, new_group)

    def release(self, lease: Lease) -> None:
        if self.client is not None:
            self.client.release(lease)

    def call_in_ranks(
        self, world: WorldInfo, blob: bytes, timeout_s: float, *, group: bool, keep_group: bool
    ) -> Outcome:
        client = self._open_client
        driven = WorldTest(client, world, timeout_s, self.console)
        outcome = driven.run_function("call_function", blob, group, keep_group)
        self.give_to_others("", outcome)
        if outcome.quit:
            pytest.exit("Quitting debugger")
        return outcome


def _shown(path: Path, config: pytest.Config) -> str:
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return path.name


def collect_order(config: pytest.Config, items: Sequence[pytest.Item]) -> Collect:
    """The order that makes ranks collect the files of `items` as this process did."""
    files = dict.fromkeys(item.path for item in items)
    root, asked = config.rootpath, items[0].session._initialpaths
    args = dict.fromkeys(str(_collected_from(file, root, asked)) for file in files)
    options = dict(vars(config.option))
    factory = getattr(config, "_tmp_path_factory", None)  # None: -p no:tmpdir
    if hasattr(config, "workerinput"):
        options["capture"] = "fd"  # a worker of pytest-xdist has no terminal
    return Collect(
        args=tuple(args),
        files=frozenset(map(str, files)),
        options=_pickled(options),
        inifile=str(config.inipath) if config.inipath else None,
        rootdir=str(config.rootpath),
        cwd=str(config.invocation_params.dir),
        sys_path=tuple(sys.path),
        markers=tuple(config.getini("markers")),
        basetemp=str(factory.getbasetemp() / "ranks") if factory else "",
        ranks=any(map(runs_in_ranks, items)),
        # Where the user selected single tests, further ones of their files are not meant.
        collected={} if any("::" in a for a in config.args) else collected_ids(config, files),
    )


def _collected_from(file: Path, root: Path, asked: Iterable[Path]) -> Path:
    """The path to collect `file` from, so that its node ids are equal in another process.

    Node ids are relative to the root directory or, outside of it, to pytest's own arguments.
    """
    below = () if file.is_relative_to(root) else asked
    return next((path for path in below if file.is_relative_to(path)), file)


def _pickled(options: dict[str, Any]) -> dict[str, bytes]:
    kept = {}
    for name, value in options.items():
        with contextlib.suppress(Exception):
            kept[name] = pickle.dumps(value)
    return kept
