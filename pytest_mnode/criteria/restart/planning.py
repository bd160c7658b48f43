"""Which job is run, on which nodes, and where the kill strikes: from the promise alone. Pure."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from pytest_mnode.criteria.restart.comparing import Like
from pytest_mnode.criteria.restart.judging import Terms
from pytest_mnode.errors import UsageError
from pytest_mnode.jobs import Job
from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.spec import Spec
from pytest_mnode.spec.restart import Kill, RestartCriterion

ORDEALS: tuple[tuple[Kill, ...], ...] = (("rank", "checkpoint"), ("preemption", "node"))
"""Kills of the same run, one after the other: those that torchrun restarts ranks after, and those
that the launcher requeues the job after. To start a job takes longer than all it does then."""
EPOCH_STEPS = 10
CHECKPOINT_EVERY = 4
STRIKE_AFTER = (6, 14)
"""Steps after which the first kill of a run strikes and the second: in the middle of an epoch, a
checkpoint of the same epoch behind it."""
HELD = 12
"""The step whose checkpoint is held open while written; the one before is of another epoch."""
RESTARTS = 3
"""A kill costs each node one; the others are for a meeting that fails on a busy machine."""
_KEY = "criteria.restart"


@dataclass(frozen=True, slots=True)
class Plan:
    """A job that will be killed.

    nodes: it begins on; spares: stand by; ranks_after: how many ranks it has when it came back
    from the loss of a node. victim: the node that is lost. eye: a node that is not, from which the
    others are watched.
    """

    nodes: tuple[str, ...]
    spares: tuple[str, ...]
    per_node: int
    fewest: int | None
    victim: str
    eye: str
    config: JobConfig

    @property
    def ranks(self) -> int:
        return len(self.nodes) * self.per_node

    def ranks_after(self, kill: Kill) -> int:
        """How many ranks the job has when it came back."""
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
        """The config of the run that is not killed."""
        return replace(self.config, directory=directory, pause_s=0.0)

    def cut(self, kills: Sequence[Kill], directory: str) -> JobConfig:
        """The config of the run that is."""
        held = HELD if "checkpoint" in kills else None
        return replace(self.config, directory=directory, hold_checkpoint=held)

    def exact(self, promise: RestartCriterion) -> bool:
        """Whether all runs are equal bit by bit, so that digests compare final parameters."""
        return promise.tolerance == 0 and self.fewest is None

    def digest(self) -> str:
        """Names the run that is not killed: the same for the same job on the same nodes."""
        what = json.dumps([asdict(self.whole(".")), self.nodes, self.per_node])
        return hashlib.sha256(what.encode()).hexdigest()[:16]

    def terms(self, kill: Kill, promise: RestartCriterion) -> Terms:
        """What the run has to keep."""
        config = self.config
        same = self.ranks_after(kill) == self.ranks
        like = like_same(promise) if same else like_resharded(promise)
        return Terms(config.steps, config.samples, config.global_batch, like, promise.within_s)


def ordeal_of(kill: Kill, promise: RestartCriterion) -> tuple[Kill, ...]:
    """The kills, of those promised, that come over the same run as this one."""
    together = next(kills for kills in ORDEALS if kill in kills)
    return tuple(one for one in together if one in promise.kills)


def plan(
    promise: RestartCriterion, there: Sequence[str], per_node: int, device: str = "auto"
) -> Plan:
    """The job for these nodes. Raises UsageError where they are too few for the promise.

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
        config = replace(config, dropout=0.0)  # its masks are each rank's own
    return Plan(
        nodes=nodes,
        spares=(there[-1],) if spare else (),
        per_node=per_node,
        fewest=fewest,
        victim=victim,
        eye=next(name for name in there if name != victim),
        config=config,
    )


def device_for(spec: Spec) -> str:
    """What the job trains on: what the cluster has, and a job on CPUs would say nothing of."""
    return "accelerator" if spec.accelerators.per_node else "cpu"


def config_for(promise: RestartCriterion, batch: int, device: str = "auto") -> JobConfig:
    """The reference job, small, with this global batch; of no directory yet."""
    return JobConfig(
        directory=".",
        device=device,
        width=promise.width,
        context=16,
        layers=2,
        global_batch=batch,
        samples=EPOCH_STEPS * batch,
        steps=promise.steps,
        parallel=promise.parallel,
        checkpoint_every=CHECKPOINT_EVERY,
        keep=3,
        reshard=promise.resharded_tolerance is not None,
        pause_s=promise.pause_s,
        deterministic=promise.tolerance == 0,
    )


def like_same(promise: RestartCriterion) -> Like:
    """How equal a run is that goes on with as many ranks."""
    if promise.tolerance == 0:
        return Like(0.0, f"{_KEY}.tolerance 0: bit by bit")
    return Like(promise.tolerance, f"{_KEY}.tolerance {promise.tolerance:g}, relative")


def like_resharded(promise: RestartCriterion) -> Like:
    """How equal a run is that goes on with another number of ranks."""
    tolerance = promise.resharded_tolerance or 0.0
    source = f"{_KEY}.resharded_tolerance {tolerance:g}, relative"
    return Like(tolerance, source, same_ranks=False)
