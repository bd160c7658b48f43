"""A run as one pytest process sees it: its settings, its way to the hub, tests sent to ranks."""

from __future__ import annotations

import contextlib
import os
import pickle
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Literal

import pytest

from pytest_mnode.cluster import Cluster
from pytest_mnode.controller.client import Client
from pytest_mnode.controller.conductor import Conductor
from pytest_mnode.controller.pool import Pool, backend_of, procs_per_node_of
from pytest_mnode.errors import ClusterError, MnodeError, NodeLostError, UsageError
from pytest_mnode.launchers.node import count
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.marks import FEWEST_NODES, Need, need_of, runs_in_ranks
from pytest_mnode.measure import curves_of, summed_up
from pytest_mnode.options import RUN, Settings
from pytest_mnode.outcome.outcome import Outcome
from pytest_mnode.protocol.messages import CallFunction, Collect, Death, Lease, WorldInfo
from pytest_mnode.report_record import Warner, describe, error_report
from pytest_mnode.spec import Spec, default_spec_path, load_spec

ENDED = "mnode_ended"
"""Why a worker of pytest-xdist ended itself, in what it tells the process that started it."""
_BOOT_AGAIN = 2
_BEGIN_AGAIN = 2
_UNKNOWN_NODES = (
    "with pytest-xdist the number of nodes must be known beforehand; give --mnode-nodes"
)


def run_of(config: pytest.Config) -> Run:
    run: Run = config.stash[RUN]
    return run


def spec_of(config: pytest.Config) -> Spec:
    """The spec, in the controller as in a rank."""
    if RUN in config.stash:
        return run_of(config).spec
    from pytest_mnode.options import read_settings

    return load_spec(read_settings(config).spec or default_spec_path())


