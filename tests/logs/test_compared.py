"""Values that one node has unlike the others; and those that look odd, and accuse nobody."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from pytest_mnode.logs.aftermath import Found, Left, answer

Culprit = tuple[str, str | None, str | None]
SMI = """\
==============NVSMI LOG==============
GPU 00000000:{at}:00.0
    PCI
        GPU Link Info
            PCIe Generation
                Max                   : 5
                Current               : {gen}
            Link Width
                Max                   : 16x
                Current               : {width}x
    Clocks Event Reasons
        Idle                          : {idle}
        SW Power Cap                  : Active
        HW Slowdown                   : {slowed}
            HW Thermal Slowdown       : {slowed}
    Utilization
        Gpu                           : {busy} %
    Clocks
        SM                            : {mhz} MHz
    Max Clocks
        SM                            : 1980 MHz
"""
GPU: Mapping[str, object] = {
    **{"at": "1A", "gen": 5, "width": 16, "idle": "Not Active", "slowed": "Not Active"},
    **{"busy": 99, "mhz": 1740},
}
AT_REST = {"gen": 1, "idle": "Active", "busy": 0, "mhz": 345}


def smi(change: Mapping[str, object], at: str = "1A") -> str:
    return SMI.format(**{**GPU, "at": at, **change})


def smis(*changes: Mapping[str, object]) -> dict[str, str]:
    """Of nodes with two GPUs each, of which the second one is as usual."""
    return {
        f"elm{n}.nvidia-smi-q": smi(change) + smi({}, "9B") for n, change in enumerate(changes, 3)
    }


HOT = {"slowed": "Active", "mhz": 610}
OF_HOT: Culprit = ("GPU slowed down", "elm4", "00000000:1A:00.0")
NARROW: Culprit = ("PCIe link degraded", "elm4", "00000000:1A:00.0")
AER = [
    f"[{s}.1] nvidia 0000:1a:00.0: PCIe Bus Error: severity=Correctable, type=Physical Layer\n"
    for s in range(30)
]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (smis({}, HOT, {}, {}), OF_HOT),
        (smis({}, {"mhz": 610}, {}, {}), None),  # a power cap
        (smis({}, {"slowed": "Active"}, {}, {}), None),  # at full clock
        (smis(HOT, HOT, HOT, {}), None),  # a hot room
        (smis({}, HOT | {"busy": 0}, {}, {}), None),
        (smis({}, {"width": 8}, {}, {}), NARROW),
        (smis(*[{"width": 8}] * 4), None),
        (smis({}, AT_REST, {}, {}), None),
        (smis({}, {"gen": 3}, {}, {}), None),  # it may have been at rest a moment ago
        ({**smis({}, {"gen": 3}, {}, {}), "elm4-dmesg.txt": "".join(AER)}, NARROW),
        ({**smis({}, {"gen": 3}, {}, {}), "elm4-dmesg.txt": "".join(AER[:3])}, None),
        ({**smis({}, {"gen": 3}, {}, {}), "elm5-dmesg.txt": "".join(AER)}, None),
    ],
)
def test_gpus(files: dict[str, str], expected: Culprit | None) -> None:
    assert culprit(files) == expected


def culprit(files: Mapping[str, str]) -> Culprit | None:
    found: Found | None = answer(Left(files)).cause
    return (found.cause.name, found.cause.host, found.cause.device) if found else None


LSPCI = (
    "17:00.0 3D controller: NVIDIA Corporation GB1 (rev a1)\n"
    "\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16, ASPM L1\n"
    "\t\tLnkSta:\tSpeed {0}GT/s, Width x{1}\n"
    "17:02.0 PCI bridge: Intel Corporation Device 352a\n"
    "\t\tLnkCap:\tPort #2, Speed 32GT/s, Width x16, ASPM L1\n"
    "\t\tLnkSta:\tSpeed 32GT/s, Width x{2}\n"
)
NIC = "".join(
    f"{at}:00.0 Infiniband controller: Mellanox MT2910\n"
    f"\t\tLnkCap:\tPort #0, Speed 32GT/s, Width x16\n\t\tLnkSta:\tSpeed 32GT/s, Width x{width}\n"
    for at, width in (("18", 16), ("3a", 16), ("5d", 16), ("9a", 16), ("c1", "{0}"))
)
PORTS = [("Active", 400, 200), ("Active", 200, 400), ("Active", 400, 200)]
IBSTAT = (
    "CA 'mlx5_2'\n\tPort 1:\n\t\tState: {0}\n\t\tPhysical state: LinkUp\n\t\tRate: {1}\n"
    "CA 'mlx5_8'\n\tPort 1:\n\t\tState: Active\n\t\tPhysical state: LinkUp\n\t\tRate: 100\n"
)
ETHTOOL = (
    "$ ethtool -S ens5np0\nNIC statistics:\n     rx_discards_phy: {1}\n"
    "     rx_crc_errors_phy: {0}\n     link_down_events_phy: 3\n"
)
PERFQUERY = "# node elm{0} mlx5_2 port 1\nPortSelect:......1\nSymbolErrorCounter:......{1}\n"
IP = (
    "1: lo: <LOOPBACK,UP> mtu 65536 qdisc\n2: eno1: <BROADCAST,UP,LOWER_UP> mtu {1} qdisc mq\n"
    "3: ens5np0: <BROADCAST,{2}LOWER_UP> mtu {0} qdisc mq state UP\n"
)
AFFINITY = "pid 71's current affinity list: {0}\npid 72's current affinity list: {1}\n"
LINKS = (
    "Switch: 0x1 MF0;leaf4:MQM9700/U1:\n"
    '  7  1[  ] ==( 4X 106.25 Gbps Active/  LinkUp)==>  21  1[  ] "elm3 mlx5_2" ( )\n'
    '  7  2[  ] ==( {0} 106.25 Gbps Active/  LinkUp)==>  22  1[  ] "elm4 mlx5_2" ( {1})\n'
    '  7  3[  ] ==( 4X 106.25 Gbps Active/  LinkUp)==>  23  1[  ] "elm5 mlx5_2" ( )\n'
    '  7  4[  ] ==(    Down/ Polling)==>  [  ] "" ( )\n'
)


def of_nodes(kind: str, *values: tuple[object, ...]) -> dict[str, str]:
    return {f"elm{n}.facts.txt": kind.format(*one) for n, one in enumerate(values, 3)}


def twice(*counts: tuple[int, int]) -> dict[str, str]:
    """Counters before and after: in files that sort the other way round."""
    return {
        f"{when}/{file}": text
        for at, when in enumerate(("before", "after"))
        for file, text in of_nodes(ETHTOOL, *((of[at], 1) for of in counts)).items()
    }


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (
            of_nodes(LSPCI, (32, 16, 16), (32, 8, 16), (32, 16, 16)),
            ("PCIe link degraded", "elm4", "17:00.0"),
        ),
        (of_nodes(LSPCI, (32, 16, 16), (2.5, 16, 16), (32, 16, 16)), None),
        (
            of_nodes(NIC, *[(16,)] * 2, (8,), *[(16,)] * 2),
            ("PCIe link degraded", "elm5", "c1:00.0"),
        ),
        (of_nodes(NIC, *[(8,)] * 4), None),  # of each node, this slot
        (of_nodes(NIC, (8,)), None),
        (of_nodes(LSPCI, (32, 8, 8), (32, 8, 8), (32, 8, 8)), None),
        (of_nodes(LSPCI, (32, 16, 16), (32, 16, 1), (32, 16, 16)), None),  # an empty slot
        (
            of_nodes(IBSTAT, *[("Active", r) for r in (400, 200, 400)]),
            ("link degraded", "elm4", "mlx5_2"),
        ),
        (of_nodes(IBSTAT, *[("Active", r) for r in (400, 400, 400)]), None),
        (of_nodes(IBSTAT, *[("Active", r) for r in (400, 200)]), None),  # either may be right
        (of_nodes(IBSTAT, ("Active", 400), ("Down", 10), ("Active", 400)), None),
        # Devices of a node have others' names.
        (
            of_nodes(IBSTAT + IBSTAT.replace("mlx5_2", "mlx5_4").replace("{1}", "{2}"), *PORTS),
            None,
        ),
        ({"links": LINKS.format("2X", "Could be 4X")}, ("link degraded", "elm4", "mlx5_2")),
        ({"links": LINKS.format("4X", "")}, None),
        # Counted since the node started, in no one knows how many days.
        (of_nodes(ETHTOOL, (0, 1), (88_123, 1), (2, 1)), None),
        (twice((0, 0), (17, 88_123), (2, 2)), ("link errors", "elm4", "ens5np0")),
        (of_nodes(ETHTOOL, (0, 1), (31, 1), (2, 1)), None),
        (of_nodes(ETHTOOL, (0, 1), (0, 88_123), (2, 1)), None),  # lost for want of buffers
        (of_nodes(ETHTOOL, *[(65_535, 1)] * 3), None),
        # A counter that did not move while the job ran, or was cleared.
        (twice((0, 0), (88_123, 88_123), (2, 2)), None),
        (twice((0, 0), (88_123, 3), (2, 2)), None),
        (of_nodes(ETHTOOL + ETHTOOL, (0, 1), (88_123, 1), (2, 1)), None),
        (
            {
                "perfquery": "".join(
                    PERFQUERY.format(n, c) for n, c in ((3, 0), (4, 31), (5, 4), (4, 931))
                )
            },
            ("link errors", "elm4", "mlx5_2"),
        ),
        (
            of_nodes(IP, *[(m, 1500, "UP,") for m in (9000, 1500, 9000)]),
            ("MTU differs", "elm4", "ens5np0"),
        ),
        (of_nodes(IP, *[(9000, m, "UP,") for m in (1500, 1400, 1500)]), None),  # no large packets
        (of_nodes(IP, (9000, 1500, "UP,"), (1500, 1500, ""), (9000, 1500, "UP,")), None),  # down
        (of_nodes(IP, *[(m, 1500, "UP,") for m in (9000, 1500, 4200)]), None),
        (
            {
                **of_nodes(IP, *[(m, 1500, "UP,") for m in (9000, 1500, 9000)]),
                "a": "elm3:7:8 [0] NCCL INFO Bootstrap : Using eno1:10.0.0.3<0>\n",
            },
            None,
        ),
        (
            {
                "a": "".join(
                    f"elm{n}: 3: ib0: <UP,LOWER_UP> mtu {m} qdisc\n"
                    for n, m in ((3, 4092), (4, 2044), (5, 4092))
                )
            },
            ("MTU differs", "elm4", "ib0"),
        ),
        (
            of_nodes(AFFINITY, *[("0-31", "32-63"), ("0-1", "0-1"), ("0-31", "32-63")]),
            ("fewer CPUs", "elm4", None),
        ),
        # A rank that is listed alone, and binding to as many CPUs.
        (
            {
                **of_nodes("# {0}\n" + AFFINITY.replace("{0}", "0-7"), *[("", "8-31")] * 3),
                "elm4.facts.txt": "pid 9's current affinity list: 0-11\n",
            },
            None,
        ),
        (of_nodes(AFFINITY, *[("0-31", "32-63"), ("0-15", "16-31"), ("0-31", "32-63")]), None),
    ],
)
def test_nodes(files: dict[str, str], expected: Culprit | None) -> None:
    assert culprit(files) == expected


WATCHDOG = (
    "[rank{0}]:[E ProcessGroupNCCL.cpp:616] [Rank {0}] Watchdog caught collective operation "
    "timeout: WorkNCCL(SeqNum=2, OpType=ALLREDUCE, NumelIn=4, NumelOut=4, Timeout(ms)=600000) ran "
    "for 600029 milliseconds before timing out.\n"
)
WAITS = {"job.out": "".join(map(WATCHDOG.format, range(4)))}


MTUS = of_nodes(IP, *[(m, 1500, "UP,") for m in (9000, 1500, 9000)])
OF_MTU: Culprit = ("MTU differs", "elm4", "ens5np0")
RATES = of_nodes(IBSTAT, *[("Active", rate) for rate in (400, 200, 400)])
OF_RATE: Culprit = ("link degraded", "elm4", "mlx5_2")
USES = "elm3:7:8 [0] NCCL INFO {}\n"


def called(name: str, files: Mapping[str, str]) -> dict[str, str]:
    """The same with another name of the odd node."""
    return {file.replace("elm4", name): text for file, text in files.items()}


def of_models(*names: str) -> dict[str, str]:
    """Of GPUs, of which the second one is slowed down."""
    changes: Sequence[Mapping[str, object]] = ({}, HOT, {})
    return {
        f"elm{n}": smi(change).replace("    PCI\n", f"    Product Name : {name}\n    PCI\n")
        for n, (name, change) in enumerate(zip(names, changes, strict=True), 3)
    }


def with_log(files: Mapping[str, str], *lines: str) -> dict[str, str]:
    return {**files, "job.log": "".join(f"{line}\n" for line in lines)}


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        (called("elm9", RATES), ("link degraded", "elm9", "mlx5_2")),
        (called("stor1", RATES), None),
        (called("stor1", MTUS), None),
        (called("login4", of_nodes(AFFINITY, *[(c, c) for c in ("0-9", "0", "0-9", "0-9")])), None),
        # It has another port, too, and so other names of ports.
        (
            {
                **RATES,
                "elm4.facts.txt": RATES["elm4.facts.txt"] + IBSTAT.replace("mlx5", "bnxt_re"),
            },
            None,
        ),
        # Lines name the ports or interfaces that carry data.
        (
            with_log(
                RATES, USES.format("NET/IB : Using [0]mlx5_2:1/IB [RO]; OOB eno1:10.0.0.3<0>")
            ),
            OF_RATE,
        ),
        (
            with_log(
                RATES, USES.format("NET/IB : Using [0]mlx5_8:1/IB [RO]; OOB eno1:10.0.0.3<0>")
            ),
            None,
        ),
        (with_log(MTUS, USES.format("NET/Socket : Using [0]ens5np0:10.0.0.3<0>")), OF_MTU),
        (with_log(MTUS, USES.format("Bootstrap : Using ens5np0:10.0.0.3<0>")), OF_MTU),
        (
            with_log(
                MTUS,
                USES.format("Bootstrap : Using ens5np0:10.0.0.3<0>"),
                USES.format("NET/IB : Using [0]mlx5_2:1/RoCE [RO]; OOB ens5np0:10.0.0.3<0>"),
            ),
            None,
        ),
        (with_log(MTUS, USES.format("Using network Libfabric")), None),
        (with_log(MTUS, "export NCCL_SOCKET_IFNAME=ens5"), OF_MTU),
        (with_log(MTUS, "export NCCL_SOCKET_IFNAME=^docker,lo"), OF_MTU),
        (with_log(MTUS, "export NCCL_SOCKET_IFNAME=ib0"), None),
        # Larger packets than the others send none too large.
        (
            with_log(
                of_nodes(IP, *[(m, 1500, "UP,") for m in (1500, 9000, 1500)]),
                USES.format("NET/Socket : Using [0]ens5np0:10.0.0.3<0>"),
            ),
            None,
        ),
        *(
            ({file: text.replace("ens5np0", name) for file, text in MTUS.items()}, None)
            for name in ("cni0", "vethab12@if2", "docker0", "br-91c2")
        ),
        (
            {file: text.replace("UP,LOWER_UP", "UP") for file, text in MTUS.items()},
            None,
        ),
        # Mended meanwhile, whichever file comes first.
        ({**MTUS, "elm4/after.txt": MTUS["elm3.facts.txt"]}, None),
        ({**MTUS, "elm4/after.txt": MTUS["elm4.facts.txt"]}, OF_MTU),
        # Headings of something else than nodes, unless they say so or a file has this name.
        *(
            (
                {"all": "".join(f"# {what}{n}\n{text}" for n, text in enumerate(MTUS.values()))},
                culprit_,
            )
            for what, culprit_ in (
                *(("test", None), ("gpu", None), ("netns", None)),
                ("node gpu", ("MTU differs", "gpu1", "ens5np0")),
            )
        ),
        (
            {"cn1": "".join(f"# node gpu{n}\n{text}" for n, text in enumerate(MTUS.values()))},
            None,
        ),
        *(
            ({f"{what}{n}.txt": text for n, text in enumerate(MTUS.values())}, None)
            for what in ("day", "slurm-88", "r", "local_rank", "seed", "numa", "tp")
        ),
        # CPUs of ranks and of a daemon.
        *(
            (
                {
                    f"elm{n}": f"Name:\t{name}\nCpus_allowed_list:\t{cpus}\n"
                    for n, (name, cpus) in enumerate((*[("python", "0-63")] * 3, odd))
                },
                culprit_,
            )
            for odd, culprit_ in (
                (("sshd", "0-3"), None),
                (("python", "0-3"), ("fewer CPUs", "elm3", None)),
            )
        ),
        (
            of_nodes(
                "pid {0}'s current affinity list: {1}\n", (1, "0-63"), (1, "0-63"), (81, "0-3")
            ),
            None,
        ),
        # Counters of a port that is down, or that has counted to its end.
        *(
            (
                of_nodes(
                    "CA 'mlx5_2'\n\t\tState: {0}\nPortSelect:.1\nSymbolErrorCounter:.{1}\n"
                    "PortSelect:.1\nSymbolErrorCounter:.{2}\n",
                    *(("Active", 0, 0), (state, 0, count), ("Active", 0, 0)),
                ),
                culprit_,
            )
            for state, count, culprit_ in (
                ("Active", 8_123, ("link errors", "elm4", "mlx5_2")),
                *(("Down", 8_123, None), ("Active", 65_535, None)),
            )
        ),
        # At rest, a link may have fewer lanes, and GPUs of another model another clock.
        (of_nodes(LSPCI, (32, 16, 16), (2.5, 4, 16), (32, 16, 16)), None),
        (smis({}, AT_REST | {"width": 1, "gen": 5}, {}, {}), None),
        (of_models("A1", "A1", "A1"), OF_HOT),
        (of_models("A1", "B1", "A1"), None),
        (with_log(RATES, "Job finished with exit code 0"), None),
    ],
)
def test_what_differs_by_design_or_no_longer_accuses_nobody(
    files: dict[str, str], expected: Culprit | None
) -> None:
    assert culprit(files) == expected


@pytest.mark.parametrize("differ", [MTUS, RATES, twice((0, 0), (17, 88_123), (2, 2))])
@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        (
            ["srun: error: elm5: task 1: Segmentation fault (core dumped)"],
            ("crashed", "elm5", None),
        ),
        (["srun: error: elm5: task 1: Killed"], ("killed", "elm5", None)),
        (
            ["srun: error: elm5: task 1: Exited with exit code 1"],
            ("ended by the launcher", "elm5", None),
        ),
        (
            ["elm3:7:9 [0] NCCL WARN socketProgress: Connection closed by remote peer elm5<4444>"],
            ("connection closed by peer", "elm3", None),
        ),
        (
            ["slurmstepd: error: *** JOB 1 ON elm3 CANCELLED AT 2026-11-30T10:00:00 ***"],
            ("cancelled", None, None),
        ),
        (
            [
                WAITS["job.out"],
                "slurmstepd: error: *** JOB 1 ON elm3 CANCELLED AT 2026-11-30T10:00:00 ***",
            ],
            ("collective timed out", None, None),
        ),
    ],
)
def test_what_a_log_tells_of_a_node_comes_before_what_differs(
    differ: dict[str, str], lines: Sequence[str], expected: Culprit
) -> None:
    found = answer(Left(with_log(differ, *lines)))
    assert found.cause
    assert (found.cause.cause.name, found.cause.cause.host) == expected[:2]
    assert "elm4" in [one.cause.host for one in found.others]


def test_what_is_slow_ends_no_wait_of_minutes() -> None:
    """An MTU does."""
    assert culprit({**RATES, **WAITS}) == ("collective timed out", None, None)
    found = answer(Left({**smis({}, HOT, {}, {}), **WAITS}))
    assert found.cause
    assert found.cause.cause.name == "collective timed out"
    assert [(one.cause.name, one.cause.host) for one in found.others] == [OF_HOT[:2]]
    assert not any("time zone" in line for line in found.missing)
    assert culprit({**MTUS, **WAITS}) == OF_MTU


def test_what_broke_comes_before_what_differs() -> None:
    files = of_nodes(ETHTOOL, (0, 1), (88_123, 1), (2, 1))
    fell = "[81.2] NVRM: Xid (PCI:0000:9b:00): 79, pid=17, GPU has fallen off the bus.\n"
    assert culprit({**files, "elm3/dmesg": fell}) == ("GPU lost", "elm3", "0000:9b:00")
    raised = {"job.log": "[rank1]: KeyError: 'labels'\n"}
    assert culprit({**files, **raised}) == ("Python error", None, None)
    late = {"job.log": "torch.distributed.elastic.rendezvous.api.RendezvousTimeoutError\n"}
    assert culprit({**files, **late}) == ("rendezvous failed", None, None)
    assert culprit({**smis({}, HOT, {}, {}), **late}) == ("rendezvous failed", None, None)
    ended = {"job.log": "Training completed\n"}
    assert culprit({**files, **ended}) is None


@pytest.mark.parametrize(
    ("reports", "expected"),
    [
        ([(3, "10.0.0.4")], ("RDMA peer did not answer", "elm3")),  # of whom nothing tells
        ([(3, "10.0.0.4"), (5, "10.0.0.4")], ("link errors", "elm4")),
        ([(3, "elm4.site"), (5, "elm4.site")], ("link errors", "elm4")),
        ([(4, "elm5")], ("link errors", "elm4")),
        # They do not reach a third one.
        ([(3, "elm5")], ("RDMA peer did not answer", "elm3")),
        ([(3, "elm5"), (4, "elm5")], ("RDMA peer did not answer", "elm3")),
        ([(3, "10.0.0.5"), (4, "10.0.0.5")], ("RDMA peer did not answer", "elm3")),
    ],
)
def test_errors_of_a_link_are_why_a_node_is_not_reached(
    reports: Sequence[tuple[int, str]], expected: tuple[str, str | None]
) -> None:
    files = of_nodes(ETHTOOL, (0, 1), (88_123, 1), (2, 1))
    lost = (
        "elm{0}:7:9 [0] NCCL WARN NET/IB : Got completion from peer {1}<48> with status=12 "
        "opcode=0 len=0 vendor err 129\n"
    )
    found = culprit({**files, "job.log": "".join(lost.format(*one) for one in reports)})
    assert found
    assert found[:2] == expected
