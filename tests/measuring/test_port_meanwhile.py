"""A port that was taken down comes up again, whoever of those that ran the test is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.measuring.port_meanwhile import why_not
from tests.inner import need_rack

SCRIPT = """
import os, signal, sys, time
from pytest_mnode import processes
from pytest_mnode.launchers.remote import command_process
from pytest_mnode.measuring import port_meanwhile
from pytest_mnode.measuring.port_meanwhile import Port

def child(work):
    pid = os.fork()
    if pid == 0:
        work()
        os._exit(0)
    return pid

def rank():
    port = Port("lo", float(sys.argv[2]), *map(int, sys.argv[4:]))
    os.write(ready, f"{os.getpid()} {port.why}\\n".encode())
    time.sleep(600)

def agent():
    os.setsid()
    child(rank)
    time.sleep(600)

port_meanwhile.set_port("lo", up=True)
processes.adopt_orphans()
read, ready = os.pipe()
pids = {"agent": child(agent)}
said = os.read(read, 100).decode().split()
pids["rank"] = int(said[0])
mtus = [int(word) for word in sys.argv[4:]]

def changed():
    return port_meanwhile.mtu_of("lo") in mtus or not port_meanwhile.is_up("lo")

assert not said[1:] and changed(), said
for word in sys.argv[1].split():
    if word == "cleanup":
        processes.kill_descendants()
    elif word == "remote":  # what ends commands on hosts reached by ssh
        for pid in command_process.descendants(os.getpid()):
            os.kill(pid, signal.SIGKILL)
    elif word == "port":  # its program, which is not among the descendants
        [pid] = [int(p) for p in os.listdir("/proc") if p.isdecimal() and
                 open(f"/proc/{p}/comm").read().strip() == port_meanwhile.NAME]
        os.kill(pid, getattr(signal, sys.argv[3]))
    elif word != "nobody":
        os.kill(pids[word], signal.SIGKILL)
end = time.monotonic() + 20
while changed() and time.monotonic() < end:
    time.sleep(0.01)
print("down" if changed() else "up", port_meanwhile.mtu_of("lo"))
processes.kill_descendants()
"""


@pytest.mark.parametrize(
    ("killed", "seconds", "number"),
    [
        ("rank", "600", ""),
        ("agent rank", "600", ""),
        ("cleanup", "600", ""),  # SIGKILL to all that a clean-up finds
        ("remote", "600", ""),
        ("port", "600", "SIGTERM"),
        ("nobody", "0.2", ""),
    ],
)
@pytest.mark.parametrize("mtu", [(), ("1500",)])
def test_a_port_is_restored_whoever_is_killed(
    killed: str, seconds: str, number: str, mtu: tuple[str, ...]
) -> None:
    need_rack()
    done = inside(SCRIPT, killed, seconds, number, *mtu)
    assert done.stdout.strip() == "up 65536", done.stderr


GONE = """
from pyroute2 import IPRoute
from pytest_mnode.measuring import port_meanwhile

netlink = IPRoute()
netlink.link("add", ifname="here", kind="veth", peer="there")
set_port, port_meanwhile.TRIES_S = port_meanwhile.set_port, 0.1

def down_and_gone(name, *, up):
    set_port(name, up=up)
    netlink.link("del", index=netlink.link_lookup(ifname="here")[0])

port_meanwhile.set_port = lambda name, *, up: (set_port if up else down_and_gone)(name, up=up)
try:
    port_meanwhile.main("here", 0.0)
except OSError as error:
    print(error.strerror)
"""


KILLED = """
import os, signal, time
from pytest_mnode.measuring import port_meanwhile
from pytest_mnode.measuring.port_meanwhile import Port

port_meanwhile.set_port("lo", up=True)
port = Port("lo", 600.0)
for name in filter(str.isdecimal, os.listdir("/proc")):
    if open(f"/proc/{name}/comm").read().strip() == port_meanwhile.NAME:
        os.kill(int(name), signal.SIGKILL)
while not port.ended:
    time.sleep(0.01)
assert not port_meanwhile.is_up("lo")
port.close()
print("up" if port_meanwhile.is_up("lo") else "down", port.why)
"""


def test_the_rank_sets_a_port_up_whose_program_was_killed() -> None:
    need_rack()
    assert inside(KILLED).stdout.strip() == "up lo: its program ended"


def test_a_port_that_is_gone_is_given_up() -> None:
    need_rack()
    assert "No such device" in inside(GONE).stdout


def inside(script: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run a script in a network, and among processes, of its own."""
    alone = ["unshare", "--user", "--map-root-user", "--net", "--pid", "--fork", "--mount-proc"]
    return subprocess.run(
        [*alone, sys.executable, "-c", script, *words],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=Path(__file__).parents[2],
    )


def test_ports_that_must_not_be_taken_down(tmp_path: Path) -> None:
    for name, kind in (("ib0", "32"), ("eth0", "1")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "type").write_text(kind)
    assert "IPoIB" in why_not("ib0", tmp_path)
    assert not why_not("eth0", tmp_path)
