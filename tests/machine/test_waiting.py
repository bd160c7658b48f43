"""Waiting time of a thread, from recorded counters and from a thread that waits."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from math import inf
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pytest_mnode.machine.waiting import (
    Other,
    Reading,
    Spent,
    parse_cpu_stat,
    parse_stat,
    read_waiting,
    spent_between,
    total,
)

STAT = (
    "417 (data (loader) 3) R 1 417 417 0 -1 4194304 90 0 0 0 250 50 0 0 20 0 1 0 8000 9000 100 "
    "18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 5 0 0 0 0 0 0 0 0 0 0 0 0 0"
)
CPUS = frozenset({5})


def test_a_process_is_read_whatever_its_name() -> None:
    assert parse_stat(STAT, 100) == Other(name="data (loader) 3", cpu_s=3.0, last_cpu=5)
    assert parse_stat(STAT.rpartition(" 17 5 ")[0], 100) is None
    assert parse_stat("", 100) is None


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("nr_periods 9\nnr_throttled 4\nthrottled_time 1500000000\n", 1.5),
        ("usage_usec 7\nnr_periods 9\nnr_throttled 4\nthrottled_usec 250000\n", 0.25),
        ("usage_usec 7\nuser_usec 5\n", None),
        ("throttled_usec\n", None),
        ("", None),
    ],
)
def test_throttled_time_of_both_versions(text: str, seconds: float | None) -> None:
    assert parse_cpu_stat(text) == seconds


@given(st.text())
def test_parsers_are_total(text: str) -> None:
    parse_stat(text, 100)
    parse_cpu_stat(text)


def other(cpu_s: float, last_cpu: int | None = 5, name: str = "spin") -> Other:
    return Other(name=name, cpu_s=cpu_s, last_cpu=last_cpu)


def test_time_goes_to_a_quota_and_to_others_on_the_same_cpu() -> None:
    before = Reading(throttled_s=1.0, quota_cpus=0.5, others={1: other(7.0), 2: other(1.0, 4)})
    after = Reading(
        throttled_s=1.2,
        quota_cpus=0.5,
        others={1: other(7.3), 2: other(2.0, 4), 3: other(0.1, name="new")},
    )
    spent = spent_between(before, after, wall_s=1.0, cpu_s=0.4, cpus=CPUS)
    assert spent.throttled_s == pytest.approx(0.2)
    assert spent.quota_s == pytest.approx(0.4)  # half a CPU: it waited as long as it ran
    assert spent.others_s == pytest.approx(0.4)  # not the time on CPU 4
    assert spent.busiest == "spin (pid 1)"
    assert spent.own_s == pytest.approx(0.4 + 0.4 + 0.4)


def test_time_outside_of_the_interval_does_not_count() -> None:
    spent = spent_between(Reading(), Reading(quota_cpus=inf), wall_s=9.0, cpu_s=1.0, cpus=CPUS)
    assert (spent.own_s, spent.idle_s, spent.busiest) == (1.0, 8.0, "")


def test_time_taken_by_others_is_at_most_the_waiting_time() -> None:
    after = Reading(others={1: other(5.0)})
    spent = spent_between(Reading(), after, wall_s=1.0, cpu_s=0.9, cpus=CPUS)
    assert spent.own_s == pytest.approx(1.0)


def test_time_neither_running_nor_ready_is_its_own_but_that_of_others_is_not() -> None:
    """A thread that is stopped for a third of its time, on a CPU that others use as well."""
    before, after = Reading(delayed_then_s=1.0), Reading(delayed_s=1.3)
    spent = spent_between(before, after, wall_s=0.9, cpu_s=0.4, cpus=CPUS)
    assert spent.stopped_s == pytest.approx(0.2)
    assert spent.own_s == pytest.approx(0.6)
    unknown = spent_between(Reading(), after, wall_s=0.9, cpu_s=0.4, cpus=CPUS)
    assert (unknown.stopped_s, unknown.own_s) == (0.0, 0.4)


def test_a_stopped_process_is_not_taken_for_one_that_waits_for_a_cpu() -> None:
    work = (
        "import signal, sys, time; sys.path.insert(0, sys.argv[1])\n"
        "over = []; signal.signal(signal.SIGCONT, lambda *_: over.append(1))\n"
        "from pytest_mnode.machine.waiting import read_waiting, spent_between\n"
        "before, wall, cpu = read_waiting(), time.monotonic(), time.thread_time()\n"
        "print(flush=True)\n"
        "while not over: pass\n"
        "wall_s, cpu_s = time.monotonic() - wall, time.thread_time() - cpu\n"
        "spent = spent_between(\n"
        "    before, read_waiting(), wall_s=wall_s, cpu_s=cpu_s, cpus=frozenset()\n"
        ")\n"
        "print(spent.stopped_s)"
    )
    root = str(Path(__file__).parents[2])
    argv = [sys.executable, "-c", work, root]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.send_signal(signal.SIGSTOP)
        os.waitpid(process.pid, os.WUNTRACED)  # it stops where it next runs
        time.sleep(0.3)
        process.send_signal(signal.SIGCONT)
        stopped_s = float(process.stdout.read())
    assert stopped_s > 0.25


def test_a_reset_counter_is_unknown() -> None:
    before, after = (
        Reading(throttled_s=5.0, delayed_then_s=5.0),
        Reading(throttled_s=0.1, delayed_s=1.0),
    )
    spent = spent_between(before, after, wall_s=1.0, cpu_s=0.5, cpus=CPUS)
    assert (spent.throttled_s, spent.delayed_s) == (0.0, None)


def test_stretches_add_up() -> None:
    one = Spent(wall_s=1, cpu_s=0.5, delayed_s=None, throttled_s=0.1, others_s=0.2, busiest="a")
    two = Spent(wall_s=2, cpu_s=1, delayed_s=0.3, throttled_s=0, others_s=0.6, busiest="b")
    assert total((one, two)) == Spent(
        wall_s=3, cpu_s=1.5, delayed_s=None, throttled_s=0.1, others_s=0.8, busiest="b"
    )
    assert total((two, two)).delayed_s == pytest.approx(0.6)


def test_a_thread_that_sleeps_is_neither_running_nor_delayed() -> None:
    before, wall, cpu = read_waiting(), time.monotonic(), time.thread_time()
    time.sleep(0.05)
    wall_s, cpu_s = time.monotonic() - wall, time.thread_time() - cpu
    after = read_waiting()
    spent = spent_between(before, after, wall_s=wall_s, cpu_s=cpu_s, cpus=frozenset())
    assert spent.idle_s > 0.04 - spent.throttled_s
    assert len(after.others) > 0


def test_missing_files_are_unknown(tmp_path: Path) -> None:
    reading = read_waiting(tmp_path)
    assert (reading.delayed_s, reading.throttled_s, reading.others) == (None, None, {})
