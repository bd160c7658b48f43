"""Nodes and commands of the backends whose nodes dial in, from what their schedulers say."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

import pytest

from pytest_mnode.backends import Here
from pytest_mnode.backends.dial_in import DialInBackend, Start
from pytest_mnode.backends.registry import chosen, listed_nodes, named, scheduler_of
from pytest_mnode.errors import UsageError
from pytest_mnode.launchers.dial_in.bridge import last_words, which
from pytest_mnode.options import Settings
from tests.programs import write_program

OF_SCHEDULERS = ("SLURM_JOB_ID", "PBS_JOBID", "PBS_NODEFILE", "LSB_JOBID", "FLUX_URI")
FLUX = "#!/bin/sh\ncase $* in 'getattr hostlist') echo 'x[08-10],gpu1' ;; *) exit 1 ;; esac\n"
OPEN_MPI = "#!/bin/sh\necho 'mpirun (Open MPI) 4.1.4'; echo; echo 'Report bugs to …'\n"
HYDRA = "#!/bin/sh\necho 'HYDRA build details:'; echo '    Version:        4.0.2'\n"
INTEL = "#!/bin/sh\necho 'Intel(R) MPI Library for Linux* OS, Version 2021.11 Build 20231005'\n"


@pytest.fixture(autouse=True)
def _outside(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (*OF_SCHEDULERS, "FLUX_TASK_RANK"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def programs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that is first in PATH."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", f"{folder}{os.pathsep}{os.environ['PATH']}")
    return folder


def commands(name: str, hosts: tuple[str, ...], nodes: int = 2, **settings: object) -> list[str]:
    backend = named(name)
    assert isinstance(backend, DialInBackend)
    start = Start(hosts, nodes, ("python", "x"), Settings(**settings))  # type: ignore[arg-type]
    return [" ".join(command) for command in backend.commands(start)]


def names(name: str, environ: Mapping[str, str]) -> tuple[str, ...] | None:
    return named(name).names(Here(Settings(), environ))


@pytest.mark.parametrize(
    ("lines", "hosts", "expected"),
    [
        ("n1\nn2\n", ("n1", "n2"), ["pbsdsh -- python x"]),
        ("n1\nn2\nn3\n", ("n1", "n3"), ["pbsdsh -n 0 -- python x", "pbsdsh -n 2 -- python x"]),
        ("n1\nn1\nn2\nn2\n", ("n1", "n2"), ["pbsdsh -n 0 -- python x", "pbsdsh -n 2 -- python x"]),
        ("n1.hpc.org\n", ("n1.hpc.org",), ["pbsdsh -- python x"]),
    ],
)
def test_pbs_starts_one_program_for_each_host_of_the_nodefile(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    lines: str,
    hosts: tuple[str, ...],
    expected: list[str],
) -> None:
    (tmp_path / "nodes").write_text(lines)
    environ = {"PBS_JOBID": "12.server", "PBS_NODEFILE": str(tmp_path / "nodes")}
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    assert names("pbs", environ) == tuple(dict.fromkeys(lines.split()))
    assert commands("pbs", hosts) == expected
    backend, why = chosen(Settings())
    assert (backend.name, why) == ("pbs", "inside of PBS job 12.server")
    given = Settings(hostfile=tmp_path / "nodes")
    assert chosen(given)[0].name == "ssh"
    assert scheduler_of(Here(given, environ), [host.partition(".")[0] for host in hosts]) == "pbs"
    assert scheduler_of(Here(given, environ), [*hosts, "elsewhere"]) == ""


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"PBS_JOBID": "12", "PBS_NODEFILE": "/no/such/file"},
        {"FLUX_URI": "local:///no/such/file"},
        {"SLURM_JOB_ID": "4", "SLURM_HET_SIZE": "2"},
    ],
)
def test_a_hostfiles_nodes_are_of_no_scheduler_that_cannot_name_them(
    tmp_path: Path, programs: Path, environ: dict[str, str]
) -> None:
    write_program(programs / "flux", "#!/bin/sh\nexit 1\n")
    (tmp_path / "hosts").write_text("n1\nn2\n")
    here = Here(Settings(hostfile=tmp_path / "hosts"), environ)
    assert listed_nodes(here) == ("n1", "n2")
    assert scheduler_of(here, ("n1", "n2")) == ""


@pytest.mark.parametrize("line", ["you@n2", "n2:2222", "n2 port=2222", "n2 user=you"])
def test_users_and_ports_are_for_ssh_only(tmp_path: Path, line: str) -> None:
    (tmp_path / "hosts").write_text(f"n1\n{line}\n")
    with pytest.raises(UsageError, match=r"hosts:2: .*only ssh takes a user, a port or a Python"):
        listed_nodes(Here(Settings(hostfile=tmp_path / "hosts"), {}))


@pytest.mark.parametrize(
    ("environ", "file", "expected"),
    [
        ({"LSB_MCPU_HOSTS": "hostA 8 hostB 8 "}, "", ("hostA", "hostB")),
        ({"LSB_HOSTS": "hostA hostA hostB"}, "", ("hostA", "hostB")),
        ({}, "hostB\nhostB\nhostA\n", ("hostB", "hostA")),
        ({"LSB_MCPU_HOSTS": "hostC 1"}, "hostB\n", ("hostB",)),
        ({"LSB_MCPU_HOSTS": "batch1 1 c01 42 c02 42"}, "", ("c01", "c02")),
        ({"LSB_MCPU_HOSTS": "a 1 b 1"}, "", ("a", "b")),
        ({"LSB_MCPU_HOSTS": "a 1"}, "", ("a",)),
        ({"LSB_MCPU_HOSTS": "a 1 b 8", "PATH": ""}, "", ("a", "b")),
        ({}, "batch1\nc01\nc01\nc02\nc02\n", ("c01", "c02")),
    ],
)
def test_nodes_of_an_lsf_job(
    tmp_path: Path, environ: dict[str, str], file: str, expected: tuple[str, ...]
) -> None:
    """Where there is jsrun, the host that runs the job's script is none of them."""
    write_program(tmp_path / "jsrun", "#!/bin/sh\n")
    environ = {"PATH": str(tmp_path), **environ}
    if file:
        (tmp_path / "slots").write_text(file)
        environ = {**environ, "LSB_DJOB_HOSTFILE": str(tmp_path / "slots")}
    environ = {**environ, "LSB_JOBID": "7"}
    assert names("lsf", environ) == expected
    assert chosen(Settings(), environ)[1] == "inside of LSF job 7"
    assert commands("lsf", ("a", "b")) == ["blaunch -no-shell -z a b python x"]


