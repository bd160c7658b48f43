"""Limits in a page: the values of most nodes, and the nodes that differ."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pytest_mnode.discover.draft import draft
from pytest_mnode.machine.process import Limits
from pytest_mnode.spec import Spec
from tests.discover.made import changed, cluster_of
from tests.discover.test_draft import loaded
from tests.spec.conftest import preflight_of


def limits_of(spec: Spec) -> tuple[int | None, int | str | None, int | None]:
    limits = preflight_of(spec).limits
    return (limits.shm_bytes, limits.memlock_bytes, limits.open_files) if limits else (None,) * 3


def test_the_limits_of_a_broken_node_are_named_and_not_promised(tmp_path: Path) -> None:
    """Otherwise all nodes would be allowed the limits of the worst."""
    broken: dict[str, Any] = {"shm_bytes": 64 << 20, "limits": Limits(64 << 10, 1024)}
    page = draft(changed(cluster_of(count=8), 3, **broken))
    assert limits_of(loaded(page, tmp_path)) == (250 << 30, "unlimited", 65536)
    assert page.differences == (
        "size of /dev/shm (most: 250 GiB): node3: 64 MiB",
        "locked memory (most: unlimited): node3: 64 KiB",
        "open files (most: 65536): node3: 1024",
    )


def test_slightly_different_sizes_of_shared_memory_count_as_one(tmp_path: Path) -> None:
    """It is half of the memory found by the kernel, which differs slightly between nodes."""
    shown = cluster_of(count=4)
    for i, size in enumerate((252 << 30, 250 << 30, (251 << 30) + 4096)):
        shown = changed(shown, i, shm_bytes=size)
    page = draft(changed(shown, 3, shm_bytes=125 << 30))
    assert page.differences == ("size of /dev/shm (most: 250 GiB): node3: 125 GiB",)
    assert limits_of(loaded(page, tmp_path))[0] == 250 << 30


def test_a_node_without_free_space_is_named(tmp_path: Path) -> None:
    none: dict[str, Any] = {"shm_bytes": 4096, "limits": Limits(0, 65536)}
    page = draft(changed(cluster_of(), 1, **none))
    assert limits_of(loaded(page, tmp_path)) == (250 << 30, "unlimited", 65536)
    assert page.differences == (
        "size of /dev/shm (most: 250 GiB): node1: less than 1 MiB",
        "locked memory (most: unlimited): node1: none",
    )


def test_limits_without_a_majority_are_named_and_left_open(tmp_path: Path) -> None:
    other: dict[str, Any] = {"shm_bytes": 64 << 20, "limits": Limits(None, 1024)}
    page = draft(changed(cluster_of(count=2), 1, **other))
    assert limits_of(loaded(page, tmp_path)) == (None, "unlimited", None)
    assert page.differences == (
        "size of /dev/shm: node0: 250 GiB; node1: 64 MiB",
        "open files: node0: 65536; node1: 1024",
    )


def test_a_node_without_a_known_limit_does_not_remove_the_promise(tmp_path: Path) -> None:
    page = draft(changed(cluster_of(), 1, limits=None))
    assert limits_of(loaded(page, tmp_path)) == (250 << 30, "unlimited", 65536)
    assert page.differences == (
        "locked memory (most: unlimited): node1: unknown",
        "open files (most: 65536): node1: unknown",
    )
