"""Describes a job, submits it by the path of the cluster, waits for its end, and judges its ranks,
their environment, its placement and its image."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.backends.registry import named
from pytest_mnode.criteria.launching.contract import (
    CANARY,
    FACTS,
    Expected,
    leaked,
    missing_ranks,
    more_visible,
    not_met,
    not_reported,
    wrong_variables,
)
from pytest_mnode.criteria.launching.direct import Direct
from pytest_mnode.criteria.launching.paths import (
    NotSubmittedError,
    Outcome,
    SubmissionPath,
    Submitted,
)
from pytest_mnode.criteria.launching.reports import RankReport
from pytest_mnode.criteria.launching.styles import LaunchJob, read_job
from pytest_mnode.culprit import Culprit
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.remote.check_distinct import is_loopback
from pytest_mnode.logs.aftermath import Left, answer
from pytest_mnode.measurement import HeadlineMark, Measurement, all_of, at_most, equals, listed
from pytest_mnode.progress import progress
from pytest_mnode.spec import Spec
from pytest_mnode.spec.launch import StartPromise

if TYPE_CHECKING:
    from pytest_mnode.cluster import Cluster
    from pytest_mnode.launchers.nodes import Nodes


_TAIL_LINES = 15
_BY_TORCH = "--meet=torch"
_ROOT = "import os; s = os.stat('/'); print(f'{s.st_dev}:{s.st_ino}')"
_STYLES = ("torchrun", "deepspeed", "megatron")
_IN_IMAGE = "ranks in the image"


@dataclass(frozen=True, slots=True)
class Started:
    """A job that ran, and what its ranks must find. what: prefix of its measurements' names."""

    what: str
    expected: Expected
    submitted: Submitted
    outcome: Outcome

    @property
    def overdue(self) -> list[str]:
        return [node for node, code in self.outcome.codes.items() if code is None]

    @property
    def late(self) -> Culprit | None:
        """Culprit of a job that has not ended: its queue, else overdue nodes; None if it ended.

        Nodes may be overdue because they wait for one of them.
        """
        if self.outcome.waits:
            return Culprit(self.outcome.waits)
        overdue = self.overdue
        return Culprit(listed(overdue, 16, ", "), either=[overdue]) if overdue else None

    @property
    def notes(self) -> tuple[str, ...]:
        """Facts that a reader would not expect, and the scheduler's text about a waiting job."""
        return (*self.submitted.notes, *filter(None, [self.outcome.waits]))

    def text(self) -> str:
        """Text for the report: nodes, number of ranks, users, and the last output of each node."""
        lines = [
            f"{self.what}: {self.expected.size} ranks on {', '.join(self.submitted.nodes)}, "
            f"{len(self.outcome.reports)} reported, {self.outcome.seconds:.1f} s",
            *self.notes,
            *self.logins(),
        ]
        failed = any(self.outcome.codes.values()) or self.overdue
        if failed and (found := answer(Left.of_nodes(self.outcome.output)).cause):
            lines.append(found.cause.text)
        for node, output in self.outcome.output.items():
            rest = [line for line in output.splitlines() if not line.startswith("{")]
            lines += [f"{node}: {line}" for line in rest[-_TAIL_LINES:]]
        return "\n".join(lines)

    def logins(self) -> list[str]:
        """The users that the job ran as, one line per user with its nodes."""
        users: dict[str, list[str]] = {}
        for login in self.outcome.logins:
            why = f": {login.why}" if login.why else ""
            users.setdefault(f"ran as {login.user} (uid {login.uid}){why}", []).append(login.node)
        return [f"{line} [{', '.join(nodes)}]" for line, nodes in users.items()]


def path_of(cluster: Nodes, spec: Spec | None = None) -> SubmissionPath:
    """The path of a cluster: the spec's, else that of the backend that gave the run its nodes.

    Raises NotSubmittedError if the scheduler cannot start jobs.
    """
    promise = spec.criteria.launch if spec else None
    if promise is not None and promise.path == "direct":
        return Direct(cluster)
    path, scheduler = named(cluster.backend).path(cluster), spec.scheduler if spec else None
    if isinstance(path, Direct) and scheduler is not None:
        why = f"the scheduler of the spec is {scheduler.kind}, which did not give the nodes"
        raise NotSubmittedError(why, f"give --mnode-launcher={scheduler.kind}")
    return path


