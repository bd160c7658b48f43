"""The submission path of Slurm clusters: batch scripts, in the queue or in the allocation."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching import login
from pytest_mnode.criteria.launching.contract import CANARY, LOGIN
from pytest_mnode.criteria.launching.direct import pins_of
from pytest_mnode.criteria.launching.paths import NotSubmittedError, Outcome, Submission, Submitted
from pytest_mnode.criteria.launching.reports import Login, RankReport, read_nodes
from pytest_mnode.criteria.launching.slurm import script as batch
from pytest_mnode.criteria.launching.styles import LaunchJob
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.jobs.slurm.nodes import Names, names_of
from pytest_mnode.jobs.slurm.queued import POLL_JOB_S, Queued, in_queue, never_starts
from pytest_mnode.jobs.slurm.sbatch import Request, script, site_of, submitting, why_not_submitted
from pytest_mnode.launchers.cleanup.leftovers import Leftovers
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm.commands import NodesHidden, error_line
from pytest_mnode.launchers.slurm.nodes import gpus_to_request
from pytest_mnode.processes import KILLED_S

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

ROOM = "let the run's allocation leave room on its nodes (docs/launch.md)"
_STEP_END_S = 40.0
"""Slurm ends tasks by SIGTERM, and after its KillWait, 30 s by default, by SIGKILL."""
_LOST = 128 + 9
"""Exit status of a task that was killed before it wrote one."""


class Sbatch:
    """Submits a script with `--export=NONE`: the job's environment is that of a login on the node
    (HOME, USER, PATH, LANG), Slurm's variables, the site's pins, and the job's own variables.

    The job runs as the user that runs pytest. Slurm chooses the order of the nodes. A script that
    would not start beside the run's own allocation runs inside of it, as users run one in salloc:
    its srun starts the tasks as a step, and a note says so.
    """

    name = "sbatch"

    def __init__(
        self, cluster: Nodes, allocation: int, slurm: Slurm, leftovers: Callable[[], Leftovers]
    ) -> None:
        self._cluster = cluster
        self._allocation = allocation
        self._slurm = slurm
        self._leftovers = leftovers

    @property
    def runs_images(self) -> bool:
        return batch.srun_takes_images(self._slurm.run("srun", "--help"))

    def submit(self, job: LaunchJob, nodes: Sequence[str]) -> Submission:
        if job.image is not None and not self.runs_images:
            raise UsageError(
                f"job {job.name}: image {job.image}: srun has no --container-image here (pyxis); "
                "leave image out"
            )
        try:
            there = self._slurm.nodes()
        except NodesHidden as error:
            raise NotSubmittedError(str(error), "run as an operator of Slurm") from None
        names = names_of(there, nodes, self._cluster.job_facts.names)
        request = self._request(job, names, gpus_to_request(int(job.accelerators_per_node), there))
        why = why_not_submitted(request, self._allocation)
        if why:
            held = self._slurm.job(self._allocation)
            order = names.for_run(held.nodes if held else ())
            inside = Names({n: names.slurm[n] for n in order if n in names.slurm}, names.others)
            note = f"srun started it as a step of allocation {self._allocation}: {why}"
            return StepSubmission(self._cluster, job, inside, request.gpus_per_node, note)
        queued = Queued(self._slurm, names, self._leftovers())
        return SbatchSubmission(self._cluster, job, request, names, queued)

    def _request(self, job: LaunchJob, names: Names, gpus: int) -> Request:
        found = self._slurm.run("scontrol", "--oneliner", "show", "job", str(self._allocation))
        tasks = batch.tasks_per_node(job)
        return Request(
            name="mnode",
            nodes=len(names.slurm),
            begin_on=tuple(names.slurm.values()),
            tasks_per_node=tasks,
            cpus_per_task=job.rank_count // tasks or 1,
            gpus_per_node=gpus,
            export="NONE",
            output="/dev/null",
            directory=_home(),
            site=site_of(found),
        )


class SbatchSubmission:
    """A batch script in the queue."""

    def __init__(
        self, cluster: Nodes, job: LaunchJob, request: Request, names: Names, queued: Queued
    ) -> None:
        self._prepare(cluster, job, names)
        self._queued = queued
        try:
            output = str(self._files / "slurm.out")
            named = replace(request, name=self._queued.name, output=output)
            text = script(named, self._lines(cluster, job))
            self._began = time.monotonic()
            # --output on the command line wins over the user's SBATCH_ variables.
            self._queued.submit(text, _environment(), [f"--output={output}"])
        except BaseException:
            self.close()
            raise

    def _prepare(self, cluster: Nodes, job: LaunchJob, names: Names, note: str = "") -> None:
        self._names = names
        self._job = job
        self._directory = tempfile.TemporaryDirectory(
            prefix="launch-", dir=cluster.scratch, ignore_cleanup_errors=True
        )
        self._files = Path(self._directory.name)
        pins = {name: pins_of(cluster, name, job.env) for name in names.slurm}
        notes = (*filter(None, [note]), *_notes(job))
        self.submitted = Submitted(tuple(names.slurm), pins, notes, batch.ADDED, profile=True)

    def _lines(
        self, cluster: Nodes, job: LaunchJob, step: Sequence[str] = (), port: int | None = None
    ) -> list[str]:
        """Lines of the batch script, whose tasks run a script that this writes."""
        site = batch.SiteEnvironment(
            _login(cluster),
            {self._names.slurm[name]: values for name, values in self.submitted.pins.items()},
            self._directory.name,
            job.image is not None,
            step,
            port,
        )
        task = self._files / "task.sh"
        task.write_text(batch.task_text(job, site))
        return batch.batch_lines(job, site, str(task))

    def wait(self, timeout_s: float) -> Outcome:
        until = self._began + timeout_s
        while not (in_time := self._over()) and time.monotonic() < until:
            if (state := self._queued.state) is not None and never_starts(state):
                break
            time.sleep(POLL_JOB_S)
        seconds = time.monotonic() - self._began
        waits = in_queue(self._queued.number, self._queued.state)
        nodes = self.submitted.nodes
        codes = {node: self._code(node, in_time) for node in nodes}  # before the job is cancelled
        self._cancel()
        output = {node: self._output(node) for node in nodes}
        self._end()
        return _outcome(codes, output, seconds, waits)

    def close(self) -> None:
        done = False
        try:
            self._cancel()
            done = True
        finally:
            self._end(done)

    def _over(self) -> bool:
        """Query the job once; False also while Slurm does not answer, as during its restart.

        Slurm's order of the nodes is the order of ranks.
        """
        if not self._queued.answers():
            return False
        state = self._queued.state
        if state is not None and state.nodes:
            self.submitted = replace(self.submitted, nodes=state.nodes)
        return state is None or state.over

    def _cancel(self) -> None:
        self._queued.cancel()
        self._queued.await_end()

    def _end(self, done: bool = True) -> None:
        self._queued.close(done)
        self._directory.cleanup()

    def _code(self, node: str, in_time: bool) -> int | None:
        """The first status of a node's tasks that is not 0; 0 if all tasks succeeded.

        None if no task failed, and some had not ended at the limit.
        """
        texts = [path.read_text().strip() for path in self._of_tasks("code", node)]
        codes = [int(text) for text in texts if text]  # empty if the task was killed while writing
        failed = next((code for code in codes if code), None)
        if failed is None and len(codes) < batch.tasks_per_node(self._job):
            return _LOST if in_time else None
        return failed or 0

    def _output(self, node: str) -> str:
        """Output of a node's tasks; for the first node also that of Slurm and the batch script."""
        paths = self._of_tasks("out", node)
        if node == self.submitted.nodes[0]:
            paths.append(self._files / "slurm.out")
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())

    def _of_tasks(self, what: str, node: str) -> list[Path]:
        """Files of a node's tasks, in task order, and of no node whose name begins alike."""
        begin = f"{what}-{self._names.slurm[node]}-"
        numbers = {
            path: path.name.removeprefix(begin)
            for path in self._files.iterdir()
            if path.name.startswith(begin)
        }
        tasks = [path for path, number in numbers.items() if number.isdecimal()]
        return sorted(tasks, key=lambda path: int(numbers[path]))


