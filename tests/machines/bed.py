"""Guests on a rack: machines with separate kernels, connected to the links of their nodes.

All of it belongs to the rack, and so ends with the process that made it, however that ends.
"""

from __future__ import annotations

import compileall
import functools
import json
import shlex
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import pytest

from pytest_mnode.launchers.rack import Link
from tests.engines import ssh
from tests.engines.on_rack import COMMAND_LIMIT_S
from tests.inner import need
from tests.machines.hardware import TWO_SIDES, Hardware, shares
from tests.machines.image import QEMU, image
from tests.machines.image import unavailable as no_image

FABRIC = Link("fab0", 40.0, 4200)
"""For RoCE packets of 4096 bytes. Software emulation reaches this rate on a busy machine."""
MANAGEMENT = Link("mgmt0", 100.0)
UP_LIMIT_S = 300.0
KVM_LIMIT_S = 30.0
_PROJECT = Path(__file__).parents[2]
_QUEUE_BYTES = 1 << 20
"""More than soft-RoCE sends without an answer: no packet is lost, as on a fabric with flow control.
A lost one costs it all that came behind."""
_GUEST_MAC = 0x80
"""Set in the last but one byte of a guest's: what its node on the rack has is another."""
_EMULATION = "tcg,thread=multi"
_BOARD = "q35,usb=off,smbus=off,sata=off,hpet=off"
_TC = ("tc", "qdisc", "replace", "dev")
_KERNEL = "console=ttyS0 quiet mitigations=off audit=0 panic=-1 tsc=reliable net.ifnames=0"
# Runs on a rack's node: all traffic of its links belongs to the guest.
_CABLE = """\
set -e
for nic in {nics}; do
  link=${{nic#*:}} tap=tap-${{nic%:*}}
  if [ ! -e /sys/class/net/to-$link ]; then
    ip address flush dev $link
    ip link add to-$link type bridge stp_state 0 forward_delay 0 mcast_snooping 0
    ip link set $link master to-$link up
    ip link set to-$link up
  fi
  ip tuntap add dev $tap mode tap
  ip link set $tap mtu $(cat /sys/class/net/$link/mtu) master to-$link up
done
exec "$@"
"""
_GUEST = """\
echo {name} >/proc/sys/kernel/hostname
cp {directory}/hosts /etc/hosts
echo 'hosts: files' >/etc/nsswitch.conf
mount_from() {{
  mkdir -p "$2"
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=$3 "$1" "$2"
}}
{mounts}
modprobe -a rdma_rxe ib_uverbs rdma_ucm
for device in /sys/class/net/eth*; do
  case $(cat $device/address) in
{names}
  esac
done
# A NUMA node whose memory is full of read files drops them, where it would otherwise give a process
# memory of the other node.
echo 5 >/proc/sys/vm/zone_reclaim_mode
# Two NICs hang on one link: each answers for its own address.
echo 1 >/proc/sys/net/ipv4/conf/all/arp_ignore
echo 2 >/proc/sys/net/ipv4/conf/all/arp_announce
{links}
exec /usr/sbin/sshd -D -e -f {directory}/{name}.conf
"""


def unavailable() -> str | None:
    """Why guests cannot run here, in one line; None if they can."""
    return no_image() or ssh.unavailable()


def need_machines() -> None:
    """Skip if guests cannot run here."""
    need(unavailable())


