"""The text of the live line, in terminals of any width."""

from __future__ import annotations

from dataclasses import replace

import pytest

from pytest_mnode.controller.live_text import Facts, live_text

SWEEP = Facts("fabric", "all_reduce 8 MiB", 34.9, done=3, total=9, expected_s=3725.0)
WAITS = replace(SWEEP, awaited="rank 2 of 4 on node2")


@pytest.mark.parametrize(
    ("facts", "width", "text"),
    [
        (SWEEP, 80, "fabric: all_reduce 8 MiB [###.......] 3 of 9, 0:34 of about 1:02:05"),
        (
            WAITS,
            120,
            "fabric: all_reduce 8 MiB [###.......] 3 of 9, 0:34 of about 1:02:05, "
            "waiting for rank 2 of 4 on node2",
        ),
        (
            WAITS,
            90,
            "fabric: all_reduce 8 MiB 3 of 9, 0:34 of about 1:02:05, "
            "waiting for rank 2 of 4 on node2",
        ),
        (
            WAITS,
            80,
            "fabric: all_r... 3 of 9, 0:34 of about 1:02:05, waiting for rank 2 of 4 on node2",
        ),
        (WAITS, 20, "fabric: ... 3 of 9, "),
        (Facts("", "test_x[\x1b[2Jñ]", 3.0, limit_s=300.0), 80, "test_x[?[2J?], 0:03, limit 5:00"),
        (
            Facts("gang", "A runs", 61.0, done=7, total=5),
            80,
            "gang: A runs [##########] 5 of 5, 1:01",
        ),
        (Facts("gang", "A runs", 61.0, done=0, total=0), 80, "gang: A runs, 1:01"),
    ],
)
def test_parts_are_dropped_in_order_of_importance(facts: Facts, width: int, text: str) -> None:
    assert live_text(facts, width) == text
