"""GPUDirect RDMA: how NICs reach the memory of accelerators by themselves."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from pytest_mnode.criteria.preflight.answers import Survey
from pytest_mnode.criteria.preflight.survey_check import SurveyCheck
from pytest_mnode.evidence.check import check
from pytest_mnode.evidence.rules import Subject, listed
from pytest_mnode.machine.software import Software
from pytest_mnode.measurement import Measurement, at_least
from pytest_mnode.spec.inventory import Inventory

_DEPRECATED_SINCE = 580
"""First NVIDIA driver branch in which nvidia_peermem's interface is deprecated."""
_LACKING = {
    "dma-buf": "the driver is not the open kernel module",
    "peermem": "module nvidia_peermem is not loaded",
}
_UNREGISTERED = (
    "module nvidia_peermem is loaded (driver {}), and no client nv_mem is registered in "
    "/sys/kernel/mm/memory_peers; use the open kernel module, which has dma-buf"
)


_PEERMEM_ALONE = (
    "nvidia_peermem alone, which NVIDIA deprecates: use the open kernel module, which has dma-buf, "
    "or promise peermem"
)
_AMD_CLIENT = "amdkfd"
"""What AMD's driver registers with InfiniBand's core. Source: RCCL, src/transport/net_ib."""


@check("preflight.gpudirect")
class GpudirectIsThere(SurveyCheck):
    """Can this node's NICs reach the memory of its accelerators directly?"""

    promise: Literal["peermem", "dma-buf", "either"]
    """How NICs reach the memory of accelerators. either: dma-buf, or of AMD peermem; nvidia_peermem
    alone is inconclusive. Whether NCCL uses it, its log shows: `fabric.gpudirect`."""
    of_accelerators = True
    parts = ("software", "pci")
    alone = True

    def judge(self, evidence: Survey, node: str) -> Iterator[Measurement]:
        """Number of ways that are there: dma-buf, peermem."""
        me, source = evidence.node(node), f"{self.key} {self.promise}"
        subject = Subject("available GPUDirect RDMA methods", "", at_least(1), source)
        software = me.machine.software
        makers = {one.maker: one.is_nvidia for one in me.machine.pci.accelerators}
        if software is None:
            yield subject.unknown(f"{node}: {me.why('software')}")
        elif makers and not any(makers.values()):
            of_amd = {"peermem": _AMD_CLIENT in software.peer_clients}
            of_amd["dma-buf"] = software.kernel_has_dmabuf and {*makers} == {"AMD"}
            wanted = tuple(of_amd) if self.promise == "either" else (self.promise,)
            if there := [method for method in wanted if of_amd[method]]:
                yield subject.measured(len(there), None, f"{node}: {listed(there)} of AMD")
                return
            why = f"the methods of accelerators of {listed([*makers])} are not known"
            yield subject.unknown(f"{node}: {why}")
        else:
            has = {"dma-buf": software.driver_is_open, "peermem": software.peermem is not None}
            wanted = tuple(has) if self.promise == "either" else (self.promise,)
            there = [method for method in wanted if has[method]]
            no_driver = "no NVIDIA driver" if software.driver is None else ""
            why = listed([no_driver or _LACKING[method] for method in wanted])
            if there == ["peermem"] and not _serves_peermem(software, self.promise):
                yield subject.unknown(f"{node}: {_UNREGISTERED.format(software.driver)}")
            elif there == ["peermem"] and self.promise == "either":
                yield subject.unknown(f"{node}: {_PEERMEM_ALONE}")
            else:
                note = f"{node}: {listed(there) or why}"
                yield subject.measured(len(there), f"{node}: {why}", note)

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        yield from super().doubts(cluster)
        if cluster.accelerators.per_node and not cluster.fabric.gpudirect:
            yield (
                ": given without fabric.gpudirect: true, so that NCCL's log, which shows whether it"
                " is used, is not asked"
            )


def _serves_peermem(software: Software, promise: str) -> bool:
    """Whether a loaded module nvidia_peermem shows that NICs can use it: it is registered.

    Up to R575 the module does not load where it cannot register itself with InfiniBand's core, so
    that a promise of the module itself is kept by loading it. The interface below it is deprecated
    since R580 (CUDA 13.0), and it was seen loaded without a registration (NCCL issue 1939).
    """
    major = (software.driver or "").partition(".")[0]
    old = major.isdecimal() and int(major) < _DEPRECATED_SINCE
    registered = any(name.startswith("nv_mem") for name in software.peer_clients)
    return registered or (promise == "peermem" and old)
