"""The program in ranks: on a request to stop it saves, and it resumes at the next start.

What exit status 75 means under torchrun: tests/jobs/test_running.py.
"""

from __future__ import annotations

import pytest

from pytest_mnode.reference_job.records import EndRecord, StartRecord, StepRecord, read_records
from tests.inner import need_rack, run_pytest, write_files

TESTS = """
    import dataclasses, os, pathlib, signal, sys, threading, time
    from pytest_mnode.reference_job import EXIT_PREEMPTED, JobConfig, StepRecord, read_records
    if "torch" in sys.modules:  # where ranks are forked; the controller only collects
        import torch
        import pytest_mnode.reference_job.trainer

    HERE = pathlib.Path.cwd()
    RUN = JobConfig(
        str(HERE / "stopped"), vocab=64, context=16, width=32, layers=1, samples=48,
        global_batch=16, steps=12, checkpoint_every=5, bucket_bytes=50_000)

    def steps_done():
        return max((r.step for r in read_records(RUN.directory) if isinstance(r, StepRecord)),
                   default=0)

    def stop():
        while steps_done() < 2:
            time.sleep(0.05)
        os.kill(os.getpid(), signal.SIGTERM)

    def program(path, stops=False, *, world):
        from pytest_mnode.reference_job.__main__ import main
        if stops and world.rank == 1:  # one rank gets the signal, and all stop
            threading.Thread(target=stop).start()
        return main([path])

    def test_stopped(cluster):
        path = HERE / "config.json"
        with cluster.world(procs_per_node=2) as world:
            dataclasses.replace(RUN, pause_s=0.5).write(path)
            assert world.run(program, str(path), True) == [EXIT_PREEMPTED] * 2
            # Resumed, and once more without a stop.
            for name in ("stopped", "whole"):
                dataclasses.replace(RUN, directory=str(HERE / name)).write(path)
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
