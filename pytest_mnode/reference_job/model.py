"""A small transformer that predicts the next token and times its own blocks, on one device."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pytest_mnode.reference_job.config import JobConfig
from pytest_mnode.reference_job.data import IGNORED, Documents
from pytest_mnode.reference_job.randomness import digest_of, repeatable, values_of
from pytest_mnode.reference_job.spans import Spans, clock_of


class Embedding(nn.Module):
    """Maps tokens (batch, context) to vectors (batch, context, width)."""

    def __init__(self, config: JobConfig, spans: Spans) -> None:
        super().__init__()
        self.spans = spans
        self.dropout = config.dropout
        self.tokens = nn.Parameter(torch.randn(config.vocab, config.width) * 0.02)
        self.places = nn.Parameter(torch.randn(config.context, config.width) * 0.02)

    def forward(self, tokens: Tensor) -> Tensor:
        # Tokens have no gradient: the backward pass ends at the table.
        table = self.spans.enter(self.tokens)
        x = F.dropout(F.embedding(tokens, table) + self.places, self.dropout, self.training)
        return self.spans.leave(x)


class Block(nn.Module):
    """Attention and a feed-forward network, each added to its input."""

    def __init__(self, config: JobConfig, spans: Spans) -> None:
        super().__init__()
        self.spans = spans
        self.heads = config.heads
        self.dropout = config.dropout
        self.norm1 = nn.LayerNorm(config.width)
        self.qkv = nn.Linear(config.width, 3 * config.width)
        self.out = nn.Linear(config.width, config.width)
        self.norm2 = nn.LayerNorm(config.width)
        self.up = nn.Linear(config.width, 4 * config.width)
        self.down = nn.Linear(4 * config.width, config.width)

    def forward(self, x: Tensor) -> Tensor:
        x = self.spans.enter(x)
        x = x + F.dropout(self.attend(self.norm1(x)), self.dropout, self.training)
        fed = self.down(F.gelu(self.up(self.norm2(x))))
        return self.spans.leave(x + F.dropout(fed, self.dropout, self.training))

    def attend(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        heads = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(x).chunk(3, dim=-1))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        attended: Tensor = self.out(y.transpose(1, 2).reshape(batch, length, width))
        return attended


class Head(nn.Module):
    """Maps vectors and the next tokens (targets) to the sum of their losses."""

    def __init__(self, config: JobConfig, spans: Spans) -> None:
        super().__init__()
        self.spans = spans
        self.norm = nn.LayerNorm(config.width)
        self.vocab = nn.Linear(config.width, config.vocab, bias=False)

    def forward(self, x: Tensor, targets: Tensor) -> Tensor:
        logits = self.vocab(self.norm(self.spans.enter(x))).float()
        loss = F.cross_entropy(
            logits.flatten(0, 1), targets.flatten(), ignore_index=IGNORED, reduction="sum"
        )
        return self.spans.leave(loss)


class Transformer(nn.Module):
    """The whole model; returns the summed loss of tokens and targets (batch, context), int64."""

    def __init__(self, config: JobConfig, spans: Spans) -> None:
        super().__init__()
        self.embedding = Embedding(config, spans)
        self.blocks = nn.ModuleList(Block(config, spans) for _ in range(config.layers))
        self.head = Head(config, spans)

    def forward(self, tokens: Tensor, targets: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for block in self.blocks:
            x = block(x)
        loss: Tensor = self.head(x, targets)
        return loss


def train_alone(config: JobConfig, device: torch.device) -> str:
    """SHA-256 of losses, parameters and optimiser after `steps` steps of `global_batch` samples.

    Seed, sizes, steps and dtype are the config's; no process group, no file and no dropout. The
    digest is equal on devices of one model with the same libraries: CPUs use one thread,
    accelerators use deterministic kernels. The random states of the rank stay as they were. Raises
    RuntimeError if the device cannot do it.

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
    spans = Spans(clock_of(device))
    model = Transformer(config, spans).to(device)
    optimiser = torch.optim.AdamW(model.parameters(), lr=config.learning_rate)
    samples = Documents(config)
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
