"""The NUMA memory policy of this process, by a system call that Python does not provide."""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
from collections.abc import Iterator

_DEFAULT, _PREFERRED, _BIND = 0, 1, 2
_NUMBERS = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_libc = ctypes.CDLL(None, use_errno=True)


def prefer(numa_node: int) -> None:
    """Prefer memory of this NUMA node while it has any, on whatever CPU the thread runs.

    Applies to the calling thread and the threads it starts. Raises OSError if the kernel refuses.
    """
    _set(_PREFERRED, numa_node)
    _preferred.append(numa_node)


@contextlib.contextmanager
def only(numa_node: int) -> Iterator[None]:
    """Place pages that this thread first touches in this block on this NUMA node, or nowhere.

    Afterwards pages come from the node where the thread runs, or from the node last preferred.
    """
    _set(_BIND, numa_node)
    try:
        yield
    finally:
        if _preferred:
            _set(_PREFERRED, _preferred[-1])
        else:
            _set(_DEFAULT, None)


_preferred: list[int] = []
"""NUMA nodes that this process has preferred; the last one applies."""


def _set(policy: int, numa_node: int | None) -> None:
    number = _NUMBERS.get(platform.machine())
    if number is None:
        raise OSError(38, f"{os.strerror(38)} on {platform.machine()}", "set_mempolicy")
    if numa_node is None:
        _call(number, policy, None, 0, "default")
        return
    bits = ctypes.sizeof(ctypes.c_ulong) * 8
    words = numa_node // bits + 1
    mask = (ctypes.c_ulong * words)()
    mask[numa_node // bits] = 1 << (numa_node % bits)
    # The kernel reads one bit less than `maxnode`.
    _call(number, policy, mask, words * bits + 1, f"node {numa_node}")


def _call(number: int, policy: int, mask: object, bits: int, what: str) -> None:
    if _libc.syscall(number, policy, mask, ctypes.c_ulong(bits)) != 0:
        error = ctypes.get_errno()
        raise OSError(error, os.strerror(error), f"set_mempolicy({what})")