class StepSubmission(SbatchSubmission):
    """The batch script, run on this machine inside of the run's allocation.

    names: in Slurm's order. note: why it is not in the queue. Raises NotSubmittedError if Slurm
    starts no step for it.
    """

    def __init__(
        self, cluster: Nodes, job: LaunchJob, names: Names, gpus_per_node: int, note: str
    ) -> None:
        self._why = note
        self._prepare(cluster, job, names, note)
        nodes, count = ",".join(names.slurm.values()), str(len(names.slurm))
        kept = (*sorted(LOGIN), *job.env, "MASTER_ADDR", "MASTER_PORT")
        step = [
            *(f"--jobid={cluster.allocation}", f"--nodes={count}", f"--nodelist={nodes}"),
            *("--overlap", "--mem=0", f"--export={','.join(dict.fromkeys(kept))}", "--quiet"),
            *([f"--gres=gpu:{gpus_per_node}"] if gpus_per_node else []),
        ]
        path = self._files / "job.sh"
        # Of the allocation, the script sees the nodes of its job.
        shown = {
            **dict.fromkeys(("SLURM_JOB_ID", "SLURM_JOBID"), str(cluster.allocation)),
            **dict.fromkeys(("SLURM_JOB_NODELIST", "SLURM_NODELIST"), nodes),
            **dict.fromkeys(("SLURM_JOB_NUM_NODES", "SLURM_NNODES"), count),
        }
        self._program: subprocess.Popen[bytes] | None = None
        try:
            port = cluster.free_port(next(iter(names.slurm)))
            lines = self._lines(cluster, job, step, port)
            path.write_text("\n".join(("#!/bin/sh", *lines)) + "\n")
            self._began = time.monotonic()
            with (self._files / "slurm.out").open("wb") as output:
                self._program = subprocess.Popen(
                    ["sh", str(path)],
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=output,
                    env={**_environment(), **shown},
                    start_new_session=True,  # Ctrl-C must reach only the controller
                )
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> Outcome:
        assert self._program is not None
        until = self._began + timeout_s
        while (code := self._program.poll()) is None and time.monotonic() < until:
            time.sleep(POLL_JOB_S)
        seconds = time.monotonic() - self._began
        nodes = self.submitted.nodes
        codes = {node: self._code(node, code is not None) for node in nodes}
        self._end_step()
        output = {node: self._output(node) for node in nodes}
        if code and not any(self._of_tasks("out", node) for node in nodes):
            last = error_line("".join(output.values()), code)
            raise NotSubmittedError(f"{self._why}; srun: {last}", ROOM)
        self.close()
        return _outcome(codes, output, seconds)

    def close(self) -> None:
        try:
            self._end_step()
        finally:
            self._directory.cleanup()

    def _end_step(self) -> None:
        """End the step: srun ends all of its tasks on SIGTERM. Raises ClusterError if it stays."""
        if (program := self._program) is None or program.poll() is not None:
            return
        for number, limit_s in ((signal.SIGTERM, _STEP_END_S), (signal.SIGKILL, KILLED_S)):
            program.send_signal(number)
            try:
                program.wait(limit_s)
            except subprocess.TimeoutExpired:
                continue
            if number == signal.SIGTERM:
                return
        raise ClusterError(
            f"srun (pid {program.pid}) did not end its step within {_STEP_END_S:g} s"
        )