class Run:
    """Made once in each pytest process that has, or may have, tests for ranks."""

    def __init__(self, config: pytest.Config, settings: Settings) -> None:
        self.config = config
        self.settings = settings
        self.spec_path = settings.spec or default_spec_path()
        self.spec = load_spec(self.spec_path)
        self.nodes = settings.nodes
        discovers = settings.discover is not None  # how many there are is what it is to say
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
        self._warner = Warner(config)
        self._ran: dict[str, str] = {}
        self._collect_sent = False
        self._postponed: list[pytest.Item] = []
        self._not_had = ""
        self._gone: dict[str, str] = {}
        self.switched_off: set[str] = set()
        """Nodes that tests switched off on purpose, since the criterion began."""
        self.ended = ""
        """Why this run ended itself, as where a node is lost for good."""

    # The pool.

    @property
    def holds_nodes(self) -> bool:
        """Whether nodes that this run has are held in its scheduler's queue, so that experiments
        with that scheduler, which the spec promises, would find none free."""
        asks = self.settings.launcher == "slurm" and "SLURM_JOB_ID" not in os.environ
        return asks and self.spec.criteria.gang is not None

    def postpone(self, items: Sequence[pytest.Item]) -> None:
        """Have the pool made for the first of these that runs."""
        self._postponed = list(items)

    def _have_client(self) -> Client:
        """The way to the hub, of a pool that is made now where it was postponed."""
        if self._not_had:
            raise ClusterError(self._not_had)
        if self.client is None and self._postponed:
            items, self._postponed = self._postponed, []
            try:
                self.make_pool()
            except MnodeError as error:
                self._not_had = str(error)
                raise
            self.send_collect(items)
        if self.client is None:
            raise MnodeError(_UNKNOWN_NODES)
        return self.client

    def make_pool(self) -> Pool:
        """The pool this process owns. Raises MnodeError where there can be none."""
        if self.pool is None:
            assert self.nodes is not None
            self.pool = Pool(self.settings, self.spec, self.nodes, self.config.rootpath)
            if self.settings.faults:
                self._inject_faults(self.pool)
            self.launcher, self.reason = self.pool.launcher.name, self.pool.reason
            self.client = self.pool.client
        return self.pool

    def _inject_faults(self, pool: Pool) -> None:
        """Have happen what was asked for; undone by the end of the rack."""
        from pytest_mnode.faults import inject
        from pytest_mnode.launchers.rack import Rack

        try:
            if not isinstance(pool.launcher, Rack):
                raise UsageError(
                    "only the rack can have faults, and the launcher is "
                    f"{pool.launcher.name} ({pool.reason})"
                )
            inject(pool.launcher, self.settings.faults)
        except MnodeError as error:
            self.close()
            raise UsageError(f"--mnode-fault: {error}") from error

    def decide_nodes(self, items: Sequence[pytest.Item]) -> None:
        """Without --mnode-nodes: as many as the most demanding test asks for, two at least."""
        if self.nodes is None:
            asked = [need_of(item, self.settings).nodes or 0 for item in items]
            most = max([FEWEST_NODES, *asked])
            self.nodes = most if self.spec.nodes is None else min(most, self.spec.nodes)

    def send_collect(self, items: Sequence[pytest.Item]) -> None:
        """Have the ranks collect the files of these tests as this process did."""
        assert self.client is not None
        if self._collect_sent:
            return
        self._collect_sent = True
        files = dict.fromkeys(item.path for item in items)
        root, asked = self.config.rootpath, items[0].session._initialpaths
        args = dict.fromkeys(str(_collected_from(file, root, asked)) for file in files)
        factory = getattr(self.config, "_tmp_path_factory", None)  # None: -p no:tmpdir
        self.client.tell(
            Collect(
                args=tuple(args),
                files=frozenset(map(str, files)),
                options=_picklable(vars(self.config.option)),
                inifile=str(self.config.inipath) if self.config.inipath else None,
                rootdir=str(self.config.rootpath),
                cwd=str(self.config.invocation_params.dir),
                sys_path=_sys_path(),
                markers=tuple(self.config.getini("markers")),
                basetemp=str(factory.getbasetemp() / "ranks") if factory else "",
            )
        )

    def header(self) -> str:
        """What a reader must know to judge the results that follow."""
        assert self.nodes is not None
        per_node = self.procs_per_node
        logs = self.pool.kept_logs if self.pool else None
        return (
            f"mnode: launcher {self.launcher} ({self.reason}), {count(self.nodes)} × {per_node} = "
            f"{count(self.nodes * per_node, 'rank')}, backend {self.backend}, "
            f"spec {self.spec.name} ({_shown(self.spec_path, self.config)})"
            + (f", fault injected: {self.settings.faults}" if self.settings.faults else "")
            + (f", logs in {logs}" if logs else "")
        )

    def close(self) -> None:
        if self.pool is not None:
            self.pool.close()
            self.pool = None
        elif self.client is not None:
            self.client.close()
        self.client = None

    # Tests in ranks.

    def run_item(self, item: pytest.Item, nextitem: pytest.Item | None) -> list[pytest.TestReport]:
        """Run a test in the ranks it asks for: its reports, merged."""
        need = need_of(item, self.settings)
        following = self._follows(need, nextitem)
        try:
            outcome = self._conduct(item, need, following)
        except MnodeError as error:
            self._repair(error)
            return [error_report(item, str(error))]
        except pytest.fail.Exception as error:  # another plugin's limit went off in this process
            return [error_report(item, str(error))]
        reports = self._reports(item, outcome)
        self._after(outcome)
        return reports

    def not_tried(self, item: pytest.Item, why: str) -> list[pytest.TestReport]:
        """Reports of a test that is not sent to ranks."""
        return [error_report(item, why)]

    def _conduct(self, item: pytest.Item, need: Need, following: str | None) -> Outcome:
        client = self._have_client()
        lease = self._lease(need, item.nodeid)
        try:
            fresh = need.reuse == "fresh"
            for _ in range(_BEGIN_AGAIN):
                world = client.open_world(lease, self.procs_of(need), fresh)
                conductor = Conductor(client, world, self.limit_s_of(need))
                keep_group = need.reuse == "warm" and not world.fresh
                outcome = conductor.run_item(item.nodeid, following, keep_group)
                client.close_world(world, outcome.clean and not fresh)
                if not outcome.stillborn:
                    break
                self._tell_late_deaths(outcome.stillborn, world)
            self._ran[world.id] = item.nodeid
        finally:
            client.release(lease)
        return outcome

    def limit_s_of(self, need: Need) -> float:
        """Limit of a test: what its mark says, or what follows from the spec where that is less."""
        if not callable(need.timeout_s):
            return need.timeout_s
        nodes = need.nodes or self.nodes
        assert nodes is not None
        derived_s = need.timeout_s(self.spec, self.settings, nodes, self.procs_of(need))
        return min(derived_s, self.settings.timeout_s)

    def procs_of(self, need: Need) -> int:
        """Ranks a node for a test: more than usual only where they do not share accelerators."""
        procs = need.procs_per_node or self.procs_per_node
        on_cpus = self.backend == "gloo" and not self.spec.accelerators.per_node
        return max(procs, need.min_procs_per_node) if on_cpus else procs

    def _tell_late_deaths(self, deaths: Sequence[Death], world: WorldInfo) -> None:
        """A rank died after the end of the test that killed it, and before the next began."""
        from pytest_mnode.outcome.describe import death_line

        nodeid = self._ran.get(world.id, "")
        for death in deaths:
            text = f"{death_line(death)} after {nodeid or 'a test'} had ended in it"
            self._warner.warn(b"", text, str(self.config.rootpath), 0, "runtest", nodeid, None)

    def _lease(self, need: Need, label: str) -> Lease:
        assert self.client is not None
        for attempt in range(_BOOT_AGAIN):
            try:
                return self.client.lease(need.nodes, need.exclusive, label)
            except NodeLostError as error:
                if attempt or (why := self._not_booted(error.node)):
                    self._gone[error.node] = "" if attempt else why
                    raise
        raise AssertionError

    def _follows(self, need: Need, nextitem: pytest.Item | None) -> str | None:
        """The next test's id where it will share this one's ranks and fixtures of wide scope."""
        if nextitem is None or need.reuse == "fresh" or not runs_in_ranks(nextitem):
            return None
        other = need_of(nextitem, self.settings)
        same = (need.nodes, self.procs_of(need)) == (other.nodes, self.procs_of(other))
        return nextitem.nodeid if same and other.reuse != "fresh" else None

    def _reports(self, item: pytest.Item, outcome: Outcome) -> list[pytest.TestReport]:
        from pytest_mnode.outcome.merge import merge

        own = {
            rank: {when: self._deserialize(r.data) for when, r in state.reports.items()}
            for rank, state in outcome.states.items()
        }
        partial = {
            rank: [self._deserialize(r.data) for _, r in state.partial]
            for rank, state in outcome.states.items()
        }
        keywords: dict[str, Literal[1]] = dict.fromkeys(item.keywords, 1)
        reports = merge(outcome, own, item.nodeid, item.location, keywords, partial=partial)
        torn = {r: s.torn for r, s in outcome.states.items() if s.torn is not None}
        measurements = summed_up({rank: t.measurements for rank, t in torn.items()})
        curves = curves_of(t.curves for t in torn.values())
        describe(reports[-1], item, measurements, outcome.world.nodes, curves)
        return reports

    def _deserialize(self, data: dict[str, Any]) -> pytest.TestReport:
        """A rank's report; a plain one where its class is not known in this process."""
        hook = self.config.hook.pytest_report_from_serializable
        try:
            report = hook(config=self.config, data=dict(data))
        except Exception:  # of a plugin's class, read by pytest or by the plugin
            report = None
        if not isinstance(report, pytest.TestReport):
            report = hook(config=self.config, data={**data, "$report_type": "TestReport"})
            assert isinstance(report, pytest.TestReport)
        return report

    def _after(self, outcome: Outcome) -> None:
        for state in outcome.states.values():
            for warning in state.torn.warnings if state.torn else ():
                self._warner.warn(*warning)

    def _repair(self, error: MnodeError) -> None:
        """Boot a lost node again, or end the run with its name."""
        why = ""
        if isinstance(error, NodeLostError):  # which may have been tried just now, for minutes
            why = self._gone.pop(error.node, "") or self._not_booted(error.node)
        if why:
            self.end(f"{error}; it could not be booted again: {why}")
        elif self.pool is not None and self.pool.hub.failure:
            self.end(f"no ranks can be had: {error}")

    def end(self, why: str) -> None:
        """Have this test be the last."""
        session: Any = self.config.pluginmanager.getplugin("session")
        if session is not None:
            self.ended = session.shouldstop = why
        if hasattr(self.config, "workeroutput"):
            self.config.workeroutput[ENDED] = why

    def _not_booted(self, node: str) -> str:
        """Boot a node again; why that cannot be, "" where it was done."""
        assert self.client is not None
        try:
            self.client.ask_launcher("power_on", node)
        except MnodeError as error:
            return str(error)
        return ""

    # Tests in the controller.

    def lease_cluster(self, item: pytest.Item) -> Cluster:
        """The nodes for a test that runs in the controller."""
        need = need_of(item, self.settings)
        self._have_client()
        lease = self._lease(need, item.nodeid)
        return Cluster(self, lease, self.procs_of(need), self.limit_s_of(need))

    def all_nodes(self) -> Nodes:
        """All nodes by name, without a lease: there are some even where no rank can be."""
        names = self._have_client().ask_launcher("node_names")
        return Nodes(self.ask_launcher, names, self.spec.accelerators.per_node)

    def ask_launcher(self, method: str, *args: Any) -> Any:
        """Call a method of the launcher. Raises MnodeError where it has none."""
        if self.client is None:
            raise ClusterError("the run is over")
        return self.client.ask_launcher(method, *args)

    def open_world(
        self, lease: Lease, procs_per_node: int, fresh: bool, nodes: tuple[str, ...]
    ) -> WorldInfo:
        """A world on nodes of the lease, its ranks up."""
        if self.client is None:
            raise ClusterError("the run is over")
        return self.client.open_world(lease, procs_per_node, fresh, nodes)

    def close_world(self, world: WorldInfo, reusable: bool) -> None:
        if self.client is not None:
            self.client.close_world(world, reusable)

    def release(self, lease: Lease) -> None:
        if self.client is not None:
            self.client.release(lease)

    def call_in_ranks(
        self, world: WorldInfo, blob: bytes, timeout_s: float, *, group: bool
    ) -> Outcome:
        """Call a function pickled by cloudpickle in every rank of a world."""
        if self.client is None:
            raise ClusterError("the run is over")
        conductor = Conductor(self.client, world, timeout_s)
        call = CallFunction(conductor.ordinal, self.client.name, blob, group)
        return conductor.run_function(call)


def _collected_from(file: Path, root: Path, asked: Iterable[Path]) -> Path:
    """What to collect `file` from, so that its node ids come out the same in another process.

    They are relative to the root directory or, outside of it, to what pytest was asked to collect.
    """
    below = () if file.is_relative_to(root) else asked
    return next((path for path in below if file.is_relative_to(path)), file)


def _picklable(options: dict[str, Any]) -> dict[str, Any]:
    kept = {}
    for name, value in options.items():
        with contextlib.suppress(Exception):
            pickle.dumps(value)
            kept[name] = value
    return kept


def _sys_path() -> tuple[str, ...]:
    import sys

    return tuple(sys.path)


def _shown(path: Path, config: pytest.Config) -> str:
    try:
        return str(path.relative_to(config.invocation_params.dir))
    except ValueError:
        return path.name
