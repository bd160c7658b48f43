"""Whether NVLink's switches reduce: what each rank knows, and what all of them together do."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.measuring.busbw import nvls_of_ranks
from pytest_mnode.spec.alpha_beta import Nvls

AVAILABLE = "n0:7:9 [0] NCCL INFO NVLS multicast support is available on dev 0 (NVLS_NCHANNELS 16)"
ON, OFF, UNKNOWN = (Nvls(used, "another rank") for used in (True, False, None))


@pytest.mark.parametrize(
    ("log", "settings", "conf", "version", "others", "used", "why"),
    [
        (AVAILABLE, {}, "", "2.27.5", [ON], True, "available"),
        (AVAILABLE, {}, "", "2.27.5", [ON, OFF], False, "another rank"),
        (AVAILABLE, {}, "", "2.27.5", [UNKNOWN, ON], None, "another rank"),
        (AVAILABLE, {}, "", "2.27.5", [UNKNOWN, OFF], False, "another rank"),
        (AVAILABLE, {"NCCL_NVLS_ENABLE": "0"}, "", "2.27.5", [ON], False, "NCCL_NVLS_ENABLE=0"),
        (AVAILABLE, {}, "NCCL_ALGO=Ring\n", "2.27.5", [ON], False, "NCCL_ALGO=Ring"),
        (AVAILABLE, {"NCCL_ALGO": "NVLS"}, "NCCL_ALGO=Ring\n", "2.27.5", [ON], True, "available"),
        (AVAILABLE, {}, "", "2.16.2", [ON], False, "NCCL 2.16"),
        ("", {}, "", "2.27.5", [ON], None, "not known"),
        (None, {}, "", None, [ON], None, "not known"),
    ],
)
def test_one_rank_without_it_is_enough(  # noqa: PLR0917  one case
    log: str | None,
    settings: dict[str, str],
    conf: str,
    version: str | None,
    others: list[Nvls],
    used: bool | None,
    why: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("NCCL_ALGO", "NCCL_NVLS_ENABLE", "NCCL_DEBUG_FILE"):
        monkeypatch.delenv(name, raising=False)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "nccl.conf").write_text(conf)
    monkeypatch.setenv("NCCL_CONF_FILE", str(tmp_path / "nccl.conf"))
    if log is not None:
        (tmp_path / "rank.log").write_text(log)
        monkeypatch.setenv("NCCL_DEBUG_FILE", str(tmp_path / "rank.log"))

    def with_others(mine: Any) -> list[Any]:
        return [mine, *others]

    monkeypatch.setattr("pytest_mnode.measuring.busbw.nccl_version", lambda: version)
    monkeypatch.setattr("pytest_mnode.measuring.busbw.gathered", with_others)
    found = nvls_of_ranks(across=False)
    assert found.used is used
    assert why in found.why