def job_of(
    style: str,
    promise: StartPromise,
    folder: Path,
    spec: Spec,
    nodes: int,
    *,
    every: int | None = None,
) -> LaunchJob:
    """The job of a style, for this number of nodes: the cluster's own job file, or ours in
    `folder`.

    every: the number that `all` means, if that is not `nodes`. Ranks of our jobs meet by torch on
    accelerators, whatever the style, and on CPUs if the spec has no accelerators. Raises UsageError
    for a job file that cannot be used.
    """
    path = Path(promise.job) if promise.job else folder / f"{style}.yaml"
    job = read_job(path)
    if job.style != style:
        raise UsageError(f"{path}: style: {job.style}; accepted: {style}, which it is named for")
    placed = job.placed(nodes, spec.accelerators.per_node, every=every)
    if promise.job is not None:
        return placed
    words = placed.command
    if placed.accelerators_per_node:
        words = (*words, _BY_TORCH)
    elif _BY_TORCH in words:
        # The machine may have accelerators that the spec does not promise, fewer than ranks.
        words = (*words, "--meet=gloo")
    return placed.model_copy(update={"command": words})


def start(
    path: SubmissionPath, job: LaunchJob, nodes: Sequence[str], what: str, limit_s: float
) -> Started:
    """Submit a placed job, and wait for its end. Raises UsageError, ClusterError."""
    progress(f"a job of {what}")
    submission = path.submit(job, nodes)
    try:
        outcome = submission.wait(limit_s)
        submitted = submission.submitted
    finally:
        submission.close()
    expected = Expected(
        style=job.style,
        nodes=submitted.nodes,
        per_node=job.rank_count,
        accelerators=int(job.accelerators_per_node),
        pins=submitted.pins,
        outside=frozenset(os.environ) | {CANARY},
        own=frozenset(job.env),
        hosts=outcome.hosts,
        added=submitted.adds,
        profile=submitted.profile,
    )
    return Started(what, expected, submitted, outcome)


def started_by_path(
    cluster: Nodes, spec: Spec, job: LaunchJob, nodes: Sequence[str], *, what: str, limit_s: float
) -> Started | Measurement:
    """Start a placed job by the cluster's path. An inconclusive measurement if the scheduler does
    not start it: a job that something else starts proves nothing. The job's text is printed."""
    try:
        started = start(path_of(cluster, spec), job, nodes, what, limit_s)
    except NotSubmittedError as error:
        return _unsubmitted(what, error)
    print(started.text())
    return started


def _unsubmitted(what: str, error: NotSubmittedError) -> Measurement:
    name, source = f"{what}: nodes on which the job failed", "criteria.launch"
    return Measurement.unknown(name, str(error), expected=equals(0), source=source)


def measured_image(cluster: Cluster, spec: Spec, folder: Path) -> Measurement:
    """Submit a job with the promised image; inconclusive if the path runs no images.

    folder: of our own job files.
    """
    promised = spec.criteria.launch
    assert promised is not None
    source, size = f"criteria.launch.image {promised.image}", len(cluster.nodes)
    try:
        path = path_of(cluster, spec)
    except NotSubmittedError as error:
        return _unsubmitted("image", error)
    if not path.runs_images:
        why = f"the {path.name} path of this launcher starts commands on nodes and runs no images"
        return Measurement.unknown(_IN_IMAGE, why, expected=equals(size), source=source)
    style = next((style for style in _STYLES if promised.start(style)), "torchrun")
    promise = promised.start(style) or StartPromise.model_validate({})
    plain = job_of(style, promise, folder, spec, size)
    job = plain.model_copy(update={"image": promised.image})
    limit_s = 2 * promise.within_s
    nodes = cluster.nodes[: job.node_count]
    started = started_by_path(cluster, spec, job, nodes, what="image", limit_s=limit_s)
    if isinstance(started, Measurement):
        return started
    results = cluster.run([cluster.python, "-I", "-S", "-c", _ROOT])
    roots = {result.node: result.stdout.strip() for result in results if result.ok}
    return judged_image(started.outcome.reports, roots, started.expected.size, source)


