"""Ranks have the environment that the torchrun command sets."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest

from tests import warm
from tests.inner import clean_env, run_pytest, write_files

pytest.importorskip("torch")

PROGRAM = """
import json, os, sys

with open(f"{sys.argv[1]}/torchrun{os.environ['RANK']}", "w") as file:
    json.dump(dict(os.environ), file)
"""
TESTS = """
    import json, os

    def test_it(rank, request):
        (request.config.rootpath / f"ours{rank}").write_text(json.dumps(dict(os.environ)))
"""
OTHER_VALUES = {"MASTER_ADDR", "MASTER_PORT", "TORCHELASTIC_RUN_ID", "TORCHELASTIC_ERROR_FILE"}
"""Addresses, ports, ids, and files named after them."""
OF_SHELLS = {"_", "SHLVL", "OLDPWD", "PWD"}
OF_PYTEST = {"PYTEST_CURRENT_TEST", "PYTEST_VERSION"}
OURS = {
    "GLOO_SOCKET_IFNAME",  # the interface of the fabric; here it is loopback
    "NCCL_SOCKET_IFNAME",
    "MNODE_RUN",  # marks leftovers of the run
    "PYTHONUNBUFFERED",
    "PYTORCH_NVML_BASED_CUDA_CHECK",  # a CUDA query would make forked ranks unusable
}


def read(directory: Path, kind: str) -> list[dict[str, str]]:
    """Environments of ranks 0 and 1."""
    return [json.loads((directory / f"{kind}{rank}").read_text()) for rank in (0, 1)]


def test_ranks_have_the_variables_that_torchrun_sets(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    write_files(tmp_path, test_it=TESTS)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node=2"]
    torchrun += ["--master-addr=127.0.0.1", "--master-port=0", "--rdzv-backend=c10d"]
    torchrun += ["--rdzv-endpoint=127.0.0.1:0", f"--log-dir={tmp_path}/logs"]
    program = ["program.py", str(tmp_path)]
    status, output = warm.run([*torchrun, *program], tmp_path, clean_env(), 120)
    assert status == 0, output
    args = ("--mnode-nodes=1", "--mnode-procs-per-node=2", "--mnode-launcher=local")
    run = run_pytest(tmp_path, *args)
    assert run.outcomes() == {"test_it": "passed"}, run.output
    inherited = set(os.environ)
    for theirs, ours in zip(read(tmp_path, "torchrun"), read(tmp_path, "ours"), strict=True):
        assert set(theirs) - set(ours) == set()
        more = set(ours) - set(theirs) - OF_PYTEST - inherited
        assert more <= OURS, {name: ours[name] for name in more - OURS}
        compared = set(theirs) - OTHER_VALUES - OF_SHELLS
        assert len(compared - inherited) > 10
        differ = {n: (theirs[n], ours[n]) for n in compared if theirs[n] != ours[n]}
        assert differ == {}
