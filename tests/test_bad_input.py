"""Bad input gets one clear line, pytest's usage-error exit code, and no traceback."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.option_texts import Given
from pytest_mnode.options import OPTIONS, Settings, setting
from pytest_mnode.spec import default_spec_path

NODES = "accepted: a whole number of 1 or more"


@pytest.mark.parametrize(
    ("args", "line"),
    [
        (["--mnode-nodes=0"], f"ERROR: --mnode-nodes=0: {NODES}, or free"),
        (["--mnode-nodes=four"], f"ERROR: --mnode-nodes=four: {NODES}, or free"),
        (["--mnode-nodes="], f"ERROR: --mnode-nodes=: {NODES}, or free"),
        (["--mnode-nodes=free:0"], "ERROR: --mnode-nodes=free:0: accepted: free, or free:N *"),
        (["--mnode-budget=2"], "ERROR: --mnode-budget=2: accepted: a time, such as 2h, 90min*"),
        (
            ["--mnode-nodes=99", f"--mnode-spec={default_spec_path().with_name('h100-ib.yaml')}"],
            "ERROR: --mnode-nodes=99: h100-ib.yaml says nodes: 16; accepted: 1*",
        ),
        (["--mnode-procs-per-node=-1"], f"ERROR: --mnode-procs-per-node=-1: {NODES}"),
        (
            ["--mnode-launcher=cloud"],
            "ERROR: --mnode-launcher=cloud: accepted: auto, local, rack, ssh, slurm, "
            "kubernetes, pbs, lsf, flux, mpi, exec",
        ),
        (["--mnode-backend=tcp"], "ERROR: --mnode-backend=tcp: accepted: auto, gloo, nccl*"),
        (["--mnode-reuse=hot"], "ERROR: --mnode-reuse=hot: accepted: warm, group, fresh"),
        (["--mnode-timeout=soon"], "ERROR: --mnode-timeout=soon: accepted: seconds, more than 0"),
        (
            ["--mnode-locate-budget=0"],
            "ERROR: --mnode-locate-budget=0: accepted: seconds, more than 0",
        ),
        (["--mnode-timeout=nan"], "ERROR: --mnode-timeout=nan: accepted: seconds, more than 0"),
        (
            ["--mnode-slurm-args=--partition='gpu"],
            "ERROR: --mnode-slurm-args=--partition='gpu: accepted: arguments as for a shell*",
        ),
        (["--mnode-shared-dir=file.txt"], "ERROR: --mnode-shared-dir=*file.txt: accepted: a dir*"),
        (["--mnode-launcher=ssh", "--mnode-nodes=2"], "ERROR: --mnode-launcher=ssh: no nodes *"),
        (
            ["--mnode-launcher=ssh", "--mnode-nodes=2", "--mnode-hostfile=none"],
            "ERROR: *none: no such file or directory; accepted: a file with one host per line",
        ),
        (
            ["--mnode-launcher=ssh", "--mnode-nodes=2", "--mnode-hostfile=file.txt"],
            "ERROR: *file.txt: names no host; accepted: host, user@host or *",
        ),
        (
            ["--mnode-hostfile=~nosuchuser/hosts"],
            "ERROR: --mnode-hostfile=~nosuchuser/hosts: accepted: a path (Could not determine *",
        ),
        (
            [f"--mnode-report={'a' * 300}"],
            "ERROR: --mnode-report=a*: accepted: a directory, or a new name (File name too long)",
        ),
        (["--mnode-spec=none.yaml"], "ERROR: *none.yaml: *"),
        (["--mnode-report=file.txt"], "ERROR: --mnode-report=*file.txt: accepted: a directory*"),
    ],
)
def test_a_bad_option(pytester: pytest.Pytester, args: list[str], line: str) -> None:
    pytester.makefile(".txt", file="")
    pytester.makepyfile("def test_nothing(world): pass")
    result = pytester.runpytest(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    lines = [text for text in result.errlines if text.strip()]
    result.stderr.fnmatch_lines([line])
    assert len(lines) == 1, lines


@pytest.mark.parametrize(
    ("change", "line"),
    [
        ("nodez: 4", "ERROR: *spec.yaml: nodez: *"),
        ("name: x\nname: y", "ERROR: *spec.yaml: name: key given twice*"),
        ("nodes: [", "ERROR: *spec.yaml: *line *"),
    ],
)
def test_a_bad_spec(pytester: pytest.Pytester, change: str, line: str) -> None:
    pytester.makefile(".yaml", spec=change)
    result = pytester.runpytest("--mnode-spec=spec.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines([line])
    assert "Traceback" not in result.stderr.str() + result.stdout.str()


def test_a_spec_with_a_wrong_unit(pytester: pytest.Pytester) -> None:
    text = default_spec_path().read_text().replace("200 Mbit/s", "25 MB/s")
    pytester.makefile(".yaml", spec=text)
    result = pytester.runpytest("--mnode-spec=spec.yaml")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        ["ERROR: *spec.yaml: fabric.line_rate: '25 MB/s' is in bytes*accepted: bits a second*"]
    )


def test_an_impossible_log_directory(
    pytester: pytest.Pytester, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    pytester.makefile(".txt", file="")
    pytester.makepyfile("def test_nothing(world): pass")
    args = ("--mnode-nodes=1", "--mnode-launcher=local", "--mnode-log-dir=file.txt/logs")
    result = pytester.runpytest(*args)
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["ERROR: --mnode-log-dir=*file.txt/logs: Not a directory"])
    assert not list(tmp_path.glob("mnode-*")), "the run left its directory behind"


def test_an_ini_key_is_named_with_its_file(pytester: pytest.Pytester) -> None:
    pytester.makeini("[pytest]\nmnode_launcher = cloud\n")
    result = pytester.runpytest()
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(
        [
            "ERROR: mnode_launcher in tox.ini=cloud: "
            "accepted: auto, local, rack, ssh, slurm, "
            "kubernetes, pbs, lsf, flux, mpi, exec"
        ]
    )


def test_patterns_in_toml_are_a_list(pytester: pytest.Pytester) -> None:
    pytester.makepyprojecttoml('[tool.pytest]\nmnode_may_leave = ["courier-*", "memory"]\n')
    assert setting(pytester.parseconfig(), "may_leave") == ("courier-*", "memory")


@pytest.mark.parametrize(
    ("mark", "line"),
    [
        ("nodes=0", "*::test_it: @pytest.mark.mnode(nodes=0): accepted: a whole number of 1*"),
        ("nodes=[1, 'x']", "*@pytest.mark.mnode(nodes=[[]1, 'x']): accepted: whole numbers*"),
        ("2", "*@pytest.mark.mnode(2): accepted: keywords only, such as nodes=2"),
        ("node=2", "*@pytest.mark.mnode(node=2): accepted: nodes, procs_per_node, min_*"),
        ("min_procs_per_node=0", "*(min_procs_per_node=0): accepted: a whole number of 1*"),
        ("reuse='hot'", "*@pytest.mark.mnode(reuse='hot'): accepted: warm, group, fresh"),
        ("on_failure=3", "*@pytest.mark.mnode(on_failure=3): accepted: a function of (nodes, *"),
        ("timeout=-1", "*@pytest.mark.mnode(timeout=-1): accepted: seconds, more than 0, or *"),
    ],
)
def test_a_bad_mark(pytester: pytest.Pytester, mark: str, line: str) -> None:
    pytester.makepyfile(f"""
        import pytest

        @pytest.mark.mnode({mark})
        def test_it(world):
            pass
    """)
    result = pytester.runpytest()
    assert result.ret != pytest.ExitCode.OK
    assert any(line_matches(text, line) for text in (*result.errlines, *result.outlines))
    assert "Traceback" not in result.stderr.str()


def line_matches(text: str, pattern: str) -> bool:
    from fnmatch import fnmatch

    return fnmatch(text.removeprefix("ERROR: ").removeprefix("E   "), pattern)


def test_a_test_with_controller_and_rank_fixtures(
    pytester: pytest.Pytester, tmp_path: Path
) -> None:
    pytester.makepyfile("def test_it(cluster, world, rank): pass")
    result = pytester.runpytest("--mnode-launcher=local")
    result.assert_outcomes(errors=1)
    result.stdout.fnmatch_lines(["*test_it uses cluster (controller) and rank, world (ranks)*"])


def test_defaults_are_those_of_the_help(tmp_path: Path) -> None:
    told = {name: option for name, option in OPTIONS.items() if option.initial.isalnum()}
    read = {name: one.read(Given(one.flag, one.initial, tmp_path)) for name, one in told.items()}
    assert read == {name: getattr(Settings(), name) for name in told}
    assert {"start_limit_s", "silence_limit_s", "timeout_s", "k8s_wait_s"} <= told.keys()
