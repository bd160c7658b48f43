from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pytest_mnode.errors import SpecError
from pytest_mnode.spec import Spec, default_spec_path, json_schema, load, load_spec
from tests.spec.conftest import Page, changed

RACK = default_spec_path().read_text()
BUSBW = "criteria.fabric.all_reduce_busbw"
SIZES = "[64 KiB, 1 MiB, 4 MiB]"
RATES = (
    "accepted: bits a second, such as '400 Gbit/s' (units bit/s, kbit/s, Mbit/s, Gbit/s, Tbit/s)"
)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("name: rack", "name: rack\nnodez: 4", "nodez: unknown key; did you mean nodes?"),
        ("mesh: {}", "mash: {}", "criteria.mash: unknown key; did you mean mesh?"),
        ("mesh: {}", "qqq: {}", "criteria.qqq: unknown key; accepted: "),
        ("mesh: {}", "mesh: {at: 1}", "criteria.mesh.at: unknown key; accepted: {}"),
        ("name: rack", 'name: rack\n"a\\nb": 4', r"'a\nb': unknown key; accepted: name, "),
        ("name: rack", "name: rack\nno: 4", "no: line 3: this key is not text; accepted"),
        ("name: rack", "", "name: missing; needed: What the cluster is called"),
        ("reason: the rack has none", "", "not_promised[0].reason: missing; needed: Why it is not"),
        ("name: rack", "name: rack\nnodes: '4'", "nodes: '4'; accepted: a whole number"),
        ("name: rack", "name: rack\nnodes: true", "nodes: True; accepted: a whole number"),
        ("name: rack", "name: rack\nnodes: 0", "nodes: 0; accepted: a number of 1 or more"),
        ("kind: ethernet", "kind: eth", "fabric.kind: 'eth'; accepted: 'ethernet', 'roce', "),
        ("[fab0]", "fab0", "fabric.interfaces: 'fab0'; accepted: a list, such as [a, b]"),
        ("[fab0]", "[]", "fabric.interfaces: []; accepted: a list of 1 or more"),
        ("[fab0]", "[a b]", "fabric.interfaces[0]: 'a b'; accepted: the name or shell pattern of"),
        ("mesh: {}", "mesh: []", "criteria.mesh: []; accepted: a mapping of keys to values"),
        ("mesh: {}", "mesh:", "criteria.mesh: no value; needed: Can all ranks exchange data"),
        ("200 Mbit/s", "", "fabric.line_rate: no value; needed: Line rate of one NIC in each"),
        ("200 Mbit/s", "200", f"fabric.line_rate: 200 has no unit; {RATES}"),
        (
            "200 Mbit/s",
            "25 MB/s",
            f"fabric.line_rate: '25 MB/s' is in bytes a second, not bits; {RATES}",
        ),
        ("7 days", "7 MB", "certificate.valid_for: '7 MB' is in bytes; accepted: a time"),
        (
            SIZES,
            "[64, 1 MiB]",
            f"{BUSBW}.sizes[0]: 64 has no unit; accepted: bytes, such as '1 MiB'",
        ),
        (
            SIZES,
            "[1 GiB, 1 MiB, 4 MiB]",
            f"{BUSBW}.sizes: [1 GiB, 1 MiB, 4 MiB] does not rise; accepted: each size ",
        ),
        (SIZES, "[]", f"{BUSBW}.sizes: []; accepted: a list of 1 or more"),
        (
            SIZES,
            "{from: 8 KiB}",
            f"{BUSBW}.sizes: to is missing; accepted: a list of sizes, or {{from: 8 KiB, to: ",
        ),
        (
            SIZES,
            "{from: 8 KiB, to: 1 MiB, step: 2}",
            f"{BUSBW}.sizes: unknown key 'step'; accepted: a list of sizes, or {{from: 8 KiB, ",
        ),
        (
            SIZES,
            "{from: 8, to: 1 MiB}",
            f"{BUSBW}.sizes: 8 has no unit; accepted: bytes, such as '1 MiB'",
        ),
        (
            SIZES,
            "{from: 8 KiB, to: 1 MiB, factor: 1}",
            f"{BUSBW}.sizes: factor 1; accepted: a whole number of 2 or more",
        ),
        (
            SIZES,
            "{from: 2 MiB, to: 1 MiB}",
            f"{BUSBW}.sizes: from 2 MiB is more than to 1 MiB; accepted: the smaller first",
        ),
        (
            f"{SIZES}\n      plateau_from: 4 MiB",
            f"{SIZES}\n      plateau_from: 8 MiB",
            f"{BUSBW}.plateau_from: '8 MiB' leaves nothing to judge; "
            "accepted: at most the largest of sizes, '4 MiB'",
        ),
        (
            "tolerance_fraction: 0",
            "tolerance_fraction: 0.9",
            f"{BUSBW}.tolerance_fraction: 0.9 leaves a bound that nothing can miss; "
            "accepted: less than at_least_fraction, 0.75",
        ),
        ("fraction: 0.75", "fraction: 0", "at_least_fraction: 0; accepted: a number above 0"),
        ("fraction: 0.75", "fraction: .nan", "at_least_fraction: nan; accepted: a finite number"),
        ("fraction: 0.75", "fraction: 85%", "at_least_fraction: '85%'; accepted: a number"),
        ("name: rack", 'name: "a\\nb"', r"name: 'a\nb'; accepted: one line of text"),
        ("name: rack", "name: 4", "name: 4; accepted: text; quote it"),
        ("name: rack", 'name: rack\nconfirmed: "yes"', "confirmed: 'yes'; accepted: true or false"),
        (
            "name: rack",
            "name: rack\nscheduler: {kind: slurm, names: {partitoin: gpu}}",
            "scheduler.names.partitoin: 'partitoin'; accepted: 'partition', 'account', 'qos', 'res",
        ),
        ("name: rack", "name: no", "name: False; accepted: text; quote it"),
        ("name: rack", "name: &a [*a]", "name: [[...]]; accepted: text"),
        ("name: rack", "name: rack\nname: b", "name: key given twice, on lines 2 and 3"),
        ("  nics_per_node: 1", "  kind: efa", "fabric.kind: key given twice, on lines 14 and 17; "),
        ("name: rack", "name: [rack", "line 3, column 9: not YAML: expected ',' or ']', "),
        ("name: rack", "name: 2026-13-45", "column 7: not YAML: '2026-13-45' is no timestamp"),
        ("7 days", "1:30", "'1:30' is no decimal number; write one, or quote what is text"),
        ("repeats: 5", "repeats: 010", ", column 16: not YAML: '010' is no decimal number; write"),
        ("repeats: 5", "repeats: 0x5", "not YAML: '0x5' is no decimal number; write one, or quote"),
        (
            "  preflight:\n",
            "  preflight:\n    disk: [{path: /tmp, free: 1}]\n",
            "criteria.preflight.disk[0].free: 1 has no unit",
        ),
        (
            "{dtypes: [float32], ",
            "{at_least_tflops: {fp8: 3}, ",
            "criteria.devices.matmul.at_least_tflops.fp8: 'fp8'; accepted: 'float64', ",
        ),
        ("name: rack", "name: \0", "line 2: not YAML: special characters are not allowed"),
        ("name: rack", "name: !!python/name:os.system x", "line 2, column 7: not YAML: could "),
        ("name: rack", f"name: {'[' * 3000}", "nested too deep; accepted: a mapping"),
    ],
)
def test_a_wrong_spec_is_one_line_with_file_key_value_and_form(
    page: Page, old: str, new: str, message: str
) -> None:
    path = page(old, new)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    line = str(caught.value)
    assert line.startswith(f"{path}: ")
    assert message in line
    assert line.isprintable()
    assert "(and " not in line


