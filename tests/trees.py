"""Composed trees of /sys of unrecorded machines, following the kernel's documentation."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

SWITCH_PORT, GPU, NIC, IB_NIC, VGA = "0x060400", "0x030200", "0x020000", "0x020700", "0x030000"
NVIDIA, MELLANOX, AMAZON, ASPEED = "0x10de", "0x15b3", "0x1d0f", "0x1a03"


class Tree:
    """A machine below a root: add parts to it, then point a reader at `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root
        (root / "sys/class/net").mkdir(parents=True, exist_ok=True)

    def write(self, path: str, text: str | int) -> None:
        """One attribute, with the kernel's newline at its end."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(f"{text}\n")

    def link(self, path: str, target: str) -> None:
        """A link from `path` to `target`, both below the root, relative as in /sys."""
        file = self.root / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.symlink_to("/".join([".."] * (len(Path(path).parts) - 1) + [target]))

    def numa(self, cpus: Mapping[int, str], memory_kb: int = 1 << 20, far: int = 32) -> None:
        """NUMA nodes by number with their CPU lists; distances are 10 and `far`."""
        listed = ",".join(map(str, cpus))
        self.write("sys/devices/system/node/online", listed)
        for number, cpulist in cpus.items():
            folder = f"sys/devices/system/node/node{number}"
            self.write(f"{folder}/cpulist", cpulist)
            row = " ".join("10" if other == number else str(far) for other in cpus)
            self.write(f"{folder}/distance", row)
            self.write(f"{folder}/meminfo", f"Node {number} MemTotal:  {memory_kb} kB")

    def cpus(self, packages: Iterable[Iterable[tuple[int, ...]]], isolated: str = "") -> None:
        """Cores by socket, each as a list of the CPUs of its threads."""
        folder, every = "sys/devices/system/cpu", list[int]()
        for package, cores in enumerate(packages):
            for core, threads in enumerate(cores):
                for cpu in threads:
                    every.append(cpu)
                    topology = f"{folder}/cpu{cpu}/topology"
                    self.write(f"{topology}/physical_package_id", package)
                    self.write(f"{topology}/core_id", core)
                    siblings = ",".join(map(str, threads))
                    self.write(f"{topology}/thread_siblings_list", siblings)
        listed = ",".join(map(str, sorted(every)))
        for name in ("online", "possible", "present"):
            self.write(f"{folder}/{name}", listed)
        self.write(f"{folder}/isolated", isolated)

    def pci(
        self, path: str, kind: str, vendor: str, numa: int = -1, cpus: str = "", **more: str | int
    ) -> str:
        """A function at `path` below sys/devices, such as pci0000:10/0000:10:01.0; its address."""
        address = path.rpartition("/")[2]
        files: dict[str, str | int] = {"class": kind, "vendor": vendor, "device": "0x0001"}
        files |= {"numa_node": numa, "local_cpulist": cpus}
        for name, text in {**files, **more}.items():
            self.write(f"sys/devices/{path}/{name}", text)
        self.link(f"sys/bus/pci/devices/{address}", f"sys/devices/{path}")
        return address

    def interface(self, name: str, on: str | None = None, **attributes: str | int) -> None:
        """A network interface, on a device's path below sys/devices or virtual."""
        folder = f"sys/devices/{on}/net/{name}" if on else f"sys/devices/virtual/net/{name}"
        files: dict[str, str | int] = {"operstate": "up", "carrier": 1, "flags": "0x1003"}
        files |= {"mtu": 1500, "type": 1}
        for attribute, text in {**files, **attributes}.items():
            self.write(f"{folder}/{attribute}", text)
        if on:
            self.link(f"{folder}/device", f"sys/devices/{on}")
        self.link(f"sys/class/net/{name}", folder)

    def rdma(
        self,
        name: str,
        on: str,
        counters: Mapping[str, int] | None = None,
        hw_counters: Mapping[str, int] | None = None,
        gids: Iterable[tuple[str, str, str]] = (),
        *,
        node_type: str = "1: CA",
        sys_image_guid: str = "",
        **attributes: str,
    ) -> None:
        """An RDMA device with one port on a device's path. gids: GID, type, interface."""
        folder = f"sys/devices/{on}/infiniband/{name}"
        files = {"state": "4: ACTIVE", "phys_state": "5: LinkUp", "rate": "400 Gb/sec (4X NDR)"}
        files |= {"link_layer": "InfiniBand", "lid": "0x1a", "sm_lid": "0x1"}
        for attribute, text in {**files, **attributes}.items():
            self.write(f"{folder}/ports/1/{attribute}", text)
        self.write(f"{folder}/node_type", node_type)
        self.write(f"{folder}/sys_image_guid", sys_image_guid)
        for kind, values in (("counters", counters), ("hw_counters", hw_counters)):
            for counter, value in (values or {}).items():
                self.write(f"{folder}/ports/1/{kind}/{counter}", value)
        (self.root / folder / "ports/1/gids").mkdir(parents=True)
        for index, (gid, kind, netdev) in enumerate(gids):
            self.write(f"{folder}/ports/1/gids/{index}", gid)
            if netdev:
                self.write(f"{folder}/ports/1/gid_attrs/types/{index}", kind)
                self.write(f"{folder}/ports/1/gid_attrs/ndevs/{index}", netdev)
        self.link(f"{folder}/device", f"sys/devices/{on}")
        self.link(f"sys/class/infiniband/{name}", folder)


def gpu_server(root: Path) -> Tree:
    """Two sockets of 16 cores with 2 threads each; 8 GPUs, each behind a switch with a NIC.

    GPU i and mlx5_i are below switch i; switches 0 to 3 are on socket 0, two per host bridge. A
    management NIC is on a separate host bridge on socket 0. A display controller is on the board.
    """
    tree = Tree(root)
    tree.cpus([[(c, c + 32) for c in range(s * 16, s * 16 + 16)] for s in (0, 1)])
    lists = {0: "0-15,32-47", 1: "16-31,48-63"}
    tree.numa(lists)
    for switch in range(8):
        socket, bus = switch // 4, 0x10 + (switch // 2) * 0x20
        on = (socket, lists[socket])
        host = f"pci0000:{bus:02x}/0000:{bus:02x}:{switch % 2 + 1:02x}.0"
        up = bus + 1 + (switch % 2) * 8
        tree.pci(host, SWITCH_PORT, "0x8086", *on)
        tree.pci(f"{host}/0000:{up:02x}:00.0", SWITCH_PORT, "0x1000", *on)
        ports = [f"{host}/0000:{up:02x}:00.0/0000:{up + 1:02x}:0{i}.0" for i in (0, 1)]
        for port in ports:
            tree.pci(port, SWITCH_PORT, "0x1000", *on)
        tree.pci(f"{ports[0]}/0000:{up + 2:02x}:00.0", GPU, NVIDIA, *on)
        nic = f"{ports[1]}/0000:{up + 3:02x}:00.0"
        tree.pci(nic, IB_NIC, MELLANOX, *on)
        tree.interface(f"ib{switch}", nic, type=32, mtu=4092, speed=400000)
        tree.rdma(f"mlx5_{switch}", nic)
    tree.pci("pci0000:00/0000:00:1c.0", VGA, ASPEED, 0, lists[0])
    management = "pci0000:00/0000:00:1d.0"
    tree.pci(management, NIC, "0x8086", 0, lists[0])
    tree.interface("eno1", management, speed=1000)
    return tree


def gpu_address(gpu: int) -> str:
    """PCI address of a GPU of `gpu_server`."""
    return f"0000:{0x10 + (gpu // 2) * 0x20 + 1 + (gpu % 2) * 8 + 2:02x}:00.0"
