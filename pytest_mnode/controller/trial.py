"""A trial after a hang: one small collective in the world that the next test requests."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pytest_mnode.certificate.text import first_line
from pytest_mnode.cluster import RankWorld
from pytest_mnode.errors import MnodeError
from pytest_mnode.measuring.limits import trial_limit_s
from pytest_mnode.progress import progress

if TYPE_CHECKING:
    import pytest

    from pytest_mnode.controller.session import Run
    from pytest_mnode.protocol.messages import Shape

_TRIALS = 2
_BYTES = 1 << 20
"""Many full packets, because a path may lose only full ones; takes no noticeable time."""


def trial(run: Run, failed: dict[Shape, list[str]], item: pytest.Item) -> str:
    """Why an all-reduce over fresh ranks did not end in time, in one line; "" if it did.

    failed: what the trials of a shape found, which is not tried again after two of them: one may
    have failed because other programs kept the cores busy.
    """
    need = run.request_of(item)
    shape = run.shape_of(need)
    found = failed.setdefault(shape, [])
    if len(found) == _TRIALS:
        return found[-1]
    limit_s = run.seconds_of(trial_limit_s, need)
    try:
        progress("a small collective, because an earlier test hung")
        with run.console.shows_line(True):
            lease = run.lease(need, f"trial before {item.nodeid}")
            try:
                info = run.open_world(lease, run.procs_of(need), fresh=True, nodes=())
                with RankWorld(run, info, limit_s, fresh=True) as world:
                    world.run(_all_reduce, bool(run.spec.accelerators.per_node), group=True)
            finally:
                run.release(lease)
    except MnodeError as error:
        run.repair(error)
        found.append(first_line(str(error), 200))
        return found[-1]
    return ""


def _all_reduce(on_accelerators: bool, *, world: Any) -> None:
    """Runs in every rank."""
    import torch
    import torch.distributed as dist

    kind = torch.accelerator.current_accelerator() if on_accelerators else None
    device = torch.device(kind.type, world.local_rank) if kind else torch.device("cpu")
    total = torch.ones(_BYTES // 4, device=device)
    dist.all_reduce(total)
    total.sum().item()  # waits, because on an accelerator all_reduce returns before it has ended
