"""A program on the login node that has a Slurm launcher and runs the Python lines it receives."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from tests.engines.inside import environment
from tests.engines.slurm import SlurmOnRack

PROGRAM = """
import json, os, subprocess, sys, tempfile, time
from pathlib import Path
from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.launchers.slurm.launcher import Slurm
from pytest_mnode.errors import MnodeError
from pytest_mnode.protocol.launcher_requests import PowerOff, PowerOn
from pytest_mnode.spec import default_spec_path, load_spec

count, arguments = int(sys.argv[1]), json.loads(sys.argv[2])
run_dir = tempfile.mkdtemp(prefix="mnode-", dir=".")
try:
    spec = load_spec(Path(os.environ.get("SPEC", default_spec_path())))
    remote = RemoteOptions(os.path.abspath(run_dir), Path.cwd())
    left = SlurmBackend().leftovers(f"pytest-mnode-{os.getpid()}")
    launcher = Slurm(count, spec, remote, arguments, leftovers=left)
    launcher.start()
except MnodeError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    sys.exit()
nodes = [[n.name, n.address, n.fabric_address, n.fabric_interface] for n in launcher.nodes]
print(json.dumps({"job": launcher.job_id, "nodes": nodes, "held": launcher.allocation is not None,
                  "shared": str(launcher.shared_dir)}), flush=True)

def run(argv, node=0, **options):
    [command] = launcher.commands([launcher.nodes[node]], argv)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    return done.returncode, done.stdout, done.stderr

begun = []
def begin(argv, node=0):
    [command] = launcher.commands([launcher.nodes[node]], argv)
    quiet = subprocess.DEVNULL
    begun.append(subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet))

lost = []
launcher.watch(lambda *what: lost.append(what))
for line in sys.stdin:
    try:
        print(json.dumps(eval(line)), flush=True)
    except MnodeError as error:
        print(json.dumps(f"{type(error).__name__}: {error}"), flush=True)
launcher.close()
print(json.dumps("closed"), flush=True)
"""


class Controller:
    """A process with a launcher that runs each line of Python it receives.

    words: arguments of the launcher, and a command before it, such as salloc.
    """

    def __init__(
        self,
        slurm: SlurmOnRack,
        directory: Path,
        nodes: int,
        words: tuple[Sequence[str], Sequence[str]] = ((), ()),
        *,
        spec: Path | None = None,
    ) -> None:
        arguments, before = words
        outer = {"MNODE_SITE": "outer", "CI_JOB_TOKEN": "s3", "TMPDIR": "/nowhere", "MINE": "1"}
        env = {"MNODE_MARK": "a b'c", **outer, **({"SPEC": str(spec)} if spec else {})}
        argv = [sys.executable, "-c", PROGRAM, str(nodes), json.dumps(list(arguments))]
        self.process = subprocess.Popen(
            slurm.command(*before, *argv),
            cwd=directory,
            env=environment(slurm, env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.report: Any = self._line()

    def _line(self) -> Any:
        assert self.process.stdout is not None
        return json.loads(self.process.stdout.readline() or '"ended"')

    def __call__(self, expression: str) -> Any:
        assert self.process.stdin is not None
        self.process.stdin.write(expression + "\n")
        self.process.stdin.flush()
        return self._line()

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait(30)
