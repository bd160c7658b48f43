"""NVLinks and their fabric against promises, from stand-ins for nvidia-smi and nvidia-imex-ctl."""

from __future__ import annotations

from pathlib import Path

import pytest

from pytest_mnode.checks.node.nvlink import NvLinksAreUp
from pytest_mnode.checks.node.nvlink_fabric import NvLinkFabricIsComplete
from pytest_mnode.criteria.preflight.survey_check import promise_of
from pytest_mnode.evidence.reading import CheckRows
from pytest_mnode.evidence.row import Row, row
from pytest_mnode.spec import profile_spec
from pytest_mnode.spec.inventory import Accelerators
from tests.checks.node.judged import blamed, judged, rows_of, verdicts
from tests.programs import write_program

LINKS = "{links: 2, rate: 26.5 GB/s}"
UP = "26.562 GB/s"


def gpus(monkeypatch: pytest.MonkeyPatch, folder: Path, *links: str, errors: int = 0) -> CheckRows:
    """What a node with these GPUs reads; links: their states, joined by "|"."""
    text = ""
    for gpu, states in enumerate(links):
        text += f"GPU {gpu}: NVIDIA H100 80GB HBM3 (UUID: GPU-{gpu})\\n"
        for link, state in enumerate(states.split("|")):
            text += f"\\t Link {link}: {state}\\n"
            text += (
                f"\\t Link {link}: CRC Errors: {errors}\\n\\t Link {link}: Recovery Errors: 0\\n"
            )
    monkeypatch.setenv("PATH", f"{folder}:/usr/bin:/bin")
    write_program(folder / "nvidia-smi", f"#!/bin/sh\nprintf '{text}'\n")
    return rows_of(NvLinksAreUp, LINKS)


@pytest.mark.parametrize(
    ("promise", "links", "verdict", "words"),
    [
        (LINKS, (f"{UP}|{UP}",) * 2, "pp", ""),
        (LINKS, (f"{UP}|{UP}", f"{UP}|<inactive>"), "fp", "accelerator 1 link 1 inactive"),
        (LINKS, ("13.281 GB/s|" + UP, f"{UP}|{UP}"), "pf", "accelerator 0 link 0: 13.281 GB/s"),
        (LINKS, ("<inactive>|<inactive>",), "fi", "accelerator 0"),
        (LINKS, (f"{UP}|what",), "ip", "in no known state"),
        ("{rate: 25 GB/s}", ("25 GB/s",), "p", ""),
        ("{rate: 50 GB/s}", (f"{UP}|{UP}",), "f", "26.562"),
        ("{errors_at_most: 5, recoveries_at_most: 0}", (UP,), "fp", "accelerator 0 link 0"),
        ("{errors_at_most: 9}", (UP,), "p", ""),
        ("{bit_error_rate_at_most: 1.0e-12}", (UP,), "i", "its links show none"),
    ],
)
def test_links_are_compared_with_the_platform(  # noqa: PLR0917  a table
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    promise: str,
    links: tuple[str, ...],
    verdict: str,
    words: str,
) -> None:
    found = judged(NvLinksAreUp, promise, {"a": gpus(monkeypatch, tmp_path, *links, errors=9)})
    assert verdicts(found) == verdict
    assert words in " ".join(map(str, found["a"]))
    assert blamed(found) == ({"a"} if "f" in verdict else set())


