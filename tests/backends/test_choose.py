"""The launcher that a run gets, and the printed reason."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from unittest.mock import Mock

import pytest

from pytest_mnode.backends.registry import choose, unused_option
from pytest_mnode.controller import pool
from pytest_mnode.errors import ClusterError, UsageError
from pytest_mnode.launchers import slurm
from pytest_mnode.launchers.kubernetes import api
from pytest_mnode.launchers.rack import Rack
from pytest_mnode.options import Settings
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.gang import GangCriterion
from tests.inner import need_program

SPEC = profile_spec("rack")
NO = "namespaces are not allowed"
SETTINGS = Settings()
HERE = Path.cwd()


@pytest.fixture
def _no_rack(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Rack, "unavailable", staticmethod(lambda: NO))


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    """Outside of an allocation, where a rack is possible."""
    monkeypatch.delenv("SLURM_JOB_ID", raising=False)
    monkeypatch.setattr(Rack, "unavailable", staticmethod(lambda: None))


def test_the_rack_by_default_with_the_links_of_the_spec() -> None:
    launcher, reason = choose(Settings(launcher="auto"), 3, SPEC, [], HERE)
    assert (launcher.name, reason) == ("rack", "default: no cluster given")
    assert len(launcher.nodes) == 3
    assert isinstance(launcher, Rack)
    assert [(link.name, link.rate_mbit_s) for link in launcher.plan.links] == [
        ("mgmt0", 20.0),
        ("fab0", 200.0),
    ]


@pytest.mark.usefixtures("_no_rack")
def test_plain_processes_if_no_rack_is_possible() -> None:
    launcher, reason = choose(Settings(launcher="auto"), 2, SPEC, [], HERE)
    assert (launcher.name, reason) == ("local", f"no rack: {NO}")


@pytest.mark.usefixtures("_no_rack")
def test_plain_processes_are_not_judged_by_the_racks_promises(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("import pytest\n@pytest.mark.criterion\ndef test_one(world): pass")
    result = pytester.runpytest_inprocess("--mnode-nodes=2")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([f"ERROR: no rack: {NO}; plain processes have none of what *"])


@pytest.mark.usefixtures("_no_rack")
def test_a_requested_rack_is_not_replaced() -> None:
    with pytest.raises(UsageError, match=f"--mnode-launcher=rack: {NO}; use local"):
        choose(Settings(launcher="rack"), 2, SPEC, [], HERE)


def test_a_rack_that_fails_to_start_is_replaced_only_if_not_requested(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    refused = ClusterError("rack: no tbf in this kernel")
    monkeypatch.setattr(Rack, "start", Mock(side_effect=refused))
    launcher, reason = pool._started(SETTINGS, 2, SPEC, Path("/nowhere"), HERE)
    assert (launcher.name, reason) == ("local", "no rack: rack: no tbf in this kernel")
    with pytest.raises(ClusterError, match="no tbf"):
        pool._started(Settings(launcher="rack"), 2, SPEC, Path("/nowhere"), HERE)


def _hosts(launcher: str, directory: Path, count: int) -> Settings:
    path = directory / "hosts"
    path.write_text("".join(f"n{number}\n" for number in range(count)))
    return Settings(launcher=launcher, hostfile=path, silence_limit_s=20.0)


@pytest.mark.parametrize("wanted", ["auto", "ssh"])
def test_ssh_if_hosts_are_named(tmp_path: Path, wanted: str) -> None:
    need_program("ssh", "openssh-client")
    settings = _hosts(wanted, tmp_path, 3)
    launcher, reason = choose(settings, 2, SPEC, [], tmp_path)
    assert launcher.name == "ssh"
    assert reason == ("requested" if wanted == "ssh" else f"hostfile {settings.hostfile}")
    assert list(getattr(launcher, "unused", ())) == ["n2"]
    assert launcher.limits.silence_s == 20.0


def test_ssh_requires_enough_hosts(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--mnode-launcher=ssh: no nodes given: use --mnode-hostf"):
        choose(Settings(launcher="ssh"), 2, SPEC, [], tmp_path)
    with pytest.raises(UsageError, match=r"4 nodes are needed, but .*hosts names 3: n\[0-2\];"):
        choose(_hosts("ssh", tmp_path, 3), 4, SPEC, [], tmp_path)


def test_slurm_inside_an_allocation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    monkeypatch.setattr(slurm.Slurm, "unavailable", staticmethod(lambda: None))
    launcher, reason = choose(_hosts("auto", tmp_path, 3), 2, SPEC, [], tmp_path)
    assert (launcher.name, reason) == ("slurm", "inside of job 17")


@pytest.mark.parametrize(
    ("wanted", "hostfile", "message"),
    [
        ("auto", False, "this run is outside of an allocation; add --mnode-launcher=slurm to req"),
        ("auto", True, "Slurm is not used with --mnode-hostfile=.*hosts; leave one of them out"),
        ("rack", False, "Slurm is not used with --mnode-launcher=rack; leave one of them out"),
        ("ssh", True, "Slurm is not used with --mnode-launcher=ssh; leave one of them out"),
    ],
)
def test_slurm_arguments_of_an_allocation_that_is_not_requested(
    tmp_path: Path, wanted: str, hostfile: bool, message: str
) -> None:
    settings = _hosts(wanted, tmp_path, 2) if hostfile else Settings(launcher=wanted)
    settings = replace(settings, slurm_args=("--partition=gpu", "-A x"))
    with pytest.raises(UsageError, match=f"^--mnode-slurm-args=--partition=gpu -A x: {message}"):
        choose(settings, 2, SPEC, [], tmp_path)


@pytest.mark.parametrize("wanted", ["rack", "local", "slurm", "kubernetes"])
def test_a_hostfile_with_a_launcher_that_ignores_it_is_refused(tmp_path: Path, wanted: str) -> None:
    message = f"^--mnode-hostfile=.*hosts: --mnode-launcher={wanted} uses other nodes; leave one"
    with pytest.raises(UsageError, match=message):
        choose(_hosts(wanted, tmp_path, 2), 2, SPEC, [], tmp_path)


@pytest.mark.parametrize(
    ("wanted", "environ", "hostfile", "used"),
    [
        ("auto", {}, False, None),
        ("auto", {"SLURM_JOB_ID": "17"}, False, "inside of job 17"),
        ("auto", {"PBS_JOBID": "8", "PBS_NODEFILE": "f"}, False, "inside of PBS job 8"),
        ("auto", {"LSB_JOBID": "9"}, False, "inside of LSF job 9"),
        ("auto", {"FLUX_URI": "ssh://x/y"}, False, "inside of the Flux instance ssh://x/y"),
        ("auto", {}, True, "--mnode-hostfile={hosts}"),
        ("kubernetes", {"SLURM_JOB_ID": "17"}, False, None),
        ("rack", {}, False, "--mnode-launcher=rack"),
    ],
)
def test_options_of_kubernetes_whose_nodes_would_not_be_used_are_refused(
    tmp_path: Path, wanted: str, environ: dict[str, str], hostfile: bool, used: str | None
) -> None:
    settings = _hosts(wanted, tmp_path, 2) if hostfile else Settings(launcher=wanted)
    found = unused_option(replace(settings, k8s_image="train:3"), environ, SPEC)
    by = (used or "").format(hosts=tmp_path / "hosts")
    message = f"--mnode-k8s-image=train:3: other nodes are used ({by}); give --mnode-launcher="
    assert found == (f"{message}kubernetes" if used else None)


@pytest.mark.parametrize(
    ("settings", "environ", "refused"),
    [
        ({}, {"SLURM_JOB_ID": "17"}, None),
        ({"launcher": "exec"}, {}, None),
        ({"launcher": "pbs"}, {}, "--mnode-exec=rsh {host}: other nodes are used "),
        ({"launcher": "slurm"}, {}, "--mnode-exec=rsh {host}: other nodes are used "),
        ({"k8s_image": "train:3"}, {}, "--mnode-k8s-image=train:3: other nodes are used "),
        ({"slurm_args": ("-A x",)}, {"SLURM_JOB_ID": "17"}, "--mnode-slurm-args=-A x: Slurm is "),
    ],
)
def test_a_sites_command_beside_options_for_other_nodes(
    settings: dict[str, object], environ: dict[str, str], refused: str | None
) -> None:
    given = Settings(exec=("rsh", "{host}"), **settings)  # type: ignore[arg-type]
    found = unused_option(given, environ, SPEC)
    assert found is refused if refused is None else (found or "").startswith(refused)


def test_only_an_option_makes_pods_not_the_pod_that_pytest_runs_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pod of a CI runner has a service account too."""
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "10.0.0.1")
    (tmp_path / "token").write_text("secret")
    monkeypatch.setattr(api, "IN_POD", tmp_path)
    launcher, reason = choose(Settings(), 2, SPEC, [], tmp_path)
    assert (launcher.name, reason) == ("rack", "default: no cluster given")
    for wanted, why in (("auto", "--mnode-k8s-image=train:3"), ("kubernetes", "requested")):
        given = Settings(launcher=wanted, k8s_image="train:3")
        assert choose(given, 2, SPEC, [], tmp_path)[1] == why


