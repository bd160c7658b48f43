"""The Slurm launcher by itself: nodes, commands as steps, an allocation asked for and given back.

No rank is started here. Controllers are small programs on the login node.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.engines.inside import environment, spec_for
from tests.engines.slurm import SlurmOnRack

PROGRAM = """
import json, os, subprocess, sys, tempfile, time
from pathlib import Path
from pytest_mnode.cluster.slurm import Slurm
from pytest_mnode.errors import MnodeError
from pytest_mnode.spec import default_spec_path, load_spec

count, arguments = int(sys.argv[1]), json.loads(sys.argv[2])
run_dir = tempfile.mkdtemp(prefix="mnode-", dir=".")
try:
    spec = load_spec(Path(os.environ.get("SPEC", default_spec_path())))
    launcher = Slurm(count, spec, arguments,
                     run_dir=os.path.abspath(run_dir), root=Path.cwd())
    launcher.start()
except MnodeError as error:
    print(json.dumps({"error": f"{type(error).__name__}: {error}"}), flush=True)
    sys.exit()
nodes = [[n.name, n.address, n.fabric_address, n.fabric_interface] for n in launcher.nodes]
print(json.dumps({"job": launcher.job_id, "nodes": nodes, "held": launcher.held,
                  "shared": str(launcher.shared_dir)}), flush=True)