def judged_image(
    reports: Sequence[RankReport], roots: Mapping[str, str], size: int, source: str
) -> Measurement:
    """Ranks in the image, whose root file system differs from their node's. roots: by node."""
    outside = [
        Culprit(f"rank {r.rank} on {r.node}", r.node)
        for r in reports
        if not r.root or r.root == roots.get(r.node, r.root)
    ]
    value = len(reports) - len(outside) if reports else None
    culprit = Culprit.merged(outside[0], outside) if outside else None
    return Measurement(_IN_IMAGE, value, "", equals(size), source, culprit)


_SHOWN = 6


def judged_start(
    started: Started | Measurement, promise: StartPromise, key: str
) -> list[Measurement]:
    """Measurements of every started job, or the one that says why none was started.

    key: spec key of the promise.
    """
    if isinstance(started, Measurement):
        return [started]
    what, expected, reports = started.what, started.expected, started.outcome.reports
    more = more_visible(expected, reports)
    judged = [
        *_judged_ranks(started, key),
        _counted(
            f"{what}: variables wrong",
            wrong_variables(expected, reports),
            f"contract of {expected.style}",
            unread=not_reported(reports, FACTS),
            notes=more,
        ),
        _counted(
            f"{what}: variables leaked",
            leaked(expected, reports),
            "only HOME, USER, PATH, LANG and the job's own",
            unread=not_reported(reports, ["names"]),
        ),
        Measurement(
            f"{what}: submission to end",
            None if started.overdue else started.outcome.seconds,
            "s",
            at_most(promise.within_s).of(f"{key}.within", promise.within_s),
            f"{key}.within {promise.within_s:g} s",
            started.late,
            "; ".join((*started.notes, *started.logins())),
        ),
    ]
    right = int(all(one.passed for one in judged))
    mark = HeadlineMark(after="jobs started right", of=1, right=right)
    return [replace(judged[0], headline=mark), *judged[1:]]


def _judged_ranks(started: Started, key: str) -> list[Measurement]:
    """Whether all ranks reported, met each other, and ended well."""
    what, expected, outcome = started.what, started.expected, started.outcome
    all_ranks, reports, waits = equals(expected.size), outcome.reports, outcome.waits

    def ranks(did: str, value: int | None, source: str, others: Sequence[Culprit]) -> Measurement:
        name, note = f"{what}: ranks that {did}", _several(others)
        return Measurement(name, value, "", all_ranks, source, _first(others), note)

    missing, alone = missing_ranks(expected, reports), not_met(expected, reports)
    all_or_known = len(reports) if not missing or not started.overdue else None
    source = f"{len(expected.nodes)} nodes × {expected.per_node}"
    met = len(reports) - len(alone) if reports else None
    judged = [
        ranks("reported", all_or_known, source, [Culprit(waits)] if waits else missing),
        ranks("met all others", met, "a sum over all ranks", alone),
    ]
    sizes = [report.met.size for report in reports if report.met]
    if sizes:
        single = max(sizes) == 1 < expected.size
        judged.append(
            Measurement(
                f"{what}: ranks in the smallest group that met",
                min(sizes),
                "",
                all_ranks,
                "a sum of ones over all ranks",
                _first(alone),
                f"{expected.size} jobs of one rank" if single else "",
            )
        )
    # If one node fails, others often wait for it until the limit.
    codes = {node: code for node, code in outcome.codes.items() if code}
    failed = [Culprit(f"{node} (exit {code})", node) for node, code in codes.items()]
    if len(codes) == len(outcome.codes):  # the failure of one may end the others
        failed = [one.suspected for one in failed]
    overdue = "" if waits else ", ".join(started.overdue)
    judged.append(
        Measurement(
            f"{what}: nodes on which the job failed",
            None if started.overdue and not failed else len(failed),
            "",
            equals(0),
            key,
            all_of(failed, _SHOWN, ", ") or started.late,
            f"not finished at the time limit on {overdue}" if overdue else "",
        )
    )
    return judged


