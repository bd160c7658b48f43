"""Properties of a node of the rack: in all that matters it is a separate machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_mnode.errors import ClusterError, TimeLimitError
from pytest_mnode.faults.tools import on_switch
from pytest_mnode.launchers.rack import Rack
from tests.launchers.on_nodes import output_on, run_on
from tests.waiting import until


def interfaces() -> set[str]:
    return {line.split(":")[0].strip() for line in Path("/proc/net/dev").read_text().splitlines()}


def test_the_host_keeps_its_network_names_and_mounts(rack: Rack) -> None:
    assert not interfaces() & {"fab0", "mgmt0", "fab0-node0"}
    assert "node0" not in Path("/etc/hosts").read_text()
    assert not os.uname().nodename.startswith("node")
    assert "/etc/hosts" not in Path("/proc/self/mountinfo").read_text()


def test_names_resolve_both_ways_on_nodes_and_for_the_agent(rack: Rack) -> None:
    script = (
        "import json, socket\n"
        "def back(a): return socket.getnameinfo((a, 1), socket.NI_NAMEREQD)[0]\n"
        "print(json.dumps([socket.gethostbyname(n) for n in ('node2', 'node2-fab', 'localhost')]"
        " + [back(a) for a in ('10.77.0.3', '::ffff:10.77.0.3', '::ffff:10.78.0.3')]))"
    )
    expected = ["10.77.0.3", "10.78.0.3", "127.0.0.1", "node2", "node2", "node2-fab"]
    argv = [sys.executable, "-c", script]
    assert json.loads(output_on(rack, rack.nodes[0], argv)) == expected
    assert json.loads(on_switch(rack, argv)) == expected


def test_an_unknown_name_fails_without_a_timeout(rack: Rack) -> None:
    script = (
        "import socket\n"
        "try: socket.gethostbyname('no.such.example')\n"
        "except socket.gaierror: print('unknown')\n"
        "lines = open('/etc/resolv.conf').read().splitlines()\n"
        "[server] = [s.split()[1] for s in lines if s.startswith('nameserver')]\n"
        "asked = socket.socket(type=socket.SOCK_DGRAM); asked.settimeout(60)\n"
        "asked.connect((server, 53)); asked.send(b'?')\n"
        "try: asked.recv(1)\n"
        "except ConnectionRefusedError: print('refused')"
    )
    printed = output_on(rack, rack.nodes[0], [sys.executable, "-c", script])
    assert printed.split() == ["unknown", "refused"]


def test_the_hosts_file_can_be_wrong_on_one_node(rack: Rack) -> None:
    one, other, _ = rack.nodes
    before = Path("/etc/hosts").read_bytes()
    output_on(rack, one, ["sh", "-c", "echo 10.77.0.9 node9 >> /etc/hosts"])
    assert "10.77.0.9" in output_on(rack, one, ["getent", "hosts", "node9"])
    assert run_on(rack, other, ["getent", "hosts", "node9"]).returncode != 0
    assert Path("/etc/hosts").read_bytes() == before


def test_shared_memory_is_the_nodes_own_and_limited(rack: Rack) -> None:
    one, other, _ = rack.nodes
    output_on(rack, one, ["sh", "-c", "echo x > /dev/shm/mnode-test"])
    assert output_on(rack, other, ["ls", "/dev/shm"]) == ""
    assert on_switch(rack, ["ls", "/dev/shm"]) == ""
    assert not Path("/dev/shm/mnode-test").exists()
    mounts = output_on(rack, one, ["cat", "/proc/self/mountinfo"]).splitlines()
    assert not [line for line in mounts if " - tmpfs names " in line and " /dev/shm " in line]
    full = run_on(rack, one, ["dd", "if=/dev/zero", "of=/dev/shm/big", "bs=1M", "count=9"])
    assert "No space left" in full.stderr
    output_on(rack, one, ["rm", "/dev/shm/big"])


def test_processes_of_other_nodes_are_invisible(rack: Rack) -> None:
    seen = output_on(rack, rack.nodes[0], ["sh", "-c", "echo $$ /proc/[0-9]*"])
    own, *pids = seen.split()
    assert set(pids) == {"/proc/1", f"/proc/{own}"}


def test_network_counters_under_sys_are_the_nodes_own(rack: Rack) -> None:
    listed = output_on(rack, rack.nodes[0], ["ls", "/sys/class/net"])
    assert listed.split() == ["fab0", "lo", "mgmt0"]
    assert rack.switch_port(rack.nodes[1], "fab0") == "fab0-node1"
    assert "fab0-node1" in on_switch(rack, ["ls", "/sys/class/net"]).split()


def test_cgroups_stay_where_they_were(rack: Rack) -> None:
    cgroups = Path("/sys/fs/cgroup")
    if not cgroups.is_dir():
        pytest.skip("no cgroups here")
    before = {entry.name for entry in cgroups.iterdir()}
    listed = set(output_on(rack, rack.nodes[0], ["ls", str(cgroups)]).split())
    after = {entry.name for entry in cgroups.iterdir()}
    # Other racks, such as another worker's, may create and remove groups at the same time.
    assert before & after <= listed <= before | after


def test_a_node_sees_the_files_of_the_host(rack: Rack, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("from the host")
    script = ["sh", "-c", "cat in; echo from the node > out"]
    assert output_on(rack, rack.nodes[0], script, cwd=tmp_path) == "from the host"
    assert (tmp_path / "out").read_text() == "from the node\n"
    assert (tmp_path / "out").stat().st_uid == os.geteuid()


def test_every_namespace_is_the_nodes_own(rack: Rack) -> None:
    links = [f"/proc/self/ns/{kind}" for kind in ("ipc", "net", "uts", "mnt", "pid")]
    seen = {str(Path(link).readlink()) for link in links}
    for node in rack.nodes:
        seen |= set(output_on(rack, node, ["readlink", *links]).split())
    assert len(seen) == len(links) * (1 + len(rack.nodes))


def test_orphans_are_reaped(rack: Rack) -> None:
    node, script = rack.nodes[0], ["sh", "-c", "(sleep 0.05 &) ; true"]
    output_on(rack, node, script)
    pids = ["sh", "-c", "echo /proc/[0-9]*"]
    until(lambda: len(output_on(rack, node, pids).split()) == 2)


def test_an_agent_enters_nodes_by_their_pids_in_the_rack(rack: Rack) -> None:
    script = (
        "import os, sys\n"
        "from pytest_mnode.machine import namespaces\n"
        "for pid in sys.argv[1:]:\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        namespaces.enter(int(pid))\n"
        "        if not os.fork():\n"
        "            print(os.uname().nodename, os.getcwd(), os.getpid() > 1, flush=True)\n"
        "            os._exit(0)\n"
        "        os.wait(); os._exit(0)\n"
        "    os.waitpid(child, 0)\n"
    )
    pids_in_the_rack = [str(rack.namespace_pid(node)) for node in rack.nodes]
    done = subprocess.run(
        rack.agent_command([sys.executable, "-c", script, *pids_in_the_rack]),
        capture_output=True,
        text=True,
        check=False,
        timeout=20,
    )
    here = Path.cwd()
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{node.name} {here} True" for node in rack.nodes]


def test_a_failed_command_at_the_switch_has_an_error(rack: Rack) -> None:
    with pytest.raises(ClusterError, match="switch: sh failed with status 3: no such port"):
        on_switch(rack, ["sh", "-c", "echo no such port >&2; exit 3"])
    with pytest.raises(TimeLimitError, match=r"switch: sleep took more than 0\.2 s"):
        on_switch(rack, ["sleep", "5"], limit_s=0.2)


def test_a_rootless_rack_maps_root_alone_or_all_users(rack: Rack, mode: str) -> None:
    assert output_on(rack, rack.nodes[0], ["id", "-u"]).strip() == (
        "0" if mode == "rootless" or os.geteuid() == 0 else str(os.geteuid())
    )
    users = output_on(rack, rack.nodes[0], ["readlink", "/proc/self/ns/user"]).strip()
    assert (users == str(Path("/proc/self/ns/user").readlink())) == (mode == "root")