def test_jobs_of_the_gang_criterion_have_the_arguments_too(tmp_path: Path) -> None:
    need_program("ssh", "openssh-client")
    criteria = SPEC.criteria.model_copy(update={"gang": GangCriterion.model_validate({})})
    spec = SPEC.model_copy(update={"criteria": criteria})
    settings = replace(_hosts("auto", tmp_path, 2), slurm_args=("--partition=gpu",))
    assert choose(settings, 2, spec, [], tmp_path)[0].name == "ssh"
    settings = replace(settings, hostfile=None)
    on_rack = replace(settings, launcher="rack")
    assert choose(on_rack, 2, spec, [], tmp_path)[0].name == "rack"
    # Its own tests need no nodes; other criteria would get the rack's nodes and certify them.
    with pytest.raises(UsageError, match="add --mnode-launcher=slurm"):
        choose(settings, 2, spec, [], tmp_path)


@pytest.mark.parametrize("launcher", ["auto", "ssh", "mpi", "exec"])
def test_ranks_per_node_are_the_fewest_slots_of_the_used_hosts(
    tmp_path: Path, launcher: str
) -> None:
    hosts = tmp_path / "hosts"
    hosts.write_text("n1 slots=8\nn2 slots=6\nlogin slots=1\n")
    settings = replace(SETTINGS, launcher=launcher, hostfile=hosts)
    assert pool.procs_per_node_of(replace(settings, nodes=2), SPEC) == 6
    assert pool.procs_per_node_of(replace(settings, nodes=3), SPEC) == 1
    assert pool.procs_per_node_of(replace(settings, procs_per_node=2), SPEC) == 2


def test_slots_of_an_unused_hostfile_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`auto` inside an allocation, with a hostfile in an ini file."""
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    hosts = tmp_path / "hosts"
    hosts.write_text("n1 slots=8\n")
    settings = replace(SETTINGS, nodes=1, hostfile=hosts)
    assert pool.procs_per_node_of(settings, SPEC) == 1
    assert pool.procs_per_node_of(replace(settings, launcher="ssh"), SPEC) == 8
    assert pool.procs_per_node_of(replace(settings, hostfile=tmp_path / "none"), SPEC) == 1
