"""CPUs that a container may use, compared with the accelerators that it has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.checks.node.cpus import CpusAreBesideAccelerators
from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import judged
from pytest_mnode.machine.model import Machine
from pytest_mnode.machine.nvml import Accelerator
from pytest_mnode.machine.process import Limits
from tests.criteria.preflight.made import (
    asked,
    culprits,
    everyone,
    healthy,
    promising,
    verdicts,
    with_facts,
)
from tests.trees import gpu_address, gpu_server

ONE = promising("{cpus: near}", accelerators="1")


@pytest.fixture
def survey(tmp_path: Path) -> Survey:
    """Nodes with one GPU of the first socket, and CPUs of that socket."""
    machine = Machine.read(gpu_server(tmp_path / "machine").root, ("pci", "cpus", "numa"))
    return everyone(
        healthy(2),
        pci=machine.pci,
        cpus=machine.cpus,
        numa=machine.numa,
        accelerators=(Accelerator(index=0, pci_address=gpu_address(1)),),
        limits=Limits(None, 1024, frozenset(range(8, 16))),
    )


@pytest.mark.parametrize(
    ("change", "culprit"),
    [
        (
            {"limits": Limits(None, 1024, frozenset(range(16, 24)))},
            "CPUs 0-15,32-47, local to 0000:1b:00.0 on NUMA node 0",
        ),
        (
            {"accelerators": (Accelerator(index=0, pci_address=gpu_address(7)),)},
            "CPUs 16-31,48-63, local to 0000:7b:00.0 on NUMA node 1",
        ),
    ],
    ids=["CPUs of the other socket", "GPU of the other socket"],
)
def test_a_cpuset_on_the_other_socket_is_named(
    survey: Survey, change: dict[str, Any], culprit: str
) -> None:
    assert verdicts(CpusAreBesideAccelerators, survey, ONE) == {}
    named = culprits(CpusAreBesideAccelerators, with_facts(survey, 1, **change), ONE)
    assert named == {"gpu1": f"gpu1 cpuset: accelerator 0 ({culprit})"}


def test_every_far_accelerator_counts_beside_one_that_is_unknown(survey: Survey) -> None:
    spec = promising("{cpus: near}", accelerators="3")
    far = [Accelerator(index=n, pci_address=gpu_address(6 + n)) for n in (0, 1)]
    survey = with_facts(survey, 1, accelerators=(*far, Accelerator(index=2)))
    [found] = asked(CpusAreBesideAccelerators, survey, spec)["gpu1"]
    assert (found.verdict, found.value) == ("fail", 2)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"accelerators": ()}, "gpu1: no accelerator"),
        ({"accelerators": None, "unread": {"accelerators": "no driver"}}, "gpu1: no driver"),
        ({"limits": Limits(None, 1024)}, "gpu1: the allowed CPUs cannot be read"),
        ({"limits": None}, "gpu1: no limits"),
        ({"accelerators": (Accelerator(index=0),)}, "it is not known which accelerator"),
    ],
)
def test_unknown_cpus_or_accelerators_are_inconclusive(
    survey: Survey, change: dict[str, Any], why: str
) -> None:
    [found] = asked(CpusAreBesideAccelerators, with_facts(survey, 1, **change), ONE)["gpu1"]
    assert found.verdict == "inconclusive"
    assert why in found.note
    assert (
        judged(CpusAreBesideAccelerators, survey, promising("{}", accelerators="1"), "gpu1") == []
    )
