"""Test classes that start processes of their own, and the worlds that they need.

Classes are recognised by the names of their bases, so that no base has to be imported.
"""

from __future__ import annotations

import inspect
from enum import Enum
from typing import Any

import pytest

SIZE_FIXTURE = "_mnode_size"
_SIZE = "world_size"
_COMMON = "torch.testing._internal.common_distributed"
_DTENSOR = "torch.testing._internal.distributed._tensor.common_dtensor"


class Suite(Enum):
    """The lifetime of a test class's processes."""

    PROCESSES = "new processes for each test"
    CONTINUOUS = "processes and a process group for the tests of a class"
    DEEPSPEED = "processes with a process group for each test"


_BASES = {
    f"{_COMMON}.MultiProcessTestCase": Suite.PROCESSES,
    f"{_COMMON}.MultiProcContinuousTest": Suite.CONTINUOUS,
}
_NEED_NO_WORLD = {
    f"{_COMMON}.MultiThreadedTestCase",
    f"{_COMMON}.DynamoDistributedSingleProcTestCase",
    f"{_DTENSOR}.LocalDTensorTestBase",
    f"{_DTENSOR}.LocalDTensorContinuousTestBase",
}


def suite_of(cls: type | None) -> Suite | None:
    """The kind of a test class; None if it starts no processes."""
    if cls is None or needs_no_world(cls):
        return None
    found = (_BASES[name] for name in _names(cls) if name in _BASES)
    deepspeed = Suite.DEEPSPEED if getattr(cls, "is_dist_test", False) is True else None
    return next(found, deepspeed)


def needs_no_world(cls: type | None) -> bool:
    """Whether the ranks of a test class are threads of one process, or simulated in it."""
    return cls is not None and not _NEED_NO_WORLD.isdisjoint(_names(cls))


def give_groups(items: list[pytest.Item]) -> None:
    """Have pytest set up the default process group for tests that expect one."""
    for item in items:
        cls: Any = getattr(item, "cls", None)
        if suite_of(cls) is Suite.DEEPSPEED and getattr(cls, "init_distributed", True):
            names: list[str] = item.fixturenames  # type: ignore[attr-defined]
            if "process_group" not in names:  # variants of one test share the list
                names.append("process_group")


def _names(cls: type) -> list[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in cls.__mro__]


def size_of(item: pytest.Item) -> int | None:
    """Number of ranks that a test of such a class requests; None if it requests none."""
    cls = getattr(item, "cls", None)
    if suite_of(cls) is None:
        return None
    params = getattr(getattr(item, "callspec", None), "params", {})
    method = getattr(cls, getattr(item, "originalname", item.name), None)
    mark = item.get_closest_marker("world_size")
    own = params.get(SIZE_FIXTURE) or getattr(method, "_required_world_size", None)
    if not own and not (mark and mark.args) and inspect.getattr_static(cls, _SIZE, None) is None:
        return None
    try:
        size = int(own or (mark.args[0] if mark and mark.args else _declared(cls)))
    except Exception as error:  # raised by a property, such as one that reads the environment
        raise pytest.UsageError(
            f"{item.nodeid}: world_size of its class cannot be read ({error!r}); give the mnode "
            "mark nodes and procs_per_node, in the test module"
        ) from None
    return size if size > 0 else None  # torch uses -2 for "as many as there are devices"


def _declared(cls: Any) -> Any:
    value = cls.world_size
    return value.__get__(object.__new__(cls)) if isinstance(value, property) else value


def parametrise_sizes(metafunc: pytest.Metafunc) -> None:
    """Make one variant of a DeepSpeed test for each number of `world_size = [2, 4]`."""
    test, cls = metafunc.definition, metafunc.cls
    # Without the mark the class is another suite's own affair: not even its attributes are read.
    if test.get_closest_marker("mnode") is None or suite_of(cls) is not Suite.DEEPSPEED:
        return
    mark = test.get_closest_marker("world_size")
    sizes = mark.args[0] if mark and mark.args else inspect.getattr_static(cls, _SIZE, None)
    if isinstance(sizes, list | tuple):
        metafunc.fixturenames.append(SIZE_FIXTURE)
        metafunc.parametrize(SIZE_FIXTURE, sizes, ids=[f"ranks{n}" for n in sizes], indirect=True)


def spread(size: int, nodes: int) -> int:
    """Largest number of nodes, at most `nodes`, that divide `size` ranks equally."""
    return max(count for count in range(1, nodes + 1) if size % count == 0)
