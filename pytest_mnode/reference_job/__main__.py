"""The program that torchrun starts: `torchrun … -m pytest_mnode.reference_job CONFIG.json`.

Exit status: 0 when all steps are done, 75 (EX_TEMPFAIL) when it was asked to stop and has saved, 2
for a config that cannot be used, 1 for any other error.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from collections.abc import Sequence

from pytest_mnode.errors import MnodeError, UsageError
from pytest_mnode.processes import made_to_stay
from pytest_mnode.reference_job import EXIT_PREEMPTED
from pytest_mnode.reference_job.config import JobConfig

USAGE = "usage: python -m pytest_mnode.reference_job CONFIG.json, started by torchrun"


def main(argv: Sequence[str]) -> int:
    """Train in one rank as the config says, and return the exit status."""
    if len(argv) != 1:
        raise UsageError(USAGE)
    config = JobConfig.read(argv[0])
    stops: list[int] = []  # the job finishes and saves its step before it stops
    signal.signal(signal.SIGTERM, lambda number, _: stops.append(number))
    for name, value in config.settings.items():
        os.environ.setdefault(name, value)

    with made_to_stay():
        import torch
        import torch.distributed as dist

        from pytest_mnode.criteria.launching.meeting import meet
        from pytest_mnode.measuring.ranks import gathered
        from pytest_mnode.rank.world import World
        from pytest_mnode.reference_job.device import device_of
        from pytest_mnode.reference_job.trainer import Trainer

    torch.use_deterministic_algorithms(config.deterministic)
    device = device_of(config.device, int(os.environ.get("LOCAL_RANK", "0")))  # meet() checks it
    meet(config.meet_s)
    # Nodes that are all this machine have one host name.
    names = gathered(os.environ.get("MNODE_JOB_NODE") or socket.gethostname())
    world = World.from_env(os.environ, names[:: int(os.environ["LOCAL_WORLD_SIZE"])])
    trainer = Trainer(config, world, device, stop_requested=lambda: bool(stops))
    trainer.resume()
    while trainer.finished_steps < config.steps and not trainer.preempted:
        trainer.step()
        if not trainer.preempted:
            trainer.wait_to_be_killed()
        time.sleep(config.pause_s)
    if trainer.preempted:
        trainer.save()
    trainer.end()
    trainer.close()
    # Not after an error: this call waits for ranks that may be waiting for this one.
    dist.destroy_process_group()
    return 0 if trainer.finished_steps >= config.steps else EXIT_PREEMPTED


if __name__ == "__main__":
    try:
        status = main(sys.argv[1:])
    except UsageError as error:
        print(f"train: {error}", file=sys.stderr)
        status = 2
    except MnodeError as error:
        print(f"train: {error}", file=sys.stderr)
        status = 1
    sys.exit(status)
