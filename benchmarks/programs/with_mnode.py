"""pytest-mnode: a plain test function."""

from typing import Any

import pytest

from benchmarks.programs import bodies

pytestmark = pytest.mark.usefixtures("process_group")

if bodies.FAULT:

    def test_0000_faulty(world: Any) -> None:
        bodies.faulty(world.rank, world.size)

    def test_0001_following(world: Any) -> None:
        bodies.following(world.rank, world.size)

else:

    @pytest.mark.parametrize("_number", range(bodies.TESTS))
    def test_trivial(_number: int, world: Any) -> None:
        bodies.trivial(world.rank, world.size)
