"""A plain script with one test, under torchrun."""

import torch.distributed as dist

from benchmarks.programs import bodies


def main() -> None:
    bodies.join()
    body = bodies.faulty if bodies.FAULT else bodies.trivial
    body(dist.get_rank(), dist.get_world_size())
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
