"""Steps of the reference job's model on one rank alone: the same numbers wherever they are made."""

from __future__ import annotations

import torch

from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.data import Documents
from pytest_mnode.reference_job.model import Transformer
from pytest_mnode.reference_job.randomness import digest_of, repeatable, values_of
from pytest_mnode.reference_job.spans import Spans, clock_of
from pytest_mnode.reference_job.timeline import Timeline


def train_alone(config: JobConfig, device: torch.device) -> str:
    """SHA-256 of losses, parameters and optimiser after `steps` steps of `global_batch` samples.

    Seed, sizes, steps and dtype are the config's; no process group, no file and no dropout. Equal
    on devices of one model with the same libraries: on CPUs by one thread, on accelerators by
    deterministic kernels. The random states of the rank stay as they were. Raises RuntimeError
    where the device cannot do it.

    Source: PyTorch documentation, "Reproducibility"; cuBLAS documentation, "Results
    Reproducibility".
    """
    threads = torch.get_num_threads()
    devices = [] if device.type == "cpu" else [device]
    try:
        torch.set_num_threads(1)
        with repeatable(), torch.random.fork_rng(devices, device_type=device.type):
            return _trained(config, device)
    finally:
        torch.set_num_threads(threads)


def _trained(config: JobConfig, device: torch.device) -> str:
    torch.manual_seed(config.seed)
    spans = Spans(Timeline(clock_of(device)))
    model = Transformer(config, spans).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    samples = Documents(config.samples, config.vocab, config.context, config.seed)
    losses = []
    for step in range(config.steps):
        first = step * config.global_batch
        batch = [samples[i] for i in range(first, first + config.global_batch)]
        tokens, targets = (torch.stack(x).to(device) for x in list(zip(*batch, strict=True))[1:])
        with torch.autocast(device.type, torch.bfloat16, enabled=config.dtype == "bfloat16"):
            loss = model(tokens, targets)
        (loss / (config.global_batch * config.context)).backward()
        optimiser.step()
        optimiser.zero_grad()
        losses.append(loss.detach())
        spans.next_step()
    return digest_of([*losses, *(p.data for p in model.parameters()), *values_of(optimiser)])
