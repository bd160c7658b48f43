"""The session around a draft: results of nodes, the output file, and printed text."""

from __future__ import annotations

import resource
import socket
import threading
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pytest_mnode.backends.slurm import SlurmBackend
from pytest_mnode.discover import nodes as discover_nodes
from pytest_mnode.discover.draft import draft
from pytest_mnode.discover.nodes import node_of, read_nodes
from pytest_mnode.discover.session import (
    Findings,
    check_place,
    complete,
    doubts_but_unconfirmed,
    findings,
    node_count,
    summary,
    write_new,
)
from pytest_mnode.errors import NodeLostError, UsageError
from pytest_mnode.launchers.node import CommandResult
from pytest_mnode.launchers.nodes import Nodes
from pytest_mnode.machine.encoding import encode
from pytest_mnode.options import Settings
from pytest_mnode.spec import load_spec
from tests.criteria.preflight.made import SOFTWARE, healthy, promising, with_facts
from tests.discover.made import changed, cluster_of, gpus, ib_node, silent, tcp_node

ANSWER = encode(tcp_node(0))


def result(stdout: str = "", code: int | None = 0, stderr: str = "") -> CommandResult:
    return CommandResult("node0", code, stdout, stderr, 0.1)


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (result(ANSWER + "\n"), ""),
        (result(f"Welcome to node0!\n{ANSWER}\n"), ""),
        (result("", None), "no answer within 0.1 s"),
        (result(ANSWER, None), "no answer within 0.1 s"),
        (result("", 127, "sh: python: not found\n"), "status 127: sh: python: not found"),
        (result("", 1), "reading it ended with status 1: no message"),
        (result('{"interfaces": 3}\n'), "its answer cannot be read: "),
        (result("{\n"), "its answer cannot be read: "),
    ],
)
def test_what_a_node_answers(answer: CommandResult, problem: str) -> None:
    seen = node_of(answer, "10.1.0.1")
    assert problem in seen.problem
    assert (seen.machine is None) is bool(problem)
    assert len(seen.problem.splitlines()) <= 1


class OneOff(Nodes):
    """Three nodes, the second of which is off; the others are read together."""

    python = "python3"

    def __init__(self) -> None:
        super().__init__(lambda request: pytest.fail(str(request)), ("node0", "node1", "node2"))

    def commands(
        self, argv: Sequence[str], nodes: Sequence[str] | str | None = None
    ) -> list[list[str]]:
        if nodes != "node1":
            return [[]]
        raise NodeLostError("node1", "node1 is unavailable: powered off")

    def run(
        self,
        argv: Sequence[str],
        nodes: Sequence[str] | str | None = None,
        *,
        timeout: float | None = None,
        env: Mapping[str, str] | None = None,
    ) -> list[CommandResult]:
        assert nodes == ["node0", "node2"]
        return [replace(result(ANSWER), node=node) for node in nodes]

    def address(self, node: str) -> str:
        return "127.0.0.1"


def test_a_node_that_is_off_does_not_hide_the_others() -> None:
    seen = read_nodes(OneOff(), "rack", "default: no cluster given")
    assert [node.name for node in seen.shown] == ["node0", "node2"]
    [off] = seen.silent
    assert (off.name, off.problem) == ("node1", "node1 is unavailable: powered off")
    assert seen.emulated


