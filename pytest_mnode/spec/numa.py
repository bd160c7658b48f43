"""What is promised of placement in nodes of several sockets, and what sockets the rack shows."""

from __future__ import annotations

from typing import Annotated, Literal, Self

from pydantic import Field, ValidationInfo, field_validator, model_validator

from pytest_mnode.spec.fields import Bytes, Count, Fraction, Page, Some


class NumaCriterion(Page):
    """Ranks run, allocate and send beside their accelerators. What is left out is not promised."""

    cpus: Literal["near"] | None = None
    """Each thread of a rank may run only on CPUs of the NUMA node of the rank's accelerator."""
    memory_near_fraction: Annotated[Fraction, Field(le=1)] | None = None
    """At least this part of a rank's own memory is on the NUMA node of its accelerator."""
    nic: Literal["nearest"] | None = None
    """Each rank sends over the NIC that is nearest to its accelerator."""
    cores: Literal["own"] | None = None
    """No two ranks of a node may run on the same core."""
    copy_near_over_far: Annotated[float, Field(strict=True, ge=1, allow_inf_nan=False)] | None = (
        None
    )
    """Copies within the near NUMA node are at least this many times as fast as from the far one."""
    copy_size_bytes: Bytes = Field(256 << 20, alias="copy_size")
    """Buffer that is copied, several times the last-level cache, such as 256 MiB."""
    copy_repeats: Some = 5
    """Timed copies, whose median is judged."""

    @model_validator(mode="after")
    def _promises_something(self) -> Self:
        promises = ("cpus", "memory_near_fraction", "nic", "cores", "copy_near_over_far")
        if all(getattr(self, name) is None for name in promises):
            raise ValueError(f"promises nothing; accepted: at least one of {', '.join(promises)}")
        return self


class Topology(Page):
    """Sockets that each node of the rack shows, over the CPUs of this machine.

    Node i has everything i sockets further, so that nodes take turns on the CPUs. Other launchers'
    nodes show what they have.
    """

    sockets: Annotated[int, Field(strict=True, ge=2, le=8)] = 2
    """How many; each is one NUMA node. They are counted from 0 below."""
    accelerator_sockets: Annotated[tuple[Count, ...], Field(min_length=1)] = (0, 1)
    """Of the places for accelerators; local rank i is beside place i, beyond they begin again."""
    fabric_socket: Count = 0
    """Where the fabric's NIC is."""
    management_socket: Count = 1
    """Where the management network's NIC is."""

    @field_validator("accelerator_sockets", "fabric_socket", "management_socket")
    @classmethod
    def _is_there(cls, value: int | tuple[int, ...], info: ValidationInfo) -> int | tuple[int, ...]:
        sockets = info.data.get("sockets")
        for socket in value if isinstance(value, tuple) else (value,):
            if sockets is not None and socket >= sockets:
                raise ValueError(f"socket {socket} of {sockets}; accepted: 0 to {sockets - 1}")
        return value
