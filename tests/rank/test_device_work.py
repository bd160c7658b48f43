"""Work that a test began on its device ends with the test."""

from __future__ import annotations

import pytest
import torch

from pytest_mnode.rank.session import finish_device
from tests.inner import InnerRun, run_pytest, write_files


def test_a_late_device_error_belongs_to_the_test(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail() -> None:
        raise RuntimeError("CUDA error: device-side assert triggered\nSearch for …")

    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "synchronize", fail)
    with pytest.raises(pytest.fail.Exception) as caught:
        finish_device()
    assert str(caught.value) == (
        "CUDA error: device-side assert triggered; it came to light when the body had ended: run "
        "with CUDA_LAUNCH_BLOCKING=1, which shows the line"
    )


def test_an_unused_device_is_not_initialised(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: pytest.fail("it was started"))
    finish_device()


WAITS = """
    import time

    import pytest
    import torch

    from pytest_mnode.rank import recorder


    @pytest.fixture
    def as_on_a_device(monkeypatch):
        monkeypatch.setattr(recorder, "_is_complete", lambda name, named: False)
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        return monkeypatch


    @pytest.mark.mnode(timeout=3)
    def test_absent(as_on_a_device, process_group, rank):
        x = torch.ones(1)
        if rank == 1:
            time.sleep(60)
        begin(x)
        time.sleep(60)


    def begin(x):
        # What the recorder sees of a call that returns at once.
        number = recorder.Recorder.current.enter("all_reduce", {"tensor": x})
        recorder.Recorder.current.leave(number, recorder.PENDING)


    @pytest.mark.mnode(timeout=20)
    def test_left(as_on_a_device, process_group, rank):
        if rank == 0:
            begin(torch.ones(1))
            as_on_a_device.setattr(torch.cuda, "synchronize", lambda: time.sleep(60))
"""
COUNTS = """
    import time

    import pytest
    import torch
    import torch.distributed as dist

    from pytest_mnode.rank import recorder


    @pytest.fixture
    def counted(process_group):
        recorder.start_counts()


    kept = []


    def begin(group):
        return group.allreduce([torch.ones(1)])


    def test_all_call(counted, process_group):
        for _ in range(3):
            begin(process_group).wait()
        time.sleep(0.6)


    @pytest.mark.mnode(timeout=30)
    def test_left_cpp(counted, process_group, rank, monkeypatch):
        monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
        monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
        if rank == 0:
            kept = begin(process_group)
            time.sleep(60)


    def test_a_batch_is_sent(counted, process_group, rank):
        # NCCL counts a batch as if it were a collective, and only one rank makes it.
        if rank == 0:
            kept.append(begin(process_group))
            [sent] = dist.batch_isend_irecv([dist.P2POp(dist.isend, torch.ones(1), 1)])
            sent.wait()
            time.sleep(2.5)
        else:
            dist.recv(torch.ones(1), 0)


    @pytest.mark.mnode(timeout=2)
    def test_absent_cpp(counted, process_group, rank):
        if rank == 1:
            time.sleep(60)
        kept = begin(process_group)
        time.sleep(60)
"""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("device_work")
    write_files(directory, test_waits=WAITS, test_counts=COUNTS)
    return run_pytest(directory, "--mnode-nodes=2", "--mnode-launcher=local")


def test_only_the_intended_tests_fail(run: InnerRun) -> None:
    passed = {name for name, outcome in run.outcomes().items() if outcome == "passed"}
    assert passed == {"test_all_call", "test_a_batch_is_sent"}, run.output


def test_a_rank_that_waits_for_its_device_shows_its_last_call(run: InnerRun) -> None:
    """The NCCL collective has returned and its kernel runs: a sleep stands for the kernel."""
    absent, left = (run.cases()[name].findtext("failure") for name in ("test_absent", "test_left"))
    assert "rank 1 of 2 on local1: first]\nno end within 3 s: did not enter the " in str(absent)
    assert "that rank 0 waits in; it is at test_waits.py" in str(absent)
    assert (
        "[rank 0 of 2 on local0: caused by the first failure]\nno end within 3 s: waits for the "
    ) in str(absent)
    assert "rank 1 of 2 on local1: first]\nleft the test without entering the " in str(left)
    assert "without entering the all_reduce" in str(left)
    assert "waits for the all_reduce of test_waits.py:" in str(left)
    assert "at the end of the body, where it waits for its device" in str(left)


def test_a_rank_that_left_a_collective_of_cpp_is_named(run: InnerRun) -> None:
    """No call is recorded and no stack shows it; only the group counts it, as with
    DistributedDataParallel on NCCL. A sleep stands for the wait for the device."""
    names = ("test_absent_cpp", "test_left_cpp")
    absent, left = (run.cases()[name].findtext("failure") for name in names)
    assert "rank 1 of 2 on local1: first]\nleft the test without entering the " in str(left)
    assert "the collective of the default group (test_counts.py:" in str(left)
    assert ") that rank 0 waits in" in str(left)
    assert "waits in a collective of the default group at test_counts.py:" in str(left)
    assert "rank 1 of 2 on local1: first]\nno end within 2 s: did not enter the " in str(absent)
    assert "_count_for_ever" not in f"{left}{absent}"