def _counted(
    name: str, found: Sequence[Culprit], source: str, *, unread: str, notes: Sequence[str] = ()
) -> Measurement:
    """Number of faults. unread: facts that ranks did not report; faults found all the same count.

    notes: facts that are no fault.
    """
    note = "; ".join(line for line in (_several(found), unread, *notes) if line)
    value = None if unread and not found else len(found)
    return Measurement(name, value, "", equals(0), source, _first(found), note)


def _first(found: Sequence[Culprit]) -> Culprit | None:
    """The words of the first, with the nodes of all."""
    return Culprit.merged(found[0], found) if found else None


def _several(found: Sequence[str]) -> str:
    return listed(found, _SHOWN) if len(found) > 1 else ""


def elsewhere(nodes: Sequence[str], count: int | None = None) -> tuple[str, ...]:
    """The last `count` nodes (None: half of them, at least 2), the last one first."""
    count = count or max(2, len(nodes) // 2)
    return tuple(reversed(nodes[-count:]))


def judged_place(
    started: Started | Measurement,
    requested_nodes: Sequence[str],
    addresses: Mapping[str, str],
) -> list[Measurement]:
    """Whether a job ran on the nodes it was placed on, and its MASTER_ADDR is the first of them;
    nothing of a job that was not started.

    requested_nodes: in the order of ranks unless the path has its own order. addresses: of all
    nodes, by node name, as other nodes reach them.
    """
    if isinstance(started, Measurement):
        return []
    reports = started.outcome.reports
    ran_on = {report.node for report in reports}
    strange = sorted(ran_on - set(requested_nodes))
    missing = [node for node in requested_nodes if node not in ran_on]
    nodes = Measurement(
        f"{started.what}: requested nodes that it ran on",
        max(0, len(requested_nodes) - len(missing) - len(strange)) if reports else None,
        "",
        equals(len(requested_nodes)),
        f"placed on {', '.join(requested_nodes)}",
        all_of((Culprit(node, node) for node in strange or missing), _SHOWN, ", "),
    )
    placed = started.submitted.nodes
    first = placed[0] if set(placed) == set(requested_nodes) else requested_nodes[0]
    others = _addresses_of_others(first, addresses, started.outcome.hosts)
    right = _addresses_of_first(started, first, addresses) - set(others)
    met = [report.contract.get("MASTER_ADDR", "none") for report in reports]
    wrong = sorted(set(met) - right)
    master = Measurement(
        f"{started.what}: ranks whose MASTER_ADDR is the first node's",
        sum(address in right for address in met) if reports else None,
        "",
        equals(started.expected.size),
        f"{first} is at {addresses[first]}",
        all_of(
            (Culprit(f"MASTER_ADDR={a} ({others.get(a, 'no node')})") for a in wrong), _SHOWN, ", "
        ),
    )
    return [nodes, master]


def _addresses_of_first(started: Started, first: str, addresses: Mapping[str, str]) -> set[str]:
    """Valid values of MASTER_ADDR: the first node's address, its name, or an address that its ranks
    found to be the node's own. Every node has a loopback address: it is valid on one machine only.
    """
    found = {
        address
        for report in started.outcome.reports
        if report.node == first and report.master_is_here
        if (address := report.contract.get("MASTER_ADDR")) and not is_loopback(address)
    }
    return found | {addresses[first], first, started.outcome.hosts.get(first, first)}


def _addresses_of_others(
    first: str, addresses: Mapping[str, str], hosts: Mapping[str, str]
) -> dict[str, str]:
    """Nodes other than the first, by each of their addresses and names."""
    own = {addresses[first], first, hosts.get(first, first)}
    named = [(name, node) for node in addresses for name in (node, hosts.get(node, node))]
    known = [(address, node) for node, address in addresses.items()]
    return {name: node for name, node in (*known, *named) if name not in own}
