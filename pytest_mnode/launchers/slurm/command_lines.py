"""Command lines of salloc and srun, and the time limit of waiting for an allocation. Pure."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.node_env import is_passed, is_secret
from pytest_mnode.launchers.slurm.jobs import JobState
from pytest_mnode.launchers.slurm.nodes import NodeState, gpus_to_request, shortage

QUEUE_LIMIT_S = 3600.0
"""Limit of waiting in the queue, if the arguments contain no --immediate."""
IMMEDIATE_S = 60
"""Limit of waiting for nodes that were free when the run chose them."""
_OWN_MEMORY = ("--mem", "--exclusive=", "--oversubscribe", "-s")
_IMMEDIATE = re.compile(r"(?:-I|--immediate=)(\d+)")

_OF_A_JOB = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "MAIL", "KRB5CCNAME"),
    *("SLURM_CONF", "SLURM_CLUSTERS"),
)
"""Further variables of a job: it has no environment but its submitter's. All other SLURM_ variables
describe an allocation or a step; commands that the job starts would read them as options."""


def is_submitted(name: str, value: str) -> bool:
    """Whether a job that the run submits gets a variable of pytest's environment."""
    of_slurm = name in _OF_A_JOB or name.startswith("SBATCH_")
    return is_passed(name, value) or (of_slurm and not is_secret(name, value))


def salloc(name: str, nodes: int, arguments: Sequence[str], gpus: Sequence[str] = ()) -> list[str]:
    """The salloc command that requests nodes; gpus: the option from `gpus_option`.

    It requests whole nodes, so that no other job disturbs measurements, and keeps them when one
    fails, because the other nodes report the failure. The user's arguments come last and win.
    Whole nodes include all memory, unless the arguments say how much, or how nodes are shared:
    `--exclusive` alone gives the default of the site, which may be a small part. The job's name
    stays the run's, by which it is ended: without a shell, nothing else ends it before its time
    limit. It comes first too, as a word that is no option ends salloc's options. salloc itself ends
    once the nodes are ready.
    """
    if ":" in arguments:
        raise UsageError(
            "--mnode-slurm-args: `:` separates the components of a heterogeneous job, and a run "
            "uses one component; give the options of one"
        )
    ours = [
        *("--no-shell", f"--job-name={name}"),
        *(f"--nodes={nodes}", "--exclusive", "--no-kill", "--no-bell"),
        "--wait-all-nodes=1",  # else salloc grants nodes that still boot, and no step starts there
    ]
    if not any(word.startswith(_OWN_MEMORY) for word in arguments):
        ours.append("--mem=0")
    return ["salloc", *ours, *gpus, *arguments, f"--job-name={name}"]


def on_nodes(arguments: Sequence[str], names: Sequence[str]) -> list[str]:
    """salloc's arguments for these nodes, which are free now; unchanged if `names` is empty.

    If another job takes one of the nodes first, the run does not wait in the queue for it.
    """
    if not names:
        return list(arguments)
    return [f"--immediate={IMMEDIATE_S}", *arguments, f"--nodelist={compress(names, tails=False)}"]


def gpus_option(
    per_node: int, arguments: Sequence[str], nodes: Iterable[NodeState] | None
) -> list[str]:
    """The option that requests the spec's GPUs; [] if the user's arguments mention GPUs.

    nodes: nodes of the cluster; None if Slurm did not answer. See `gpus_to_request`.
    """
    mentioned = any(word.startswith(("--gpus", "--gres", "--tres", "-G")) for word in arguments)
    gpus = per_node if nodes is None else gpus_to_request(per_node, nodes)
    return [f"--gpus-per-node={gpus}"] if gpus and not mentioned else []


def queue_limit_s(arguments: Sequence[str]) -> float:
    """Limit of waiting for nodes: 10 s more than --immediate, which salloc itself enforces."""
    for word in reversed(arguments):
        if match := _IMMEDIATE.fullmatch(word):
            return float(match[1]) + 10.0
    return QUEUE_LIMIT_S


def hopeless(job: JobState | None, nodes: Iterable[NodeState], wanted: int) -> str | None:
    """What a pending job lacks even on an empty cluster; None if nothing, or if unknown.

    A job in a reservation may wait for the reservation's nodes, whatever their state.
    """
    if job is None or not job.waits or job.reservation is not None:
        return None
    # A job with several partitions is checked against the whole cluster.
    one = job.partition if job.partition and "," not in job.partition else None
    return shortage(nodes, wanted, one)


def step_command(
    job_id: int, node: str, argv: Sequence[str], gpus: int = 0, more: Sequence[str] = ()
) -> list[str]:
    """srun command that runs `argv` once on a node, with all of its resources, beside other steps.

    gpus: GPUs that the allocation holds there without having requested them. more: the user's
    options, which come last and win.

    The step has, of srun's environment, what nodes get of pytest's, and PATH, because a step has no
    variables of its own but those of Slurm and of a TaskProlog. srun reads options from SLURM_ and
    SRUN_ variables too: node_env takes out those that a job script has for its job.
    """
    exported = [
        "PATH",
        *(name for name, value in sorted(os.environ.items()) if is_passed(name, value)),
    ]
    return [
        *("srun", f"--jobid={job_id}", "--nodes=1", "--ntasks=1", f"--nodelist={node}"),
        *("--overlap", "--mem=0", "--cpu-bind=none", "--mpi=none"),
        f"--export={','.join(exported)}",
        *("--kill-on-bad-exit=0", "--no-kill", "--job-name=pytest-mnode", "--quiet"),
        *([f"--gres=gpu:{gpus}"] if gpus else []),
        *more,
        *("--", *argv),
    ]
