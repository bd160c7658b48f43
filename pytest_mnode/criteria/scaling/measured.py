"""A scaling job started, waited for and judged, from the controller."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from pytest_mnode.criteria.scaling.facts import MARK, Facts
from pytest_mnode.criteria.scaling.plan import Plan, device_for
from pytest_mnode.criteria.scaling.result import Scaling, judge
from pytest_mnode.errors import MnodeError, TimeLimitError, UsageError, WorldError
from pytest_mnode.jobs import Job, JobResult, LaunchedJob
from pytest_mnode.logs.causes import first_cause
from pytest_mnode.spec import Spec
from pytest_mnode.spec.scaling import ScalingCriterion

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster

MODULE = "pytest_mnode.criteria.scaling"
_START_S = 60.0
"""For torchrun to start ranks and to end them, beside the job's own limit."""
_LOOK_S = 2.0
_PEERS_S = 10.0
"""For the others to end by themselves, once a node's part has failed."""
_LAST_LINES = 12


class Kept:
    """What one run measured, for all tests that ask; a job that failed is not started again."""

    def __init__(self) -> None:
        self._found: Scaling | MnodeError | None = None

    def measured(self, cluster: Cluster, spec: Spec, budget_s: float) -> Scaling:
        """The job's result. Raises what the job raised, once more for each that asks."""
        if self._found is None:
            promise = spec.criteria.scaling
            assert promise is not None
            try:
                self._found = measured(cluster, spec, promise, budget_s=budget_s)
            except MnodeError as error:
                self._found = error
        if isinstance(self._found, MnodeError):
            raise self._found
        return self._found


def measured(
    cluster: Cluster, spec: Spec, promise: ScalingCriterion, *, budget_s: float
) -> Scaling:
    """Run the job on all nodes of a test, and judge it; who slows the fabric is looked for.

    budget_s: of that search, which is made only where the fabric is the largest cause. Raises
    UsageError where there is nothing to scale to, TimeLimitError where the job does not end,
    WorldError with its last words where it fails.
    """
    per_node = cluster.procs_per_node
    plan = Plan.of(promise, cluster.nodes, per_node, spec.accelerators.per_node)
    if plan.unequal:
        raise UsageError(
            f"criteria.scaling.samples_per_rank {promise.samples_per_rank} on "
            f"{len(plan.nodes)} nodes × {per_node} ranks cannot be shared out evenly over "
            f"{', '.join(map(str, plan.unequal))} nodes; give a multiple of them"
        )
    job = cluster.launch(Job(["-m", MODULE, plan.to_json()], procs_per_node=per_node))
    try:
        result = _ended(job, promise.within_s + _START_S)
    finally:
        job.close()
    found = judge(facts_of(result), plan, spec, promise)
    if found.falls_short_by_fabric:
        found = found.with_located(_located(cluster, spec, promise, budget_s))
    return found


def _ended(job: LaunchedJob, limit_s: float) -> JobResult:
    """Wait for a job. Ranks whose peers failed may wait for long, so they are not waited for."""
    end = time.monotonic() + limit_s
    while True:
        try:
            return job.wait(timeout=min(_LOOK_S, max(0.0, end - time.monotonic())))
        except TimeLimitError as error:
            failed = [e for e in job.events if e.what == "ended" and e.detail != "status 0"]
            said = _last_words({name: job.output(name) for name in job.nodes})
            if failed and time.time() > failed[0].time_s + _PEERS_S:
                nodes = ", ".join(f"{e.node} ({e.detail})" for e in failed)
                raise WorldError(f"the scaling job failed on {nodes}:\n{said}") from None
            if time.monotonic() >= end:
                text = f"the scaling job was not over after {limit_s:g} s ({error}):\n{said}"
                raise TimeLimitError(text) from None


def facts_of(result: JobResult) -> Facts:
    """What rank 0 printed. Raises WorldError with the job's last words where it did not."""
    if result.ok:
        for output in result.output.values():
            for line in output.splitlines():
                if line.startswith(MARK):
                    return Facts.from_json(line.removeprefix(MARK))
    codes = ", ".join(f"{node} {code}" for node, code in result.returncodes.items())
    raise WorldError(f"the scaling job failed (exit codes {codes}):\n{_last_words(result.output)}")


def _last_words(output: dict[str, str]) -> str:
    """The cause, and the end of what each node printed before torchrun's own summary."""
    cause = first_cause(output)
    ends: dict[str, list[str]] = {}
    for node, text in output.items():
        lines = [line for line in text.splitlines() if line.strip() and not line.startswith(MARK)]
        told = [line for line in lines if "Error" in line and "ChildFailedError" not in line]
        end = "\n".join((told or lines)[-_LAST_LINES:])
        ends.setdefault(end, []).append(node)
    told = [f"[{', '.join(nodes)}]\n{end or 'nothing'}" for end, nodes in ends.items()]
    return "\n".join([*([cause.text] if cause else []), *told])


def _located(cluster: Cluster, spec: Spec, promise: ScalingCriterion, budget_s: float) -> str:
    """Who slows the fabric, by pairs of nodes; or why that could not be found out."""
    mbits_s = promise.fabric_fraction * spec.fabric.line_rate_mbits_s
    timeout = budget_s + 60.0
    try:
        with cluster.world() as world:
            return str(world.run(_locate, spec, mbits_s, budget_s, timeout=timeout, group=True)[0])
    except MnodeError as error:
        return f"not located: {str(error).partition(chr(10))[0]}"


def _locate(spec: Spec, slow_below_mbits_s: float, budget_s: float, *, world: Any) -> str:
    """In ranks: what `bench.locate` finds."""
    from pytest_mnode.measuring.locate import located
    from pytest_mnode.reference_job.config import JobConfig
    from pytest_mnode.reference_job.device import device_of

    config = JobConfig(directory=".", device=device_for(spec.accelerators.per_node))
    device = device_of(config, world.local_rank)
    return str(located(world, spec, (), slow_below_mbits_s, device, budget_s=budget_s))
