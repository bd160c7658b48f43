"""Findings of storage: numbers, verdicts and culprits, from rows."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import pytest

from pytest_mnode.criteria.storage import rules, semantics
from pytest_mnode.criteria.storage.in_ranks import UNUSABLE, WAITED
from pytest_mnode.criteria.storage.meeting import UNSEEN
from pytest_mnode.criteria.storage.rules import Rates
from pytest_mnode.detection import estimate
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.measurement import Measurement, Verdict
from pytest_mnode.spec.storage import (
    BesidePromise,
    CheckpointPromise,
    PathPromise,
    RandomReadsPromise,
    SmallFilesPromise,
)

PASS, FAIL, UNSURE = Verdict.PASS, Verdict.FAIL, Verdict.INCONCLUSIVE
NODES = ("n0", "n1", "n2", "n3")
GB = 1e9


def rates(rows: Iterable[Row], nodes: tuple[str, ...] = NODES) -> Rates:
    return Rates("/p", nodes, [*rows])


def repeats(metric: str, *every: Sequence[float], unit: float = GB) -> list[Row]:
    """Values of the nodes in each repeat."""
    return [
        row(metric, value * unit, node=node, repeat=number)
        for number, values in enumerate(every)
        for node, value in zip(NODES, values, strict=False)
    ]


def five(metric: str, *values: float, unit: float = GB, spread: float = 0.01) -> list[Row]:
    """Five repeats that differ a little."""
    factors = (1, 1 + spread, 1 - spread, 1 + spread / 2, 1 - spread / 2)
    return repeats(metric, *([v * f for v in values] for f in factors), unit=unit)


def found(measured: Iterable[Measurement]) -> dict[str, Measurement]:
    return {one.name.removeprefix("/p: "): one for one in measured}


def point(**keys: Any) -> CheckpointPromise:
    return CheckpointPromise.model_validate({"model": "70b", **keys})


CLEAN = [row("wrong pages", 0, node=node, size_bytes=4096) for node in NODES]


def test_the_rate_of_all_is_until_the_slowest_has_ended() -> None:
    written = five("write", 3, 3, 3, 2.5)
    promise = point(write_at_least="9 GB/s", node_write_at_least="2 GB/s")
    judged = found(
        rules.judge_checkpoint(
            rates([*written, *five("read", 5, 5, 5, 5), *CLEAN]), promise, 100, 50
        )
    )
    write = judged["checkpoint of 70b, write by all nodes together, 0.5 of its size"]
    assert write.verdict is PASS
    assert write.known == pytest.approx(10, rel=0.01)
    assert write.headline is not None
    assert (write.headline.before, write.headline.order) == ("checkpoint of 70b, write:", 0)
    assert judged["checkpoint of 70b, write by the slowest node"].known == pytest.approx(
        2.5, rel=0.01
    )
    share = judged["write by the slowest node, of the median"]
    assert share.verdict is PASS
    assert share.known == pytest.approx(2.5 / 3, rel=0.01)
    read = judged["checkpoint of 70b, read by all nodes together, 0.5 of its size"]
    assert read.verdict is None
    assert read.known == pytest.approx(20, rel=0.01)
    assert read.headline is not None
    assert read.headline.order == 1, "a rate that is promised comes before it"


def test_only_repeats_of_all_nodes_count() -> None:
    rows = [
        *repeats("write", [3, 3, 3, 3], [9, 9, 9], unit=1),
        row("write", 0, node="n3", repeat=1),
    ]
    rows.append(row("write alone", 5, node="n1", repeat=2))
    assert rates(rows).repeats("write") == [dict.fromkeys(NODES, 3)]
    assert rates(rows).repeats("write alone") == [{"n1": 5}]


def test_a_single_repeat_is_recorded_where_nothing_is_promised() -> None:
    one = rules.rate(rates(repeats("write", [3, 3, 3, 3])), "write", "w", "k", None, per=GB)
    assert (one.known, one.verdict) == (12, None)


def test_two_nodes_cannot_tell_which_of_them_is_slow() -> None:
    rows = [*five("write", 3, 1), *five("read", 3, 3), *CLEAN[:2]]
    judged = found(
        rules.judge_checkpoint(rates(rows, NODES[:2]), point(write_at_least="9 GB/s"), 8, 8)
    )
    assert not any("of the median" in name for name in judged)
    write = judged["checkpoint of 70b, write by all nodes together"]
    assert write.verdict is FAIL
    assert sure_and_suspects(write) == (set(), {frozenset(NODES[:2])})


def test_a_path_that_cannot_be_used_is_the_reason_for_all_else() -> None:
    unusable, unread = row(UNUSABLE, why="ENOENT", node="n1"), row("write", None, node="n2")
    assert rates([unread, unusable]).missing("write") == "n1: ENOENT"
    assert rates([unread]).missing("write") == "n2: not read"
    of_nobody = row(UNUSABLE, why="no directory")
    one = rules.rate(rates([of_nobody]), "write", "w", "k", GB)
    assert (one.verdict, one.note, one.culprit) == (UNSURE, "no directory", None)


@pytest.mark.parametrize(
    ("hows", "words"),
    [
        ([], ""),
        (["direct"] * 4, "direct"),
        (["direct", "cached", "direct", "cached"], "direct on n0, n2; cached on n1, n3"),
    ],
)
def test_how_it_was_measured_on_nodes_that_differ(hows: list[str], words: str) -> None:
    rows = [row("write how", how, node=node) for how, node in zip(hows, NODES, strict=False)]
    assert rates(rows).how("write") == words


@pytest.mark.parametrize(
    ("values", "spread", "verdict", "nodes", "either"),
    [
        ((3, 3, 3, 3), 0.01, PASS, set(), set()),
        ((2, 2, 2, 2), 0.01, FAIL, set(), {frozenset(NODES)}),
        ((4, 4, 4, 1), 0.01, FAIL, {"n3"}, set()),
        ((3, 3, 3, 2.4), 0.01, FAIL, {"n3"}, set()),
        ((2.4, 2.4, 2.4, 2), 0.01, FAIL, set(), {frozenset(NODES)}),
        ((2.6, 2.6, 2.6, 2.4), 0.01, FAIL, set(), {frozenset(NODES)}),
        ((2.5, 2.5, 2.5, 2.5), 0.2, UNSURE, set(), {frozenset(NODES)}),
    ],
)
def test_who_is_to_blame_for_a_low_rate(
    values: tuple[float, ...], spread: float, verdict: Verdict, nodes: set[str], either: set[Any]
) -> None:
    rows = rates(five("write", *values, spread=spread))
    one = rules.rate(rows, "write", "w", "checkpoint.write_at_least", 10 * GB, per=GB)
    assert one.verdict is verdict
    assert (one.culprit.nodes if one.culprit else set()) == nodes
    assert (one.culprit.either if one.culprit else set()) == either


@pytest.mark.parametrize(
    ("last", "spread", "verdict"),
    [(2.9, 0.01, PASS), (1.0, 0.01, FAIL), (2.1, 0.3, UNSURE)],
)
def test_a_node_slower_than_its_peers(last: float, spread: float, verdict: Verdict) -> None:
    every = [[3, 3, 3, last * f] for f in (1, 1 + spread, 1 - spread, 1 + spread / 2, 1)]
    one = rules.peers(rates(repeats("read", *every)), "read", "r", 0.7, "k")
    assert one.verdict is verdict
    if verdict is FAIL:
        assert one.culprit is not None
        assert one.culprit.nodes == {"n3"}
        assert one.culprit.parts.devices == (("n3", "/p"),)
        assert not one.culprit.either


def test_the_slowest_of_several_nodes_is_that_of_several_looks() -> None:
    values = [2.0, 2.1, 2.2, 1.9, 2.05]
    one = rules.peers(
        rates(repeats("read", *([3, 3, 3, v] for v in values))), "read", "r", 0.5, "k"
    )
    shares = [[value / 3] for value in values]
    alone, of_four = (estimate(shares, rules._LOOKS * nodes) for nodes in (1, len(NODES)))
    assert alone is not None
    assert of_four is not None
    assert one.interval == pytest.approx(of_four.interval)
    assert one.interval != pytest.approx(alone.interval)


def test_all_nodes_slower_than_their_peers_are_named() -> None:
    rows = five("read", 3, 3, 1, 1.2)
    one = rules.peers(rates(rows), "read", "r", 0.7, "k")
    assert sure_and_suspects(one) == ({"n2", "n3"}, set())


def test_a_node_that_may_be_slower_than_its_peers_is_suspected_beside_one_that_is() -> None:
    every = [[3, 3, 1, value] for value in (2.1, 2.7, 1.5, 2.4, 2.1)]
    one = rules.peers(rates(repeats("read", *every)), "read", "r", 0.7, "k")
    assert one.verdict is FAIL
    assert one.culprit is not None
    assert one.culprit.nodes == {"n2"}
    assert one.culprit.either == {frozenset({"n3"})}


def test_all_at_once_against_one_alone() -> None:
    alone = [row("write alone", 4 * GB, node=NODES[n % 4], repeat=n) for n in range(5)]
    alone += [row("read alone", 4 * GB, node=NODES[n % 4], repeat=n) for n in range(5)]
    rows = rates([*five("write", 3, 3, 3, 3), *five("read", 1, 1, 1, 1), *alone])
    judged = rules.judge_together(rows, point(together_at_least_fraction=0.7))
    write, read = judged
    assert write.verdict is PASS
    assert write.known == pytest.approx(0.75, rel=0.01)
    assert read.verdict is FAIL
    assert read.known == pytest.approx(0.25, rel=0.01)
    assert write.headline is not None
    assert write.headline.after == "of 4 × one (write)"


@pytest.mark.parametrize("error", ["EIO", "ENOSPC", "EFBIG"])
def test_a_transfer_that_ends_in_an_error_fails_and_names_its_node(error: str) -> None:
    lost = row("write", None, node="n2", why=f"{error} (in words)")
    rows = rates([*five("write", 3, 3, 3, 3), lost])
    [failed] = [m for m in rules.judge_checkpoint(rows, point(), 8, 8) if m.verdict is FAIL]
    assert failed.culprit is not None
    assert failed.culprit.nodes == {"n2"}


def test_missing_values_name_their_node_and_certify_nothing() -> None:
    lost = row("write", None, node="n2", why="EIO (input/output error)", repeat=1)
    one = rules.rate(rates([*five("write", 3, 3, 3, 3), lost]), "write", "w", "k", GB)
    assert (one.verdict, one.note) == (UNSURE, "n2: EIO (input/output error)")
    unusable = row(UNUSABLE, why="ENOENT", node="n1")
    one = rules.rate(rates([unusable]), "write", "w", "k", GB)
    assert one.verdict is UNSURE
    assert one.culprit is not None
    assert one.culprit.nodes == {"n1"}
    single = rules.rate(rates(repeats("write", [3, 3, 3, 3])), "write", "w", "k", GB, per=GB)
    assert (single.verdict, single.note) == (UNSURE, "1 repeat (12 GB/s)")
    assert rules.rate(rates([]), "write", "w", "k", GB).verdict is UNSURE


def sure_and_suspects(one: Measurement) -> tuple[set[str], set[frozenset[str]]]:
    assert one.culprit is not None
    return {*one.culprit.nodes}, {*one.culprit.either}


def test_nodes_that_were_not_measured_beside_others_have_not_passed() -> None:
    every = frozenset(NODES)
    unusable = row(UNUSABLE, why="ENOENT", node="n1")
    slow = row("write", node="n2", why="fio did not end within 9 s", repeat=1)
    for rows, named in (([unusable], "n1"), ([*five("write", 3, 3, 3, 3), slow], "n2")):
        one = rules.rate(rates(rows), "write", "w", "k", GB)
        assert sure_and_suspects(one) == ({named}, {every})
    promise = PathPromise.model_validate({"renamed_within": "2 s"})
    unseen = [row(UNUSABLE, why=UNSEEN, node="n2"), row(WAITED, 4.0, node="n2")]
    one, *_ = semantics.judge_renames(rates(unseen), promise)
    assert sure_and_suspects(one) == ({"n2"}, {every})
    lost = row("replaced file read on", why="it was never seen", node="n1", peer="n0")
    stale = row("replaced file read on", "ESTALE", node="n2", peer="n0")
    [one] = semantics.judge_replaced(rates([lost, stale]))
    assert sure_and_suspects(one) == ({"n2"}, {frozenset({"n1"})})


def test_wrong_pages_of_one_node_fail_though_another_could_not_read() -> None:
    lost = row("wrong pages", node="n1", why="EIO (input/output error)")
    wrong = row("wrong pages", 7, node="n3", peer="n0")
    one = rules.wrong_pages(rates([CLEAN[0], lost, CLEAN[2], wrong]))
    assert (one.verdict, one.known) == (FAIL, 7)
    assert one.culprit is not None
    assert one.culprit.either == {frozenset({"n3", "n0"}), frozenset({"n1"})}


def test_a_rate_in_units_of_its_rows() -> None:
    one = rules.rate(rates(five("create", 30, 31, 32, 33, unit=1)), "create", "w", "k", 100, "/s")
    assert one.verdict is PASS
    assert one.known == pytest.approx(120, rel=0.01)


def test_pages_of_another_content_suspect_writer_and_reader() -> None:
    rows = [*CLEAN[:3], row("wrong pages", 7, node="n3", size_bytes=4096)]
    one = rules.wrong_pages(rates(rows))
    assert (one.verdict, one.known) == (FAIL, 7)
    assert one.culprit is not None
    assert one.culprit.either == {frozenset(("n3", "n0"))}
    assert rules.wrong_pages(rates([])).verdict is UNSURE
    local = [*CLEAN[:3], row("wrong pages", 7, node="n3", peer="n3")]
    one = rules.wrong_pages(rates(local))
    assert one.culprit is not None
    assert one.culprit.either == {frozenset(["n3"])}, "on a path of its own"
    full = row("write", why="ENOSPC (no space left on device)", node="n0")
    one = rules.wrong_pages(rates([*rows, full]))
    assert (one.verdict, one.culprit) == (UNSURE, None), "nobody else is to blame"
    assert "n0 did not write all: ENOSPC" in one.note
    first = row("wrong pages", 5, node="n3", peer="n0")
    one = rules.wrong_pages(rates([first, row("wrong pages", 7, node="n2", peer="n1"), full]))
    assert (one.verdict, one.known) == (FAIL, 7)
    assert one.culprit is not None
    assert one.culprit.either == {frozenset({"n2", "n1"}), frozenset({"n3"})}


def test_small_files_and_random_reads() -> None:
    steps = [*five("create", 100, 100, 100, 100, unit=1), *five("stat", *[900] * 4, unit=1)]
    rows = rates([*steps, *five("delete", *[50] * 4, unit=1)])
    promise = SmallFilesPromise.model_validate({"create_at_least": 300, "stat_at_least": 4000})
    create, stat, delete = rules.judge_small_files(rows, promise)
    assert [one.verdict for one in (create, stat, delete)] == [PASS, FAIL, None]
    assert create.known == pytest.approx(400, rel=0.01)
    reads = RandomReadsPromise.model_validate(
        {"size": "1 MiB", "at_least": "9 GB/s", "reads_at_least": 200_000}
    )
    rate, number = rules.judge_random_reads(rates(five("random read", 1, 3, 3, 3)), reads)
    assert rate.verdict is PASS
    assert rate.known == pytest.approx(10, rel=0.01)
    assert number.verdict is FAIL
    assert number.known == pytest.approx(1e10 / 65536, rel=0.01)


def test_losses_beside_collectives() -> None:
    rows = rates(
        [
            *five("write without collectives", *[4] * 4),
            *five("write beside collectives", *[3] * 4),
            *five("all-reduces without storage", *[100] * 4, unit=1),
            *five("all-reduces beside storage", *[90] * 4, unit=1),
        ]
    )
    storage, calls = rules.judge_beside(
        rows, BesidePromise.model_validate({"storage_loss_at_most": 0.1})
    )
    assert storage.verdict is FAIL
    assert storage.known == pytest.approx(0.25)
    assert calls.verdict is None
    assert calls.known == pytest.approx(0.1)


def seen(late: Iterable[tuple[str, str]], seconds: float = 5.0) -> list[Row]:
    """Looks of all nodes at the files of all others; some are late."""
    bad = {*late}
    return [
        row("renamed file seen", seconds if (a, b) in bad else 0.1, "s", node=b, peer=a)
        for a in NODES
        for b in NODES
        if a != b
    ]


@pytest.mark.parametrize(
    ("rows", "verdict", "nodes"),
    [
        (seen([]), PASS, set()),
        (seen([(a, "n2") for a in NODES]), FAIL, {"n2"}),
        (seen([("n2", b) for b in NODES]), FAIL, {"n2"}),
        (seen([("n2", b) for b in NODES]) + seen([]), FAIL, {"n2"}),
        (seen([("n2", b) for b in NODES] + [(a, "n2") for a in NODES]), FAIL, {"n2"}),
        ([row(UNUSABLE, why=UNSEEN, node="n2"), row(WAITED, 4.0, node="n2")], FAIL, {"n2"}),
        (
            [
                one
                for node in NODES[1:]
                for one in (row(UNUSABLE, why=UNSEEN, node=node), row(WAITED, 4.0, node=node))
            ],
            *(FAIL, set()),
        ),
        ([row(UNUSABLE, why="ENOSPC", node="n2")], UNSURE, {"n2"}),
    ],
)
def test_renames(rows: list[Row], verdict: Verdict, nodes: set[str]) -> None:
    promise = PathPromise.model_validate({"renamed_within": "2 s"})
    one, *_ = semantics.judge_renames(rates(rows), promise)
    assert one.verdict is verdict
    assert (one.culprit.nodes if one.culprit else set()) == nodes


def locked(*granted: str, free: str = "granted") -> list[Row]:
    held = "flock that another node holds"
    return [
        *(row("flock of an unlocked file", free, node=node) for node in NODES),
        *(
            row(held, "granted" if node in granted else "refused", node=node, peer="n0")
            for node in NODES[1:]
        ),
    ]


@pytest.mark.parametrize(
    ("rows", "count", "nodes", "either"),
    [
        (locked(), 0, set(), set()),
        (locked("n2"), 1, {"n2"}, set()),
        (locked("n1", "n2", "n3"), 3, set(), {frozenset(NODES)}),
        (locked(free="ENOLCK (no locks available)"), 4, set(NODES), set()),
        (locked()[:4], None, set(), {frozenset()}),
    ],
)
def test_locks(rows: list[Row], count: int | None, nodes: set[str], either: set[Any]) -> None:
    [one] = semantics.judge_locks(rates(rows), ["flock"])
    assert one.known == count
    assert (one.culprit.nodes if one.culprit else set()) == nodes
    if count:
        assert one.culprit is not None
        assert one.culprit.either == either


@pytest.mark.parametrize(
    ("on", "anew", "verdict", "nodes"),
    [
        ("whole", "new", PASS, set()),
        ("ESTALE (stale file handle)", "new", FAIL, {"n2"}),
        ("whole", "old or mixed", FAIL, {"n2"}),
    ],
)
def test_replaced_files(on: str, anew: str, verdict: Verdict, nodes: set[str]) -> None:
    rows = [
        row(metric, value if node == "n2" else right, node=node, peer="n0")
        for node in NODES[1:]
        for metric, value, right in (
            ("replaced file read on", on, "whole"),
            ("replaced file opened anew", anew, "new"),
        )
    ]
    [one] = semantics.judge_replaced(rates(rows))
    assert one.verdict is verdict
    assert (one.culprit.nodes if one.culprit else set()) == nodes


@pytest.mark.parametrize(
    ("error", "before", "after", "verdicts"),
    [
        ("ENOSPC (no space left on device)", "whole", "none", [PASS, PASS]),
        ("EDQUOT (disk quota exceeded)", "whole", "none", [PASS, PASS]),
        ("none", "whole", "none", [FAIL, PASS]),
        ("EIO (input/output error)", "whole", "none", [FAIL, PASS]),
        ("ENOSPC (no space left on device)", "3 wrong pages", "none", [PASS, FAIL]),
        ("ENOSPC (no space left on device)", "whole", "ENOSPC (…)", [PASS, FAIL]),
        (None, "whole", "none", [UNSURE]),
    ],
)
def test_a_limit(error: str | None, before: str, after: str, verdicts: list[Verdict]) -> None:
    of = partial(row, node="n0")
    rows = [
        of("error of a checkpoint that exceeds the limit", error, why="" if error else "not tried"),
        of("checkpoint before it", before),
        of("error of the next checkpoint", after),
    ]
    assert [one.verdict for one in semantics.judge_exceeded(rates(rows))] == verdicts
