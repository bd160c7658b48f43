"""Four ranks on four nodes save and load: shared work, agreement, refusals, resharding, kills."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from tests.inner import clean_env, command, need_rack, run_to_end

SCENARIOS = Path(__file__).with_name("scenarios")
ROOT = Path(__file__).parents[3]
LIMIT_S = 240


def test_in_ranks(tmp_path: Path) -> None:
    """In a mount namespace with a small file system that ends with it."""
    need_rack()
    for scenario in SCENARIOS.glob("*.py"):
        shutil.copy(scenario, tmp_path / f"test_{scenario.name}")
    for name in ("small", "read_only", "own"):
        (tmp_path / name).mkdir()
    (tmp_path / "pytest.ini").touch()
    junit = tmp_path / "junit.xml"
    faults = f"read_only_path:node2:{tmp_path}/read_only,full_disk:node2:{tmp_path}/own"
    rights = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    mount = 'mount -t tmpfs -o size=2m small "$1" && shift && exec "$@"'
    argv = [
        *("unshare", *rights, "--mount", "--", "sh", "-c", mount, "sh", f"{tmp_path}/small"),
        *command("--mnode-nodes=4", f"--mnode-fault={faults}", f"--junitxml={junit}"),
    ]
    run = run_to_end(argv, tmp_path, clean_env() | {"PYTHONPATH": str(ROOT)}, LIMIT_S)
    assert (run.returncode, set(run.outcomes().values())) == (0, {"passed"}), run.output
