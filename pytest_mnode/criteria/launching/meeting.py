"""`meet` replaces `dist.init_process_group`, and its error names the ranks that never came.

With plain torch, a missing rank is a store timeout on all other ranks, with addresses but without
ranks. The module runs in ranks; only its functions import torch.
"""

from __future__ import annotations

import contextlib
import os
import socket
import time
from datetime import timedelta
from typing import TYPE_CHECKING

from pytest_mnode.criteria.launching.gathering import PREFIX, Gathering, rank_text, time_left
from pytest_mnode.errors import EnvironmentContractError, TimeLimitError, WorldError

if TYPE_CHECKING:
    from torch._C._distributed_c10d import TCPStore

_STORE_LIMIT_S = 300.0
"""torch's default limit of store operations, restored after the meeting."""
_RETRY_S = 0.1
_REMEDY = "start the job with torchrun, or set it as torchrun does"


def meet(timeout_s: float, backend: str | None = None) -> None:
    """Make the default process group from torchrun's variables, or name the ranks that never came.

    timeout_s: from the call to the end of initialisation; collectives keep torch's default limit.
    backend: as of `dist.init_process_group`; None if torch chooses it by device.

    Raises EnvironmentContractError for a variable that is missing or wrong, TimeLimitError if ranks
    or the store were not there in time, WorldError if a second process was rank 0, or if all ranks
    came but the group could not be made.
    """
    import torch.distributed as dist
    from torch._C._distributed_c10d import PrefixStore

    rank, size = _number("RANK"), _number("WORLD_SIZE")
    if not 0 <= rank < size:
        raise EnvironmentContractError(f"RANK={rank} is outside WORLD_SIZE={size}")
    until = time.monotonic() + timeout_s
    torchrun_hosts_store = os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"
    hosts_store = rank == 0 and not torchrun_hosts_store
    host = "the torchrun of the first node" if torchrun_hosts_store else "rank 0"
    store = _connect(
        rank_text(rank, size), size, host, hosts_store, until=until, within_s=timeout_s
    )
    number = Gathering(store, rank, size, timeout_s, until, hosts_store).wait_for_all()
    # The prefix is this meeting's own, because earlier ranks may have left keys in the store.
    group_store = PrefixStore(f"{PREFIX}/{number}/group", store)
    group_store.set_timeout(time_left(until))
    try:
        dist.init_process_group(
            backend, store=group_store, rank=rank, world_size=size, timeout=time_left(until)
        )
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise WorldError(
            f"all {size} ranks came, but their process group was not created: {line}"
        ) from error
    _use_default_limits(store)


def _connect(
    who: str, size: int, host: str, hosts_store: bool, *, until: float, within_s: float
) -> TCPStore:
    """A client of the store, or the store itself if this rank hosts it."""
    from torch._C._distributed_c10d import TCPStore

    address = os.environ.get("MASTER_ADDR")
    if not address:
        raise EnvironmentContractError(f"MASTER_ADDR is not set; {_REMEDY}")
    port = _number("MASTER_PORT")
    if not 0 < port < 65536:
        raise EnvironmentContractError(f"MASTER_PORT={port} is not a port; accepted: 1 to 65535")
    if not hosts_store:
        why = unreachable(address, port, until)
        if why is not None:
            raise TimeLimitError(
                f"{who} could not reach the store at {address}:{port} within {within_s:g} s: "
                f"{why}; {host} hosts the store: it may be absent, or the address cannot be "
                "reached from here"
            )
    try:
        return TCPStore(address, port, size, hosts_store, time_left(until), False, True)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        doing = "host" if hosts_store else "use"
        raise TimeLimitError(
            f"{who} could not {doing} the store at MASTER_ADDR:MASTER_PORT, {address}:{port}, "
            f"within {within_s:g} s: {line}"
        ) from error


def _number(name: str) -> int:
    text = os.environ.get(name)
    if text is None:
        raise EnvironmentContractError(f"{name} is not set; {_REMEDY}")
    try:
        return int(text)
    except ValueError:
        raise EnvironmentContractError(f"{name}={text!r} is not a number") from None


def _use_default_limits(store: TCPStore) -> None:
    """Set torch's default limits, as after a plain init; ours was for initialisation only."""
    from torch.distributed import constants
    from torch.distributed import distributed_c10d as c10d

    store.set_timeout(timedelta(seconds=_STORE_LIMIT_S))
    set_limit = getattr(c10d, "_set_pg_timeout", None)
    if set_limit is None:
        return
    usual = constants.default_pg_timeout
    if c10d.get_backend() == "nccl":
        usual = getattr(constants, "default_pg_nccl_timeout", None) or usual
    with contextlib.suppress(RuntimeError):  # not every backend has a limit
        set_limit(usual)


def unreachable(address: str, port: int, until: float) -> str | None:
    """None as soon as a process listens there; the reason if none does before `until`.

    until: by the monotonic clock. A look-up of the name cannot be interrupted, and may outlast it.
    """
    while True:
        left = max(_RETRY_S, until - time.monotonic())
        try:
            socket.create_connection((address, port), timeout=left).close()
        except socket.gaierror as error:
            why = f"{address!r} cannot be resolved ({error.strerror})"
        except TimeoutError:
            why = "no answer"
        except (OSError, OverflowError) as error:
            why = (getattr(error, "strerror", None) or str(error)).lower()
        else:
            return None
        if time.monotonic() + _RETRY_S > until:
            return why
        time.sleep(_RETRY_S)
