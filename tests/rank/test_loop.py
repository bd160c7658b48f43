"""What a rank sets up before its tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.rank.loop import have_nccl_log


@pytest.mark.parametrize("name", ["NCCL_DEBUG", "NCCL_DEBUG_SUBSYS", "NCCL_DEBUG_FILE"])
def test_the_users_settings_of_nccls_log_stay(name: str) -> None:
    environ = {name: "user's"}
    have_nccl_log(environ, Path("/run/nccl"))
    ours = {
        "NCCL_DEBUG": "INFO",
        "NCCL_DEBUG_SUBSYS": "INIT,NET,ENV,GRAPH",
        "NCCL_DEBUG_FILE": "/run/nccl",
    }
    assert environ == {**ours, name: "user's"}