@pytest.mark.parametrize(
    ("name", "environ", "message"),
    [
        ("pbs", {"PBS_NODEFILE": "odd"}, "PBS_NODEFILE=odd: not UTF-8"),
        ("pbs", {"PBS_NODEFILE": "."}, r"PBS_NODEFILE=\.: is a directory"),
        ("lsf", {"LSB_DJOB_HOSTFILE": "odd"}, "LSB_DJOB_HOSTFILE=odd: not UTF-8"),
        ("lsf", {"LSB_MCPU_HOSTS": "n1 x"}, "LSB_MCPU_HOSTS:1: slots=x: accepted"),
        ("lsf", {"LSB_HOSTS": "n1 n\\2"}, "LSB_HOSTS:2: .* is not a host name"),
        ("flux", {"FLUX_LIST": ""}, "flux getattr hostlist: names no host"),
        ("flux", {"FLUX_LIST": "n[1-"}, "flux getattr hostlist:1: .*brackets"),
    ],
)
def test_an_odd_list_of_hosts_is_one_line(
    programs: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    environ: dict[str, str],
    message: str,
) -> None:
    monkeypatch.chdir(programs)
    (programs / "odd").write_bytes(b"n1\n\xff\xfe\n")
    write_program(programs / "flux", '#!/bin/sh\necho "$FLUX_LIST"\n')
    monkeypatch.setenv("FLUX_LIST", environ.get("FLUX_LIST", ""))
    with pytest.raises(UsageError, match=message) as error:
        names(name, {"LSB_JOBID": "7", "FLUX_URI": "local:///x", **environ})
    assert "\n" not in str(error.value)


def test_an_lsf_job_without_a_list_is_one() -> None:
    with pytest.raises(UsageError, match=r"LSB_JOBID=7: .* name no host"):
        names("lsf", {"LSB_JOBID": "7"})


def test_nodes_of_a_flux_instance(
    programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """FLUX_URI in a job of another scheduler is left of the shell that submitted it."""
    write_program(programs / "flux", FLUX)
    environ = {"FLUX_URI": f"local://{tmp_path}"}
    assert chosen(Settings(), environ)[0].name == "flux"
    pbs = {"PBS_JOBID": "4", "PBS_NODEFILE": "f"}
    for other, name in (
        ({"SLURM_JOB_ID": "4"}, "slurm"),
        (pbs, "pbs"),
        ({"LSB_JOBID": "4"}, "lsf"),
    ):
        assert chosen(Settings(), {**environ, **other})[0].name == name
    assert chosen(Settings(), {**environ, "FLUX_TASK_RANK": "0"})[0].name != "flux"
    with monkeypatch.context() as patched:  # the instance of a whole machine
        patched.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
        assert chosen(Settings(), environ)[0].name != "flux"
    assert names("flux", environ) == ("x08", "x09", "x10", "gpu1")
    assert commands("flux", ("x08", "gpu1")) == ["flux exec --rank=0,3 python x"]
    write_program(programs / "flux", "#!/bin/sh\necho 'flux-getattr: no' >&2; exit 1\n")
    with pytest.raises(UsageError, match="flux-getattr: no"):
        names("flux", environ)


@pytest.mark.parametrize(
    ("version", "hosts", "expected"),
    [
        (OPEN_MPI, ("a", "b"), "mpirun --host a,b -np 2 --map-by ppr:1:node --bind-to none"),
        (OPEN_MPI, (), "mpirun -np 2 --map-by ppr:1:node --bind-to none"),
        (HYDRA, ("a", "b"), "mpirun -hosts a,b -ppn 1 -n 2"),
        (INTEL, (), "mpirun -ppn 1 -n 2"),
    ],
)
def test_mpirun_starts_one_unbound_program_on_each_node(
    programs: Path, version: str, hosts: tuple[str, ...], expected: str
) -> None:
    write_program(programs / "mpirun", version)
    assert commands("mpi", hosts) == [f"{expected} python x"]


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rsh {host}", ["rsh a python x", "rsh b python x"]),
        ("pdsh -w {hosts} -N", ["pdsh -w a,b -N python x"]),
        ("srun -N{nodes}", ["srun -N2 python x"]),
    ],
)
def test_a_sites_command_is_for_each_host_or_for_all(words: str, expected: list[str]) -> None:
    assert commands("exec", ("a", "b"), exec=tuple(words.split())) == expected