def test_a_lookup_that_hangs_leaves_only_its_node_without_an_address(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers, known = threading.Event(), socket.getaddrinfo

    def look_up(host: str, *words: Any) -> Any:
        if host == "node2.example":
            answers.wait(60)
        return known("127.0.0.1", *words)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(discover_nodes, "_LOOK_UP_LIMIT_S", 1.0)
    monkeypatch.setattr(OneOff, "address", lambda _, node: f"{node}.example")
    try:
        seen = read_nodes(OneOff(), "ssh", "a hostfile was named")
        assert not answers.is_set()
    finally:
        answers.set()
    assert [node.address for node in seen.nodes] == ["127.0.0.1", "127.0.0.1", ""]
    assert [node.name for node in seen.shown] == ["node0", "node2"]


def test_names_of_an_allocation() -> None:
    variables = {
        "SLURM_JOB_PARTITION": "gpu",
        "SLURM_CLUSTER_NAME": "hall",
        "SLURM_JOB_ACCOUNT": "",
    }
    names = {"cluster": "hall", "partition": "gpu"}
    assert SlurmBackend().scheduler(variables) == {"kind": "slurm", **names}
    assert SlurmBackend().scheduler({}) == {"kind": "slurm"}


def settings(**changes: Any) -> Settings:
    return Settings(**changes)


def test_number_of_nodes_to_read(tmp_path: Path) -> None:
    hostfile = tmp_path / "hosts"
    hostfile.write_text("node[1-3] slots=8\n")
    allocation = {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": "5"}
    assert node_count(settings(nodes=2, hostfile=hostfile), allocation) == 2
    assert node_count(settings(hostfile=hostfile), {}) == 3
    assert node_count(settings(hostfile=hostfile, launcher="ssh"), allocation) == 3
    assert node_count(settings(hostfile=hostfile), allocation) == 5
    assert node_count(settings(launcher="slurm"), allocation) == 5
    for wrong in ("", "0", "five"):
        with pytest.raises(UsageError, match="the number of nodes is unknown"):
            node_count(settings(), {"SLURM_JOB_ID": "7", "SLURM_JOB_NUM_NODES": wrong})
    with pytest.raises(UsageError, match="pass --mnode-nodes=N"):
        node_count(settings(launcher="slurm", hostfile=hostfile), {})
    assert node_count(settings(launcher="rack", hostfile=hostfile), allocation) == 2
    assert node_count(settings(), {}) == 2


def test_an_existing_page_is_never_overwritten(tmp_path: Path) -> None:
    there = tmp_path / "spec.yaml"
    there.write_text("mine")
    with pytest.raises(UsageError, match="the file exists"):
        check_place(there)
    with pytest.raises(UsageError, match="file exists"):
        write_new(there, "theirs")
    assert there.read_text() == "mine"
    dangling = tmp_path / "link.yaml"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(UsageError, match="the file exists"):
        check_place(dangling)


def test_an_unwritable_file_is_reported_first(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no directory"):
        check_place(tmp_path / "no" / "spec.yaml")
    check_place(tmp_path / "spec.yaml")
    write_new(tmp_path / "spec.yaml", "name: x\n")
    assert [path.name for path in tmp_path.iterdir()] == ["spec.yaml"]


def test_preflight_names_nodes_that_do_not_meet_the_page() -> None:
    spec = promising("{interfaces: {}, speed: {}, same: [kernel], limits: {shm: 1 GiB}}")
    well = healthy()
    kept = findings(well, spec)
    assert kept.broken == ()
    assert kept.measured > 8
    odd = findings(with_facts(well, 2, software=replace(SOFTWARE, kernel="5.4.0")), spec)
    [line] = odd.broken
    assert line.startswith("gpu2 kernel: kernel unlike that of other nodes 1")
    assert odd.unknown == kept.unknown  # this survey did not read /dev/shm
    assert all("shm" in one for one in odd.unknown)
    paragraphs = list(odd.paragraphs())
    assert f"- {line}" in paragraphs


def test_a_page_that_all_nodes_meet_is_reported() -> None:
    [line] = Findings((), (), 12).paragraphs()
    assert line == "Then preflight was run with this page, and made 12 measurements: all nodes " \
        "meet it."  # fmt: skip


def test_doubts_of_a_page_without_the_missing_confirmation() -> None:
    spec = promising("{storage: {writable: [datasets]}}")
    unconfirmed = spec.model_copy(update={"confirmed": False})
    assert doubts_but_unconfirmed(unconfirmed) == doubts_but_unconfirmed(spec)
    [line] = doubts_but_unconfirmed(unconfirmed)
    assert line.startswith("criteria.preflight.storage.writable: datasets")


@pytest.mark.parametrize("doubtful", [False, True])
def test_a_page_with_a_doubt_is_not_complete(doubtful: bool, tmp_path: Path) -> None:
    page = draft(cluster_of(tcp_node))
    path = tmp_path / "page.yaml"
    path.write_text(page.text())
    spec = load_spec(path)
    found = ["fabric.mtu: odd"] if doubtful else []
    assert complete(spec, cluster_of(tcp_node), page, found) is not doubtful
    assert not complete(None, cluster_of(tcp_node), page, [])
    assert not complete(spec, silent(cluster_of(tcp_node), 1), page, [])


def test_what_the_terminal_shows() -> None:
    seen = silent(changed(cluster_of(ib_node), 1, **gpus(4)), 3)
    page = draft(seen)
    kept = Findings(("node1: accelerators 4",), ("speed on node2: mute",), 5)
    lines = summary(Path("new.yaml"), seen, page, kept, "")
    text = "\n".join(lines)
    assert "read node0, node1, node2" in lines[0]
    assert "mnode: node3 could not be read: no answer within 90 s" in lines
    assert "mnode: nodes differ: accelerators (most: 8): node1: 4" in lines
    assert "mnode: nodes do not meet the spec: node1: accelerators 4" in lines
    assert "mnode: could not be measured: speed on node2: mute" in lines
    assert "written: new.yaml" in lines
    assert "then set confirmed: true" in text
    odd = summary(Path("new.yaml"), seen, page, kept, "", doubtful=["fabric.mtu: odd"])
    assert "mnode: doubtful: fabric.mtu: odd" in odd
    refused = summary(Path("new.yaml"), seen, page, None, "fabric.mtu: 99999; accepted: less")
    assert any("the page cannot be loaded, correct it: fabric.mtu" in line for line in refused)


def test_a_node_whose_name_resolves_to_loopback_gets_the_address_others_see(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One has an IPv6 address only."""
    known = socket.getaddrinfo
    addresses = {"node0": "127.0.1.1", "node1": "192.0.2.2", "node2": "2001:db8::3"}

    def look_up(host: str, *words: Any) -> Any:
        return known(addresses[host.partition(".")[0]], *words)

    monkeypatch.setattr(socket, "getaddrinfo", look_up)
    monkeypatch.setattr(OneOff, "address", lambda _, node: f"{node}.example")
    others = dict.fromkeys((addresses["node1"], addresses["node2"]), "192.0.2.1")
    monkeypatch.setattr(discover_nodes, "towards", others.__getitem__)
    seen = read_nodes(OneOff(), "ssh", "a hostfile was named")
    assert [node.address for node in seen.nodes] == ["192.0.2.1", "192.0.2.2", "2001:db8::3"]


def test_half_a_page_is_removed(tmp_path: Path) -> None:
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4, limits[1]))  # as on a full disk
    try:
        with pytest.raises(UsageError, match="file too large"):
            write_new(tmp_path / "spec.yaml", "name: x\n")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert list(tmp_path.iterdir()) == []