def run(argv, node=0, **options):
    [command] = launcher.commands([launcher.nodes[node]], argv)
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, **options)
    return done.returncode, done.stdout, done.stderr

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
    """A process that has a launcher and does what it is told, a line of Python each.

    words: the launcher's arguments, and a command around it, such as salloc.
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
        env = {"MARK": "a b'c", **({"SPEC": str(spec)} if spec else {})}
        argv = [sys.executable, "-c", PROGRAM, str(nodes), json.dumps(list(arguments))]
        self.process = subprocess.Popen(
            slurm.command(*before, *argv),
            cwd=directory,
            env=environment(slurm, env),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.told: Any = self._line()

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

    def kill(self, number: signal.Signals = signal.SIGKILL) -> None:
        self.process.send_signal(number)
        self.process.wait(30)  # its input stays open: it is to end by the signal
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            stream.close()


def hidden(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir() if "mnode-" in path.name]


def test_an_allocation_of_its_own(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """Nodes by their own names and addresses; commands with streams, environment and status."""
    controller = Controller(slurm, tmp_path, 2, (["--partition=all", "--time=5"], []))
    assert controller.told.get("held") is True, controller.told
    assert controller.told["nodes"] == [
        ["node0", "10.77.0.1", "10.78.0.1", "fab0"],
        ["node1", "10.77.0.2", "10.78.0.2", "fab0"],
    ]
    [job] = slurm.queue()
    assert (job.job_id, job.state, job.nodes) == (
        controller.told["job"],
        "RUNNING",
        ("node0", "node1"),
    )
    assert job.name.startswith("pytest-mnode-")
    assert Path(controller.told["shared"]).parent == tmp_path

    status, out, err = controller(
        'run(["sh", "-c", "hostname; pwd; echo $MARK; cat; echo bad >&2; exit 3"], 1, input="in")'
    )
    assert (status, err) == (3, "bad\n")
    assert out == f"node1\n{tmp_path}\na b'c\nin"
    assert controller('run(["sh", "-c", "kill -9 $$"])')[0] == 137
    assert controller('run(["no-such-program"])')[0] == 127
    # All that the job has of the node, not one CPU.
    assert controller('run(["nproc"])')[1] == controller("str(os.cpu_count()) + chr(10)")

    controller.close()
    slurm.await_that(lambda: not slurm.queue(), 5, "the allocation is given back")
    assert not Path(controller.told["shared"]).exists()
    slurm.await_idle(5)


def test_a_surrounding_allocation_is_used_and_left_alone(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    controller = Controller(slurm, tmp_path, 2, ([], ["salloc", "--nodes=3", "--exclusive"]))
    assert controller.told["held"] is False
    assert [node[0] for node in controller.told["nodes"]] == ["node0", "node1"]
    [job] = slurm.queue()
    assert job.job_id == controller.told["job"]
    assert controller("launcher.close()") is None
    assert [job.state for job in slurm.queue()] == ["RUNNING"]
    controller.close()


INSIDE = ["salloc", "--nodes=2", "--exclusive", "--quiet"]


@pytest.mark.parametrize(
    ("nodes", "words", "told"),
    [
        (3, ([], INSIDE),
         "3 nodes asked for, and allocation {job} has 2: node0, node1; missing: 1; allocate them "
         "with --nodes=3"),
        (2, (["-pgpu"], INSIDE),
         "UsageError: --mnode-slurm-args=-pgpu: this is inside of allocation {job} already"),
        (2, (["--partition=gpu"], []), "ClusterError: slurm: no 2 nodes: "),
        (2, (["--no-shell"], []), "UsageError: --mnode-slurm-args: --no-shell: "),
    ],
    ids=["too few", "arguments inside", "no such partition", "no shell"],
)  # fmt: skip
def test_what_cannot_be_had_is_said_in_one_line(
    slurm: SlurmOnRack,
    tmp_path: Path,
    nodes: int,
    words: tuple[list[str], list[str]],
    told: str,
) -> None:
    controller = Controller(slurm, tmp_path, nodes, words)
    controller.close()
    assert (
        told.replace("{job}", str(max(j.job_id for j in slurm.jobs()))) in controller.told["error"]
    )
    assert "\n" not in controller.told["error"]
    assert slurm.queue() == []


def test_nodes_that_are_down_are_named_and_not_waited_for(
    slurm: SlurmOnRack, tmp_path: Path
) -> None:
    slurm.down("node2", "broken fan")
    controller = Controller(slurm, tmp_path, 4)
    controller.close()
    assert controller.told["error"] == (
        "ClusterError: slurm: 4 nodes asked for: partition all has 3 usable of 4 nodes; "
        "missing: node2 (DOWN: broken fan)"
    )
    assert slurm.queue() == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_controller_that_is_ended_leaves_nothing(
    slurm: SlurmOnRack, tmp_path: Path, number: signal.Signals
) -> None:
    controller = Controller(slurm, tmp_path, 2)
    left = tmp_path / "left"
    script = f"echo $$ >{left}; sleep 300 & sleep 300"
    assert controller(
        f'subprocess.Popen(launcher.commands(launcher.nodes[:1], ["sh", "-c", {script!r}])[0]).pid'
    )
    slurm.await_that(left.exists, 10, "the command runs")
    controller.kill(number)
    slurm.await_that(lambda: not slurm.queue(), 20, "the allocation is given back")
    slurm.await_that(lambda: hidden(tmp_path) == [], 20, f"removed: {hidden(tmp_path)}")
    ended = slurm.run("sh", "-c", "pgrep -x sleep", on="node0", check=False)
    assert ended.stdout == ""
    slurm.await_idle(10)


def test_a_request_that_waits_is_withdrawn(slurm: SlurmOnRack, tmp_path: Path) -> None:
    busy = slurm.start(
        "srun", "--nodes=4", "--exclusive", "sleep", "300", stderr=subprocess.DEVNULL
    )
    slurm.await_that(lambda: len(slurm.queue()) == 1, 10, "all nodes are busy")
    waiting = slurm.start(
        sys.executable, "-c", PROGRAM, "2", "[]", cwd=tmp_path, stdin=subprocess.PIPE
    )
    slurm.await_that(lambda: len(slurm.queue()) == 2, 10, "the request waits")
    waiting.kill()
    slurm.await_that(lambda: len(slurm.queue()) == 1, 10, "the request is withdrawn")
    busy.kill()
    waiting.communicate()
    busy.wait()


def test_a_node_that_slurm_gives_up_is_named(slurm: SlurmOnRack, tmp_path: Path) -> None:
    controller = Controller(slurm, tmp_path, 3)
    slurm.down("node1", "broken fan")
    slurm.await_that(lambda: bool(controller("lost")), 15, "the loss is told")
    assert controller("lost") == [["node1", "Slurm says DOWN: broken fan"]]
    assert controller('run(["hostname"], 2)') == [0, "node2\n", ""]
    assert controller('run(["true"], 1)') == (
        "NodeLostError: node1 is not there: Slurm says DOWN: broken fan"
    )
    slurm.run("scancel", str(controller.told["job"]))
    slurm.await_that(lambda: len(controller("lost")) == 3, 15, "the loss of all is told")
    assert "ended" in controller("lost")[-1][1]
    controller.close()


def test_a_node_is_switched_off_and_on(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """It is used again, unless Slurm has given it up meanwhile."""
    spec_for(slurm, tmp_path, "slurm")
    controller = Controller(slurm, tmp_path, 2, spec=tmp_path / "spec.yaml")
    node1 = "launcher.nodes[1]"
    assert controller(f"launcher.power_off({node1})") is None
    assert controller('run(["true"], 1)') == "NodeLostError: node1 is not there: powered off"
    assert controller(f"launcher.power_on({node1})") is None
    assert controller('run(["hostname"], 1)') == [0, "node1\n", ""]
    assert controller("lost") == []

    controller(f"launcher.power_off({node1})")
    slurm.down("node1", "it was away for long")
    told = controller(f"launcher.power_on({node1})")
    assert told.startswith("ClusterError: node1 was down for so long that Slurm took it out of "), (
        told
    )
    controller.close()


def test_slurmd_is_killed(slurm: SlurmOnRack, tmp_path: Path) -> None:
    """What runs goes on; what is to be started says why it is not, with the node's name."""
    controller = Controller(slurm, tmp_path, 2)
    slurm.kill_slurmd("node1")
    status, out, err = controller('run(["true"], 1)')
    assert (status, out) == (255, "")
    assert err == "node1: srun: Application launch failed: Communication connection failure\n"
    assert controller('run(["hostname"], 0)') == [0, "node0\n", ""]
    controller.close()
    # Slurm holds on to a node until it hears that everything of the job has ended there.
    slurm.await_that(
        lambda: [job.state for job in slurm.queue()] in ([], ["COMPLETING"]), 10, "it is given back"
    )
