"""CPU time of the search for causes in output of ordinary training, against a search of every line.

Both are measured in turn in this process, so that their ratio does not depend on the machine.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable

from benchmarks import table
from pytest_mnode.logs.causes import causes
from pytest_mnode.logs.causes.table import rules

LINES = 20_000


def measure(repeats: int) -> str:
    """The table, for a terminal."""
    texts = {"lines of steps": ordinary(LINES), "lines that all differ": distinct(LINES)}
    rows = []
    for name, text in texts.items():
        assert causes(text) == []
        found = [_cpu_s(causes, text) for _ in range(repeats)]
        every = [_cpu_s(_every_rule, text) for _ in range(repeats)]
        ratio = sorted(own / other for own, other in zip(found, every, strict=True))
        rows.append((name, table.ms(found), table.ms(every), f"{ratio[len(ratio) // 2]:.3f}"))
    title = f"Causes in {LINES:,} ordinary lines, CPU time"
    return table.terminal(title, ("", "causes ms", "all patterns on all lines ms", "ratio"), rows)


def ordinary(lines: int) -> str:
    """Output of training and NCCL's log, in which lines differ in their numbers."""
    draw = random.Random(1)

    def line(step: int) -> str:
        rank = step % 8
        return draw.choice(
            (
                f"Epoch {step // 1000}: {step % 100}%|###   | {step}/{lines} [00:12<01:00, "
                f"loss={draw.random():.4f}, lr={draw.random():.2e}]",
                f"[2026-02-03 04:05:{step % 60:02}] [INFO] iteration {step}/ {lines} | elapsed "
                f"time per iteration (ms): {draw.random() * 900:.1f} | lm loss: "
                f"{draw.random():.6E} | grad norm: {draw.random():.3f} | number of nan "
                "iterations: 0 |",
                f"[rank{rank}]: step {step} loss {draw.random():.4f} gpu mem "
                f"{draw.random() * 80:.1f} GiB device cuda:{rank} timeout=600",
                f"elm{step % 4}:771:802 [{rank}] NCCL INFO Channel {step % 16:02}/0 : {rank}"
                f"[{rank}] -> {(rank + 1) % 8}[0] [send] via NET/IB/{rank}/GDRDMA",
                f"INFO {step} worker ready; connected to store; waiting for data; driver ok",
            )
        )

    return "\n".join(map(line, range(lines)))


def distinct(lines: int) -> str:
    """Lines that also differ in words, as those with hashes and names of files do."""
    draw = random.Random(2)
    letters = "abcdefghijklmnop"

    def word() -> str:
        return "".join(draw.choices(letters, k=12))

    return "\n".join(f"loaded shard {word()} of {word()} in {i} ms" for i in range(lines))


def _every_rule(text: str) -> int:
    return sum(
        rule.pattern.search(line) is not None for line in text.splitlines() for rule in rules()
    )


def _cpu_s(work: Callable[[str], object], text: str) -> float:
    began = time.process_time()
    work(text)
    return time.process_time() - began
