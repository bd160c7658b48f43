"""Gangs that an experiment leaves to no one: its engine ends them, however it ends itself."""

from __future__ import annotations

import signal
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from pytest_mnode.backends.kubernetes import KubernetesBackend
from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.errors import ClusterError
from pytest_mnode.gang import site
from pytest_mnode.gang import slurm as slurm_module
from pytest_mnode.gang.kubernetes import engine as engine_module
from pytest_mnode.gang.kubernetes.engine import KubernetesEngine
from pytest_mnode.gang.slurm import SlurmEngine
from pytest_mnode.launchers.cleanup.leftovers import Leftovers
from pytest_mnode.launchers.kubernetes import cleanup
from pytest_mnode.launchers.kubernetes.api import ApiError

KINDS = ("batch/jobs", "/services")


class Api:
    """A server with an object of the run of each kind; one of them is gone when it is deleted."""

    asked: list[str]

    def __init__(self, *_: str) -> None: ...

    def path(self, plural: str, version: str = "v1", name: str = "") -> str:
        return "/".join(filter(None, (version, plural, name)))

    def request(self, method: str, path: str, *_: object, **__: object) -> Any:
        Api.asked.append(f"{method} {path}")
        if method == "DELETE" and "services" in path:
            raise ApiError(404, "no such object")
        return {"items": [{"metadata": {"name": "a"}}]}


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Api, "asked", [], raising=False)
    monkeypatch.setattr(cleanup, "Api", Api)
    monkeypatch.setattr(cleanup, "api_version", lambda _, group, __: group or "v1")


@pytest.mark.usefixtures("server")
def test_all_objects_of_a_run_are_deleted(capsys: pytest.CaptureFixture[str]) -> None:
    cleanup.main("show", "r", "", "", *KINDS)
    assert capsys.readouterr().out.split() == ["batch/jobs/a", "v1/services/a", "v1/pods/a"]
    assert not [one for one in Api.asked if one.startswith("DELETE")]
    cleanup.main("delete", "r", "", "", *KINDS)
    deleted = [one for one in Api.asked if one.startswith("DELETE")]
    assert deleted == ["DELETE batch/jobs/a", "DELETE v1/services/a"]


class Cleanup:
    """The process that ends what is left."""

    def __init__(self) -> None:
        self.left = ""
        self.answered: list[bool] = []

    def end(self, answered: bool) -> str:
        self.answered.append(answered)
        return self.left


@dataclass(frozen=True)
class Resource:
    plural: str


@pytest.fixture
def kubernetes() -> KubernetesEngine:
    made = KubernetesEngine.__new__(KubernetesEngine)
    job, service = (Resource(name) for name in ("jobs", "services"))
    parts = {
        "_api": Api(),
        "_kind": SimpleNamespace(root=job, beside=[service]),
        "_versions": {job: "v1", service: "v1"},
        "_streams": SimpleNamespace(closed=[]),
        "_cleanup": Cleanup(),
        "_unanswered": False,
        "_submitted": True,
        "_selector": "run=r",
        "run_id": "r",
    }
    for name, value in parts.items():
        setattr(made, name, value)
    streams: Any = made._streams
    streams.close = lambda: streams.closed.append(True)
    return made


@pytest.mark.usefixtures("server")
def test_a_cancelled_gang_is_deleted_with_all_that_was_made_for_it(
    kubernetes: KubernetesEngine,
) -> None:
    kubernetes.cancel(["g1"])
    assert Api.asked == ["DELETE v1/jobs/g1", "DELETE v1/services/g1"]


def test_the_end_of_an_engine_ends_its_objects(kubernetes: KubernetesEngine) -> None:
    parts: Any = kubernetes
    kubernetes.close()
    assert (parts._cleanup.answered, parts._streams.closed) == ([True], [True])
    parts._cleanup.left, parts._unanswered = "objects may be left", True
    with pytest.raises(ClusterError, match=r"^objects may be left$"):
        kubernetes.close()
    assert parts._cleanup.answered[1:] == [False], "a submission may still arrive"


@pytest.mark.usefixtures("server")
def test_an_engine_names_all_that_it_may_leave(monkeypatch: pytest.MonkeyPatch) -> None:
    """The program that ends it is started before the first object is made."""
    given: list[Leftovers] = []
    monkeypatch.setattr(engine_module, "Api", Api)
    monkeypatch.setattr(engine_module, "Cleanup", given.append)
    monkeypatch.setattr(engine_module, "api_version", lambda *_: "v1")
    for name in ("Streams", "admitted", "check_logs", "pod_template"):
        monkeypatch.setattr(engine_module, name, lambda *_: {})
    monkeypatch.setattr(Api, "namespace", "team", raising=False)
    monkeypatch.setattr(Api, "owners", lambda _: [], raising=False)
    scheduler: Any = SimpleNamespace(engine="jobset", namespace="team")
    options: Any = SimpleNamespace(k8s_context="c", k8s_namespace="team")
    backend = KubernetesBackend()
    made = KubernetesEngine(scheduler, options, {}, leftovers=backend.leftovers)
    [left] = given
    for command, what in ((left.show, "show"), (left.end, "delete")):
        words = (cleanup.__name__, what, made.run_id, "c", "team", "jobset.x-k8s.io/jobsets")
        assert command[-6:] == words
    assert left.by_hand.startswith("kubectl --context=c -n team delete jobsets -l ")


def test_the_end_of_an_engine_ends_its_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[Any] = []

    def started(left: Leftovers, directory: str) -> Cleanup:
        made.append((left.name, directory, Cleanup()))
        return made[0][2]  # type: ignore[no-any-return]

    monkeypatch.setattr(slurm_module, "Cleanup", started)
    monkeypatch.setattr(slurm_module, "SlurmRoom", lambda *_: SimpleNamespace(target=None))
    engine = SlurmEngine(tmp_path, SlurmBackend().leftovers("mnode-gang-1"))
    cancelled: list[int] = []
    engine._slurm = SimpleNamespace(cancel=lambda *jobs: cancelled.extend(jobs))  # type: ignore[assignment]
    engine.cancel(["7", "8"])
    assert cancelled == [7, 8]
    engine.close()
    [(name, directory, cleanup_process)] = made
    assert name == engine._job_name == "mnode-gang-1"
    assert Path(directory) == engine.directory
    assert cleanup_process.answered == [True]
    cleanup_process.left, engine._submitted = "jobs may be left", True
    with pytest.raises(ClusterError, match=r"^jobs may be left$"):
        engine.close()


@pytest.mark.parametrize(
    "error", [None, ClusterError("no answer"), KeyboardInterrupt(), SystemExit(signal.SIGTERM)]
)
def test_an_experiment_closes_its_engine(
    monkeypatch: pytest.MonkeyPatch, error: BaseException | None
) -> None:
    closed: list[bool] = []
    engine = SimpleNamespace(close=lambda: closed.append(True))
    monkeypatch.setattr(site, "_engine", lambda *_: engine)
    given: Any = (None, None, None)
    if error is None:
        with site.opened(*given):
            pass
    else:
        with pytest.raises(type(error)), site.opened(*given):
            raise error
    assert closed == [True]