@functools.cache
def accelerator() -> str:
    """The accelerator of guests: KVM if it works, otherwise software emulation.

    Neither the device nor an empty guest shows that KVM works. A kernel without a root file system
    ends QEMU, with KVM within seconds. That is not waited for where the CPU cannot have guests.
    """
    if not {"vmx", "svm"} & set(Path("/proc/cpuinfo").read_text().split()):
        return _EMULATION
    argv = [QEMU, "-nodefaults", "-display", "none", "-no-reboot", "-machine", _BOARD, "-m", "512"]
    argv += ["-accel", "kvm", "-cpu", "host", "-kernel", str(image().kernel)]
    try:
        tried = subprocess.run(
            [*argv, "-append", _KERNEL],
            stdin=subprocess.DEVNULL, capture_output=True, timeout=KVM_LIMIT_S, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return _EMULATION
    return "kvm" if tried.returncode == 0 else _EMULATION


class Machines(ssh.SshOnRack):
    """`with Machines() as machines`: guests node0 …, all reachable by ssh from the login node.

    hardware: of all guests, or one per guest.
    """

    def __init__(self, nodes: int = 2, hardware: Hardware | Sequence[Hardware] = TWO_SIDES) -> None:
        super().__init__(nodes, (FABRIC, MANAGEMENT))
        self.hardware = [hardware] * nodes if isinstance(hardware, Hardware) else list(hardware)
        (self.directory / "hosts").write_text(self.rack.plan.hosts())
        for name in self.names:
            (self.directory / f"{name}.sh").write_text(self._script(name))

    def __enter__(self) -> Machines:
        # Guests cannot write there, and would compile it again in each interpreter.
        compileall.compile_dir(_PROJECT / "pytest_mnode", quiet=2)
        super().__enter__()
        return self

    def guest(self, name: str, script: str, limit_s: float = 60.0) -> str:
        """Output of a shell script on a guest; a failure fails the test."""
        argv = [*self._login(name), f"bash -ec {shlex.quote(script)}"]
        done = self.run(*argv, limit_s=limit_s)
        assert done.returncode == 0, f"{name}: {script}: {done.returncode}: {done.stderr}"
        return done.stdout

    def set_carrier(self, name: str, nic: str, up: bool) -> None:
        """Connect or disconnect the cable of a guest's NIC."""
        self._monitor(name, "set_link", {"name": f"nic-{nic}", "up": up})

    def set_links(self, name: str, up: bool) -> None:
        """See OnRack; the guest loses its carrier."""
        super().set_links(name, up)
        if self._daemons[name].poll() is not None:
            return
        self.set_rate(name, FABRIC.rate_mbit_s)
        for nic in self._hardware(name).nics:
            self.set_carrier(name, nic.name, up)

    def set_rate(self, name: str, rate_mbit_s: float, way: str = "both") -> None:
        """Change the fabric's rate for what a guest sends (tx) and receives (rx),
        without losses.
        """
        queue = f"root handle 1: tbf rate {rate_mbit_s}mbit burst 75000 limit {_QUEUE_BYTES}"
        port = self.rack.switch_port(self.node(name), FABRIC.name)
        ends = {
            "tx": self.command(*_TC, FABRIC.name, *queue.split(), on=name),
            "rx": self.rack.agent_command([*_TC, port, *queue.split()]),
        }
        for end, argv in ends.items():
            if way in ("both", end):
                subprocess.run(argv, check=True, timeout=COMMAND_LIMIT_S)

    def set_rail_rate(self, name: str, nic: str, rate_mbit_s: float | None) -> None:
        """Limit what a guest receives over a NIC that shares its link; None: no limit."""
        queue = f"replace dev tap-{nic} root tbf rate {rate_mbit_s}mbit burst 75000 limit 1m"
        words = f"del dev tap-{nic} root" if rate_mbit_s is None else queue
        argv = self.command("tc", "qdisc", *words.split(), on=name)
        subprocess.run(argv, check=True, timeout=COMMAND_LIMIT_S)

    def _hardware(self, name: str) -> Hardware:
        return self.hardware[self.names.index(name)]

    def _monitor(self, name: str, command: str, arguments: Mapping[str, object]) -> None:
        """Send a command to QEMU's monitor; a refusal fails the test."""
        with socket.socket(socket.AF_UNIX) as monitor, monitor.makefile("rw") as lines:
            monitor.settimeout(10)
            monitor.connect(f"{self.directory}/{name}.qmp")
            for execute, given in (("qmp_capabilities", {}), (command, arguments)):
                lines.write(json.dumps({"execute": execute, "arguments": given}) + "\n")
                lines.flush()
                while "return" not in (answer := json.loads(lines.readline())):
                    assert "error" not in answer, f"{name}: {execute}: {answer}"

    # Starting.

    def start_daemon_of(self, name: str) -> None:
        """Start QEMU in the namespaces of the rack's node."""
        hardware, system = self._hardware(name), image()
        taps = {nic.name: f"tap-{nic.name}" for nic in hardware.nics}
        emulated = accelerator() == _EMULATION
        argv = [
            *(QEMU, "-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"),
            *("-machine", _BOARD, "-accel", accelerator(), "-cpu", "max" if emulated else "host"),
            *("-kernel", str(system.kernel), "-initrd", str(system.initrd)),
            *("-append", f"{_KERNEL} mnode.script={self.directory}/{name}.sh"),
            *("-serial", "stdio", "-qmp", f"unix:{self.directory}/{name}.qmp,server=on,wait=off"),
            *("-drive", f"file={system.root},format=raw,if=none,id=root,readonly=on"),
            *("-device", "virtio-blk-pci,drive=root", "-device", "virtio-rng-pci"),
            *shares([("own", str(self.directory)), *_shared()]),
            *hardware.options(taps, self._macs(name)),
        ]
        self.set_rate(name, FABRIC.rate_mbit_s)
        cable = _CABLE.format(nics=" ".join(f"{nic.name}:{nic.link}" for nic in hardware.nics))
        self.start_daemon(name, self.node(name), ["sh", "-c", cable, "sh", *argv])

    def await_sshd(self, name: str) -> None:
        """Wait until a guest accepts logins and has a connection that commands share."""
        end = time.monotonic() + UP_LIMIT_S
        master, options = f"ssh-{name}", self._login(name)[1:]

        def answers() -> bool:
            asked = (["ssh", "-O", "check", *options], [*self._login(name), "true"])
            return all(self.run(*argv, limit_s=UP_LIMIT_S).returncode == 0 for argv in asked)

        while not answers():
            if self._daemons[name].poll() is not None or time.monotonic() > end:
                tail = self.log(name).read_text(errors="replace")[-2000:]
                pytest.fail(f"guest {name} did not come up: {tail}")
            if master not in self._daemons or self._daemons[master].poll() is not None:
                self.start_daemon(master, self.login, ["ssh", "-M", "-N", *options])
            time.sleep(0.5)

    def _login(self, name: str) -> list[str]:
        """Over the existing connection, if there is one: a new one takes seconds."""
        options = ["-o", "ConnectTimeout=60", "-o", f"ControlPath={self.directory}/{name}.ssh"]
        return ["ssh", "-F", str(self.config), *options, name]

    def _macs(self, name: str) -> dict[str, str]:
        index = self.node(name).index
        macs = {}
        for number, nic in enumerate(self._hardware(name).nics):
            parts = self.rack.plan.mac(index, nic.link).split(":")
            parts[-2] = f"{_GUEST_MAC + number:02x}"
            macs[nic.name] = ":".join(parts)
        return macs

    def _script(self, name: str) -> str:
        """The boot script of a guest."""
        plan, index = self.rack.plan, self.node(name).index
        names = [
            f"    {mac}) ip link set ${{device##*/}} name {nic} ;;"
            for nic, mac in self._macs(name).items()
        ]
        links = list[str]()
        for number, nic in enumerate(self._hardware(name).nics):
            own = f"192.168.{number}.{index + 1}"
            address = own if nic.beside else plan.address(index, nic.name)
            links.append(f"ip address add {address}/24 dev {nic.name}")
            links.append(f"ip link set {nic.name} mtu {plan.link(nic.link).mtu} up")
            if nic.name.startswith("fab"):
                links.append(f"rdma link add rxe{nic.name[3:]} type rxe netdev {nic.name}")
        mounts = [f"mount_from {tag} {shlex.quote(path)} loose" for tag, path in _shared()]
        return _GUEST.format(
            name=name,
            directory=self.directory,
            mounts="\n".join(mounts),
            names="\n".join(names),
            links="\n".join(links),
        )


def _shared() -> list[tuple[str, str]]:
    """This Python, its environment and this project, which guests have at the same paths."""
    wanted = {str(_PROJECT), sys.prefix, sys.base_prefix} - {"/usr", "/"}
    outer = sorted(
        path
        for path in wanted
        if not any(path != other and Path(path).is_relative_to(other) for other in wanted)
    )
    return [(f"share{number}", path) for number, path in enumerate(outer)]


@pytest.fixture(scope="session")
def machines_once() -> Iterator[Machines]:
    """One set of guests for all tests; tests take `machines`, which is reset for each."""
    need_machines()
    with Machines() as machines:
        yield machines


@pytest.fixture
def machines(machines_once: Machines) -> Iterator[Machines]:
    """Healthy guests; links and power that a test broke are restored after it."""
    yield machines_once
    machines_once.clear()
