"""The torchrun command of each node, its environment, and a parser of its output. Pure."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pytest_mnode.jobs.job import Job
from pytest_mnode.launchers.node import socket_pins

EXIT_PREEMPTED = 75
"""EX_TEMPFAIL: the exit status of a rank that got SIGTERM and has saved its state."""

_WITHOUT_A_RANK = (
    "env",
    *(word for name in ("RANK", "LOCAL_RANK", "GROUP_RANK", "WORLD_SIZE") for word in ("-u", name)),
)
"""Removes a rank's variables, which the run itself may have, as in a PyTorchJob: `node_processes`
distinguishes ranks from torchrun by RANK in their environment."""

_ENDED_BY_TORCHRUN = (-signal.SIGTERM, -signal.SIGKILL)
"""After one rank failed, torchrun sends SIGTERM to the others, and SIGKILL to slow ones."""

_OF_TORCHRUN = re.compile(
    r"^Traceback [^\n]*\n(?: [^\n]*\n)+torch\.\S*ChildFailedError:.*?\n=+\n.*?\n=+$|"
    r"^[A-Z]\d{4} [\d:.]+ [^\n]*?\btorch/distributed/[^\n]*$",
    re.MULTILINE | re.DOTALL,
)
"""Output of torchrun itself about failed ranks."""
_ENDS_RANKS = re.compile(r"/elastic/multiprocessing/api\.py\S* (?:failed|Sending process)[^\n]*\n")
_EXIT_CODE = re.compile(r"^\s*exitcode\s*:\s*(-?\d+)\b", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Start:
    """One start of a job: its nodes and its rendezvous.

    requeue: 0 for the first start. address, port: the rendezvous, on the first node.
    python: the interpreter on the nodes.
    """

    job_id: str
    nodes: tuple[str, ...]
    requeue: int
    address: str
    port: int
    python: str = sys.executable

    def argv(self, job: Job, node: str, own_address: str, log_dir: str) -> list[str]:
        """The command on one node. own_address: address of that node for the others."""
        number = self.nodes.index(node)
        return [
            *_WITHOUT_A_RANK,
            *(self.python, "-m", "torch.distributed.run"),
            *("--nnodes", str(len(self.nodes)), "--nproc-per-node", str(job.procs_per_node)),
            *(self._elastic(number, own_address, job.restarts) if job.restarts else ()),
            *(() if job.restarts else self._static(number)),
            # Without --log-dir, torchrun leaves its logs in /tmp.
            *("--log-dir", log_dir, *job.torchrun, *job.argv),
        ]

    def _static(self, number: int) -> Sequence[str]:
        return (
            *("--node-rank", str(number)),
            *("--master-addr", self.address, "--master-port", str(self.port)),
        )

    def _elastic(self, number: int, own_address: str, restarts: int) -> Sequence[str]:
        # With is_host and its own address, torchrun need not resolve host names.
        return (
            *("--rdzv-backend", "c10d", "--rdzv-endpoint", f"{self.address}:{self.port}"),
            *("--rdzv-id", f"{self.job_id}.{self.requeue}", "--max-restarts", str(restarts)),
            *("--rdzv-conf", f"is_host={int(number == 0)}", "--local-addr", own_address),
        )

    def env(
        self, job: Job, node: str, interface: str | None, given: Mapping[str, str]
    ) -> dict[str, str]:
        """Variables to add on one node. given: the node's environment."""
        unset = {n: v for n, v in self.defaults(job, interface).items() if n not in given}
        return {**unset, **self.own(job, node)}

    def defaults(self, job: Job, interface: str | None) -> dict[str, str]:
        """Variables of a node that sets none of these itself."""
        found = {"OMP_NUM_THREADS": "1", **socket_pins(interface)}
        if job.restarts:
            # Else restarted ranks find the addresses of their predecessors in the store.
            found["TORCH_DISABLE_SHARE_RDZV_TCP_STORE"] = "1"
        return found

    def own(self, job: Job, node: str) -> dict[str, str]:
        """The job's own variables on one node, which replace the node's."""
        own = {"MNODE_JOB": self.job_id, "MNODE_JOB_NODE": node, "MNODE_REQUEUE": str(self.requeue)}
        return {**job.env, **own}


def exit_codes(output: str) -> tuple[int, ...]:
    """Exit codes of the ranks that torchrun reports as failed; negative for a signal."""
    return tuple(int(code) for code in _EXIT_CODE.findall(output))


def before_restart(output: str) -> str:
    """Output of a node up to where torchrun first ends its ranks: further steps are of the next
    start, and say nothing of whether an error was harmless."""
    ended = _ENDS_RANKS.search(output)
    return output[: ended.end()] if ended else output


def last_line(output: str) -> str:
    """The last line that is not torchrun's own; "" if there is none."""
    lines = (line.strip() for line in reversed(_OF_TORCHRUN.sub("", output).splitlines()))
    return next(filter(None, lines), "")


def was_preempted(outputs: Sequence[str]) -> bool:
    """Whether a rank exited as preempted, as torchrun reports, and no rank failed otherwise."""
    codes = [code for text in outputs for code in exit_codes(text)]
    return EXIT_PREEMPTED in codes and set(codes) <= {EXIT_PREEMPTED, *_ENDED_BY_TORCHRUN}
