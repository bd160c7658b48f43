"""Plans the job, its nodes and its kills, from the promise alone. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from pytest_mnode.criteria.restart.comparing import Tolerance
from pytest_mnode.criteria.restart.judging import Terms
from pytest_mnode.errors import UsageError
from pytest_mnode.jobs import Job
from pytest_mnode.reference_job.config import DeviceName, JobConfig
from pytest_mnode.spec.inventory import Inventory
from pytest_mnode.spec.restart import Kill, RestartCriterion

EPOCH_STEPS = 10
CHECKPOINT_EVERY = 4
KILL_AFTER: Mapping[Kill, int] = {"rank": 6, "checkpoint": 12, "preemption": 14, "node": 18}
"""The step after which each kill comes, in the order of the kills. All kills fall on one run,
because starting a job takes longer than its steps. Each step is in the middle of an epoch, after a
checkpoint of the same epoch; "checkpoint" is the step whose checkpoint is held open while it is
written, and the checkpoint before that one is of another epoch."""
STEPS_FOR_NODE = 8
"""Number of additional steps of a job that loses a node."""
RESTARTS = 3
"""Each kill costs every node one restart; the others are for a rendezvous that fails under load."""
_KEY = "criteria.restart"


@dataclass(frozen=True, slots=True)
class Plan:
    """A job that will be killed.

    nodes: where it begins; spares: standby nodes; fewest: the lowest number of nodes that it can
    continue with. victim: the node that is lost. observer_node: another node, from which the run is
    watched.
    """

    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    per_node: int
    fewest: int | None
    victim: str
    observer_node: str
    config: JobConfig

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.per_node

    def ranks_after(self, kill: Kill) -> int:
        """Number of ranks of the job after it came back from this kill."""
        if kill == "node" and self.fewest is not None:
            return self.fewest * self.per_node
        return self.ranks

    def job(self, config_path: str, promise: RestartCriterion) -> Job:
        """The reference job, restarted by torchrun and requeued by the launcher."""
        return Job(
            ["-m", "pytest_mnode.reference_job", config_path],
            nodes=self.nodes,
            procs_per_node=self.per_node,
            restarts=RESTARTS,
            requeues=2,
            spares=self.spares,
            fewest_nodes=self.fewest,
            back_within_s=promise.back_within_s,
        )

    def whole(self, directory: str) -> JobConfig:
        """The config of the uninterrupted run."""
        return replace(self.config, directory=directory, pause_s=0.0)

    def cut(self, kills: Sequence[Kill], directory: str) -> JobConfig:
        """The config of a run that is killed: it waits for each kill, however slow the site is."""
        after = tuple(step for kill, step in KILL_AFTER.items() if kill in kills)
        return replace(self.config, directory=directory, hold_after=after)

    def exact(self, promise: RestartCriterion) -> bool:
        """Whether all runs are equal bit by bit, so that digests compare final parameters."""
        return promise.tolerance == 0 and self.fewest is None

    def digest(self) -> str:
        """Identifier of the uninterrupted run: the same for the same job on the same nodes."""
        what = json.dumps([asdict(self.whole(".")), self.nodes, self.per_node])
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def terms(self, kill: Kill, promise: RestartCriterion) -> Terms:
        """The terms that this run has to meet."""
        if self.ranks_after(kill) != self.ranks:
            tolerance = resharded_tolerance(promise)
        else:
            how = ", relative" if promise.tolerance else ": bit by bit"
            source = f"{_KEY}.tolerance {promise.tolerance:g}{how}"
            tolerance = Tolerance(promise.tolerance, source)
        return terms_of(self.config, tolerance, promise.within_s)


def kills_in_order(promise: RestartCriterion, cluster: Inventory) -> tuple[Kill, ...]:
    """The promised kills, in the order in which they fall on one run."""
    left_out = unpowered(promise, cluster)
    return tuple(kill for kill in KILL_AFTER if kill in promise.kills and kill not in left_out)


def unpowered(promise: RestartCriterion, cluster: Inventory) -> tuple[Kill, ...]:
    """Kills by default that this site cannot do: nothing here switches its nodes off."""
    named = "kills" in promise.model_fields_set
    return () if named or cluster.emulated or cluster.power is not None else ("node",)


def terms_of(config: JobConfig, tolerance: Tolerance, within_s: float | None = None) -> Terms:
    """The terms that a run of this job has to meet."""
    return Terms(config.steps, tolerance, within_s)


def plan(
    promise: RestartCriterion, there: Sequence[str], per_node: int, device: DeviceName = "auto"
) -> Plan:
    """The job for these nodes. Raises UsageError if there are too few.

    device: see JobConfig.
    """
    if len(there) < 2:
        raise UsageError(f"{_KEY}: {len(there)} node; give --mnode-nodes=2 or more")
    spare = promise.node_loss == "spare"
    nodes = tuple(there[:-1] if spare else there)
    fewest = len(nodes) - 1 if promise.node_loss == "fewer" else None
    victim = nodes[min(1, len(nodes) - 1)]
    batch = len(nodes) * per_node * (2 if fewest is None else fewest)
    config = config_for(promise, batch, device)
    if fewest is not None:
        config = replace(config, dropout=0.0)  # each rank draws its own masks
    return Plan(
        nodes=nodes,
        spares=(there[-1],) if spare else (),
        per_node=per_node,
        fewest=fewest,
        victim=victim,
        observer_node=next(name for name in there if name != victim),
        config=config,
    )


def config_for(promise: RestartCriterion, batch: int, device: DeviceName = "auto") -> JobConfig:
    """A small reference job with this global batch; its directory is set later."""
    return JobConfig(
        directory=".",
        device=device,
        width=promise.width,
        context=16,
        layers=2,
        global_batch=batch,
        samples=EPOCH_STEPS * batch,
        steps=promise.steps + (STEPS_FOR_NODE if "node" in promise.kills else 0),
        parallel=promise.parallel,
        checkpoint_every=CHECKPOINT_EVERY,
        keep=3,
        reshard=promise.resharded_tolerance is not None,
        visible_s=promise.visible_within_s,
        pause_s=promise.pause_s,
        deterministic=promise.tolerance == 0,
    )


def resharded_tolerance(promise: RestartCriterion) -> Tolerance:
    """The tolerance of a run that continues with another number of ranks."""
    relative = promise.resharded_tolerance or 0.0
    source = f"{_KEY}.resharded_tolerance {relative:g}, relative"
    return Tolerance(relative, source, same_ranks=False)
