"""CPUs: whether processes may run near their accelerators."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pytest_mnode.criteria.placement.near import Home, Locality, near
from pytest_mnode.criteria.preflight.answers import Survey, why_unread
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.machine.cpus import format_cpulist
from pytest_mnode.measurement import Measurement, equals
from pytest_mnode.spec.devices import Near


@check("preflight.cpus")
class CpusAreBesideAccelerators(SurveyCheck):
    """May a process on this node run on CPUs beside each of its accelerators?

    In a container, these are the container's accelerators and CPUs: on a Kubernetes node whose
    kubelet has no Topology Manager policy, they may belong to different sockets.
    """

    promise: Literal["near"]
    """A process's cpuset has CPUs beside each accelerator that the process has."""
    of_accelerators = True
    parts = ("accelerators", "limits", "cpus", "numa")
    alone = True

    def judge(self, survey: Survey, name: str) -> Iterator[Measurement]:
        if self.spec.accelerators.per_node:
            numa = self.spec.criteria.numa
            yield _far(survey, name, numa.near if numa else "socket")


def _far(survey: Survey, name: str, within: Near) -> Measurement:
    """Number of accelerators without a nearby CPU on which a process of this node may run."""
    label = "accelerators without a nearby CPU that processes may use"
    subject = Subject(label, "", equals(0), "preflight.cpus near")
    me = survey.node(name)
    limits, there = me.machine.limits, me.machine.accelerators
    if limits is None or there is None:
        part = "limits" if limits is None else "accelerators"
        return subject.unknown(why_unread(me, part))
    if limits.cpus is None or not there:
        why = "no accelerator" if not there else "the allowed CPUs cannot be read"
        return subject.unknown(f"{name}: {why}")
    far, unknown = [], []
    for one in there:
        home = Home.accelerator(me.machine, one.pci_address, one.numa_node)
        nearby = near(me.machine, home, within)
        if not isinstance(nearby, Locality):
            unknown.append(nearby)
        elif nearby.cpus.isdisjoint(limits.cpus):
            far.append(f"accelerator {one.index} ({nearby.cpus_text})")
    if unknown and not far:
        return subject.unknown(f"{name}: {listed(unknown, 2)}")
    note = f"{name}: processes may use CPUs {format_cpulist(limits.cpus)}"
    return subject.measured(len(far), f"{name} cpuset: {listed(far, 2)}", note)
