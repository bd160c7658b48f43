"""`torchrun -m pytest`, and pytest-mpi under mpirun: a pytest per rank, one group for all tests."""

import os
from collections.abc import Iterator

import pytest
import torch.distributed as dist

from benchmarks.programs import bodies

if "OMPI_COMM_WORLD_RANK" in os.environ:
    os.environ["RANK"] = os.environ["OMPI_COMM_WORLD_RANK"]
    os.environ["WORLD_SIZE"] = os.environ["OMPI_COMM_WORLD_SIZE"]
    pytestmark = pytest.mark.mpi  # without this mark pytest-mpi skips a test


@pytest.fixture(scope="session")
def group() -> Iterator[tuple[int, int]]:
    bodies.join()
    yield dist.get_rank(), dist.get_world_size()
    dist.destroy_process_group()


if bodies.FAULT:

    def test_0000_faulty(group: tuple[int, int]) -> None:
        bodies.faulty(*group)

    def test_0001_following(group: tuple[int, int]) -> None:
        bodies.following(*group)

else:

    @pytest.mark.parametrize("_number", range(bodies.TESTS))
    def test_trivial(_number: int, group: tuple[int, int]) -> None:
        bodies.trivial(*group)
