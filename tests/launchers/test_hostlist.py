"""Lists of hosts as Slurm writes them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.slurm import compress, expand


@pytest.mark.parametrize(
    ("text", "hosts"),
    [
        ("", []),
        ("node1", ["node1"]),
        ("node1,login", ["node1", "login"]),
        ("node[1-3]", ["node1", "node2", "node3"]),
        ("node[08-10,20]", ["node08", "node09", "node10", "node20"]),
        ("a[1-2],b,c[3]", ["a1", "a2", "b", "c3"]),
        ("rack[0-1]n[2-3]", ["rack0n2", "rack0n3", "rack1n2", "rack1n3"]),
        ("gpu-[1-2].example.org", ["gpu-1.example.org", "gpu-2.example.org"]),
        (" node1 , node2 ", ["node1", "node2"]),
        ("node[099-101]", ["node099", "node100", "node101"]),
    ],
)
def test_reads(text: str, hosts: list[str]) -> None:
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
        ("n[1-" + "9" * 10 + "]", "accepted: numbers and ranges, [01-16,20]"),
        ("a b", "' b' is not part of a host name"),
    ],
)
def test_says_what_cannot_be_read(text: str, message: str) -> None:
    with pytest.raises(UsageError) as error:
        expand(text)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert len(str(error.value)) < 240


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
def test_writes(hosts: list[str], text: str) -> None:
    assert compress(hosts) == text


@given(st.lists(st.from_regex(r"[a-z]{0,2}[0-9]{0,3}[a-z.]?[0-9]{0,11}z?", fullmatch=True)))
def test_what_is_written_reads_back(hosts: list[str]) -> None:
    assert sorted(expand(compress(hosts))) == sorted({host for host in hosts if host})