def test_a_missing_program_is_named_with_its_package(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    for check, promise in (
        (NvLinksAreUp, LINKS),
        (NvLinkFabricIsComplete, "{state: completed}"),
    ):
        found = judged(check, promise, {"a": Path("/")})
        assert set(verdicts(found)) <= {"i", " "}
        assert "nvidia-utils" in found["a"][0].note
    [imex] = judged(NvLinkFabricIsComplete, "{imex: up}", {"a": Path("/")})["a"][1:]
    assert str(imex.verdict) == "inconclusive"
    assert "install nvidia-imex" in imex.note


def test_what_is_drafted_is_what_all_links_have(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    rows = gpus(monkeypatch, tmp_path, f"{UP}|{UP}").rows
    assert NvLinksAreUp.draft({"a": rows}) == {"links": 2, "rate": "26.562 GB/s"}
    odd = gpus(monkeypatch, tmp_path, f"{UP}|<inactive>").rows
    assert NvLinksAreUp.draft({"a": rows, "b": odd}) is None


A, B = "aaaaaaaa-d722-4357-9ba6-5291dd461278", "bbbbbbbb-d722-4357-9ba6-5291dd461278"
C = "cccccccc-d722-4357-9ba6-5291dd461278"
NONE = "00000000-0000-0000-0000-000000000000"
RACKS = Accelerators.model_validate({"per_node": 4, "domain": {"gpus": 8}})


def fabric(state: str | None = "completed", *ids: tuple[str, int]) -> list[Row]:
    rows = [row("NVLink registration", state, device="accelerator 0", why="no state")]
    for i, (cluster, clique) in enumerate(ids):
        rows += [row("NVLink cluster UUID", cluster, device=f"accelerator {i}")]
        rows += [row("NVLink clique", clique, device=f"accelerator {i}")]
    return rows


def members(*ids: tuple[str, int]) -> dict[str, CheckRows]:
    """Nodes a, b, c, … with one accelerator each."""
    nodes = zip("abcdef", ids, strict=False)
    return {name: CheckRows("", tuple(fabric("completed", one))) for name, one in nodes}


@pytest.mark.parametrize(
    ("nodes", "verdict", "to_blame"),
    [
        (members((A, 1), (A, 1)), "p p", ""),
        (members((A, 1), (A, 1), (B, 7), (B, 7)), "p p p p", ""),
        (members((A, 1), (A, 1), (B, 7)), "p p p", ""),  # of the second rack one node
        (members((A, 1), (A, 2), (B, 7), (B, 7)), "f f p p", ""),
        (members((A, 1), (A, 1), (A, 2), (A, 2)), "p p p p", ""),  # a rack of two domains
        (members((A, 1), (B, 1), (A, 1), (C, 1)), "p f p f", ""),
        (members((A, 1), (A, 1), (B, 1), (B, 1), (C, 2), (A, 1)), "p p p p p p", ""),
        (members((A, 1), (A, 2)), "f f", ""),  # nobody knows which
        (members((A, 1), (NONE, 0)), "p f", "b"),
        ({"a": CheckRows("", tuple(fabric("completed", (A, 1), (A, 2))))}, "f", "a"),
        ({"a": CheckRows("", tuple(fabric("completed")))}, "i", ""),
    ],
)
def test_nodes_of_a_domain_share_cluster_and_clique(
    nodes: dict[str, CheckRows], verdict: str, to_blame: str
) -> None:
    found = judged(NvLinkFabricIsComplete, "{state: completed}", nodes, accelerators=RACKS)
    domains = {name: [every[1]] for name, every in found.items()}
    assert verdicts(domains) == verdict
    assert blamed(found) == set(to_blame)


@pytest.mark.parametrize(
    ("promise", "rows", "verdict"),
    [
        ("{state: completed}", fabric(), "p"),
        ("{state: completed}", fabric("In Progress"), "f"),
        ("{state: completed}", fabric("Insufficient Resources"), "f"),
        ("{state: completed}", fabric(None), "i"),
        ("{manager: running}", [row("fabric manager", "running")], "p"),
        ("{manager: running}", [row("fabric manager", "failed")], "f"),
        ("{manager: running}", [row("fabric manager", why="in a container?")], "i"),
    ],
)
def test_registration_and_manager(promise: str, rows: list[Row], verdict: str) -> None:
    healthy = {
        "{state: completed}": fabric(),
        "{manager: running}": [row("fabric manager", "running")],
    }
    nodes = {"a": CheckRows("", tuple(rows)), "b": CheckRows("", tuple(healthy[promise]))}
    found = judged(NvLinkFabricIsComplete, promise, nodes)
    assert verdicts(found) == f"{verdict} p"
    assert blamed(found) == ({"a"} if verdict == "f" else set())


def imex(daemon: str, domain: str | None, nodes: str = "10.0.0.1, 10.0.0.2") -> CheckRows:
    rows = [row("IMEX daemon", daemon), row("IMEX nodes file", nodes)]
    return CheckRows("", (*rows, row("IMEX domain", domain, why="no connection")))


@pytest.mark.parametrize(
    ("nodes", "verdict", "to_blame"),
    [
        ({"a": imex("running", "UP"), "b": imex("running", "UP")}, "ppp ppp", ""),
        (
            {"a": imex("running", "DEGRADED 10.0.0.2 UNAVAILABLE"), "b": imex("failed", None)},
            *("pfp fip", "b"),
        ),
        (
            {
                name: imex("running", "UP", "10.0.0.1" if name == "c" else "10.0.0.1, 10.0.0.2")
                for name in "abc"
            },
            *("ppp ppp ppf", "c"),
        ),
    ],
)
def test_imex_is_up_on_all_nodes(nodes: dict[str, CheckRows], verdict: str, to_blame: str) -> None:
    found = judged(NvLinkFabricIsComplete, "{imex: up}", nodes, accelerators=RACKS)
    assert verdicts(found) == verdict
    assert blamed(found) == set(to_blame)


def test_the_fabric_is_read_from_its_programs(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    head = "GPU 00000000:1B:00.0\\n    Fabric\\n        State : Completed\\n        Status : "
    text = head + f"{{}}\\n        CliqueId : 3\\n        ClusterUUID : {A}\\n"
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    for status, state in (
        ("Success", "completed"),
        ("Insufficient Resources", "Insufficient Resources"),
    ):
        write_program(tmp_path / "nvidia-smi", f"#!/bin/sh\nprintf '{text.format(status)}'\n")
        read = rows_of(NvLinkFabricIsComplete, "{state: completed}").rows
        assert [one.value for one in read] == [state, A, 3]


@pytest.mark.parametrize(
    ("cluster", "domain", "drafted"),
    [
        (A, "UP", {"state": "completed", "imex": "up"}),
        (A, None, {"state": "completed", "imex": None}),  # over a profile that promises it
        (A, "DEGRADED", {"state": "completed"}),
        (NONE, None, {"state": "completed"}),
    ],
)
def test_imex_is_drafted_where_nodes_show_it(
    cluster: str, domain: str | None, drafted: dict[str, str | None]
) -> None:
    rows = [*fabric("completed", (cluster, 1)), *imex("running", domain).rows]
    assert NvLinkFabricIsComplete.draft({"a": rows, "b": rows}) == drafted


@pytest.mark.parametrize("name", ["gb200-nvl72", "gb300-nvl72", "nd-gb200-v6", "p6e-gb200"])
def test_profiles_of_nvl72_promise_imex_and_the_domain(name: str) -> None:
    spec = profile_spec(name)
    assert spec.accelerators.nodes_of_a_domain == 18
    promise = promise_of(NvLinkFabricIsComplete, spec)
    assert (promise.state, promise.imex) == ("completed", "up")
