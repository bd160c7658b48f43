"""How torchrun is called on each node, and what it says when it ends. Pure."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.jobs.described import Job

EXIT_PREEMPTED = 75
"""EX_TEMPFAIL: what a rank ends with that saved its state because it was told to end."""

_WITHOUT_A_RANK = (
    "env",
    *(word for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE") for word in ("-u", name)),
)
"""Where the run itself is a rank of something, as in a PyTorchJob, torchrun must not look like one:
ranks are told from it by RANK in their environment."""

_ENDED_BY_TORCHRUN = (-signal.SIGTERM, -signal.SIGKILL)
"""How the others end, once one has: SIGTERM, and SIGKILL to those who take too long over it."""

_EXIT_CODE = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job: the nodes it is on now, and where they meet.

    requeue: 0 for the first. address, port: of the first node, where the others find it.
    python: the one on the nodes.
    """

    job_id: str
    nodes: tuple[str, ...]
    requeue: int
    address: str
    port: int
    python: str = sys.executable

    def argv(self, job: Job, node: str, own_address: str, log_dir: str) -> list[str]:
        """The command on one node. own_address: of that node, as others reach it."""
        number = self.nodes.index(node)
        return [
            *_WITHOUT_A_RANK,
            *(self.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(len(self.nodes)), "--nproc-per-node", str(job.procs_per_node)),
            *(self._elastic(number, own_address, job.restarts) if job.restarts else ()),
            *(() if job.restarts else self._static(number)),
            # Without a place for them torchrun leaves its logs where nobody finds them.
            *("--log-dir", log_dir, *job.torchrun, *job.argv),
        ]

    def _static(self, number: int) -> Sequence[str]:
        return (
            *("--node-rank", str(number)),
            *("--master-addr", self.address, "--master-port", str(self.port)),
        )

    def _elastic(self, number: int, own_address: str, restarts: int) -> Sequence[str]:
        # Told who hosts the store, and its own address, torchrun need not resolve names for that.
        return (
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.address}:{self.port}"),
            *("--rdzv-id", f"{self.job_id}.{self.requeue}", "--max-restarts", str(restarts)),
            *("--rdzv-conf", f"is_host={int(number == 0)}", "--local-addr", own_address),
        )

    def env(
        self, job: Job, node: str, interface: str | None, given: Mapping[str, str]
    ) -> dict[str, str]:
        """What is set for the command on one node, beside the environment `given` of the run."""
        env = {"OMP_NUM_THREADS": "1"}
        if interface:
            pins = {"GLOO_SOCKET_IFNAME": interface, "NCCL_SOCKET_IFNAME": f"={interface}"}
            env |= {name: value for name, value in pins.items() if name not in given}
        if job.restarts and "TORCH_DISABLE_SHARE_RDZV_TCP_STORE" not in given:
            # Else ranks started anew find in the store where their predecessors listened.
            env["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        own = {"MNODE_JOB": self.job_id, "MNODE_JOB_NODE": node, "MNODE_REQUEUE": str(self.requeue)}
        return {**env, **job.env, **own}


def exit_codes(output: str) -> tuple[int, ...]:
    """Exit codes of the ranks that torchrun reports as failed; negative for a signal."""
    return tuple(int(code) for code in _EXIT_CODE.findall(output))


def was_preempted(outputs: Sequence[str]) -> bool:
    """Whether a rank says, by torchrun's word, that it was told to end, and none else failed."""
    codes = [code for text in outputs for code in exit_codes(text)]
    return EXIT_PREEMPTED in codes and set(codes) <= {EXIT_PREEMPTED, *_ENDED_BY_TORCHRUN}
