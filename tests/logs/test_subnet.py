"""Output of InfiniBand's tools, as infiniband-diags and ibdiagnet write it."""
# ruff: noqa: E501

from __future__ import annotations

import pytest

from pytest_mnode.logs.subnet import (
    adaptive_switches,
    diagnosed,
    link_info,
    net_discovered,
    port_errors,
    subnet_manager,
    switch_name,
)

BY_NODE = """\
ibwarn: [4242] _do_madrpc: send failed; Invalid argument
CA: node1 mlx5_0:
      0x248a0703002e6152     91    1[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      37   12[  ] "MF0;leaf1:MQM9790/U1" ( )
Switch: 0x7cfe900300a5a2a0 MF0;leaf1:MQM9790/U1:
          37   12[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      91    1[  ] "node1 mlx5_0" ( )
          37   13[  ] ==(                Down/ Polling)==>             [  ] "" ( )
          37   14[  ] ==( 2X        106.25 Gbps Active/  LinkUp)==>      92    1[  ] "node2 mlx5_0" ( Could be 4X )
          37   15[  ] ==( 4X           2.5 Gbps Active/  LinkUp)==>      93    1[  ] "node3 mlx5_0" ( Could be 106.25 Gbps)
          37   16[1.2] ==( 4X       106.25 Gbps   Init/  LinkUp)==>      94    1[  ] "node4 mlx5_0" ( )
          37   17[  ] ==( 4X           FDR10 Active/  LinkUp)==>      95    1[  ] "old HCA-1" (  )
          37   18[  ] ==( 4X        106.25 Gb
"""
BY_LINE = """\
0x7cfe900300a5a2a0 "          MF0;leaf1:MQM9790/U1"     37   14[  ] ==( 4X      25.78125 Gbps Active/  LinkUp)==>  0x1c34da0300787798     92    1[  ] "node2 mlx5_0" ( Could be 53.125 Gbps)
0x7cfe900300a5a2a0 "Quantum Mellanox Technologies"     37   40[  ] ==(                Down/Disabled)==>             [  ] "" ( )
"""
DISCOVERED = """\
#
# Topology file: generated on Tue Nov 17 09:12:33 2026
#
# Initiated from node 248a0703002e6152 port 248a0703002e6152

vendid=0x2c9
devid=0xd2f2
sysimgguid=0x7cfe900300a5a2a0
switchguid=0x7cfe900300a5a2a0(7cfe900300a5a2a0)
Switch\t65 "S-7cfe900300a5a2a0"\t\t# "MF0;leaf1:MQM9790/U1" enhanced port 0 lid 37 lmc 0
[12]\t"H-248a0703002e6152"[1](248a0703002e6152) \t\t# "node1 mlx5_0" lid 91 4xNDR
[33]\t"S-7cfe900300a5ffff"[1]\t\t# "MF0;spine1:MQM9790/U1" lid 40 4xNDR

vendid=0x2c9
caguid=0x248a0703002e6152
Ca\t1 "H-248a0703002e6152"\t\t# "node1 mlx5_0"
[1](248a0703002e6152) \t"S-7cfe900300a5a2a0"[12]\t\t# lid 91 lmc 0 "MF0;leaf1:MQM9790/U1" lid 37 4xNDR
"""
ERRORS = """\
Errors for "node1 mlx5_0"
   GUID 0x248a0703002e6152 port 1: [PortXmitWait == 12]
Errors for 0x7cfe900300a5a2a0 "MF0;leaf1:MQM9790/U1"
   GUID 0x7cfe900300a5a2a0 port ALL: [SymbolErrorCounter == 250] [LinkDownedCounter == 3]
   GUID 0x7cfe900300a5a2a0 port 33: [SymbolErrorCounter == 250] [LinkDownedCounter == 3] [PortXmitData == 4188 (16.3KB)]
         Link info:     37   33[  ] ==( 4X        106.25 Gbps Active/  LinkUp)==>      40    1[  ] "MF0;spine1:MQM9790/U1" ( )

## Summary: 16 nodes checked, 2 bad nodes found
##          226 ports checked, 2 ports have errors beyond threshold
## Thresholds:
## Suppressed:
"""
DIAGNOSED = """\
-W- Node NodeInfo: skipped
-E- Link: S7cfe900300a5a2a0/N7cfe900300a5a2a0/P14<-->node2/U1/P1 - Unexpected actual link speed 25
Adaptive Routing is enabled on 3 switches
---------------------------------------------
Summary
-I- Stage                     Warnings   Errors     Comment
-I- Discovery                 3          0
-I- Speed / Width checks      0          1
"""


