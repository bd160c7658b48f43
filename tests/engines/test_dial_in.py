"""Nodes that dial in: by a real Open MPI, and by a command that carries no input and no output."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.engines.inside import run_pytest
from tests.engines.ssh import SshOnRack
from tests.inner import need_program, write_files
from tests.programs import write_program

RUN = """
    import os
    import torch
    import torch.distributed as dist

    def test_ranks(world, process_group):
        x = torch.ones(1)
        dist.all_reduce(x)
        assert x.item() == world.size == 4

    def test_commands(cluster):
        found = cluster.run(["sh", "-c", "hostname; env | grep -c -e ^OMPI_COMM -e ^PMIX || true"])
        assert [one.stdout.split() for one in found] == [["node0", "0"], ["node1", "0"]]

    def test_job(cluster, tmp_path):
        script = tmp_path / "job.py"
        script.write_text("import os; print('rank', os.environ['RANK'])")
        job = cluster.launch([str(script)])
        assert job.wait(100).ok
        said = "submits no jobs to pbs" in " ".join(str(event) for event in job.events)
        assert said == ("PBS_JOBID" in os.environ)
"""
PBSDSH = """\
#!{python}
import os, shlex, subprocess, sys
words = sys.argv[1:]
only = [int(words[1])] if words[0] == "-n" else None
command = shlex.join(words[words.index("--") + 1:])
hosts = open(os.environ["PBS_NODEFILE"]).read().split()
quiet = subprocess.DEVNULL
started = [
    subprocess.Popen(
        ["ssh", "-F", {config!r}, host, command], stdin=quiet, stdout=quiet, stderr=quiet
    )
    for number, host in enumerate(hosts) if only is None or number in only
]
sys.exit(max(one.wait() for one in started))
"""


PASSED = dict.fromkeys(("test_ranks", "test_commands", "test_job"), "passed")
OPTIONS = ("--mnode-nodes=2", "--mnode-procs-per-node=2")


def test_a_run_over_open_mpi(ssh: SshOnRack, tmp_path: Path) -> None:
    need_program("mpirun", "openmpi-bin")
    write_files(tmp_path, test_run=RUN)
    agent = {"OMPI_MCA_plm_rsh_agent": f"ssh -F {ssh.config}"}
    hostfile = ssh.hostfile(tmp_path)
    run = run_pytest(ssh, tmp_path, "--mnode-launcher=mpi", hostfile, *OPTIONS, env=agent)
    assert run.outcomes() == PASSED, run.output


def test_a_run_inside_of_a_job_of_pbs(ssh: SshOnRack, tmp_path: Path) -> None:
    """The job's own program is `pbsdsh`; here one stands in for it, which is as silent."""
    programs = tmp_path / "bin"
    programs.mkdir()
    text = PBSDSH.format(python=sys.executable, config=str(ssh.config))
    write_program(programs / "pbsdsh", text)
    nodefile = tmp_path / "nodefile"
    nodefile.write_text("node0\nnode0\nnode1\nnode1\n")
    write_files(tmp_path, test_run=RUN)
    job = {"PBS_JOBID": "12.server", "PBS_NODEFILE": str(nodefile)}
    path = f"{programs}:/usr/local/bin:/usr/bin:/bin"
    run = run_pytest(ssh, tmp_path, *OPTIONS, env={**job, "PATH": path})
    assert run.outcomes() == PASSED, run.output
    assert "launcher pbs (inside of PBS job 12.server), 2 nodes" in run.output
