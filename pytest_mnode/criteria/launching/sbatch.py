"""The submission path of Slurm clusters: batch scripts."""

from __future__ import annotations

import os
import pwd
import shutil
import tempfile
import time
import uuid
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching import login, styles
from pytest_mnode.criteria.launching.contract import CANARY
from pytest_mnode.criteria.launching.direct import Direct, pins_of
from pytest_mnode.criteria.launching.job_file import LaunchJob
from pytest_mnode.criteria.launching.paths import Outcome, Submission, Submitted
from pytest_mnode.criteria.launching.reports import Login, RankReport, read_nodes
from pytest_mnode.errors import UsageError
from pytest_mnode.jobs.slurm.nodes import Names, names_of
from pytest_mnode.jobs.slurm.queued import LOOK_S, Queued, in_queue, never_starts
from pytest_mnode.jobs.slurm.sbatch import Request, script, site_of, submitting, why_not_submitted
from pytest_mnode.launchers.slurm import Slurm
from pytest_mnode.launchers.slurm.nodes import gpus_to_request

if TYPE_CHECKING:
    from pytest_mnode.launchers.nodes import Nodes

_LOST = 128 + 9
"""Exit status of a task that was killed before it wrote one."""


class Sbatch:
    """Submits a script with `--export=NONE`: the job's environment is that of a login on the node
    (HOME, USER, PATH, LANG), Slurm's variables, the site's pins, and the job's own variables.

    The job runs as the user that runs pytest. Slurm chooses the order of the nodes. A job that
    would never start beside the run's own allocation is started directly, with a note.
    """

    name = "sbatch"

    def __init__(self, cluster: Nodes, allocation: int, slurm: Slurm) -> None:
        self._cluster = cluster
        self._allocation = allocation
        self._slurm = slurm

    @property
    def runs_images(self) -> bool:
        return styles.srun_takes_images(self._slurm.run("srun", "--help"))

    def submit(self, job: LaunchJob, nodes: Sequence[str]) -> Submission:
        if job.image is not None and not self.runs_images:
            raise UsageError(
                f"job {job.name}: image {job.image}: srun has no --container-image here (pyxis); "
                "leave image out"
            )
        there = self._slurm.nodes()
        names = names_of(there, nodes, self._cluster.slurm_names)
        request = self._request(job, names, gpus_to_request(int(job.accelerators_per_node), there))
        why = why_not_submitted(request, self._allocation)
        if why:
            note = f"started as steps of allocation {self._allocation}: {why}"
            return Direct(self._cluster, note=note).submit(job, nodes)
        return SbatchSubmission(self._cluster, job, request, names, self._slurm)

    def _request(self, job: LaunchJob, names: Names, gpus: int) -> Request:
        found = self._slurm.run("scontrol", "--oneliner", "show", "job", str(self._allocation))
        tasks = styles.tasks_per_node(job)
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
        self, cluster: Nodes, job: LaunchJob, request: Request, names: Names, slurm: Slurm
    ) -> None:
        self._names = names
        self._job = job
        self._directory = tempfile.TemporaryDirectory(
            prefix="launch-", dir=cluster.scratch, ignore_cleanup_errors=True
        )
        self._files = Path(self._directory.name)
        pins = {name: pins_of(cluster, name, job.env) for name in names.slurm}
        self.submitted = Submitted(
            tuple(names.slurm), pins, _notes(job), styles.ADDED, profile=True
        )
        self._queued = Queued(slurm, names, f"mnode-{uuid.uuid4().hex[:12]}")
        try:
            site = styles.SiteEnvironment(
                _login(cluster),
                {names.slurm[name]: values for name, values in pins.items()},
                self._directory.name,
                job.image is not None,
            )
            task = self._files / "task.sh"
            task.write_text(styles.task_text(job, site))
            output = str(self._files / "slurm.out")
            named = replace(request, name=self._queued.name, output=output)
            text = script(named, styles.batch_lines(job, site, str(task)))
            env = {**submitting(os.environ), CANARY: uuid.uuid4().hex}
            self._began = time.monotonic()
            # --output on the command line wins over the user's SBATCH_ variables.
            self._queued.submit(text, env, [f"--output={output}"])
        except BaseException:
            self.close()
            raise

    def wait(self, timeout_s: float) -> Outcome:
        until = self._began + timeout_s
        while not (in_time := self._over()) and time.monotonic() < until:
            if (state := self._queued.state) is not None and never_starts(state):
                break
            time.sleep(LOOK_S)
        seconds = time.monotonic() - self._began
        waits = in_queue(self._queued.number, self._queued.state)
        nodes = self.submitted.nodes
        codes = {node: self._code(node, in_time) for node in nodes}  # before the job is cancelled
        self._cancel()
        output = {node: self._output(node) for node in nodes}
        self._end()
        reports, _, hosts = read_nodes(output)
        first = {report.node: report for report in reversed(reports)}
        logins = tuple(_user_of(node, first[node]) for node in nodes if node in first)
        return Outcome(codes, reports, logins, hosts, output, seconds, waits)

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
        if failed is None and len(codes) < styles.tasks_per_node(self._job):
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


def _user_of(node: str, report: RankReport) -> Login:
    uid = os.getuid() if report.uid is None else report.uid
    return Login(
        node, uid, login.name_of(uid), "" if uid else "the job runs as its submitter, which is root"
    )