def _environment() -> dict[str, str]:
    """The submitting environment, which no rank may see."""
    kept = {name: v for name, v in submitting(os.environ).items() if not name.startswith("SRUN_")}
    return {**kept, CANARY: uuid.uuid4().hex}


def _notes(job: LaunchJob) -> tuple[str, ...]:
    if job.style != "deepspeed":
        return ()
    return ("deepspeed's ranks were started by srun, with the variables that its launcher sets",)


def _login(cluster: Nodes) -> dict[str, str]:
    """Variables of a login on a node; the run's Python is first on PATH, as in a venv."""
    slurm = Path(shutil.which("scontrol") or "/usr/bin/scontrol").parent
    folders = (str(Path(cluster.python).parent), "/usr/local/bin", "/usr/bin", "/bin", str(slurm))
    path = os.pathsep.join(dict.fromkeys(folders))
    return {"HOME": _home(), "USER": login.name_of(os.getuid()), "PATH": path, "LANG": "C.UTF-8"}


def _home() -> str:
    try:
        return pwd.getpwuid(os.getuid()).pw_dir
    except KeyError:
        return "/"


def _outcome(
    codes: Mapping[str, int | None], output: Mapping[str, str], seconds: float, waits: str = ""
) -> Outcome:
    reports, _, hosts = read_nodes(output)
    first = {report.node: report for report in reversed(reports)}
    logins = tuple(_user_of(node, first[node]) for node in codes if node in first)
    return Outcome(codes, reports, logins, hosts, output, seconds, waits)


def _user_of(node: str, report: RankReport) -> Login:
    uid = os.getuid() if report.uid is None else report.uid
    return Login(
        node, uid, login.name_of(uid), "" if uid else "the job runs as its submitter, which is root"
    )
