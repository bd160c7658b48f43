"""A rendezvous without negotiation, because the hub decides each node's place in a world."""

from __future__ import annotations

from torch._C._distributed_c10d import HashStore
from torch.distributed.elastic.rendezvous import (
    RendezvousHandler,
    RendezvousInfo,
    RendezvousStoreInfo,
)

from pytest_mnode.protocol.agent_messages import Launch


class Rendezvous(RendezvousHandler):
    """A rendezvous that returns the group rank, world size and store decided by the hub."""

    def __init__(self, launch: Launch) -> None:
        self._launch = launch

    def get_backend(self) -> str:
        return "mnode"

    @property
    def use_agent_store(self) -> bool:
        """Whether ranks are clients of the first node's store: always, as under torchrun."""
        return True

    def next_rendezvous(self) -> RendezvousInfo:
        launch = self._launch
        address = RendezvousStoreInfo(launch.master_addr, launch.master_port)
        return RendezvousInfo(HashStore(), launch.node_rank, launch.world.shape.nodes, address)

    def is_closed(self) -> bool:
        return False

    def set_closed(self) -> None:
        pass

    def num_nodes_waiting(self) -> int:
        return 0

    def get_run_id(self) -> str:
        return self._launch.world.id

    def shutdown(self) -> bool:
        return True
