"""Host names of this machine as nodes, and programs that act for sites.

Each node is a UTS namespace of this machine, in which a program of PATH starts commands, as
`blaunch` or `pbsdsh` does on other machines.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import psutil
import pytest

from pytest_mnode.backends import NodeRequest
from pytest_mnode.backends.registry import named
from pytest_mnode.launchers.node import Launcher, Node
from pytest_mnode.launchers.remote.launcher import RemoteOptions
from pytest_mnode.options import Settings
from pytest_mnode.spec import default_spec_path, load_spec
from tests.inner import need
from tests.programs import write_program

SPEC = load_spec(default_spec_path())
LIMIT_S = 60.0
_NAMESPACE = "unshare --user --map-root-user --uts"
# HOST COMMAND…: as rsh, without a shell there.
ONHOST = f"""\
#!/bin/sh
host=$1; shift
exec {_NAMESPACE} sh -c 'hostname "$0"; exec "$@"' "$host" "$@"
"""
# [OPTIONS] HOST TEXT…: as ssh, with a shell there.
RSH = f"""\
#!/bin/sh
while :; do case $1 in -*) shift ;; *) break ;; esac; done
host=$1; shift
exec {_NAMESPACE} sh -c 'hostname "$0"; eval "$*"' "$host" "$@"
"""
# As PBS's: one program for each line of the file, or for the line of a number; no input, no output.
PBSDSH = """\
#!/bin/sh
exec </dev/null >/dev/null 2>&1
only=; if [ "$1" = -n ]; then only=$2; shift 2; fi
shift
number=0
for host in $(cat "$PBS_NODEFILE"); do
    if [ -z "$only" ] || [ "$only" = $number ]; then onhost "$host" "$@" & fi
    number=$((number + 1))
done
wait
"""
BLAUNCH = """\
#!/bin/sh
[ "$1 $2" = "-no-shell -z" ] || exit 9
hosts=$3; shift 3
for host in $hosts; do onhost "$host" "$@" & done
wait
"""
FLUX = """\
#!/bin/sh
case $1 in
getattr) echo 'n[1-3]'; exit ;;
exec) ;;
*) exit 9 ;;
esac
ranks=${2#--rank=}; shift 2
for rank in $(echo $ranks | tr , ' '); do onhost n$((rank + 1)) "$@" & done
wait
"""
PROGRAMS = {"onhost": ONHOST, "rshlike": RSH, "pbsdsh": PBSDSH, "blaunch": BLAUNCH, "flux": FLUX}


@pytest.fixture
def site_programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tried = subprocess.run(
        [*_NAMESPACE.split(), "true"], check=False, capture_output=True, timeout=20
    )
    need(None if tried.returncode == 0 else "user namespaces are not allowed")
    folder = tmp_path / "bin"
    folder.mkdir()
    for name, text in PROGRAMS.items():
        write_program(folder / name, text)
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    (tmp_path / "hosts").write_text("n1\nn2\nn3\n")


Make = Callable[..., Launcher]


@pytest.fixture
def make(tmp_path: Path) -> Iterator[Make]:
    """make(backend, …): an unstarted launcher of two nodes; it is closed afterwards."""
    made = []

    def make(name: str, nodes: int = 2, root: Path = tmp_path, **settings: object) -> Launcher:
        run_dir = tmp_path / "run"
        run_dir.mkdir()
        given = Settings(launcher=name, **settings)  # type: ignore[arg-type]
        remote = RemoteOptions(
            str(run_dir),
            root,
            prologue=str(given.prologue or ""),
        )
        launcher = named(name).launcher(NodeRequest(given, nodes, SPEC, remote))
        launcher.limits = given.limits(nodes)
        made.append(launcher)
        return launcher

    yield make
    for launcher in made:
        launcher.close()


def each(
    launcher: Launcher, shell: str, text: str = "", nodes: Sequence[Node] = ()
) -> list[tuple[int, str, str]]:
    """Status, output and errors of a shell's command on every node."""
    done = [
        subprocess.run(
            command,
            check=False,
            input=text,
            capture_output=True,
            text=True,
            timeout=LIMIT_S,
            env=launcher.env.command(),
        )
        for command in launcher.commands(nodes or launcher.nodes, ["sh", "-c", shell])
    ]
    return [(one.returncode, one.stdout, one.stderr) for one in done]


def programs_of(run: Path) -> list[int]:
    """Pids of this machine whose arguments name a file of the run."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        if any(str(run) in word for word in process.info["cmdline"] or ()):
            found.append(process.pid)
    return found


SITES: dict[str, dict[str, object]] = {
    "exec": {"exec": ("onhost", "{host}")},
    "pbs": {},
    "lsf": {},
    "flux": {},
    "mpi": {},
}