def test_every_fault_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(
        RACK.replace("name: rack", "nmae: rack\nconfirmed: 1")
        .replace("200 Mbit/s", "200")
        .replace("fraction: 0.75", "fraction: 75")
        .replace("7 days", "7")
    )
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    lines = str(caught.value).splitlines()
    assert all(line.startswith(f"{path}: ") for line in lines)
    found = [line.removeprefix(f"{path}: ").partition(": ") for line in lines]
    assert {key for key, _, _ in found} == {
        *("nmae", "name", "confirmed", "fabric.line_rate", "certificate.valid_for"),
        f"{BUSBW}.at_least_fraction",
    }
    assert found[0][0] == "nmae"


def test_every_repeated_key_has_a_line(tmp_path: Path) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text("name: a\nname: b\nfabric: {kind: roce, kind: efa}\n1: x\n")
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert [
        line.removeprefix(f"{path}: ").partition(":")[0] for line in str(caught.value).splitlines()
    ] == ["name", "1", "fabric.kind"]


WRONG: list[Any] = [[], {}, "x y", 1.5, -1, True, float("nan"), 10**30, date(2026, 1, 1), [[1]]]


def leaves(page: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    items = page.items() if isinstance(page, dict) else enumerate(page)
    for key, value in items:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from leaves(value, (*path, key))


def keys_of(schema: dict[str, Any], part: dict[str, Any], depth: int = 0) -> Any:
    """A page with every key of the schema that a value of no kind stands for."""
    for choice in part.get("anyOf", [part]):
        named = schema["$defs"].get(str(choice.get("$ref", "")).rpartition("/")[2], choice)
        if named.get("properties") and depth < 6:
            return {k: keys_of(schema, v, depth + 1) for k, v in named["properties"].items()}
    return None


def test_no_fault_is_described_in_the_words_of_a_library() -> None:
    """Each key of a spec with values of every kind that it may not have."""
    schema = json_schema()
    kinds = set[str]()
    for path in leaves(keys_of(schema, schema["else"])):
        for wrong in WRONG:
            page: dict[str, Any] = {}
            at = page
            for key in path[:-1]:
                at = at.setdefault(key, {})
            at[path[-1]] = wrong
            try:
                Spec.model_validate(page)
            except ValidationError as error:
                kinds |= {fault["type"] for fault in error.errors()}
    own = {"extra_forbidden", "missing", "no_value", "value_error", "string_pattern_mismatch"}
    assert kinds - own <= set(load._ACCEPTED)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"", "it is empty; accepted: a mapping of keys to values"),
        (b"- a", "met ['a']; accepted: a mapping of keys to values"),
        (b"name: \xff", r"b'\xff' at byte 6 is not UTF-8; accepted: YAML in UTF-8"),
        (b"a: 1\n---\nb: 1", "not YAML: expected a single document in the stream but found a"),
    ],
)
def test_a_file_that_is_not_a_page_is_described(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "spec.yaml"
    path.write_bytes(content)
    with pytest.raises(SpecError) as caught:
        load_spec(path)
    assert message in str(caught.value)


def test_a_missing_file_and_a_folder_are_named(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match=r"none\.yaml: no such file or directory; accepted: a YAML"):
        load_spec(tmp_path / "none.yaml")
    with pytest.raises(SpecError, match="is a directory; accepted: a YAML file"):
        load_spec(tmp_path)


def spec_or_error(path: Path) -> Spec | SpecError:
    try:
        return load_spec(path)
    except SpecError as error:
        return error


@settings(
    max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.one_of(
        st.text(max_size=40),
        st.tuples(
            st.integers(0, len(RACK)),
            st.integers(0, 20),
            st.text("{}[]:&*!|>-?#'\"\n\t ,0a%@`<=é\x85", max_size=6),
        ).map(lambda cut: RACK[: cut[0]] + cut[2] + RACK[cut[0] + cut[1] :]),
    )
)
def test_any_text_is_a_spec_or_printable_lines(tmp_path: Path, text: str) -> None:
    path = tmp_path / "spec.yaml"
    path.write_text(text, encoding="utf-8")
    read = spec_or_error(path)
    assert isinstance(read, Spec) or all(map(str.isprintable, str(read).split("\n")))


def test_the_installed_copy_is_preferred_to_the_repositorys(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site" / "pytest_mnode"
    module = "pytest_mnode.spec.profiles"
    monkeypatch.setattr(f"{module}.__file__", str(package / "spec" / "profiles.py"))
    assert default_spec_path() == tmp_path / "site/fixtures/clusters/rack.yaml"
    (package / "clusters").mkdir(parents=True)
    (package / "clusters" / "rack.yaml").write_text(RACK)
    assert default_spec_path() == package / "clusters" / "rack.yaml"


FRACTION = "at_least_fraction: 0.9"
REFUSED = [
    # devices
    ("devices", "{}", "promises nothing; accepted: memory_copy, device_copy, host_to_device"),
    ("devices.matmul", "{}", "at_least_fraction: missing"),
    ("devices.matmul", "{at_least_fraction: 1.1}", "at_least_fraction: 1.1; accepted: a number of"),
    ("devices.matmul", "{at_least_fraction: 0}", "at_least_fraction: 0; accepted: a number above"),
    ("devices.matmul", f"{{{FRACTION}, dtypes: [int8]}}", "dtypes[0]: 'int8'; accepted: 'float64'"),
    ("devices.matmul", f"{{{FRACTION}, dtypes: []}}", "dtypes: []; accepted: a list of 1 or more"),
    (
        "devices.matmul",
        f"{{{FRACTION}, at_least_tflops: {{float16: 1.0}}}}",
        "at_least_tflops for float16, which is not measured; accepted: float32",
    ),
    ("devices.repeated_products", "{size: 50}", "size: 50; accepted: a multiple of 16"),
    ("devices.repeated_products", "{for: 60}", "60 has no unit"),
    ("devices.memory_copy", f"{{{FRACTION}, size: 64}}", "size: 64 has no unit"),
    ("devices.memory_copy", f"{{{FRACTION}, at_most_spreads: 0}}", "at_most_spreads: 0; accepted"),
    ("fabric.all_reduce_busbw.at_least_fraction", "89", "89; accepted: a number of 2 or less"),
    ("launch.absent", "{said_within: 3 s}", "absent: unknown key; accepted: torchrun, "),
    ("restart.refuses_damaged", "true", "refuses_damaged: unknown key; accepted: kills, "),
    ("fabric.write_bandwidth.at_least_fraction", "96", "96; accepted: a number of 1 or less"),
    ("preflight.kernel_log.since", "yesterday", "'yesterday'; accepted: boot, last_pass"),
    # numa
    ("numa.near", "nodes", "'nodes'; accepted: node, socket, or a {distance: 12} from 10 to 254"),
    ("numa.near", "{distance: 5}", "{'distance': 5}; accepted: node, socket, or a {distance: 12}"),
    ("numa.cpus", "far", "'far'; accepted: 'near'"),
    ("numa.memory_near_fraction", "90", "90; accepted: a number of 1 or less"),
    ("numa.copy_near_over_far", "0.5", "0.5; accepted: a number of 1 or more"),
    ("numa.nics", "nearest", "unknown key; did you mean nic?"),
    ("numa", "{copy_repeats: 3}", "promises nothing; accepted: at least one of "),
    # groups and data
    ("groups.meshes", "[{dp: rest, tp: rest}]", "[0]: {dp: rest, tp: rest} leaves two open; acc"),
    ("groups.meshes", "[{}]", "[0]: {}; accepted: sizes by name, such as {pp: 2, dp: rest, "),
    ("groups.meshes", "[]", "[]; accepted: a list of 1"),
    ("groups.meshes", "[{tp: 0}]", "[0]: tp: 0; accepted: a whole number of 1 or more, or rest"),
    ("groups.meshes", "[{tp: 2}, {2d: 2}]", "[1]: '2d' is no name of a dimension; accepted: "),
    ("groups.mesh", "[]", "unknown key; did you mean meshes"),
    ("groups.inside_node", "[tp, cp]", "inside_node has cp, which is in no mesh; accepted: pp, dp"),
    (
        "groups",
        "{meshes: [{dp: rest, ep: 2}], inside_node: [tp]}",
        "inside_node has tp, which is in no mesh; accepted: dp, ep",
    ),
    ("data.batch", "0", "0; accepted: a number of 1 or more"),
    ("data.samples_per_rank", "4", "4; accepted: a number of 16"),
    ("data.accumulation", "1.5", "1.5; accepted: a whole"),
    # launch
    ("launch", "{}", "promises nothing; accepted: torchrun, deepspeed, megatron"),
    ("launch", "{elsewhere: true}", "elsewhere promises nothing without a style"),
    ("launch", "{environment: same}", "environment promises nothing without a style"),
    ("launch.elsewhere", "false", "False; accepted: True"),
    ("launch.mpi", "{}", "unknown key"),
    ("launch.torchrun", "{within: 5}", "within: 5 has no unit; accepted: "),
    ("launch.torchrun", "{job: job.yaml}", "job: 'job.yaml'; accepted: an abs"),
    ("launch.rendezvous", "{ranks: 16}", "within: missing"),
    ("launch.rendezvous", "{ranks: 0, within: 1 s}", "ranks: 0; accepted: "),
    ("launch.store.clients", "[64, 64]", "[64, 64] does not rise; accepted: each number larger"),
    ("launch.store.clients", "[]", "[]; accepted: "),
    # scaling
    ("scaling.compute", "600", "600 has no unit; accepted: a time"),
    ("scaling.at_least_efficiency", "0.85", "explained_from 0.9 is above at_least_efficiency 0.85"),
    ("scaling.at_least_efficiency", "95", "95; accepted: a number of 1 or less"),
    ("scaling.allowed_causes", "[network]", "[0]: 'network'; accepted: 'communication', "),
    ("scaling.allowed_causes", "[skew, skew]", "allowed_causes lists one twice"),
    ("scaling.rounds", "11", "most_rounds 10 is below rounds 11"),
    ("scaling.model.width", "145", "width 145 over heads 2; accepted: a multiple of heads"),
    ("scaling.buckets", "1", "unknown key; did you mean"),
    # restart
    ("restart.within", "60", "60 has no unit"),
    ("restart.kills", "[]", "[]; accepted: a list of 1 or more"),
    ("restart.kills", "[rank, rank]", "kills lists one twice; accepted: each of rank, node,"),
    ("restart.kills", "[power]", "'rank', 'node', 'preemption' or 'checkpoint'"),
    ("restart.node_loss", "none", "'spare', 'fewer' or 'rebooted'"),
    ("restart", "{within: 60 s, node_loss: fewer}", "accepted: with resharded_tolerance"),
    ("restart.tolerance", "1.0", "1.0; accepted: a number below 1"),
    ("restart.tolerance", "-0.1", "-0.1; accepted: a number of 0 or more"),
    ("restart.resharded_tolerance", "0", "0; accepted: a number above 0"),
    ("restart.steps", "17", "17; accepted: a number of 18 or more"),
    ("restart.width", "30", "width 30; accepted: a multiple of 4"),
    ("restart.checkpoints", "1", "unknown key"),
    # gang
    ("gang.nodes", "1", "1; accepted: a number of 2 or more"),
    ("gang.among", "[node0]", "['node0']; accepted: a list of 2 or more"),
    ("gang.rounds", "0", "0; accepted: a number of 1 or more"),
    ("gang.waits", "30", "30 has no unit"),
    ("gang.settle", "0 s", "is zero"),
    ("gang.node_loss", "kept", "'either', 'requeued' or 'cancelled'"),
    ("gang.partial", "true", "unknown key"),
    ("gang", "{runs: 5 s, together: 5 s}", "together 5 s is no less than runs 5 s: ranks that"),
    ("gang.together", "1 h", "together 1 h is no less than runs 15 s"),
    ("gang.clock_skew", "1 h", "clock_skew 1 h is no less than runs 15 s: heartbeats would prove"),
    ("gang", "{nodes: 3, among: [a, b]}", "nodes 3 is more than the 2 nodes of among; accepted"),
    # preflight
    ("preflight.clocks", "{}", "skew: missing"),
    ("preflight.clocks.skew", "5", "5 has no unit"),
    ("preflight.same", "[kernal]", "[0]: 'kernal'; accepted: 'code'"),
    ("preflight.same", "[code, code]", "[code, code] lists one twice"),
    ("preflight.same", "[]", "[];"),
    ("preflight.reachable.networks", "[]", "[]; accepted"),
    ("preflight.reachable.master_port", "0", "0; accepted"),
    ("preflight.payload.size", "4", "4 has no unit"),
    ("preflight.speed.at_least_fraction", "1.1", "1.1; accepted"),
    ("preflight.environment.allowed", "[ib]", "[0]: 'ib'; accepted: a variable"),
    ("preflight.disk", "[{path: tmp, free: 1 GB}]", "[0].path: 'tmp'; accepted: an absolute path"),
    ("preflight.gpudirect", "maybe", "'maybe'; accepted"),
    ("preflight.limits.memlock", "5", "5"),
    ("preflight.limits.memlock", "-1", "criteria.preflight.limits.memlock: -1 has no unit"),
    ("preflight.limits.memlock", "infinity", "or unlimited"),
    ("preflight.pings", "{}", "unknown key"),
]


@pytest.mark.parametrize(("key", "value", "message"), REFUSED)
def test_impossible_values_are_refused_in_one_line(
    tmp_path: Path, key: str, value: str, message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        changed(tmp_path, {f"criteria.{key}": value})
    text = str(refused.value)
    assert message in text
    assert f"criteria.{key.partition('.')[0]}" in text
    assert "\n" not in text


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"accelerators.per_node": "8"}, "criteria: scaling.compute: 0.6 s"),
        ({"scheduler": "{kind: pbs}", "criteria.scaling": ""}, "scheduler.kind: 'pbs'"),
        ({"scheduler": "{kind: kubernetes}"}, "scheduler: kind kubernetes without engine;"),
        ({"scheduler": "{kind: kubernetes, engine: kueue}"}, "scheduler: engine kueue without"),
        (
            {"scheduler": "{kind: kubernetes, engine: native, names: {partition: gpu}}"},
            "scheduler: names: not with kind kubernetes; accepted: namespace, queue",
        ),
        ({"scheduler": "{kind: slurm, queue: gpu}"}, "scheduler: queue: not with kind slurm;"),
        (
            {"accelerators.per_node": "4", "accelerators.domain": "{gpus: 6}"},
            "accelerators.domain: gpus: 6 with accelerators.per_node 4; accepted: a multiple of",
        ),
        (
            {"accelerators.domain": "{gpus: 72, bandwidth: 900 Gbit/s}"},
            "domain.bandwidth: '900 Gbit/s' is in bits a second; accepted: bytes a second, such",
        ),
        ({"topology.sockets": "1"}, "topology.sockets: 1; accepted: a number of 2 or more"),
        ({"topology.fabric_socket": "2"}, "topology.fabric_socket: socket 2 of 2; accepted"),
        ({"topology.accelerator_sockets": "[0, 5]"}, "accelerator_sockets: socket 5 of 2"),
        ({"topology.accelerator_sockets": "[]"}, "topology.accelerator_sockets: []; accepted"),
    ],
)
def test_promises_beyond_the_cluster_are_refused(
    tmp_path: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(SpecError) as refused:
        changed(tmp_path, changes)
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_gang_needs_a_scheduler(tmp_path: Path) -> None:
    assert changed(tmp_path, {"criteria.gang": "{}"}).promised("gang")
    with pytest.raises(SpecError, match=r"criteria: gang: promised without a scheduler; accepted"):
        changed(tmp_path, {"criteria": "{gang: {}}"})