@pytest.mark.parametrize(
    ("launcher", "settings", "message"),
    [
        ("pbs", {}, "--mnode-launcher=pbs: no PBS job here .*qsub -I"),
        ("lsf", {}, "--mnode-launcher=lsf: no LSF job here .*bsub -I"),
        ("flux", {}, "--mnode-launcher=flux: no Flux instance here .*flux alloc"),
        ("exec", {}, "--mnode-launcher=exec: no command given: use --mnode-exec=COMMAND"),
        ("mpi", {"hostfile": Path("one")}, "2 nodes are needed, but one names 1: n1; .*nodes=1"),
        ("exec", {"exec": ("no-such", "{host}")}, "no-such {host}: no program no-such here"),
        ("exec", {"exec": ("sh", "{host}")}, "sh {host}: no nodes given: use --mnode-hostfile"),
    ],
)
def test_what_is_missing_is_said(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    launcher: str,
    settings: dict[str, object],
    message: str,
) -> None:
    from pytest_mnode.backends.registry import choose
    from pytest_mnode.spec import default_spec_path, load_spec

    (tmp_path / "one").write_text("n1\n")
    monkeypatch.chdir(tmp_path)
    given = Settings(launcher=launcher, **settings)  # type: ignore[arg-type]
    with pytest.raises(UsageError, match=message):
        choose(given, 2, load_spec(default_spec_path()), [], tmp_path)


@pytest.mark.parametrize(
    ("output", "expected"),
    [
        ("", ""),
        ("Welcome\nbash: python9: command not found\n\n", "bash: python9: command not found"),
        (
            "-" * 74 + "\nThere are not enough slots available in the system to satisfy the 4\n"
            "slots that were requested by the application:\n\n  python\n" + "-" * 74 + "\n",
            "There are not enough slots available in the system to satisfy the 4 slots that were "
            "requested by the application: python",
        ),
        (
            "you@n2: Permission denied (publickey).\n"
            + "-" * 74
            + "\nORTE was unable to reliably\n"
            "start one or more daemons.\n\n* not finding\n" + "-" * 74 + "\nmore\n",
            "ORTE was unable to reliably start one or more daemons. "
            "(you@n2: Permission denied (publickey).)",
        ),
        (
            "flux-exec: unrecognized option '--rank=0'\nUsage: flux-exec [OPTIONS] COMMAND...\n",
            "flux-exec: unrecognized option '--rank=0'",
        ),
    ],
)
def test_the_reason_that_a_command_prints(output: str, expected: str) -> None:
    assert last_words(output) == expected


@pytest.mark.parametrize(
    ("hostname", "addresses", "expected"),
    [
        ("n1", [], "n1"),
        ("N1.hpc.org", [], "n1"),
        ("n2", [], "n2.hpc.org"),
        ("other", ["10.0.0.3", "192.168.1.1"], "10.0.0.3"),
        ("stranger", ["10.0.0.4"], None),
        ("n3", [], None),  # a name of two hosts
        ("n3", ["10.0.0.6"], "n3.b"),
        ("n3.b", [], "n3.b"),
    ],
)
def test_a_node_is_known_by_its_name_or_an_address(
    hostname: str, addresses: list[str], expected: str | None
) -> None:
    known = {
        "n1": {"n1"},
        "n2.hpc.org": {"n2.hpc.org", "n2"},
        "10.0.0.3": {"10.0.0.3", "10"},
        "n3.a": {"n3.a", "n3", "10.0.0.5"},
        "n3.b": {"n3.b", "n3", "10.0.0.6"},
    }
    assert which({"hostname": hostname, "addresses": addresses}, known) == expected
