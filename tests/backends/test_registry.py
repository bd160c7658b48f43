"""The registry of backends, and those of installed packages."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import EntryPoint
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.backends import Backend, Here, NodeRequest, registry
from pytest_mnode.backends.registry import choose, chosen, known
from pytest_mnode.cluster import Cluster
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.jobs import Job, LaunchedJob
from pytest_mnode.launchers.local import Local
from pytest_mnode.launchers.node import Launcher
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.option_texts import Given
from pytest_mnode.options import BACKENDS_GROUP, LAUNCHERS, OPTIONS, Settings
from pytest_mnode.spec import profile_spec
from tests.inner import run_pytest, write_files

SPEC = profile_spec("rack")


class Hall(Backend):
    """A site's own: its nodes are named by a variable."""

    def meant(self, here: Here) -> str | None:
        return "in the hall" if "HALL" in here.environ else None

    def names(self, here: Here) -> tuple[str, ...]:
        return tuple(here.environ["HALL"].split())

    def launcher(self, request: NodeRequest) -> Launcher:
        return Local(request.nodes)

    def submit(self, cluster: Nodes, job: Job) -> LaunchedJob:
        raise ClusterError(f"the hall takes {job.argv[0]} on {', '.join(cluster.nodes)} at night")


class NoBackend:
    pass


@pytest.fixture
def install(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    known.cache_clear()
    yield monkeypatch
    known.cache_clear()


def installed(patch: pytest.MonkeyPatch, name: str, value: str) -> None:
    entry = EntryPoint(name, f"tests.backends.test_registry:{value}", BACKENDS_GROUP)
    patch.setattr(registry, "entry_points", lambda group: [entry])


def test_our_own_are_the_choices_of_the_option() -> None:
    ours = {b.name for b in known() if type(b).__module__.startswith("pytest_mnode.")}
    assert ours == set(LAUNCHERS) - {"auto"}


def test_a_package_adds_one_that_auto_asks_first(
    install: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    installed(install, "hall", "Hall")
    install.setenv("SLURM_JOB_ID", "7")
    assert chosen(Settings())[0].name == "slurm"
    install.setenv("HALL", "n1 n2")
    launcher, why = choose(Settings(), 2, SPEC, [], tmp_path)
    assert (launcher.name, why) == ("hall", "in the hall")
    assert chosen(Settings(launcher="hall"))[1] == "requested"


@pytest.mark.parametrize(
    ("value", "why"),
    [
        ("NoBackend", "TypeError: no subclass of pytest_mnode.backends.Backend"),
        ("Missing", "AttributeError: "),
    ],
)
def test_a_bad_entry_point_is_named(install: pytest.MonkeyPatch, value: str, why: str) -> None:
    installed(install, "hall", value)
    with pytest.raises(UsageError, match=f"entry point hall = .*{value}' of .*: {why}"):
        known()


def test_jobs_start_by_the_backend_that_gave_the_nodes(install: pytest.MonkeyPatch) -> None:
    installed(install, "hall", "Hall")
    cluster: Any = SimpleNamespace(backend="hall", nodes=("a", "b"), _jobs=[])
    with pytest.raises(ClusterError, match=r"^the hall takes train\.py on a, b at night$"):
        Cluster.launch(cluster, ["train.py"])


def test_an_unknown_launcher_is_refused_with_all_names() -> None:
    with pytest.raises(pytest.UsageError, match=r"=nodes: accepted: auto, local, .*kubernetes"):
        OPTIONS["launcher"].read(Given("--mnode-launcher", "nodes", Path()))


SITE = """
    from pytest_mnode.backends import Backend
    from pytest_mnode.launchers.local import Local

    class Hall(Backend):
        def launcher(self, request):
            return Local(request.nodes)
"""
ONE = "def test_it(world): assert world.node.startswith('local')"


def test_a_sites_package_adds_a_launcher(tmp_path: Path) -> None:
    site = tmp_path / "site"
    info = site / "hall-1.dist-info"
    info.mkdir(parents=True)
    write_files(site, hall_backend=SITE)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: hall\nVersion: 1\n")
    (info / "entry_points.txt").write_text("[pytest_mnode.backends]\nhall=hall_backend:Hall\n")
    write_files(tmp_path, test_one=ONE)
    options = ["--mnode-launcher=hall", "--mnode-nodes=2"]
    run = run_pytest(tmp_path, *options, env={"PYTHONPATH": str(site)})
    assert run.outcomes() == {"test_it": "passed"}, run.output
