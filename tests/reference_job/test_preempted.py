"""The program under torchrun: on a request to stop it saves, and it resumes at the next start."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.reference_job import EXIT_PREEMPTED
from pytest_mnode.reference_job.records import EndRecord, StartRecord, StepRecord, read_records
from tests.inner import need_rack, run_pytest, write_files

TESTS = """
    import dataclasses, pathlib, signal, sys, time
    from pytest_mnode import Job
    from pytest_mnode.reference_job import JobConfig, StepRecord, read_records
    if "torch" in sys.modules:  # where ranks are forked; the controller only collects
        import torch
        import pytest_mnode.reference_job.trainer

    HERE = pathlib.Path.cwd()
    RUN = JobConfig(
        str(HERE / "stopped"), vocab=64, context=16, width=32, layers=2, samples=48,
        global_batch=16, steps=12, checkpoint_every=5, bucket_bytes=50_000)

    def steps_done():
        return max((r.step for r in read_records(RUN.directory) if isinstance(r, StepRecord)),
                   default=0)

    def program(path, *, world):
        from pytest_mnode.reference_job.__main__ import main
        return main([path])

    def test_stopped(cluster):
        path = dataclasses.replace(RUN, pause_s=0.5).write(HERE / "first.json")
        first = cluster.launch(
            Job(["-m", "pytest_mnode.reference_job", str(path)], nodes=1, procs_per_node=2))
        until = time.monotonic() + 120
        while steps_done() < 2 and time.monotonic() < until:
            time.sleep(0.05)
        first.kill(rank=1, signal=signal.SIGTERM)  # one rank gets the signal, and all stop
        result = first.wait(60)
        (HERE / "first.txt").write_text("".join(result.output.values()))
        # The same program in warm ranks: resumed, and once more without a stop.
        for name in ("stopped", "whole"):
            path = dataclasses.replace(RUN, directory=str(HERE / name)).write(HERE / "config.json")
            with cluster.world(nodes=1, procs_per_node=2) as world:
                assert world.run(program, str(path)) == [0, 0]
"""


def test_a_preempted_run_saves_and_resumes(tmp_path_factory: pytest.TempPathFactory) -> None:
    need_rack()
    directory = tmp_path_factory.mktemp("stopped with a blank")
    write_files(directory, test_it=TESTS)
    run = run_pytest(directory, "--mnode-nodes=1", "--mnode-launcher=rack", limit_s=300)
    assert run.returncode == 0, run.output
    stopped, whole = (read_records(directory / name) for name in ("stopped", "whole"))
    ends = [one for one in stopped if isinstance(one, EndRecord)]
    assert [one.preempted for one in ends] == [True, False] * 2
    stopped_at = ends[0].steps
    assert 2 <= stopped_at < 12
    assert ends[2].steps == stopped_at, "all ranks stop after the same step"
    assert f"exitcode: {EXIT_PREEMPTED}" in _plain(directory / "first.txt")
    starts = [one for one in stopped if isinstance(one, StartRecord)]
    assert [one.loaded for one in starts] == [None, stopped_at] * 2
    assert {(one.node, one.rank) for one in starts} == {("node0", 0), ("node0", 1)}

    def losses(records: list[object]) -> list[tuple[int, int, str, str]]:
        steps = [one for one in records if isinstance(one, StepRecord)]
        return [(one.rank, one.step, one.loss.hex(), one.rng) for one in steps]

    assert losses([*stopped]) == losses([*whole]), "every step once, with the same loss"
    digests = [
        {(one.parameters, one.optimiser) for one in records if isinstance(one, EndRecord)}
        for records in ([one for one in ends if not one.preempted], whole)
    ]
    assert digests[0] == digests[1]
    assert len(digests[0]) == 1


def _plain(path: Path) -> str:
    return " ".join(path.read_text().replace(" :", ":").split())
