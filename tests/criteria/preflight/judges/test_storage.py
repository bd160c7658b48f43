"""Judges of storage paths: usable, shared, and with the same files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from pytest_mnode.checks.node.environment import TemporaryFilesCanBeWritten
from pytest_mnode.checks.node.storage import DatasetsAreTheSame, StorageCanBeUsed, StorageIsShared
from pytest_mnode.criteria.preflight.answers import Sample, Survey, Token, TokenSeen
from tests.criteria.preflight.made import (
    Judge,
    asked,
    culprits,
    directory,
    everyone,
    healthy,
    promising,
    silent,
    verdicts,
    with_facts,
    with_path_facts,
)


def _stored() -> Survey:
    survey = healthy()
    sample = (Sample("a.bin", 100, "d1"), Sample("b.bin", 100, "d2"))
    data = directory("datasets", "/data", samples=sample)
    for index in range(4):
        token = Token("checkpoints", index, f"/ckpt/t{index}", "x")
        checkpoints = directory("checkpoints", "/ckpt", token=token)
        survey = with_facts(survey, index, directories=(data, checkpoints))
        seen = tuple(TokenSeen("checkpoints", other, "") for other in range(4) if other != index)
        survey = with_path_facts(survey, index, seen=seen)
    return survey


def _with_directory(survey: Survey, index: int, key: str, **changes: Any) -> Survey:
    facts = survey.nodes[index].facts
    assert facts is not None
    places = tuple(replace(p, **changes) if p.key == key else p for p in facts.directories)
    return with_facts(survey, index, directories=places)


def _on_all(survey: Survey, key: str, **changes: Any) -> Survey:
    for index in range(4):
        survey = _with_directory(survey, index, key, **changes)
    return survey


STORED = promising("{storage: {}}")


@pytest.mark.parametrize("question", [StorageCanBeUsed, StorageIsShared, DatasetsAreTheSame])
def test_healthy_storage_passes_and_a_node_without_an_answer_is_inconclusive(
    question: Judge,
) -> None:
    assert verdicts(question, _stored(), STORED) == {}
    assert verdicts(question, silent(_stored(), 2), STORED) == {"gpu2": "inconclusive"}


def test_a_mount_that_is_the_same_on_all_nodes_needs_no_files() -> None:
    bare = _on_all(_stored(), "datasets", samples=())
    assert verdicts(StorageIsShared, bare, STORED) == {}


def test_a_path_that_cannot_be_used_fails() -> None:
    gone = _with_directory(_stored(), 2, "datasets", problem="stale file handle")
    assert culprits(StorageCanBeUsed, gone, STORED) == {"gpu2": "gpu2 /data: stale file handle"}
    closed = _with_directory(_stored(), 1, "checkpoints", write_problem="read-only file system")
    assert culprits(StorageCanBeUsed, closed, STORED) == {
        "gpu1": "gpu1 /ckpt: read-only file system"
    }
    assert verdicts(StorageIsShared, gone, STORED) == {"gpu2": "inconclusive"}


def test_a_node_that_cannot_write_temporary_files_is_named() -> None:
    spec = promising("{environment: {}}")
    shared = directory("shared memory", "/dev/shm")
    own = directory("temporary files", "/scratch/tmp")
    survey = everyone(healthy(), directories=(own, shared))
    assert verdicts(TemporaryFilesCanBeWritten, survey, spec) == {}
    why = "read-only file system"
    closed = _with_directory(survey, 2, "temporary files", write_problem=why)
    assert culprits(TemporaryFilesCanBeWritten, closed, spec) == {
        "gpu2": f"gpu2 /scratch/tmp: {why}"
    }
    closed = _with_directory(survey, 3, "shared memory", write_problem=why)
    assert culprits(TemporaryFilesCanBeWritten, closed, spec) == {"gpu3": f"gpu3 /dev/shm: {why}"}
    gone = _with_directory(survey, 1, "temporary files", problem="not there")
    assert culprits(TemporaryFilesCanBeWritten, gone, spec) == {
        "gpu1": "gpu1 /scratch/tmp: not there"
    }


def test_a_path_that_does_not_answer_in_time_is_inconclusive() -> None:
    why = "no answer within 3 s"
    hung = _with_directory(_stored(), 2, "datasets", problem=why, file_system=None, timed_out=True)
    assert verdicts(StorageCanBeUsed, hung, STORED) == {"gpu2": "inconclusive"}
    [read] = [m for m in asked(StorageCanBeUsed, hung, STORED)["gpu2"] if m.value is None]
    assert (read.name, read.note) == ("datasets can be read", f"gpu2 /data: {why}")


def test_a_refusal_of_root_by_a_file_server_is_inconclusive() -> None:
    refused = {"write_problem": "permission denied", "refuses_root": True}
    squashed = _with_directory(_stored(), 1, "checkpoints", **refused)
    assert verdicts(StorageCanBeUsed, squashed, STORED) == {"gpu1": "inconclusive"}
    written = asked(StorageCanBeUsed, squashed, STORED)["gpu1"][-1]
    assert written.name == "checkpoints can be written to"
    assert written.note.startswith("gpu1 /ckpt: permission denied as root (root_squash?): rerun")
    user = _with_directory(_stored(), 1, "checkpoints", write_problem="permission denied")
    assert culprits(StorageCanBeUsed, user, STORED) == {"gpu1": "gpu1 /ckpt: permission denied"}


def test_one_file_system_mounted_by_several_addresses_is_recognised() -> None:
    """File servers that spread nodes over their addresses are mounted like this."""
    survey = _stored()
    for index in range(4):
        source = f"nfs4 10.9.0.{index + 1}:/data"
        survey = _with_directory(survey, index, "datasets", file_system=source)
    assert verdicts(StorageIsShared, survey, STORED) == {}
    datasets = asked(StorageIsShared, survey, STORED)["gpu0"][0]
    assert datasets.note.startswith("gpu0: nfs4 10.9.0.1:/data; server addresses differ")
    bare = _on_all(survey, "datasets", samples=())
    assert set(verdicts(StorageIsShared, bare, STORED).values()) == {"inconclusive"}
    other = _with_directory(survey, 3, "datasets", file_system="nfs4 10.9.0.4:/old")
    assert culprits(StorageIsShared, other, STORED) == {"gpu3": "gpu3 /data"}


def test_another_file_system_of_the_same_name_is_found() -> None:
    unseen = tuple(TokenSeen("checkpoints", o, "no such file or directory") for o in range(3))
    survey = with_path_facts(_stored(), 3, seen=unseen)
    survey = _with_directory(survey, 3, "checkpoints", file_system="ext4 /dev/sda1")
    assert culprits(StorageIsShared, survey, STORED) == {"gpu3": "gpu3 /ckpt is ext4 /dev/sda1"}
    # If no node may write, the mounts are compared.
    other = _with_directory(_stored(), 3, "datasets", file_system="ext4 /dev/sda1")
    assert culprits(StorageIsShared, other, STORED) == {"gpu3": "gpu3 /data"}


def test_differing_files_are_named() -> None:
    changed = (Sample("a.bin", 100, "d1"), Sample("b.bin", 99, "d9"))
    found = _with_directory(_stored(), 0, "datasets", samples=changed)
    assert culprits(DatasetsAreTheSame, found, STORED) == {"gpu0": "gpu0 /data"}
    [sample] = asked(DatasetsAreTheSame, found, STORED)["gpu0"]
    assert sample.value == 1
    assert "b.bin: d9 of 99 B, d2 of 100 B on 3 of 4 nodes" in sample.note


@pytest.mark.parametrize(
    ("boot_ids", "verdict"),
    [("aaaa", "pass"), ("abcd", "inconclusive"), ((None,) * 4, "inconclusive")],
)
@pytest.mark.parametrize("kind", ["xfs", "squashfs"])
def test_local_disks_are_not_taken_for_shared_storage(
    boot_ids: Sequence[str | None], verdict: str, kind: str
) -> None:
    survey = _on_all(_stored(), "datasets", file_system=f"{kind} /dev/nvme0n1")
    for index, boot_id in enumerate(boot_ids):
        survey = with_facts(survey, index, boot_id=boot_id)
    datasets = asked(StorageIsShared, survey, STORED)["gpu0"][0]
    assert datasets.verdict == verdict
    says = f"gpu0: {kind} /dev/nvme0n1: {kind} is not shared between machines"
    assert datasets.note.startswith(says) is (verdict == "inconclusive")