def test_links_of_each_node() -> None:
    links = [*link_info(BY_NODE)]
    assert [(one.node, one.port, one.peer, one.peer_port) for one in links][:3] == [
        ("node1 mlx5_0", 1, "MF0;leaf1:MQM9790/U1", 12),
        ("MF0;leaf1:MQM9790/U1", 12, "node1 mlx5_0", 1),
        ("MF0;leaf1:MQM9790/U1", 13, "", None),
    ]
    assert links[0].ends == links[1].ends
    assert {one.port: one.fault for one in links if one.fault} == {
        14: "2X 106.25 Gbps, could be 4X",
        15: "4X 2.5 Gbps, could be 106.25 Gbps",
        16: "Init/LinkUp",
    }
    assert len(links) == 7, "a line that is cut is no link"


def test_links_by_line() -> None:
    slow, spare = link_info(BY_LINE)
    assert (slow.fault, spare.fault) == ("4X 25.78125 Gbps, could be 53.125 Gbps", "")
    assert slow.name == "MF0;leaf1:MQM9790/U1 port 14 – node2 mlx5_0 port 1"
    assert (spare.state, spare.phys_state) == ("Down", "Disabled")


def test_links_that_ibnetdiscover_finds() -> None:
    down, up, back = net_discovered(DISCOVERED)
    assert (down.ends, down.width, down.speed) == (back.ends, "4X", "NDR")
    assert (up.peer, up.peer_port) == ("MF0;spine1:MQM9790/U1", 1), "a node that is not listed"
    unnamed = net_discovered(DISCOVERED.replace('# "MF0;spine1:MQM9790/U1" lid 40', "# lid 40"))
    assert [*unnamed][1].peer == "S-7cfe900300a5ffff"
    assert (back.node, back.peer, back.peer_port) == ("node1 mlx5_0", down.node, 12)
    assert switch_name(back.peer) == "leaf1"
    assert switch_name("Quantum Mellanox Technologies") == "Quantum Mellanox Technologies"


def test_counts_of_ports() -> None:
    assert port_errors(ERRORS) == {
        ("node1 mlx5_0", 1, "PortXmitWait"): 12,
        ("MF0;leaf1:MQM9790/U1", 33, "SymbolErrorCounter"): 250,
        ("MF0;leaf1:MQM9790/U1", 33, "LinkDownedCounter"): 3,
        ("MF0;leaf1:MQM9790/U1", 33, "PortXmitData"): 4188,
    }


def test_the_summary_of_ibdiagnet() -> None:
    stages, errors = diagnosed(DIAGNOSED)
    assert stages == {"Discovery": 0, "Speed / Width checks": 1}
    [error] = errors
    assert error.endswith("Unexpected actual link speed 25")
    assert adaptive_switches(DIAGNOSED) == 3


@pytest.mark.parametrize("text", ["", "ibwarn: no such device", "sminfo: sm lid"])
def test_what_says_nothing(text: str) -> None:
    assert subnet_manager(text) is None
    assert ([*link_info(text)], [*net_discovered(text)]) == ([], [])
    assert (port_errors(text), diagnosed(text), adaptive_switches(text)) == ({}, ({}, []), None)
