"""Modules whose imports start threads run in ranks that import them; other modules are shared."""

from __future__ import annotations

import pytest

from tests.inner import InnerRun, run_pytest, write_files

PLAIN = """
    import threading
    KEPT = []

    def test_first(rank):
        KEPT.append(rank)
        assert "courier" not in [thread.name for thread in threading.enumerate()]

    def test_ranks_are_kept(rank):
        assert KEPT == [rank]

    def test_sum(process_group):
        import torch, torch.distributed as dist
        total = torch.ones(1)
        dist.all_reduce(total)
        assert total == 2
"""
FEEDER = """
    import multiprocessing
    QUEUE = multiprocessing.Queue()
    QUEUE.put(1)

    def test_queue(process_group):
        assert QUEUE.get(timeout=20) == 1
        QUEUE.put(2)
        assert QUEUE.get(timeout=20) == 2
"""
OPENMP = """
    import torch, torch.distributed as dist
    torch.set_num_threads(2)
    DATA = torch.rand(400, 400).sin()

    def test_threads(process_group):
        assert torch.get_num_threads() == 2
        dist.all_reduce(DATA.sin())
"""
CHANGED = """
    import os
    RANK = os.environ.get("RANK")
    os.environ.update(RANK="17", WORLD_SIZE="1")

    def test_variables_that_an_import_changed(world):
        assert os.environ["RANK"] == RANK == str(world.rank)
        assert os.environ["WORLD_SIZE"] == "2"
"""
COURIER = """
    import os, threading, time
    import pytest
    threading.Thread(target=time.sleep, args=(99,), name="courier", daemon=True).start()
    KEPT = []

    def test_own_first(rank):
        KEPT.append(rank)
        print("heard of", rank)

    def test_own_ranks_are_kept(rank):
        assert KEPT == [rank]
        assert "courier" in [thread.name for thread in threading.enumerate()]

    @pytest.mark.mnode(timeout=2)
    def test_hangs(rank):
        if rank == 1:
            time.sleep(98)

    def test_dies(rank):
        if rank == 1:
            print("last words", flush=True)
            os._exit(3)

    def test_segfaults(rank):
        if rank == 1:
            import faulthandler
            faulthandler._sigsegv()

    def test_after_all(rank):
        assert not KEPT
"""


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> InnerRun:
    directory = tmp_path_factory.mktemp("own")
    texts = {"a": PLAIN, "changed": CHANGED, "courier": COURIER, "feeder": FEEDER}
    for name, text in texts.items():
        (directory / name).mkdir()
        write_files(directory / name, **{f"test_{name}": text})
    write_files(directory, test_openmp=OPENMP, test_z=PLAIN.replace("def test_", "def test_z_"))
    return run_pytest(directory, "-rA", "--mnode-nodes=2", "--mnode-launcher=local")


def test_every_module_ran(ran: InnerRun) -> None:
    broken = dict.fromkeys(("test_hangs", "test_dies", "test_segfaults"), "failure")
    assert len(ran.outcomes()) == 15, ran.output
    assert {n: o for n, o in ran.outcomes().items() if o != "passed"} == broken, ran.output


def test_ranks_that_import_modules_behave_like_forked_ones(ran: InnerRun) -> None:
    failures = {name: ran.cases()[name].find("failure") for name in ("test_hangs", "test_dies")}
    hangs, dies = (f"{f.get('message')}\n{f.text}" for f in failures.values() if f is not None)
    assert "time.sleep(98)" in hangs or "in test_hangs" in hangs
    assert "rank 1 of 2 on local1" in hangs
    assert "exited with code 3" in dies
    assert "last words" in dies
    assert "heard of 0" in ran.output
    assert "heard of 1" in ran.output


def test_a_crash_in_an_importing_rank_has_its_stack(ran: InnerRun) -> None:
    failure = ran.cases()["test_segfaults"].find("failure")
    assert failure is not None
    text = failure.text or ""
    assert "Fatal Python error: Segmentation fault" in text
    assert "in test_segfaults" in text
    assert "Extension modules" not in text


def test_the_run_names_the_modules_and_reasons(ran: InnerRun) -> None:
    lines = {
        line.removeprefix("mnode: ").partition(": ")[0]: line
        for line in ran.output.splitlines()
        if line.startswith("mnode: ") and "its import starts" in line
    }
    assert set(lines) == {
        "courier/test_courier.py",
        "feeder/test_feeder.py",
        "test_openmp.py",
    }
    courier = lines["courier/test_courier.py"]
    assert "its import starts thread 'courier'" in courier
    assert "each rank imports these files itself (slower)" in courier
    assert "start it in a fixture or test, not at import" in courier
