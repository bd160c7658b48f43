"""Character devices of RDMA: existing or not, and whether they can be opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.rdma import VerbsDevice, read_verbs
from tests.trees import Tree


def test_each_device_is_opened_and_says_why_it_cannot_be(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    for number in (0, 1, 2, 10):
        tree.write(f"sys/class/infiniband_verbs/uverbs{number}/ibdev", f"mlx5_{number}")
    tree.write("sys/class/infiniband_verbs/abi_version", 6)  # a file that is not a device
    tree.write("dev/infiniband/uverbs0", "")
    tree.link("dev/infiniband/uverbs2", "dev/infiniband/uverbs2")
    (tmp_path / "dev/infiniband/uverbs10").mkdir()
    assert read_verbs(tmp_path) == (
        VerbsDevice("uverbs0", "mlx5_0"),
        VerbsDevice("uverbs1", "mlx5_1", "no such file or directory"),
        VerbsDevice("uverbs2", "mlx5_2", "too many levels of symbolic links"),
        VerbsDevice("uverbs10", "mlx5_10", "is a directory"),
    )


def test_a_device_without_permission_has_that_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tree = Tree(tmp_path)
    tree.write("sys/class/infiniband_verbs/uverbs0/ibdev", "mlx5_0")
    tree.write("dev/infiniband/uverbs0", "")

    real = os.open

    def refuse(path: Path, flags: int) -> int:
        if "infiniband" in path.parts:
            raise PermissionError(1, os.strerror(1))
        return real(path, flags)

    monkeypatch.setattr(os, "open", refuse)
    assert read_verbs(tmp_path) == (VerbsDevice("uverbs0", "mlx5_0", "operation not permitted"),)


def test_no_device_differs_from_an_unreadable_machine(tmp_path: Path) -> None:
    found = Machine.read(tmp_path / "nowhere", ("verbs",))
    assert (found.verbs, found.unread) == (None, {"verbs": "/sys/class cannot be listed"})
    assert Machine.read(Tree(tmp_path).root, ("verbs",)).verbs == ()
