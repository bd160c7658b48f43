"""Seeds, saves and restores the random states of a rank; deterministic algorithms; digests."""

from __future__ import annotations

import contextlib
import hashlib
import os
import pickle
import random
from collections.abc import Iterator

import numpy as np
import torch

from pytest_mnode.reference_job.config import CUBLAS, REPEATABLE


def seed_all(*words: int) -> None:
    """Seed python, numpy, torch and the accelerator with one seed made of these numbers."""
    seed = int(np.random.SeedSequence(words).generate_state(1, np.uint32)[0])
    random.seed(seed)
    np.random.seed(seed)
    torch.manual_seed(seed)  # of all devices as well


@contextlib.contextmanager
def repeatable(wanted: bool = True) -> Iterator[None]:
    """Within this context, refuse operations that differ from run to run, in a running rank."""
    before = torch.are_deterministic_algorithms_enabled()
    # Without this variable torch refuses deterministic matrix products on accelerators.
    pinned = CUBLAS in os.environ or not wanted
    torch.use_deterministic_algorithms(wanted)
    if not pinned:
        os.environ[CUBLAS] = REPEATABLE
    try:
        yield
    finally:
        torch.use_deterministic_algorithms(before)
        if not pinned:
            del os.environ[CUBLAS]


def random_states(device: torch.device) -> bytes:
    """All random states of this process; the same bytes for the same states."""
    of_torch = [torch.get_rng_state()]
    if device.type != "cpu":
        of_torch.append(torch.get_device_module(device).get_rng_state(device).cpu())
    # A pickled tensor contains an address.
    arrays = [state.numpy() for state in of_torch]
    return pickle.dumps((random.getstate(), np.random.get_state(), *arrays))


def set_random_states(states: bytes, device: torch.device) -> None:
    """Restore the states that `random_states` returned."""
    python, numpy, *arrays = pickle.loads(states)
    random.setstate(python)
    np.random.set_state(numpy)
    host, *of_device = map(torch.from_numpy, arrays)
    torch.set_rng_state(host)
    if device.type != "cpu" and of_device:
        torch.get_device_module(device).set_rng_state(*of_device, device)


def digest(states: bytes) -> str:
    return hashlib.sha256(states).hexdigest()


def digest_of(tensors: list[torch.Tensor]) -> str:
    """SHA-256 of the values of tensors in this order; of a sharded tensor, this rank's shard."""
    found = hashlib.sha256()
    for tensor in tensors:
        local = tensor.to_local() if hasattr(tensor, "to_local") else tensor
        found.update(local.detach().contiguous().cpu().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def values_of(optimiser: torch.optim.Optimizer) -> list[torch.Tensor]:
    """All state tensors of an optimiser, in the order of its parameters."""
    states = optimiser.state_dict()["state"]
    return [states[number][name] for number in sorted(states) for name in sorted(states[number])]
