"""Nodes that are usable one by one, but not together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.launchers.remote.check_distinct import check_distinct
from pytest_mnode.launchers.remote.node_report import NodeReport
from tests.launchers.remote.test_node_report import WELL

ONE = replace(WELL, boot="b1")
TWO = replace(WELL, hostname="n2", boot="b2")
FAR = {"a": "10.7.0.1", "b": "10.7.0.2"}


def test_distinct_nodes_pass() -> None:
    assert check_distinct({"a": ONE, "b": TWO}, FAR) == {}
    # The rack's nodes share one kernel and have different names.
    assert check_distinct({"a": ONE, "b": replace(TWO, boot="b1")}, FAR) == {}


@pytest.mark.parametrize(
    ("boot", "line"),
    [
        ("b1", "it is the same machine as a: n1"),
        ("b2", "its host name n1 is also a's; give each machine a unique name"),
        (None, "its host name n1 is also a's: the same machine, or a duplicate name"),
    ],
)
def test_nodes_with_the_same_name(boot: str | None, line: str) -> None:
    assert check_distinct({"a": ONE, "b": replace(ONE, boot=boot)}, FAR) == {"b": line}


LOOPBACK = "127.0.0.1 127.0.1.1 ::1 ::ffff:127.0.0.1 localhost localhost.localdomain localhost6"


@pytest.mark.parametrize("address", LOOPBACK.split())
def test_an_address_that_others_cannot_use(address: str) -> None:
    [(node, why)] = check_distinct({"a": ONE, "b": TWO}, FAR | {"a": address}).items()
    assert node == "a"
    assert why.startswith(f"its address {address} is a loopback address; name it by")
    assert check_distinct({"a": ONE}, {"a": address}) == {}


@pytest.mark.parametrize("others", [{}, {"b": TWO}], ids=["alone", "among others"])
def test_an_address_valid_on_one_link_only(others: dict[str, NodeReport]) -> None:
    [(node, why)] = check_distinct({"a": ONE} | others, FAR | {"a": "fe80::1"}).items()
    assert node == "a"
    assert why.startswith("its address fe80::1 is link-local and needs a scope id")
    # For example two machines connected by one cable.
    assert check_distinct({"a": ONE} | others, FAR | {"a": "169.254.3.1"}) == {}


def test_an_address_shared_by_several_nodes() -> None:
    """Like guests behind a NAT, which all have the same inner address."""
    [(node, why)] = check_distinct({"a": ONE, "b": TWO}, dict.fromkeys(FAR, "10.0.2.15")).items()
    assert node == "b"
    assert why.startswith("its address 10.0.2.15 is also a's; ranks need an address of this node")
