"""Host lists of Slurm, and hostfiles."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.hosts import (
    Host,
    compress,
    expand,
    parse_hosts,
    read_hostfile,
    slots_of,
)


def refusal(read: Callable[[], object]) -> str:
    """The error of a read, which is one short line."""
    with pytest.raises(UsageError) as error:
        read()
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 240
    return str(error.value)


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("node1,login", ["node1", "login"]),
        ("node[08-10,20]", ["node08", "node09", "node10", "node20"]),
        ("a[1-2],b,c[3]", ["a1", "a2", "b", "c3"]),
        ("rack[0-1]n[2-3]", ["rack0n2", "rack0n3", "rack1n2", "rack1n3"]),
        ("gpu-[1-2].example.org", ["gpu-1.example.org", "gpu-2.example.org"]),
        (" node1 , node2 ", ["node1", "node2"]),
        ("node[099-101]", ["node099", "node100", "node101"]),
    ],
)
def test_host_lists_are_read(text: str, hosts: list[str]) -> None:
    assert list(expand(text)) == hosts


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("node[1-3", "'node[1-3': brackets do not match"),
        ("node1]", "brackets do not match"),
        ("n[1[2]]", "brackets do not match"),
        ("node[3-1]", "3-1 runs backwards"),
        ("node[a-b]", r"[a-b]: accepted: numbers and ranges, [01-16,20]"),
        ("node[]", "accepted: numbers and ranges"),
        ("node[1-99999999]", "more than 65536"),
        ("a[0-999]b[0-999]", "more than 65536"),
        ("n[" + "9" * 5000 + "]", "accepted: numbers and ranges, [01-16,20]"),
        ("a b", "' b' is not part of a host name"),
    ],
)
def test_invalid_host_lists_are_refused(text: str, message: str) -> None:
    assert message in refusal(lambda: expand(text))


@given(st.lists(st.integers(0, 999), min_size=1, max_size=30, unique=True))
def test_numbers_keep_order_and_width(numbers: list[int]) -> None:
    text = f"n[{','.join(f'{n:03d}' for n in numbers)}]"
    assert list(expand(text)) == [f"n{n:03d}" for n in numbers]


@pytest.mark.parametrize(
    ("hosts", "text"),
    [
        ([], ""),
        (["node7"], "node7"),
        ([f"node{i}" for i in range(16)], "node[0-15]"),
        (["n08", "n09", "n10", "n12"], "n[08-10,12]"),
        (["n3", "n1", "n2", "login"], "n[1-3],login"),
        (["gpu1.example.org", "gpu2.example.org"], "gpu[1-2].example.org"),
        (["rack0n1", "rack0n2", "rack1n1"], "rack0n[1-2],rack1n1"),
        (["10.0.0.9", "10.0.0.10"], "10.0.0.[9-10]"),
        (["node", "node1", "node01"], "node,node1,node01"),
    ],
)
def test_host_lists_are_written(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text


@given(st.lists(st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z.]?[0-9]{0,11}z?", fullmatch=True)))
def test_written_host_lists_read_back(hosts: list[str]) -> None:
    assert sorted(expand(compress(hosts))) == sorted({host for host in hosts if host})


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node1\n", [("node1", None)]),
        ("node1 slots=8\n\n# all of them\nnode2  slots=4 max_slots=8 # new\n",
         [("node1", 8), ("node2", 4)]),
        ("node[01-03,7] slots=2", [("node01", 2), ("node02", 2), ("node03", 2), ("node7", 2)]),
        ("r[1-2]n[1-2]", [("r1n1", None), ("r1n2", None), ("r2n1", None), ("r2n2", None)]),
        ("10.0.0.1\nfe80::1%eth0\nn1.lab.example.org", [
            ("10.0.0.1", None), ("fe80::1%eth0", None), ("n1.lab.example.org", None)]),
        ("a\nb\na\na\n", [("a", 3), ("b", None)]),
        ("a slots=2\na slots=3", [("a", 5)]),
        ("a slots=4 max-slots=4", [("a", 4)]),
        ("a slots = 4\nb slots= 2", [("a", 4), ("b", 2)]),
        ("[2001:db8::1] slots=8\n2001:db8::2", [("2001:db8::1", 8), ("2001:db8::2", None)]),
        ("ops@[2001:db8::1]", [("2001:db8::1", None)]),
    ],
)  # fmt: skip
def test_hosts_and_slots(text: str, expected: list[tuple[str, int | None]]) -> None:
    assert [(host.name, host.slots) for host in parse_hosts(text, "hosts")] == expected


def test_a_python_of_a_host_may_have_blanks() -> None:
    [host] = parse_hosts("n1 python='/my tools/bin/python'  # it's new", "hosts")
    assert host.python == "/my tools/bin/python"


def test_the_user_and_line_of_a_host() -> None:
    [first, second] = parse_hosts("# x\nroot@n[1-2]\n", "hosts")
    assert first == Host("n1", None, 2, "root")
    assert (first.target, second.target) == ("root@n1", "root@n2")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("n:2222", ["n:2222"]),
        ("n:22", ["n:22"]),
        ("n:8 slots=4", ["n:8"]),
        ("n slots=4 port = 222\nm Slots=4 PORT=222", ["n:222", "m:222"]),
        ("root@10.0.0.1:2222 slots=8\nroot@10.0.0.2:2222 slots=8",
         ["root@10.0.0.1:2222", "root@10.0.0.2:2222"]),
        ("ops@[2001:db8::1]:8", ["ops@[2001:db8::1]:8"]),
        ("2001:db8::1 port=2222", ["[2001:db8::1]:2222"]),
        ("ssh://ops@n:2222", ["ops@n:2222"]),
        ("n[1-2]:2222 slots=8", ["n1:2222", "n2:2222"]),
        ("ops@n[1-2] port=2222", ["ops@n1:2222", "ops@n2:2222"]),
        ("a:2222,b:2223,[::1]:2224", ["a:2222", "b:2223", "[::1]:2224"]),
        ("n:2222\nn:2223\nn:2222", ["n:2222", "n:2223"]),  # two containers of one machine
        ("n user=ops\nm username=eve port=222", ["ops@n", "eve@m:222"]),
    ],
)  # fmt: skip
def test_the_port_of_a_host(text: str, expected: list[str]) -> None:
    assert [host.target for host in parse_hosts(text, "hosts")] == expected


@pytest.mark.parametrize(
    ("text", "arguments"),
    [
        ("root@10.0.0.1:2222", ("-p", "2222", "--", "root@10.0.0.1")),
        ("[::1]:222", ("-p", "222", "--", "::1")),
        ("n", ("--", "n")),
    ],
)
def test_ssh_gets_the_port(text: str, arguments: tuple[str, ...]) -> None:
    assert parse_hosts(text, "hosts")[0].ssh_arguments == arguments


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", " names no host; accepted: host, user@host or node[01-16], then slots=N"),
        ("node1 slots=0", "1: slots=0: accepted: a whole number of 1 or more"),
        ("node1 slots=8x", "1: slots=8x: accepted: a whole number"),
        ("\nnode1 cpus=3", "2: cpus=3: accepted: host, user@host or node[01-16]"),
        ("node1 node2", "1: node2: accepted: host, user@host"),
        ("-oProxyCommand=x", "1: '-oProxyCommand=x' is not a host name"),
        ("a@-b", "1: '-b' is not a host name"),
        ("a;b@c", "1: a;b@c: 'a;b' is not a user name"),
        ("node[1-3", "1: hosts 'node[1-3': brackets do not match"),
        ("node1:8", "1: node1:8: ':8' is not read here; write node1 slots=8"),
        ("node[1-2]:8", "1: node1:8: ':8' is not read here; write node1 slots=8"),
        ("[::1]:0", "1: port 0: accepted: a port, 1 to 65535"),
        ("[x::1]:4", "1: hosts '[x::1]:4': [x::1]: accepted: numbers and ranges"),
        ("node1:65536", "1: port 65536: accepted: a port, 1 to 65535"),
        ("node1 port=ssh", "1: port ssh: accepted: a port, 1 to 65535"),
        ("node1 python=python3", "1: python=python3: accepted: the path of a Python"),
        ("node1 python='/a b", "1: no closing quotation; accepted: host"),
        ("node1:2222 port=222", "1: node1:2222: two ports, 2222 and port=222"),
        ("node1 user=a;b", "1: user=a;b: 'a;b' is not a user name"),
        ("a:b:2222", "1: 'a:b:2222' is not a host name"),
        ("node1:eth0", "1: 'node1:eth0' is not a host name"),
        ("node1 slots=" + "9" * 5000, "1: slots=" + "9" * 51 + "…: accepted: a whole number"),
        ("n[" + "9" * 5000 + "]", "1: hosts 'n[9999"),
        ("node$(reboot)", "1: 'node$(reboot)' is not a host name"),
    ],
)
def test_refused_hostfiles(text: str, message: str) -> None:
    assert refusal(lambda: parse_hosts(text, "hosts")).startswith(f"hosts:{message}")


@pytest.mark.parametrize(
    ("text", "slots"), [("a slots=8\nb slots=4", 4), ("a slots=8\nb", None), ("a", None)]
)
def test_the_fewest_slots_of_any_host(text: str, slots: int | None) -> None:
    assert slots_of(parse_hosts(text, "hosts")) == slots


def test_a_file_of_another_systems_editor(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_bytes("\ufeffa slots=8\r\nb slots=8\r\n".encode())
    assert [host.name for host in read_hostfile(tmp_path / "hosts")] == ["a", "b"]


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="hosts: no such file or directory; accepted: a file"):
        read_hostfile(tmp_path / "hosts")
    (tmp_path / "hosts").write_bytes(b"\xff\xfe")
    with pytest.raises(UsageError, match="hosts: not UTF-8"):
        read_hostfile(tmp_path / "hosts")
