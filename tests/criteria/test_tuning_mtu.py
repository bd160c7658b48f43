"""MTUs that an experiment changes: which interfaces, on which rank, and that each is as before."""

from __future__ import annotations

import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

from pytest_mnode.criteria.tuning import in_ranks
from pytest_mnode.criteria.tuning.experiment import Broken, NotHere
from pytest_mnode.measuring import port_meanwhile
from pytest_mnode.rank.world import World
from tests.inner import need_rack
from tests.measuring.test_port_meanwhile import inside

ON_TOP = """
from types import SimpleNamespace
from pyroute2 import IPRoute
from pytest_mnode.criteria.tuning import in_ranks
from pytest_mnode.measuring.port_meanwhile import mtu_of
from pytest_mnode.rank.world import World

netlink = IPRoute()
netlink.link("add", ifname="fab0", kind="veth", peer="other", mtu=9000)
[below] = netlink.link_lookup(ifname="fab0")
netlink.link("add", ifname="above", kind="bridge")
[above] = netlink.link_lookup(ifname="above")
netlink.link("set", index=below, master=above)
in_ranks.gathered = lambda value: (value,)
world = World(0, 1, 0, 1, "node0", ("node0",))
for mtu, *names in (1500, "fab0", "above"), (1400, "fab0"), (70000, "fab0"):
    fabric = SimpleNamespace(has_interface=names.__contains__, interfaces=names)
    try:
        with in_ranks.with_mtu(SimpleNamespace(fabric=fabric), mtu, world):
            print([mtu_of(name) for name in names])
    except Exception as error:
        print(type(error).__name__, error)
    print([mtu_of(name) for name in names])
"""


def test_each_interface_gets_back_what_it_had() -> None:
    need_rack()
    done = inside(ON_TOP)
    assert done.stdout.splitlines() == [
        *("[1500, 1500]", "[9000, 9000]"),  # the upper one follows the lower one
        *("[1400]", "[9000]"),
        *("NotHere node0: fab0 cannot be set to an MTU of 70000: Invalid argument", "[9000]"),
    ], done.stderr


def spec_of(*names: str) -> Any:
    fabric = SimpleNamespace(has_interface=names.__contains__, interfaces=names)
    return SimpleNamespace(fabric=fabric)


@pytest.mark.parametrize(
    ("now", "boots", "changed", "error"),
    [
        (1500, ("a", "b"), ["lo"], None),
        (1500, ("b", "b"), [], None),  # the first rank of this network does
        (9000, ("a", "b"), ["lo"], Broken),
        (None, ("a", "b"), [], NotHere),
    ],
)
def test_one_rank_of_a_network_changes_it_and_says_what_is_left(
    now: int | None,
    boots: tuple[str, str],
    changed: list[str],
    error: type[Exception] | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The second of two ranks. now: MTU afterwards; None if the interface cannot be read."""
    done, read = list[str](), iter([1500, now])

    def mtu_of(name: str) -> int | None:
        if now is None:
            raise OSError(19, "No such device", name)
        return next(read)

    def gathered(value: Any) -> tuple[Any, ...]:
        other = (boots[0], value[1]) if isinstance(value[1], int) else ("node0", "")
        return (other, value)

    class Port:
        why = ""

        def __init__(self, name: str, *_: object) -> None:
            done.append(name)

        def close(self) -> None:
            """As the real one."""

    monkeypatch.setattr(port_meanwhile, "mtu_of", mtu_of)
    monkeypatch.setattr(in_ranks, "boot_id", lambda: boots[1])
    monkeypatch.setattr(in_ranks, "gathered", gathered)
    monkeypatch.setattr(in_ranks, "Port", Port)
    world = World(1, 2, 0, 1, "node1", ("node0", "node1"))
    if error is None:
        with in_ranks.with_mtu(spec_of("lo"), 9000, world):
            pass
    else:
        with pytest.raises(error, match="node1"), in_ranks.with_mtu(spec_of("lo"), 9000, world):
            pass
    assert done == changed


def test_members_of_a_bond_are_left_to_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = ("bond0", "eth1", "eth0", "docker0")
    monkeypatch.setattr(psutil, "net_if_addrs", lambda: dict.fromkeys(names, ()))
    monkeypatch.setattr(socket, "if_nametoindex", names[::-1].index)
    for name in names:
        (tmp_path / name).mkdir()
    (tmp_path / "eth1" / "master").symlink_to(tmp_path / "bond0")
    assert in_ranks.interfaces(spec_of("bond0", "eth0", "eth1"), tmp_path) == ["eth0", "bond0"]
