"""faulthandler's dumps of every supported Python version, converted to a rank's location."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.outcome.stacks import (
    WAIT,
    parse,
    tidy,
    where,
    where_of_rank,
    without_native_frames,
)

C10D = "/venv/lib/python3.11/site-packages/torch/distributed/distributed_c10d.py"
LOGGER = "/venv/lib/python3.11/site-packages/torch/distributed/c10d_logger.py"
PYTEST = "/venv/lib/python3.11/site-packages/_pytest/python.py"


def dump(*frames: tuple[str, int | str, str], head: str = "Current thread 0x00007f01") -> str:
    lines = [f'  File "{file}", line {line} in {function}' for file, line, function in frames]
    return "\n".join([f"{head} (most recent call first):", *lines]) + "\n"


WAITING = dump(
    (C10D, 5356, "barrier"),
    (LOGGER, 83, "wrapper"),
    ("/work/test_a.py", 7, "test_a"),
    (PYTEST, 166, "pytest_pyfunc_call"),
    ("/work/hidden_below_pytest.py", 1, "main"),
)


@pytest.mark.parametrize(
    "head",
    [
        "Current thread 0x00007f01",
        "Thread 0x00007f01",
        "Current thread 0x00007f01 [python3]",
        "Thread 0x00007f01 [mnode rank (2)]",
        "Thread 0x7f01 []",
    ],
)
def test_headings_of_all_versions(head: str) -> None:
    (thread,) = parse(dump(("/a.py", 3, "f"), head=head))
    assert [f.place for f in thread] == ["a.py:3"]


def test_a_frame_of_the_interpreter_is_no_place() -> None:
    """Python 3.13 shows one below each `__init__` that it has called often."""
    user, shim = ("/work/test_a.py", 7, "test_a"), ("__init__", "???", "__init__")
    text = dump((C10D, 99, "__init__"), shim, user)
    assert str(where_of_rank(parse(text))) == "test_a.py:7 in test_a"
    assert tidy(text) == tidy(dump((C10D, 99, "__init__"), user))


def test_a_tensor_that_waits_for_its_collective_waits_in_it() -> None:
    """As DTensor and tensor parallel layers do; their collectives return at once."""
    functional = C10D.replace("distributed_c10d", "_functional_collectives")
    waits = dump(
        (functional.replace("distributed/_functional_collectives", "_ops"), 1243, "__call__"),
        (functional, 142, "wait_tensor"),
        (functional, 1115, "trigger_wait"),
        (functional, 1129, "__torch_dispatch__"),
        ("/work/test_a.py", 7, "test_a"),
    )
    assert where_of_rank(parse(waits)).collective == WAIT


def test_ddp_calls_its_collectives_in_c() -> None:
    ddp = C10D.replace("distributed/distributed_c10d", "nn/parallel/distributed")
    layer = (ddp.replace("parallel/distributed", "modules/module"), 1789, "_call_impl")
    test = ("/work/test_a.py", 7, "test_a")
    waits = where_of_rank(parse(dump((ddp, 1775, "_pre_forward"), (ddp, 1886, "forward"), test)))
    assert waits.collective == "a collective of DistributedDataParallel"
    computes = where_of_rank(parse(dump(layer, (ddp, 1886, "forward"), test)))
    assert computes.collective is None


def test_a_hang_in_a_wrapper_of_torchs_test_classes_is_shown_there() -> None:
    rpc, own = (C10D.replace("distributed_c10d", name) for name in ("rpc/api", "own"))
    wrapper = C10D.replace("distributed/distributed_c10d", "testing/_internal/dist_utils")
    adaptor = ("/venv/pytest_mnode/contrib/test_classes.py", 138, "_run_body")
    waits = where_of_rank(
        parse(dump((rpc, 382, "shutdown"), (wrapper, 83, "new"), (own, 3, "f"), adaptor))
    )
    assert waits.collective == "rpc.shutdown"
    assert waits.frame is not None
    assert waits.frame.place == "dist_utils.py:83"


@pytest.mark.parametrize("frame", ["  <no Python frame>", "  <tstate is freed>", "  ...", "", "\0"])
def test_lines_that_are_no_frame_are_skipped(frame: str) -> None:
    first, second = parse(f"Thread 0x1 (most recent call first):\n{frame}\n\n{WAITING}")
    assert first == ()
    assert len(second) == 5


def test_c_stack_of_newer_versions_is_no_python_frame() -> None:
    text = WAITING + (
        "\nCurrent thread's C stack trace (most recent call first):\n"
        "  Binary file \"/usr/bin/python3\", at _Py_DumpStack+0x31 [0x5f1]\n"
    )  # fmt: skip
    (thread,) = parse(text)
    assert len(thread) == 5


def test_unknown_line_number() -> None:
    (thread,) = parse(dump(("/a.py", "???", "f")))
    assert thread[0].line is None
    assert thread[0].code == ""


def test_names_with_quotes_and_blanks() -> None:
    (thread,) = parse(dump(('/a "b", line 9 in c/d.py', 3, "<lambda>")))
    assert (thread[0].file, thread[0].line) == ('/a "b", line 9 in c/d.py', 3)


def test_the_collective_is_the_function_that_the_test_called() -> None:
    inner = dump(
        (C10D, 4287, "all_gather"),
        (LOGGER, 83, "wrapper"),
        (C10D, 3513, "all_gather_object"),
        (LOGGER, 83, "wrapper"),
        ("/work/test_a.py", 7, "test_a"),
    )
    here = where(parse(inner)[0])
    assert here.collective == "all_gather_object"
    assert here.frame is not None
    assert here.frame.place == "test_a.py:7"


def test_private_functions_are_no_collectives() -> None:
    here = where(parse(dump((C10D, 1, "_get_default_group"), ("/work/test_a.py", 7, "test_a")))[0])
    assert here.collective is None


def test_pending_work_is_a_collective_and_an_event_is_none(tmp_path: Path) -> None:
    source = tmp_path / "test_a.py"
    source.write_text("work.wait()\nevent.wait()\n")
    direct = dump((str(source), 1, "test_a"))
    assert where(parse(direct)[0]).collective == WAIT
    event = dump(("/usr/lib/python3.11/threading.py", 629, "wait"), (str(source), 2, "test_a"))
    assert where(parse(event)[0]).collective is None
    assert str(where(parse(event)[0])) == "test_a.py:2 in test_a: event.wait()"


def test_a_wait_for_workers_of_a_loader_is_at_the_line_that_asks_for_a_batch() -> None:
    library, torch = "/usr/lib/python3.11", "/venv/lib/python3.11/site-packages/torch"
    at = where_of_rank(
        parse(
            dump(
                (f"{library}/selectors.py", 415, "select"),
                (f"{library}/multiprocessing/connection.py", 948, "wait"),
                (f"{library}/multiprocessing/queues.py", 113, "get"),
                (f"{torch}/utils/data/dataloader.py", 1291, "_try_get_data"),
                (f"{torch}/utils/data/dataloader.py", 725, "__next__"),
                ("/work/train.py", 9, "epoch"),
                (PYTEST, 166, "pytest_pyfunc_call"),
                (f"{library}/multiprocessing/process.py", 108, "run"),
            )
        )
    )
    assert str(at) == "train.py:9 in epoch"
    assert at.collective is None


def test_thread_that_the_main_one_waits_for() -> None:
    join = dump(
        ("/usr/lib/python3.11/threading.py", 1119, "join"), ("/work/test_a.py", 9, "test_a")
    )
    courier = dump((C10D, 5356, "barrier"), (LOGGER, 83, "wrapper"), head="Thread 0x2")
    here = where_of_rank(parse(f"{courier}\n{join}"))
    assert here.collective == "barrier"
    assert here.frame is not None
    assert here.frame.place == "test_a.py:9"


def test_the_main_thread_is_the_last() -> None:
    threads = parse(dump(("/a.py", 1, "f"), head="Thread 0xa") + dump(("/b.py", 2, "g")))
    assert str(where_of_rank(threads)).startswith("b.py:2 in g")


@pytest.mark.parametrize("text", ["", "none", "Thread 0x1 (most recent call first):\n"])
def test_without_a_stack_there_is_no_location(text: str) -> None:
    here = where_of_rank(parse(text))
    assert here.frame is None
    assert here.collective is None
    assert str(here) == "no Python frame of the test"


def test_tidy_keeps_text_of_the_user() -> None:
    text = tidy(WAITING + "Extension modules: numpy, torch._C (total: 2)\n")
    assert text.endswith('in test_a\n  …\n  File "/work/hidden_below_pytest.py", line 1 in main')
    assert "/_pytest/" not in text
    assert "Extension modules" not in text


def test_a_rank_that_writes_its_report_is_in_no_user_frame() -> None:
    making = ("/pytest_mnode/rank/session.py", 2, "pytest_runtest_makereport")
    below = ("/work/run.py", 1, "main")
    text = dump(("/lib/python3.11/re/_parser.py", 5, "parse"), making, below)
    assert str(where_of_rank(parse(text))) == "the creation of its report of this test"
    assert tidy(text) == dump(below).strip().replace("\n", "\n  …\n")


LINES = st.one_of(
    st.text(max_size=60),
    st.sampled_from(WAITING.splitlines()),
    st.builds(
        '  File "{}", line {} in {}'.format, st.text(max_size=9), st.text(max_size=9), st.text()
    ),
    st.builds("Thread 0x{}{}(most recent call first):".format, st.text(max_size=5), st.text()),
)


@given(st.lists(LINES, max_size=12), st.sampled_from(["\n", "\r\n", "\0"]))
def test_any_dump_is_read(lines: list[str], separator: str) -> None:
    text = separator.join(lines)
    threads = parse(text)
    where_of_rank(threads)
    for thread in threads:
        str(where(thread))
    assert len(tidy(text).splitlines()) <= len(text.splitlines())


@pytest.mark.parametrize("folder", ["lib/python3.12/dist-packages/mylib", "tests/torch"])
def test_users_code_is_neither_pythons_nor_torchs(tmp_path: Path, folder: str) -> None:
    file = tmp_path / folder / "comm.py"
    file.parent.mkdir(parents=True)
    file.write_text("work.wait()\n")
    here = where_of_rank(parse(dump((str(file), 1, "reduce"), (PYTEST, 166, "call"))))
    assert (here.collective, here.frame and here.frame.place) == (WAIT, "comm.py:1")


IMPORTLIB = "<frozen importlib._bootstrap>"
TORCH = "/venv/lib/python3.12/site-packages/torch"
NCCL_WATCHDOG = dump(
    (f"{TORCH}/_dynamo/symbolic_convert.py", 60, "<module>"),
    (IMPORTLIB, 488, "_call_with_frames_removed"),
    ("/usr/lib/python3.12/importlib/__init__.py", 90, "import_module"),
    (f"{TORCH}/__init__.py", 2879, "__getattr__"),
    head="Thread 0x00007f02",
)


def test_a_long_import_is_at_the_line_that_began_it() -> None:
    begins = ("/work/test_a.py", 7, "test_a")
    imports = dump((C10D, 1, "<module>"), *[(IMPORTLIB, 241, "_load")] * 9, begins)
    assert str(where_of_rank(parse(imports))) == "test_a.py:7 in test_a"
    assert "importlib" not in tidy(imports)


def test_a_thread_in_which_torch_imports_itself_is_left_out() -> None:
    assert tidy(f"{NCCL_WATCHDOG}\n{WAITING}") == tidy(WAITING)
    sympy = f'  File "{TORCH.removesuffix("torch")}sympy/core/expr.py", line 4188 in <module>\n'
    heading, _, frames = NCCL_WATCHDOG.partition("\n")
    assert tidy(f"{heading}\n{sympy}{frames}\n{WAITING}") == tidy(WAITING)
    users = NCCL_WATCHDOG + '  File "/work/loader.py", line 3 in load\n'
    assert "loader.py" in tidy(f"{users}\n{WAITING}")


def test_a_thread_without_python_frames_is_left_out() -> None:
    empty = "  <no Python frame>\n"
    assert tidy(f"{dump(head='Thread 0x00007f02')}{empty}\n{WAITING}") == tidy(WAITING)
    assert empty.strip() in tidy(f"{dump()}{empty}")


def test_a_rank_that_waits_for_its_device_after_the_body() -> None:
    text = dump(
        (f"{TORCH}/cuda/__init__.py", 1162, "synchronize"),
        (
            "/venv/lib/python3.12/site-packages/pytest_mnode/rank/session.py",
            31,
            "finish_device",
        ),
        (
            "/venv/lib/python3.12/site-packages/pytest_mnode/rank/session.py",
            235,
            "pytest_runtest_call",
        ),
    )
    here = where_of_rank(parse(text))
    assert (str(here), here.collective) == (
        "the end of the body, where it waits for its device",
        None,
    )


def test_frames_that_torch_prints_are_left_out() -> None:
    text = (
        "socketProgress: Connection closed by remote peer node1<41000>\n"
        "frame #0: c10::Error::Error(c10::SourceLocation, std::string) + 0x9d (0x7f in libc10.so)\n"
        "frame #5: <unknown function> + 0xecdb4 (0x7f in /lib/libstdc++.so.6)\n"
        "#34 start from /usr/lib/python3.12/multiprocessing/process.py:121\n"
        "#1 of 3 done\n"
    )
    assert without_native_frames(text) == (
        "socketProgress: Connection closed by remote peer node1<41000>\n#1 of 3 done\n"
    )


def test_what_pytest_calls_below_a_test_is_not_where_it_is() -> None:
    below = (("/work/hidden_below_pytest.py", 1, "main"),)
    stack = dump((C10D, 5356, "barrier"), (PYTEST, 166, "pytest_pyfunc_call"), *below)
    found = where_of_rank(parse(stack))
    assert found.collective == "barrier"
    assert found.frame is None or found.frame.file != below[0][0]
