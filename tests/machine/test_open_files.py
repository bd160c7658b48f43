"""Raising the open file limit for a run, or a message that it is too low."""

from __future__ import annotations

import resource
from collections.abc import Iterator

import pytest

from pytest_mnode.errors import ClusterError
from pytest_mnode.machine import open_files

KIND = resource.RLIMIT_NOFILE


@pytest.fixture(autouse=True)
def hard() -> Iterator[int]:
    """This process's hard limit; the soft one is 1024."""
    soft, hard = resource.getrlimit(KIND)
    if hard < 2048:
        pytest.skip(f"nofile is {hard} here")
    resource.setrlimit(KIND, (1024, hard))
    yield hard
    resource.setrlimit(KIND, (soft, hard))


def test_the_limit_is_raised_for_many_ranks(hard: int) -> None:
    before = open_files.allow(128, 8, 1)
    assert before == 1024
    assert resource.getrlimit(KIND) == (hard, hard)
    open_files.give_back(before)
    assert resource.getrlimit(KIND) == (1024, hard)


def test_the_limit_is_unchanged_for_few_ranks(hard: int) -> None:
    before = open_files.allow(4, 8, 4)
    assert before is None
    open_files.give_back(before)
    assert resource.getrlimit(KIND) == (1024, hard)


def test_kept_worlds_count(hard: int) -> None:
    assert open_files.least(64, 8) < 1024 < open_files.most(64, 8, 1)
    assert open_files.allow(64, 8, 1) == 1024


def test_more_than_this_machine_allows_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, 4096))
    open_files.check(384, 8)
    with pytest.raises(ClusterError) as raised:
        open_files.check(385, 8)
    assert str(raised.value) == (
        "385 nodes with 8 ranks each need 4106 open files of this process, and this machine allows "
        "4096 (nofile); raise its hard limit here (ulimit -Hn, /etc/security/limits.conf, "
        "LimitNOFILE=), or use fewer nodes"
    )
    open_files.check(640, 0)
    with pytest.raises(ClusterError, match="641 nodes need 4102 open files of this process"):
        open_files.check(641, 0)
    monkeypatch.setattr(resource, "getrlimit", lambda _: (1024, resource.RLIM_INFINITY))
    open_files.check(100_000, 8)
