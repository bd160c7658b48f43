"""Promises about the start of a job."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field, field_validator, model_validator

from pytest_mnode.spec.fields import AbsolutePath, Seconds, Section, Some, Text, rising
from pytest_mnode.spec.inventory import Inventory, NonEmptyCriterion

Style = Literal["torchrun", "deepspeed", "megatron"]


class StartPromise(Section):
    """A job started this way runs with the right environment on every node."""

    within_s: Seconds = Field(60.0, alias="within")
    """Limit from submission to end of a program whose ranks only meet, such as 60 s."""
    job: AbsolutePath | None = None
    """A job file of the cluster (docs/launch.md), whose program reports as that of fixtures/jobs
    does; left out: the job file of fixtures/jobs."""


class RendezvousPromise(Section):
    """Ranks that have started form a process group in time."""

    ranks: Some = 16
    """Least number of ranks, equally many on every node."""
    within_s: Seconds = Field(alias="within")
    """Limit from the call of init_process_group to its return, on the slowest rank."""


class StorePromise(Section):
    """The store in which ranks meet serves many clients."""

    clients: Annotated[tuple[Some, ...], Field(min_length=1)] = (64, 256, 1024)
    """Numbers of clients, ascending; simulated by threads of the ranks."""
    within_s: Seconds = Field(alias="within")
    """Limit for each number of clients to connect, exchange values and pass a barrier."""

    @field_validator("clients")
    @classmethod
    def _rises(cls, clients: tuple[int, ...]) -> tuple[int, ...]:
        return rising(clients, "number", str)


class LaunchCriterion(NonEmptyCriterion):
    """A job as a user describes it starts on every node. What is left out is not promised."""

    torchrun: StartPromise | None = None
    """One torchrun per node."""
    deepspeed: StartPromise | None = None
    """One process per rank, as the deepspeed command starts them."""
    megatron: StartPromise | None = None
    """One task per rank, and a script that sets torch's variables from the scheduler's."""
    path: Literal["direct"] | None = None
    """direct: jobs are started by a login on each node, whatever scheduler gave the run its nodes.
    Left out: by that scheduler, and a job that it does not start beside the run is inconclusive."""
    environment: Literal["same"] | None = None
    """same: ranks of the run have the settings of the ranks of a user's job on the same node:
    variables of communication and accelerators, limits of the process and of its cgroups. Left out:
    what differs is recorded, and not judged."""
    elsewhere: Literal[True] | None = None
    """The same on other nodes, in another order."""
    image: Text | None = None
    """Jobs run in a container image, such as this one."""
    rendezvous: RendezvousPromise | None = None
    store: StorePromise | None = None

    @model_validator(mode="after")
    def _needs_a_style(self) -> Self:
        for key in ("elsewhere", "environment", "path"):
            if getattr(self, key) and not any((self.torchrun, self.deepspeed, self.megatron)):
                raise ValueError(
                    f"{key} promises nothing without a style; "
                    "accepted: with torchrun, deepspeed or megatron"
                )
        return self

    def start(self, style: str) -> StartPromise | None:
        """The promise for a style; None if there is none."""
        found: StartPromise | None = getattr(self, style, None)
        return found

    def doubts(self, cluster: Inventory) -> Iterator[str]:
        """One line for each promise that this cluster is too small for."""
        if self.rendezvous is None or not cluster.accelerators.per_node or cluster.nodes is None:
            return
        ranks, most = self.rendezvous.ranks, cluster.nodes * cluster.accelerators.per_node
        if ranks > most:
            yield (
                f"criteria.launch.rendezvous.ranks: {ranks}, but {cluster.nodes} nodes × "
                f"{cluster.accelerators.per_node} accelerators have no more than {most}"
            )
