"""Runs Slurm's own commands, with time limits and one-line errors."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterable, Mapping

from pytest_mnode.errors import ClusterError
from pytest_mnode.launchers.hosts import compress
from pytest_mnode.launchers.slurm.jobs import (
    SHORT,
    JobState,
    jobs_from_lines,
    jobs_from_text,
    no_job_in,
    unrequested_gpus,
)
from pytest_mnode.launchers.slurm.nodes import NodeState, nodes_from_text

COMMAND_LIMIT_S = 20.0
"""Limit of a command that reads or changes state; Slurm's own limit per message is 10 s."""
_UNKNOWN_JOB = ("Invalid job id", "Invalid job array specification")
_USAGE = ("unrecognized option", "Invalid job format")
_DENIED = "Access/permission denied"
_FORMATTING = ("SQUEUE_", "SINFO_", "SCANCEL_", "SCONTROL_", "SLURM_TIME_FORMAT")


class SlurmError(ClusterError):
    """Failure of a Slurm command. program: its name; returncode: None if it reached its limit."""

    def __init__(self, program: str, returncode: int | None, text: str) -> None:
        super().__init__(f"{program}: {text}")
        self.program = program
        self.returncode = returncode
        self.text = text


def plain_env(environ: Mapping[str, str]) -> dict[str, str]:
    """An environment without the variables that change what Slurm's commands print."""
    kept = {k: v for k, v in environ.items() if not k.startswith(_FORMATTING)}
    return {**kept, "SLURM_TIME_FORMAT": "%s", "LC_ALL": "C"}


def error_line(stderr: str, returncode: int) -> str:
    """The most useful line that a failed command printed: its first error, else the last line."""
    lines = [line.strip() for line in stderr.splitlines() if line.strip()]
    errors = [line for line in lines if " error: " in line or " fatal: " in line]
    last = [line for line in lines if not line.startswith("Try ")][-1:]
    line = (errors or last or [f"ended with status {returncode} and no message"])[0]
    for mark in (": error: ", ": fatal: "):
        line = line.partition(mark)[2] or line
    return line


class NodesHidden(SlurmError):
    """Slurm shows this user no nodes (PrivateData=nodes); its jobs run all the same."""


class Slurm:
    """The Slurm cluster of this machine, or of SLURM_CONF: its jobs and nodes."""

    _has_short = True
    """Whether squeue knows the options of `jobs`, as far as is known."""

    @staticmethod
    def unavailable() -> str | None:
        """Why Slurm cannot be used here, in one line; None if its commands exist."""
        missing = [p for p in ("srun", "salloc", "sbatch", "scontrol") if shutil.which(p) is None]
        return (
            f"Slurm is not installed: {', '.join(missing)} not found in PATH" if missing else None
        )

    def run(
        self,
        *argv: str,
        text_in: str | None = None,
        env: Mapping[str, str] | None = None,
        with_errors: bool = False,
    ) -> str:
        """Standard output of a command.

        env: the whole environment of a submission, which its job gets; None for `plain_env`.
        with_errors: what it wrote to standard error follows. Raises SlurmError, one line, with the
        command's own message, if it fails, does not exist, or is not over in time.
        """
        program = argv[0]
        try:
            done = subprocess.run(
                argv,
                input=text_in,
                stdin=subprocess.DEVNULL if text_in is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=COMMAND_LIMIT_S,
                check=False,
                env=plain_env(os.environ) if env is None else dict(env),
            )
        except FileNotFoundError:
            raise SlurmError(
                program, 127, "no such command on this machine; install Slurm"
            ) from None
        except OSError as error:
            raise SlurmError(program, 126, f"cannot be run: {error.strerror}") from None
        except subprocess.TimeoutExpired:
            raise SlurmError(program, None, f"no answer in {COMMAND_LIMIT_S:g} s") from None
        if done.returncode != 0:
            raise SlurmError(program, done.returncode, error_line(done.stderr, done.returncode))
        return f"{done.stdout}\n{done.stderr}" if with_errors else done.stdout

    def jobs(self, name: str) -> tuple[JobState, ...]:
        """This user's jobs of this name that Slurm still remembers, including ended ones.

        slurmctld sends only these, as a list of all jobs is long and delays other users.
        """
        which = ("--all", "--states=all", "--me", f"--name={name}", "--noheader")
        try:
            if self._has_short:
                return jobs_from_lines(self.run("squeue", *which, SHORT))
        except SlurmError as error:
            if not any(word in error.text for word in _USAGE):
                raise
            self._has_short = False
        except ClusterError:
            pass
        # Older versions have no --me, or end no field by a separator.
        every = jobs_from_text(self.run("scontrol", "--all", "--oneliner", "show", "job"))
        return tuple(job for job in every if job.name == name)

    def job(self, job_id: int) -> JobState | None:
        """One job; None if Slurm does not know it (any more). Raises ClusterError if Slurm does not
        answer, or prints something else."""
        try:
            text = self.run("scontrol", "--all", "--oneliner", "show", "job", str(job_id))
        except SlurmError as error:
            if any(word in error.text for word in _UNKNOWN_JOB):
                return None
            raise
        for job in jobs_from_text(text):
            if job.job_id == job_id:
                return job
        raise no_job_in(text)

    def nodes(self, names: Iterable[str] = ()) -> tuple[NodeState, ...]:
        """States of these nodes; of all nodes if `names` is empty."""
        which = compress(names, tails=False)  # an argument is limited to 128 KiB
        command = ["scontrol", "--all", "--oneliner", "show", "node"]
        try:
            return nodes_from_text(self.run(*command, *([which] if which else [])))
        except SlurmError as error:
            if _DENIED not in error.text:
                raise
            why = f"{error.text}: Slurm shows this user no nodes (PrivateData=nodes)"
            raise NodesHidden("scontrol", error.returncode, why) from None

    def gpus_beside_requests(self, job_id: int) -> dict[str, int]:
        """GPUs that a job holds without a request for them, as by `--exclusive`, by Slurm's name of
        the node: a step gets them only by a request of its own. {} if Slurm does not say."""
        try:
            text = self.run("scontrol", "--all", "-d", "--oneliner", "show", "job", str(job_id))
        except SlurmError:  # -d may crash where Slurm hides nodes
            return {}
        return unrequested_gpus(text)

    def cancel(self, *job_ids: int) -> None:
        """Cancel jobs; jobs that are over already are no error."""
        if job_ids:
            try:
                self.run("scancel", "--full", *map(str, job_ids))
            except SlurmError as error:
                if not any(word in error.text for word in _UNKNOWN_JOB):
                    raise
